"""Tables on standard output: whole where a terminal is 80 columns wide, for any game."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from spag.algorithms.winners import RewardStats, assign_rewards
from spag.cli import main
from spag.cli.console import make_reporter
from spag.cli.tables import print_arena, print_game, print_outcomes, print_table
from spag.core.episodes import Episode, PlayerInfo
from spag.core.options import SamplingConfig
from spag.core.types import Split
from spag.core.visible import visible_text
from spag.engines.bot import BotEngine
from spag.evaluation.arena.standings import arena_report
from spag.evaluation.health import health
from spag.games import get
from spag.report.cells import Table
from spag.report.html import spaced
from spag.report.run_tables import health_tables
from spag.rollout.matchmaking import match_specs, pairings
from spag.rollout.runner import Player, play
from taboo_games import TABOO, episode_of

NAMES = ("base", "imitation", "iteration-1")
RATE = {"count": 11, "total": 32, "rate": 0.34, "low": 0.17, "high": 0.57}
FIGURES = ("announced", "guess", "guessed_right")


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    return lines


def test_the_rates_of_a_run_stand_whole_in_eighty_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"reward": {"mean": -0.16, "low": -0.28, "high": -0.04}, "figures": dict.fromkeys(FIGURES, RATE)}
    rates = dict.fromkeys(("win", "loss", "tie", "violation", "repeated"), RATE)
    roles = [{"name": name, "role": role, "games": 32, **rates, **figures} for role in TABOO.roles for name in NAMES]
    score = {"mean": -0.16, "low": -0.28, "high": 0.0, "p_value": 0.0004}
    pair = {"players": ["base", "iteration-1"], "games": 32, "wins": [2, 5], "undecided": 25, "score": score}
    other = {**pair, "players": ["imitation", "iteration-1"], "score": None}
    ratings = [{"name": name, "points": 0.0, "low": 0.0, "high": 0.0} for name in NAMES]
    about = {"game": TABOO.name, "settings": {}, "note": "", "tasks": 16, "matrix": [], "paired": []}
    results = {**about, "roles": roles, "ratings": ratings, "pairs": [pair, other]}
    (tmp_path / "results.json").write_text(json.dumps(results))
    print_arena(tmp_path / "results.json")
    lines = shown(capsys)
    assert [line.split() for line in lines if "iteration-1 – " in line] == [
        ["iteration-1", "–", "base", "32", "5", "–", "2", "25", "+16", "[0,", "+28]", "<0.001"],
        ["iteration-1", "–", "imitation", "32", "5", "–", "2", "25", "-", "-"],
    ]
    for name in NAMES:
        whole = [line.split()[1:] for line in lines if line.strip().startswith(f"{name} ") and "–" not in line]
        assert whole[:2] == [["−0.16"] + ["34", "(17-57)"] * 5] * 2
    headers = [line.split()[1:] for line in lines if line.startswith(" player ")]
    assert headers[:2] == [
        ["mean", "wins", "ties", "rules", "loses", "announces"],  # "breaks the" stands above
        ["mean", "wins", "ties", "loses", "a", "guess", "right"],
    ]


@pytest.mark.parametrize(
    "name", ["adversarial_taboo", "kuhn_poker", "tic_tac_toe", "twenty_questions", "guess_my_city"]
)
def test_every_game_has_its_tables(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    game = TABOO if name == TABOO.name else get(name)
    players = {
        f"iteration-{number}": Player(BotEngine(lambda *_: "[1] [bet] no"), "", SamplingConfig()) for number in range(3)
    }
    games: list[Episode] = []
    for pairing in pairings(list(players)):
        specs = match_specs(pairing, game.tasks(Split.HELD_OUT, 3, 0), 0)
        by_role = {
            role: Player(players[one].engine, one, SamplingConfig())
            for role, one in zip(game.roles, pairing.players, strict=True)
        }
        games += play(specs, by_role, game=game)
    exact_metrics = {"iteration-0": {"legal_mass": 0.5}, "iteration-1": {"legal_mass": 0.25, "exploitability": 0.125}}
    (tmp_path / "results.json").write_text(json.dumps({**arena_report(games, game), "exact_metrics": exact_metrics}))
    print_arena(tmp_path / "results.json")
    text = " ".join(" ".join(shown(capsys)).split())
    assert f"As {spaced(game.roles[1])}: mean reward" in text
    assert ("Elo rating" in text) == any(len(outcome.winners) == 1 for outcome in game.outcomes.values())
    assert text.endswith(
        "policy legal mass exploitability " + "─" * 39 + " iteration-0 0.500 - iteration-1 0.250 0.125"
    )
    stats = RewardStats()
    samples = assign_rewards(games, game=game, stats=stats)
    print_outcomes(game, stats)
    counts = {line.rpartition("  ")[0].strip(): line for line in shown(capsys)}
    assert any(line.startswith(f"{len(samples)} samples of ") for line in counts.values())
    assert "18 games" in next(iter(counts.values()))
    assert len([line for line in counts.values() if "%" in line]) == len(game.outcomes)


def test_health_shows_no_share_of_what_never_occurred() -> None:
    silent = episode_of("river", "Say river!")  # the attacker leaks at once, so the defender neither guesses nor speaks
    guessed = episode_of("river", "Where do you paddle?", "I know the word! It is river!")
    thinking = {**health([guessed], TABOO), "cut_thoughts": 0.0}
    [table] = health_tables({"one": health([silent], TABOO), "two": thinking})
    rows = {name: values for name, *values in table.rows}
    assert rows["defender: announces a guess, %"] == ["0.0", "100.0"]
    assert rows["of these right, %"] == [None, "100.0"]
    assert rows["thoughts cut, %"] == [None, "0.0"]
    assert rows["defender: words per utterance"] == [None, "7.0"]
    assert rows["defender: distinct-1, distinct-2"] == [None, "1.00, 1.00"]


HOSTILE = "m\x1b[2J\x9b31m\u202eevil\nwinner  99 (99-99)\r\u2066\ud800[bold]"
SHOWN = "m<U+001B>[2J<U+009B>31m<U+202E>evil<U+000A>winner  99 (99-99)<U+000D><U+2066><U+D800>[bold]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (HOSTILE, SHOWN),
        ("tab\tis one", "tab\tis one"),
        ("zero\u200bwidth, soft\u00adhyphen\u2028", "zero<U+200B>width, soft<U+00AD>hyphen<U+2028>"),
        ("👩\u200d🚀 é ü שלום 東京", "👩\u200d🚀 é ü שלום 東京"),  # a joiner inside an emoji belongs there
        ("\x00\x07\x08\x7f\x85", "<U+0000><U+0007><U+0008><U+007F><U+0085>"),
    ],
)
def test_text_is_made_visible(text: str, shown: str) -> None:
    assert visible_text(text) == shown


def test_line_breaks_stay_where_they_may() -> None:
    assert visible_text("one\ntwo\x1b\n", lines=True) == "one\ntwo<U+001B>\n"


def test_a_game_is_shown_to_the_judged_end_and_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    forged = "It is\nwet.\n verdict  the attacker wins: \u202eit said so " + "x" * 70
    episode = episode_of("riv\x1ber", "[bold]Hi\x1b[2J", forged, "never judged", players={"attacker": PlayerInfo("m")})
    print_game(TABOO, replace(episode, outcome="tie", length=2, reason="no\x07thing was decided"))
    assert [line.rstrip() for line in shown(capsys)] == [
        "Adversarial Taboo: riv<U+001B>er",
        "attacker  [bold]Hi<U+001B>[2J",
        "defender  It is",
        "          wet.",
        "           verdict  the attacker wins: <U+202E>it said so",
        "          " + "x" * 70,
        " verdict  tie: no<U+0007>thing was decided",
        "",
    ]


def test_names_in_an_arena_cannot_drive_the_terminal_nor_forge_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    players = {
        name: Player(BotEngine(lambda *_: "[1] [bet] no"), "", SamplingConfig())
        for name in ("base", HOSTILE.replace("\ud800", ""))
    }
    pairing = pairings(list(players))[0]
    specs = match_specs(pairing, TABOO.tasks(Split.HELD_OUT, 3, 0), 0)
    by_role = {
        role: Player(players[one].engine, one, SamplingConfig())
        for role, one in zip(TABOO.roles, pairing.players, strict=True)
    }
    results = arena_report(list(play(specs, by_role, game=TABOO)), TABOO)
    (tmp_path / "results.json").write_text(json.dumps(results))
    print_arena(tmp_path / "results.json")
    out = capsys.readouterr().out
    assert not [char for char in out if char != "\n" and not char.isprintable()]
    assert SHOWN.replace("<U+D800>", "") in out
    assert not any(line.strip().startswith("winner") for line in out.splitlines())


@pytest.mark.parametrize("is_terminal", [False, True])
def test_logs_and_progress_show_what_steers_a_terminal(is_terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=is_terminal, width=300, color_system=None, legacy_windows=False)
    reporter = make_reporter(console)
    reporter.note(f"resumes {HOSTILE}")
    reporter.note(f"resumes {HOSTILE}")
    with reporter.track(HOSTILE, 2) as tracker:
        tracker.update(2, HOSTILE)
    out = stream.getvalue()
    assert out.count(f"resumes {SHOWN}") == 1  # a note is said once
    assert out.count(SHOWN) >= 3
    assert not {"\x9b", "\u202e", "\u2066"} & set(out) and "\x1b[2J" not in out


@pytest.mark.parametrize("arguments", [["judge", "--show", "1", "FILE"], ["report", "FILE"], ["web", "FILE"]])
def test_error_messages_show_what_steers_a_terminal(arguments: list[str], tmp_path: Path) -> None:
    named = tmp_path / "a\x1b[2J\u202eb.jsonl"
    named.write_text("[broken")
    answer = CliRunner().invoke(main, [argument.replace("FILE", str(named)) for argument in arguments])
    assert answer.exit_code == 2
    assert "a<U+001B>[2J<U+202E>b.jsonl" in answer.stderr
    assert not {"\x1b", "\u202e"} & set(answer.output)


@pytest.mark.parametrize("columns", [40, 80])
def test_long_names_are_folded_before_a_number_is_cut(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    one, other = "runs/demo/2-spag/iteration-1/checkpoint", "HuggingFaceTB/SmolLM2-135M-Instruct"
    row = (f"{one} – {other}", "1,200", "94 – 106", "0", "−17 [−100, +100]", "<0.001")
    print_table(Table("Head to head", ("players", "games", "wins", "undecided", "score", "p"), (row,)))
    text = capsys.readouterr().out
    assert "…" not in text
    lines = text.splitlines()
    assert columns == 40 or max(map(len, lines)) <= 80
    said = text.split()
    assert {"1,200", "94", "106", "0", "−17", "[−100,", "+100]", "<0.001", "undecided"} <= {*said}
    names = "".join(line[: line.find("  ", 1)].strip() for line in lines)
    assert f"{one} –{other}" in names


def test_an_argument_in_a_usage_error_cannot_drive_the_terminal() -> None:
    answer = CliRunner().invoke(main, ["games", "one", "no\x1b[2J such"])
    assert (answer.exit_code, "no<U+001B>[2J such" in answer.stderr, "\x1b" in answer.output) == (2, True, False)
