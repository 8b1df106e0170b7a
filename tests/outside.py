"""Packages of other people, as an installer would leave them in a folder; and the smallest game that one may bring."""

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, name: str, group: str, entries: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Write the modules ``files`` and what names their entry points; ``folder`` must be on the path."""
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    installed = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = "".join(f"{entry} = {target}\n" for entry, target in entries.items())
    (installed / "entry_points.txt").write_text(f"[{group}]\n{lines}")


def install_variety(folder: Path) -> None:
    """Install the game ``variety``, in which any text is legal: an untrained model wins, loses and draws."""
    install(folder, "variety-for-spag", "spag.games", {"variety": "variety:Variety"}, {"variety.py": VARIETY})


VARIETY = '''\
"""Whoever uses more different characters in two utterances wins."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from spag.core.types import Observation, Outcome, Result, Split, State, Task
from spag.games.base import Game, drawn, outcome_map


def random_bot(observation: Observation, rng: random.Random) -> str:
    return "".join(rng.choices("abcdefgh", k=6))


@dataclass(frozen=True)
class Variety(Game):
    name = "variety"
    title = "Variety"
    summary = "more different characters win"
    roles = ("player_0", "player_1")
    role_help = dict.fromkeys(roles, "Say anything.")
    outcomes = outcome_map(
        Outcome("player_0_wins", "player_0 wins", "#0072b2", winners=("player_0",), rule="More characters win."),
        Outcome("player_1_wins", "player_1 wins", "#e69f00", winners=("player_1",), rule="More characters win."),
        Outcome("draw", "draw", "#a3a9b6", rule="Equal numbers are a draw, as is a game cut short."),
    )
    bots = {"random": random_bot}

    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        return drawn([Task(f"{split}-{n}", {"number": n}) for n in range(12)], count, seed, "there are 12")

    def observe(self, state: State, role: str) -> Observation:
        return Observation(role, state.history, {"number": state.task.data["number"]})

    def prompt(self, observation: Observation) -> str:
        said = "".join(f"{one.role}: {one.content}\\n" for one in observation.history)
        return f"Game {observation.facts['number']}\\n{said}{observation.role}:\\n"

    def rule(self, state: State) -> Result | None:
        if len(state.history) < 4:
            return None
        first, second = (len(set("".join(one.content for one in state.history[at::2]))) for at in (0, 1))
        if first == second:
            return self.draw(state)
        winner, loser = self.roles if first > second else self.roles[::-1]
        return self.end(state, f"{winner}_wins", {winner: 1.0, loser: -1.0}, f"{first} characters to {second}")

    def draw(self, state: State) -> Result:
        return self.end(state, "draw", dict.fromkeys(self.roles, 0.0), "nobody used more characters")
'''
