"""Health figures of small files, counted by hand, and the warnings they give."""

import json
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from arena_games import FOUL, GUESS, HANDSHAKE, LOSS, TIE, WIN, Handshake, game, shake

from spag.cli.tables import print_health
from spag.core.episodes import Episode
from spag.core.options import SamplingConfig
from spag.core.types import Split
from spag.engines.base import Player
from spag.engines.bot import BotEngine
from spag.evaluation import health as rules
from spag.evaluation.warnings import health_warnings
from spag.games import get
from spag.games.base import Game
from spag.games.taboo.promptfile import save_prompts
from spag.games.taboo.prompts import PromptSet
from spag.games.taboo.taboo import AdversarialTaboo
from spag.rollout.runner import game_specs, play
from taboo_games import TABOO

Figures = dict[str, Any]


def one(*lines: str, word: str = "river", max_turns: int = 5) -> Episode:
    return game("m", "m", *lines, word=word, max_turns=max_turns)


def health(episodes: list[Episode], of: Game = TABOO) -> Figures:
    return rules.health(episodes, of)


FOUR = [
    one("Where do fish swim?", "In the river."),  # lured
    one("Where do fish swim?", GUESS.format("lake"), word="ocean"),  # wrong at once
    one("Name a place.", "Which one?", "Which one?", GUESS.format("sea"), word="bank"),  # wrong later; said before
    one("It is wet.", "", "Yes.", "", word="lake", max_turns=2),  # a tie; silence is not said again
]


def test_wins_are_told_apart_and_lengths_counted() -> None:
    found = health(FOUR)
    assert (found["games"], found["outcomes"]) == (4, {WIN: 0.75, LOSS: 0, FOUL: 0, TIE: 0.25})
    assert [found["figures"][name] for name in ("induced", "wrong_guess", "first_wrong_guess", "guess")] == [
        0.25,
        0.5,
        0.25,
        0.5,
    ]
    assert found["mean_length"] == 3.0
    assert (found["empty"], found["repeated"]) == (2 / 12, 1 / 12)


def test_words_are_counted_by_role() -> None:
    attacker, defender = health(FOUR)["roles"].values()
    # attackers say 4, 4, 3, 2, 3 and 1 words; defenders 3, 7, 2, 7, 0 and 0
    assert (attacker["utterances"], attacker["mean_words"]) == (6, pytest.approx(17 / 6))
    assert defender["mean_words"] == pytest.approx(19 / 6)


def attacker_of(episodes: list[Episode]) -> Figures:
    return dict(health(episodes)["roles"]["attacker"])


def test_distinct_n_of_one_role() -> None:
    found = attacker_of(
        [one("Go on, go on!", "well", word="tree", max_turns=1), one("Go up", "well", word="house", max_turns=1)]
    )
    assert (found["distinct_1"], found["distinct_2"]) == (
        3 / 6,
        3 / 4,
    )  # go on up; of "go on", "on go", "go on", "go up" three differ


def test_distinct_n_looks_at_the_first_words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "DISTINCT_WORDS", 4)
    found = attacker_of([one("a b c", "x"), one("d e f", "x")])
    assert (found["distinct_1"], found["distinct_2"]) == (1.0, 1.0)
    assert attacker_of([one("a b a", "x"), one("b c d", "x")])["distinct_1"] == 2 / 4


def test_openings_shared_between_tasks() -> None:
    games = [one("Hello there!", "x", word=word) for word in ("river", "river", "bread", "piano")]
    games += [
        one("Nice  weather.", "x", word="bread"),
        one("nice weather.", "x", word="spoon"),
        one("A", "x"),
        one("A", "x"),
    ]
    found = health(games)
    assert (found["shared_openings"], found["generic_openings"]) == (6 / 8, 4 / 8)


def test_copies_of_the_rules_and_instructions(tmp_path: Path) -> None:
    copied = " ".join(PromptSet.default().rules[3].split()[:12])
    assert health([one(copied, "x", max_turns=1)])["copied"] == 0.5
    assert health([one("Hi", GUESS.format("bread"))])["copied"] == 0.0
    rules = "One two three {max_turns} four five six seven eight nine ten eleven."
    prompts = PromptSet(rules=(rules,), instructions=PromptSet.default().instructions)
    save_prompts(prompts, tmp_path / "prompts.json")
    own = get("adversarial_taboo", prompts=str(tmp_path / "prompts.json"))
    assert health([one("so: Four five six seven eight nine, ten eleven", "x")], own)["copied"] == 0.5
    assert health([one("one two three 5 four five six seven", "x")], own)["copied"] == 0.0


