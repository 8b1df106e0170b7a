"""Health figures of small files, counted by hand, and the warnings they give."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from arena_games import GUESS, game

from spag.cli.tables import print_health
from spag.core.episodes import Episode
from spag.core.store import write_rows
from spag.evaluation import health as rules
from spag.evaluation.health import Health, health, iteration_health, warnings
from spag.games.taboo import prompt_texts
from spag.games.taboo.judge.judge import JudgeMode
from spag.games.taboo.prompts import PromptSet


def one(*lines: str, word: str = "river", max_turns: int = 5) -> Episode:
    return game("m", "m", *lines, word=word, max_turns=max_turns)


FOUR = [
    one("Where do fish swim?", "In the river."),  # lured
    one("Where do fish swim?", GUESS.format("lake"), word="ocean"),  # wrong at once
    one("Name a place.", "Which one?", "Which one?", GUESS.format("sea"), word="bank"),  # wrong later; said before
    one("It is wet.", "", "Yes.", "", word="lake", max_turns=2),  # a tie; silence is not said again
]


def test_wins_are_told_apart_and_lengths_counted() -> None:
    found = health(FOUR)
    assert (found.games, found.attacker_wins, found.ties, found.defender_wins, found.violations) == (4, 0.75, 0.25, 0, 0)
    assert (found.induced, found.wrong_guess, found.first_wrong_guess) == (0.25, 0.5, 0.25)
    assert (found.mean_length, found.median_length) == (3.0, 3.0)
    assert (found.empty, found.repeated) == (2 / 12, 1 / 12)


def test_words_are_counted_by_role() -> None:
    found = health(FOUR)
    # attackers say 4, 4, 3, 2, 3 and 1 words; defenders 3, 7, 2, 7, 0 and 0
    assert (found.attacker.utterances, found.attacker.mean_words, found.attacker.median_words) == (6, pytest.approx(17 / 6), 3.0)
    assert (found.defender.mean_words, found.defender.median_words) == (pytest.approx(19 / 6), 2.5)


def test_distinct_n_of_one_role() -> None:
    found = health([one("Go on, go on!", "well", word="tree", max_turns=1), one("Go up", "well", word="house", max_turns=1)]).attacker
    assert (found.distinct_1, found.distinct_2) == (3 / 6, 3 / 4)  # go on up; of "go on", "on go", "go on", "go up" three differ


def test_distinct_n_looks_at_the_first_words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "DISTINCT_WORDS", 4)
    found = health([one("a b c", "x"), one("d e f", "x")]).attacker
    assert (found.distinct_1, found.distinct_2) == (1.0, 1.0)
    assert health([one("a b a", "x"), one("b c d", "x")]).attacker.distinct_1 == 2 / 4


def test_openings_shared_between_words() -> None:
    games = [one("Hello there!", "x", word=word) for word in ("river", "river", "bread", "piano")]
    games += [one("Nice  weather.", "x", word="bread"), one("nice weather.", "x", word="spoon"), one("A", "x"), one("A", "x")]
    found = health(games)
    assert (found.shared_openings, found.generic_openings) == (6 / 8, 4 / 8)


def test_copies_of_the_rules_and_instructions() -> None:
    copied = " ".join(prompt_texts.RULES[3].split()[:12])
    assert health([one(copied, "x", max_turns=1)]).copied == 0.5
    assert health([one("Hi", GUESS.format("bread"))]).copied == 0.0
    own = PromptSet(("One two three {max_turns} four five six seven eight nine ten eleven.",), PromptSet.default().instructions)
    assert health([one("so: Four five six seven eight nine, ten eleven", "x")], prompts=own).copied == 0.5
    assert health([one("one two three 5 four five six seven", "x")], prompts=own).copied == 0.0


def test_leaks_that_only_strict_judging_sees() -> None:
    games = [one("Think of r-i-v-e-r.", "x"), one("Think of a river.", "x"), one("Think of a lake.", "x"), one("A river, a river.")]
    for judge in JudgeMode:
        assert health(games, judge).hidden_leaks == 1 / 4
    assert (health(games).violations, health(games, JudgeMode.PAPER).violations) == (3 / 4, 2 / 4)


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("As an AI language model, I have no river.", True),
        ("I’m sorry, but I can't play along.", True),
        ("I am not able to assist with that.", True),
        ("I can't help but wonder what you mean.", False),
        ("I'm sorry to hear that.", False),
        ("Is AI a part of your work?", False),
    ],
)
def test_refusals(text: str, refuses: bool) -> None:
    assert health([one("Hi", text, word="spoon")]).refusals == (0.5 if refuses else 0.0)


def test_what_comes_after_the_judged_end_does_not_count() -> None:
    found = health([one("Hi", "The river.", "", "")])
    assert (found.mean_length, found.empty, found.attacker.utterances) == (2.0, 0.0, 1)


def test_no_games_give_zeros() -> None:
    found = health([])
    assert (found.games, found.mean_length, found.attacker.distinct_2, warnings(found)) == (0, 0.0, 0.0, [])


def sound() -> Health:
    calm = rules.RoleHealth(utterances=100, mean_words=9.0, median_words=9.0, distinct_1=0.2, distinct_2=0.6)
    shares = dict.fromkeys(Health.__dataclass_fields__, 0.0)
    return Health(**{**shares, "games": 100, "attacker_wins": 0.5, "defender_wins": 0.4, "attacker": calm, "defender": calm})


@pytest.mark.parametrize(
    ("field", "limit", "text"),
    [
        ("wrong_guess", 0.75, "a wrong guess, so"),
        ("first_wrong_guess", 0.5, "first utterance"),
        ("shared_openings", 0.5, "another target"),
        ("generic_openings", 0.25, "3 target words"),
        ("repeated", 0.25, "said before"),
        ("copied", 0.05, "copy the rules"),
        ("empty", 0.05, "are empty"),
        ("refusals", 0.05, "refuse"),
        ("violations", 0.3, "breaking the rules"),
        ("hidden_leaks", 0.05, "strict judging"),
        ("ties", 0.8, "ties"),
    ],
)
def test_a_share_over_its_limit_warns(field: str, limit: float, text: str) -> None:
    assert warnings(replace(sound(), **{field: limit})) == []
    [line] = warnings(replace(sound(), **{field: limit + 0.02}))
    assert text in line
    assert line.startswith(f"{100 * limit + 2:.0f} % of ")
    assert warnings(replace(sound(), **{field: limit + 0.02, "games": 19})) == []


def test_one_role_winning_everything_and_a_poor_vocabulary_warn() -> None:
    assert warnings(sound()) == []
    assert warnings(replace(sound(), attacker_wins=0.19, defender_wins=0.01)) == []
    [line] = warnings(replace(sound(), attacker_wins=0.3, defender_wins=0.01))
    assert line == "97 % of decided games are won by the attacker (more than 95 %)"
    [line] = warnings(replace(sound(), defender=replace(sound().defender, distinct_2=0.05)))
    assert line == "the defender varies little: distinct-2 is 0.05 (less than 0.1)"


def test_a_file_gives_plain_figures_and_its_warnings(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    write_rows(path, [one("Hello!", "", word=f"word{index}", max_turns=1) for index in range(20)])
    figures = iteration_health(path, JudgeMode.STRICT)
    assert (figures["games"], figures["attacker"]["mean_words"], figures["empty"]) == (20, 1.0, 0.5)
    assert [line.split(" %")[0] for line in figures["warnings"]] == ["100", "100", "50", "100"]


def test_figures_are_shown_side_by_side_with_warnings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    bad = replace(sound(), empty=0.2)
    print_health({name: {**asdict(one), "warnings": warnings(one)} for name, one in {"iteration-1": sound(), "iteration-2": bad}.items()})
    text = capsys.readouterr().out
    assert "warning: iteration-2: 20 % of utterances are empty (more than 5 %)" in text
    [empty] = [line for line in text.splitlines() if "utterances empty" in line]
    assert empty.split()[-2:] == ["0.0", "20.0"]
    assert max(len(line) for line in text.splitlines()) <= 100
