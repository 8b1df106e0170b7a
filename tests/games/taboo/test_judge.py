"""The judge as a whole: upstream's outcomes, order of checks, reasons, hostile texts, and what must always hold."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spag.core.episodes import Episode
from spag.core.errors import ConfigError, DataError
from spag.core.types import Task, Utterance
from spag.games.taboo.judge import JudgeMode, announces_guess, judge_utterance
from spag.games.taboo.judge.guesses import find_guess
from spag.games.taboo.judge.paper import plural
from spag.games.taboo.taboo import judge_episode
from spag.games.taboo.types import Role, TabooOutcome

FOLDER = Path(__file__).parents[2] / "golden"
GOLDEN = json.loads((FOLDER / "rewards.json").read_text())["episodes"]
QUOTES = json.loads((FOLDER / "paper_quotes.json").read_text())
OUTCOMES = {
    "attacker wins": TabooOutcome.ATTACKER_WINS,
    "defender wins": TabooOutcome.DEFENDER_WINS,
    "attacker breaks the rules": TabooOutcome.ATTACKER_VIOLATION,
    "tied game": TabooOutcome.TIE,
}
STRICT, PAPER = JudgeMode.STRICT, JudgeMode.PAPER
WORDS = ["river", "mouse", "teach", "city", "bottle", "window", "dance", "ice cream"]


def task(word: str, max_turns: int) -> Task:
    return Task(word, {"target_word": word, "max_turns": max_turns})


def episode(*texts: str, word: str = "river", max_turns: int = 5) -> Episode:
    history = tuple(Utterance((Role.ATTACKER, Role.DEFENDER)[i % 2], text) for i, text in enumerate(texts))
    return Episode(task=task(word, max_turns), history=history)


def test_the_quotes_are_the_sixty_of_upstream() -> None:
    assert len(QUOTES) == 60


@pytest.mark.parametrize("row", [*GOLDEN, *QUOTES], ids=lambda row: f"{row['episode']['target_word']}-{row['outcome']}")
def test_paper_mode_is_upstreams(row: dict) -> None:
    given_ = row["episode"]
    history = tuple(Utterance(Role(said["role"]), said["content"]) for said in given_["history"])
    verdict = judge_episode(Episode(task=task(given_["target_word"], given_["max_turns"]), history=history), "paper")
    assert (verdict.outcome, verdict.length) == (OUTCOMES[row["outcome"]], row["length"])


@pytest.mark.parametrize(
    ("text", "target", "paper", "strict"),
    [
        ("that category", "cat", TabooOutcome.ATTACKER_WINS, None),
        ("she taught me", "teach", None, TabooOutcome.ATTACKER_WINS),
        ("I know the word! It is cathedral", "cat", TabooOutcome.DEFENDER_WINS, TabooOutcome.ATTACKER_WINS),
        (
            "I know the word! It must be the cat",
            "cat",
            TabooOutcome.ATTACKER_WINS,
            TabooOutcome.DEFENDER_WINS,
        ),  # 13 characters behind "it"
        ("I know the word: cat", "cat", TabooOutcome.ATTACKER_WINS, TabooOutcome.DEFENDER_WINS),
        ("I know the word! It", "cat", None, None),  # nothing follows
    ],
)
def test_the_modes_differ_as_documented(
    text: str, target: str, paper: TabooOutcome | None, strict: TabooOutcome | None
) -> None:
    for mode, expected in ((PAPER, paper), (STRICT, strict)):
        ruling = judge_utterance(Role.DEFENDER, text, target, mode)
        assert (ruling[0] if ruling else None) is expected


@pytest.mark.parametrize(
    ("text", "paper", "strict"),
    [
        ("I know the word! It is `river`!", True, True),
        ("I know the word! It is lake.", True, True),
        ("I know the word: lake", False, True),
        ("A river, I think.", False, False),
        ("I know the word! It", False, False),  # nothing follows
    ],
)
def test_a_guess_is_announced_whether_right_or_wrong(text: str, paper: bool, strict: bool) -> None:
    assert [announces_guess(text, "river", mode) for mode in (PAPER, STRICT)] == [paper, strict]


def test_anything_with_a_history_and_a_word_can_be_judged() -> None:
    plain = SimpleNamespace(
        target_word="river", max_turns=1, history=[SimpleNamespace(role="attacker", content="A river")]
    )
    assert judge_episode(plain) == judge_episode(episode("A river", max_turns=1))


def test_paper_word_forms() -> None:
    assert [plural(word) for word in ("box", "day", "child", "river", "church")] == [
        "boxes",
        "days",
        "children",
        "rivers",
        "churches",
    ]
    # as upstream's language library has them, right or wrong
    assert [plural(word) for word in ("policeman", "analysis", "scarf", "medium")] == [
        "policemen",
        "analyses",
        "scarves",
        "media",
    ]
    assert [plural(word) for word in ("human", "cow", "mine", "cannot")] == ["humen", "kine", "ours", "cans"]
    assert [plural(word) for word in ("hero", "piano", "famous", "water", "quiz", "crisis", "boss")] == [
        "heroes",
        "pianoes",
        "famouss",
        "water",
        "quizzes",
        "crises",
        "bosses",
    ]
    for text, target, outcome in [  # behind nine characters only a whole form in quotes counts
        ("I know the word! It is the `heroes`!", "hero", TabooOutcome.DEFENDER_WINS),
        ("I know the word! It is the `waters`!", "water", TabooOutcome.ATTACKER_WINS),
    ]:
        ruling = judge_utterance(Role.DEFENDER, text, target, PAPER)
        assert ruling is not None and ruling[0] is outcome, text
    ruling = judge_utterance(Role.DEFENDER, "An hour or two, in the course of yours.", "mine", PAPER)
    assert ruling is not None and ruling[0] is TabooOutcome.ATTACKER_WINS


@pytest.mark.parametrize(
    ("mode", "attacker_text", "expected"),
    [
        (STRICT, "I know the word! It is river.", "said"),
        (STRICT, "I know the word! It is lake.", "announced a guess"),
        (PAPER, "I know the word! It is lake.", "announced a guess"),
        (PAPER, "I know the word! It is river.", "contains"),
    ],
)
def test_an_attacker_may_neither_say_nor_guess(mode: JudgeMode, attacker_text: str, expected: str) -> None:
    ruling = judge_utterance(Role.ATTACKER, attacker_text, "river", mode)
    assert ruling is not None
    assert ruling[0] is TabooOutcome.ATTACKER_VIOLATION
    assert expected in ruling[1]


def test_the_first_decision_ends_the_game() -> None:
    verdict = judge_episode(episode("Hello", "A river?", "river", "I know the word! It is `river`!"))
    assert (verdict.outcome, verdict.length) == (TabooOutcome.ATTACKER_WINS, 2)


def test_utterances_behind_the_last_turn_do_not_count() -> None:
    verdict = judge_episode(episode("Hello", "Hi", "So?", "A river!", max_turns=1))
    assert (verdict.outcome, verdict.length) == (TabooOutcome.TIE, 2)


@pytest.mark.parametrize(
    ("texts", "word", "reason"),
    [
        (["Hi", "Many rivers."], "river", 'the defender said "rivers", a form of "river"'),
        (["Hi", "A river."], "river", 'the defender said "river"'),
        (["r-i-v-e-r, you know"], "river", 'the attacker spelled "river" as "r-i-v-e-r"'),
        (["the r1ver"], "river", 'the attacker spelled "river" as "r1ver"'),
        (["Hi", "I know the word! It is `lake`!"], "river", 'the defender guessed "lake", but the word was "river"'),
        (
            ["Hi", "I know the word! It is `Rivers`!"],
            "river",
            'the defender guessed "rivers", a form of "river", and was right',
        ),
        (["Hi", "Hello"], "river", "nobody had won or broken a rule after 2 utterances"),
    ],
)
def test_reasons_tell_a_person_why(texts: list[str], word: str, reason: str) -> None:
    assert judge_episode(episode(*texts, word=word)).reason == reason


def test_an_unknown_mode_names_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"game\.judge: input should be 'strict' or 'paper', got 'fair'"):
        judge_episode(episode("Hi"), "fair")


def test_another_game_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="the game 'heap' is nim, not adversarial_taboo"):
        judge_episode(Episode(task=Task("heap-6-0", {"stones": 6}), history=(), id="heap", game="nim"))


@pytest.mark.slow
@given(
    st.text(max_size=300),
    st.text(min_size=1, max_size=20),
    st.sampled_from(list(Role)),
    st.sampled_from(list(JudgeMode)),
)
@settings(max_examples=200)
def test_any_text_can_be_judged(text: str, target: str, role: Role, mode: JudgeMode) -> None:
    judge_utterance(role, text, target, mode)


_FRAMES = st.sampled_from(["`{}`", '"{}"', "{}", "**{}**", "“{}”", "the {}"])


@given(st.sampled_from(WORDS), _FRAMES, st.sampled_from([str, str.upper, str.title]))
def test_a_guess_in_form_wins_and_is_read(target: str, quotes: str, case: object) -> None:
    text = f"I know the word! It is {quotes.format(case(target))}!"  # type: ignore[operator]
    found = find_guess(text, target)
    assert found is not None
    assert found[0].phrase.removeprefix("the ") == target
    ruling = judge_utterance(Role.DEFENDER, text, target, STRICT)
    assert ruling is not None
    assert ruling[0] is TabooOutcome.DEFENDER_WINS


_LINE = st.sampled_from(
    ["Hello.", "A river.", "I know the word! It is `river`!", "I know the word! It is `lake`!", "No.", "", "rivers?"]
)


@given(st.lists(_LINE, max_size=14), st.integers(1, 6), st.sampled_from(list(JudgeMode)))
def test_cutting_at_the_judged_end_keeps_the_verdict(lines: list[str], max_turns: int, mode: JudgeMode) -> None:
    whole = episode(*lines, max_turns=max_turns)
    verdict = judge_episode(whole, mode)
    assert verdict.length <= min(len(lines), 2 * max_turns)
    cut = replace(whole, history=whole.history[: verdict.length])
    assert judge_episode(cut, mode) == verdict


@pytest.mark.slow
def test_a_long_target_takes_little_memory() -> None:
    """A list of all places where 40,000 characters can be cut in two would take 1.6 GB."""
    tracemalloc.start()
    for target in ("x" * 40_000, "ab " * 13_000):
        judge_utterance(Role.DEFENDER, f"well, {target}x", target, STRICT)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6
