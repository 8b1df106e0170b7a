"""Tables on standard output: whole where a terminal is 80 columns wide, for any game."""

import json
from pathlib import Path

import pytest

from spag.algorithms.spag import RewardSettings, RewardStats, Template, iterate_rewards
from spag.cli.tables import print_arena, print_game, print_outcomes
from spag.core.episodes import Episode, PlayerInfo
from spag.core.types import Result, Split
from spag.engines.base import Sampling
from spag.engines.bot import BotEngine
from spag.evaluation.arena.games import arena_report
from spag.games import get
from spag.rollout.matchmaking import match_specs, pairings
from spag.rollout.runner import Player, play
from taboo_games import TABOO, episode_of

NAMES = ("base", "imitation", "iteration-1")
RATE = {"count": 11, "total": 32, "rate": 0.34, "low": 0.17, "high": 0.57}
FIGURES = ("win", "tie", "violation", "other_violation", "loss", "empty", "guess", "guessed_right")


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    return lines


def test_the_rates_of_a_run_stand_whole_in_eighty_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = dict.fromkeys(FIGURES, RATE)
    roles = [{"name": name, "role": role, "games": 32, **rates} for role in TABOO.roles for name in NAMES]
    score = {"mean": -0.16, "low": -0.28, "high": 0.0, "p_value": 0.0004}
    pair = {"players": ["base", "iteration-1"], "games": 32, "wins": [2, 5], "undecided": 25, "score": score}
    other = {**pair, "players": ["imitation", "iteration-1"], "score": None}
    (tmp_path / "results.json").write_text(json.dumps({"roles": roles, "pairs": [pair, other]}))
    print_arena(tmp_path / "results.json")
    lines = shown(capsys)
    assert [line.split() for line in lines[-3:-1]] == [
        ["iteration-1", "–", "base", "32", "5", "–", "2", "25", "+16", "[0,", "+28]", "<0.001"],
        ["iteration-1", "–", "imitation", "32", "5", "–", "2", "25", "–", "–"],
    ]
    for name in NAMES:
        whole = [line.split()[1:] for line in lines if line.strip().startswith(f"{name} ") and "–" not in line]
        assert whole[:2] == [["34", "(17-57)"] * 4, ["34", "(17-57)"] * 5]
    headers = [line.split()[1:] for line in lines if line.startswith(" player ")]
    assert headers[:2] == [["wins", "ties", "breaks", "the", "rules", "loses"], ["wins", "ties", "loses", "guess", "of", "these", "right"]]


@pytest.mark.parametrize("name", ["adversarial_taboo", "kuhn_poker", "tic_tac_toe", "twenty_questions", "guess_my_city"])
def test_every_game_has_its_tables(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    game = TABOO if name == TABOO.name else get(name)
    players = {f"iteration-{number}": Player(BotEngine(lambda *_: "[1] [bet] no"), "", Sampling()) for number in range(3)}
    games: list[Episode] = []
    for pairing in pairings(list(players)):
        specs = match_specs(pairing, game.tasks(Split.HELD_OUT, 3, 0), 0)
        by_role = {role: Player(players[one].engine, one, Sampling()) for role, one in zip(game.roles, pairing.players, strict=True)}
        games += play(specs, by_role, game=game)
    yardsticks = {"iteration-0": {"legal_mass": 0.5}, "iteration-1": {"legal_mass": 0.25, "exploitability": 0.125}}
    (tmp_path / "results.json").write_text(json.dumps({**arena_report(games, game), "yardsticks": yardsticks}))
    print_arena(tmp_path / "results.json")
    text = " ".join(" ".join(shown(capsys)).split())
    assert "% " + " / ".join(outcome.label for outcome in game.outcomes.values()) in text
    assert f"As {game.roles[1]} (tasks of the held-out split" in text
    assert ("Elo rating" in text) == any(len(outcome.winners) == 1 for outcome in game.outcomes.values())
    assert text.endswith("player legal mass exploitability " + "─" * 39 + " iteration-0 0.500 - iteration-1 0.250 0.125")
    stats = RewardStats()
    samples = list(iterate_rewards(games, game, RewardSettings(template=Template.PLAY), stats=stats))
    print_outcomes(game, stats)
    counts = {line.rpartition("  ")[0].strip(): line for line in shown(capsys)}
    assert any(line.startswith(f"{len(samples)} samples of ") for line in counts.values())
    assert "18 games" in next(iter(counts.values()))
    assert len([line for line in counts.values() if "%" in line]) == len(game.outcomes)


def test_a_game_is_shown_to_the_judged_end_and_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    episode = episode_of("riv\x1ber", "[bold]Hi\x1b[2J", "It is\nwet.", "never judged", players={"attacker": PlayerInfo("m")})
    print_game(TABOO, episode, Result("tie", {}, 2, "no\x07thing was decided"))
    assert [line.rstrip() for line in shown(capsys)] == [
        "Adversarial Taboo: riv\N{REPLACEMENT CHARACTER}er",
        "attacker  [bold]Hi\N{REPLACEMENT CHARACTER}[2J",
        "defender  It is",
        "wet.",
        "  verdict  tie: no\N{REPLACEMENT CHARACTER}thing was decided",
        "",
    ]