def test_leaks_that_only_strict_judging_sees() -> None:
    games = [
        one("Think of r-i-v-e-r.", "x"),
        one("Think of a river.", "x"),
        one("Think of a lake.", "x"),
        one("A river, a river."),
    ]
    for judge, violations in (("strict", 3 / 4), ("paper", 2 / 4)):
        found = health(games, get("adversarial_taboo", judge=judge))
        assert (found["figures"]["hidden_leaks"], found["outcomes"][FOUL]) == (1 / 4, violations)


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
    assert health([one("Hi", text, word="spoon")])["refusals"] == (0.5 if refuses else 0.0)


def test_what_comes_after_the_judged_end_does_not_count() -> None:
    found = health([one("Hi", "The river.", "", "")])
    assert (found["mean_length"], found["empty"], found["roles"]["attacker"]["utterances"]) == (2.0, 0.0, 1)


def test_no_games_give_zeros() -> None:
    found = health([])
    assert (found["games"], found["mean_length"], found["roles"]["attacker"]["distinct_2"], found["warnings"]) == (
        0,
        0.0,
        0.0,
        [],
    )


def with_shares(**shares: float) -> Figures:
    """Figures of sound play, but for these."""
    found = deepcopy(SOUND)
    for name, value in shares.items():
        next(part for part in (found["outcomes"], found["figures"], found) if name in part)[name] = value
    for role, won, lost in zip(TABOO.roles, (WIN, LOSS), (FOUL, None), strict=True):
        found["roles"][role] |= {"win": found["outcomes"][won], "violation": found["outcomes"].get(lost, 0.0)}
    return found


SOUND = health([one("Hi", "A river.")])
SOUND |= {
    "games": 100,
    "outcomes": {WIN: 0.5, LOSS: 0.4, FOUL: 0.0, TIE: 0.0},
    "figures": dict.fromkeys(SOUND["figures"], 0.0),
}
SOUND["roles"] = {role: {**SOUND["roles"]["attacker"], "mean_words": 9.0, "distinct_2": 0.6} for role in TABOO.roles}


@pytest.mark.parametrize(
    ("field", "limit", "text"),
    [
        ("wrong_guess", 0.75, "a wrong guess, so"),
        ("first_wrong_guess", 0.5, "first utterance"),
        ("shared_openings", 0.5, "another task"),
        ("generic_openings", 0.25, "3 tasks"),
        ("repeated", 0.25, "said before"),
        ("copied", 0.05, "copy the rules"),
        ("empty", 0.05, "are empty"),
        ("refusals", 0.05, "refuse"),
        (FOUL, 0.3, "end with the attacker breaking the rules"),
        ("hidden_leaks", 0.05, "strict judging"),
        (TIE, 0.8, "ties"),
    ],
)
def test_a_share_over_its_limit_warns(field: str, limit: float, text: str) -> None:
    assert health_warnings(with_shares(**{field: limit}), TABOO) == []
    [line] = health_warnings(with_shares(**{field: limit + 0.02}), TABOO)
    assert text in line
    assert line.startswith(f"{100 * limit + 2:.0f} % of ")
    assert health_warnings(with_shares(**{field: limit + 0.02, "games": 19}), TABOO) == []


def test_one_role_winning_everything_and_a_poor_vocabulary_warn() -> None:
    assert health_warnings(with_shares(**{WIN: 0.19, LOSS: 0.01}), TABOO) == []
    [line] = health_warnings(with_shares(**{WIN: 0.3, LOSS: 0.01}), TABOO)
    assert line == "97 % of decided games are won by the attacker (more than 95 %)"
    poor = with_shares()
    poor["roles"]["defender"]["distinct_2"] = 0.05
    assert health_warnings(poor, TABOO) == ["the defender varies little: distinct-2 is 0.05 (less than 0.1)"]


def test_figures_of_one_player_leave_its_opponents_play_out() -> None:
    """m attacks twice, once against itself, and defends twice; the other repeats itself and breaks a rule."""
    games = [
        game("m", "m", "Hi", "Hello there, you.", max_turns=1),
        game("m", "other", "Where do fish swim?", "", "Go on", "", word="bread", max_turns=2),
        game("other", "m", "Same old", "What?", "Same old", "Go on", word="piano", max_turns=2),
        game("other", "m", "The spoon", word="spoon"),
    ]
    found, everyone = rules.health(games, TABOO, "m"), health(games)
    attacker, defender = found["roles"].values()
    assert [attacker[key] for key in ("games", "utterances", "violation")] == [2, 3, 0.0]
    assert [defender[key] for key in ("games", "utterances", "violation")] == [3, 3, 0.0]
    assert everyone["roles"]["attacker"]["violation"] == 1 / 4
    assert (found["empty"], found["repeated"]) == (0.0, 0.0)
    assert (everyone["empty"], everyone["repeated"]) == (2 / 11, 1 / 11)
    assert (found["games"], found["outcomes"]) == (4, everyone["outcomes"])  # of games, whoever played them


