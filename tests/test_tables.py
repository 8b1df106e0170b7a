"""Tables on standard output: nothing is cut where a terminal is 80 columns wide."""

import json
from pathlib import Path

import pytest

from spag.cli.tables import print_arena

NAMES = ("base", "imitation", "iteration-1")
RATE = {"rate": 0.34, "low": 0.17, "high": 0.57, "total": 32}
FIGURES = ("win", "tie", "violation", "loss", "empty", "guess", "guessed_right")


def test_the_rates_of_a_run_stand_whole_in_eighty_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rates = dict.fromkeys(FIGURES, RATE)
    roles = [{"name": name, "role": role, "games": 32, **rates} for role in ("attacker", "defender") for name in NAMES]
    score = {"mean": -0.16, "low": -0.28, "high": 0.0, "p_value": 0.0004}
    pair = {"players": ["base", "iteration-1"], "games": 32, "wins": [2, 5], "undecided": 25, "score": score}
    (tmp_path / "results.json").write_text(json.dumps({"roles": roles, "pairs": [pair]}))
    print_arena(tmp_path / "results.json")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    assert lines[-2].split() == ["base", "-", "iteration-1", "32", "2", "5", "25", "-16", "(-28", "to", "+0)", "<0.001"]
    for name in NAMES:
        whole = [line.split()[1:] for line in lines if line.strip().startswith(f"{name} ") and "-" not in line.split()[1]]
        assert whole[:2] == [["32", *["34", "(17-57)"] * 5]] * 2
