"""Whole games, line by line: every file under tests/golden/playthroughs is replayed.

A file names the game, its seed, its task and, where they are not the defaults, its settings; then come the utterances,
one a line (a line break within one is written ``\\n``, a backslash ``\\\\``), and behind ``=`` how the game ends:

    game: kuhn_poker
    seed: 0
    task: {"id":"train-0000-JQ","data":{"player_0":"J","player_1":"Q"}}
    player_0> I have a good feeling. [bet]
    player_1> [fold]
    = player_0_wins | player_1 folded | {"player_0": 1.0, "player_1": -1.0}

``python tests/games/test_playthroughs.py --write`` writes the last lines anew; review the difference.
"""

import json
import sys
from pathlib import Path

import msgspec
import pytest

from spag.core.types import State, Task, Utterance
from spag.games import get
from spag.games.registry import SHIPPED

FOLDER = Path(__file__).parent.parent / "golden" / "playthroughs"
FILES = sorted(FOLDER.glob("*/*.txt"))


def replay(path: Path) -> tuple[list[str], str]:
    """Return the lines up to the end of the game, and the line that says how it ends."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("= ")]
    header = dict(line.split(": ", 1) for line in lines if "> " not in line.split(": ")[0])
    game = get(header["game"], **json.loads(header.get("settings", "{}")))
    state = game.start(msgspec.json.decode(header["task"], type=Task), int(header["seed"]))
    for line in lines[len(header) :]:
        role, text = line.split("> ", 1)
        assert state.result is None, f"{path}: the game is over before {line!r}"
        state = game.apply(state, Utterance(role, text.encode("latin-1", "backslashreplace").decode("unicode_escape")))
    assert game.to_move(state) is None, f"{path}: the game is not over"
    replayed = game.replay(state.task, state.history, state.seed)
    assert replayed == game.result(state)
    return lines, ending(state)


def ending(state: State) -> str:
    result = state.result
    assert result is not None
    assert result.length == len(state.history)
    return f"= {result.outcome} | {result.reason} | {json.dumps(dict(result.rewards))}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_playthrough(path: Path) -> None:
    lines, end = replay(path)
    assert path.read_text(encoding="utf-8").splitlines() == [*lines, end]
    assert lines[0] == f"game: {path.parent.name}"


@pytest.mark.parametrize("name", SHIPPED)
def test_there_are_playthroughs(name: str) -> None:
    assert len([path for path in FILES if path.parent.name == name]) >= 3


if __name__ == "__main__" and "--write" in sys.argv:
    for file in FILES:
        played, last = replay(file)
        file.write_text("\n".join([*played, last, ""]), encoding="utf-8")