def test_shares_of_a_players_games_leave_out_those_that_an_opponent_spoiled() -> None:
    hello = game("m", "m", "Hi", "I know the word! It is `bread`!", max_turns=1)
    spoiled = game("other", "m", "The river", word="river")
    assert rules.health([hello, spoiled], TABOO, "m")["figures"]["wrong_guess"] == 1.0
    assert rules.health([hello, spoiled], TABOO)["figures"]["wrong_guess"] == 0.5


def test_an_opponents_illegal_moves_are_not_the_players() -> None:
    nim = get("nim")
    moves = {"me": nim.bots["random"], "foe": lambda observation, rng: "nonsense"}
    games = []
    for names in (("me", "foe"), ("foe", "me")):
        sides = {
            role: Player(BotEngine(moves[name]), name, SamplingConfig())
            for role, name in zip(nim.roles, names, strict=True)
        }
        specs = [replace(one, id=f"{names[0]} {one.id}") for one in game_specs(nim.tasks(Split.TRAIN, 12, 0), 1, 0)]
        games += list(play(specs, sides, game=nim))
    found, foes = rules.health(games, nim, "me"), rules.health(games, nim, "foe")
    assert found["figures"]["illegal"] == 0.0 and not any("illegal" in line for line in found["warnings"])
    assert foes["figures"]["illegal"] > 0.5 and any("illegal" in line for line in foes["warnings"])


def test_figures_come_with_their_warnings_and_are_plain_data() -> None:
    found = health([one("Hello!", "", word=f"word{index}", max_turns=1) for index in range(20)])
    assert (found["games"], found["roles"]["attacker"]["mean_words"], found["empty"]) == (20, 1.0, 0.5)
    assert [line.split(" %")[0] for line in found["warnings"]] == ["100", "100", "50", "100"]
    assert json.loads(json.dumps(found)) == found


def test_roles_of_fixed_form_may_repeat_themselves() -> None:
    # asks say 2, 3, 4 and so on, tells always "7": only what asks say could be a repetition, and what they open with
    found = health([shake("m", "m", "7", f"{number} 7", "7") for number in range(20)], HANDSHAKE)
    assert (found["repeated"], found["outcomes"]["together"], found["warnings"]) == (0.0, 1.0, [])
    assert (found["figures"]["numbers"], found["figures"]["even"]) == (2.0, 10 / 40)
    echo = health([shake("m", "m", "7", "7", "7") for _ in range(20)], HANDSHAKE)
    assert (echo["repeated"], echo["roles"]["tell"]["distinct_1"]) == (0.0, 1 / 20)
    even = health([shake("m", "m", str(number), "2 4", "2") for number in range(20)], HANDSHAKE)
    assert "100 % of numbers are even (more than 50 %)" in even["warnings"]


@dataclass(frozen=True)
class Bracketed(AdversarialTaboo):
    moves_in_brackets: ClassVar[bool] = True


def test_bare_moves_repeat_nothing_in_a_game_that_has_them() -> None:
    moves = [one("[push A1 B2]", "[push A1 B2]", "[push A1 B2]", "[pass]", max_turns=2) for _ in range(20)]
    found = health(moves, Bracketed())
    assert (found["repeated"], found["roles"]["attacker"]["utterances"]) == (0.0, 40)
    assert not any("before" in line or "distinct" in line for line in found["warnings"])
    assert health(moves)["repeated"] == 0.5  # elsewhere a text in brackets is a text
    talk = one("I bet. [bet]", "[call]", *["I bet. [bet]", "[call]"] * 3, max_turns=4)
    assert health([talk], Bracketed())["repeated"] == 3 / 8  # of all utterances


def test_openings_mean_nothing_where_their_speaker_does_not_know_the_task() -> None:
    games = [shake("m", "m", str(number), "5 7", "3") for number in range(20)]
    assert any("open" in line for line in health(games, HANDSHAKE)["warnings"])
    assert not any("open" in line for line in health(games, Blindfolded())["warnings"])


class Blindfolded(Handshake):
    hidden = {"ask": ("number",)}  # noqa: RUF012


def test_figures_are_shown_side_by_side_with_warnings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    bad = with_shares(empty=0.2)
    print_health(
        {
            name: {**one, "warnings": health_warnings(one, TABOO)}
            for name, one in {"iteration-1": SOUND, "iteration-2": bad}.items()
        }
    )
    text = capsys.readouterr().out
    assert "warning: iteration-2: 20 % of utterances are empty (more than 5 %)" in text
    [empty] = [line for line in text.splitlines() if "utterances empty" in line]
    assert empty.split()[-2:] == ["0.0", "20.0"]
    assert max(len(line) for line in text.splitlines()) <= 100
