"""Matchmaking: the pairings of an arena and the opponents of self-play.

An arena game's id is ``FIRST vs SECOND: TASK``, the players in the order of the game's roles, and its seed comes from
(run seed, task) alone, so two models with the same replies play the same game.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spag.algorithms.settings import EARLIER, SELF, START
from spag.core.seeds import derive_seed
from spag.core.types import Task
from spag.rollout.runner import GameSpec


@dataclass(frozen=True, slots=True)
class Pairing:
    """The players of a match by name, in the order of the game's roles."""

    players: tuple[str, ...]

    @property
    def title(self) -> str:
        return " vs ".join(self.players)


def pairings(names: Sequence[str]) -> list[Pairing]:
    """Return each pair of different players in both role assignments; any two neighbours in the list share a player."""
    found = []
    for index, one in enumerate(names):
        others = names[index + 1 :]
        for other in others if index % 2 == 0 else reversed(others):
            found += [Pairing((one, other)), Pairing((other, one))]
    return found


def match_specs(pairing: Pairing, tasks: Sequence[Task], seed: int) -> list[GameSpec]:
    """Return the games of one pairing."""
    return [GameSpec(f"{pairing.title}: {task.id}", task, derive_seed(seed, "arena", task.id)) for task in tasks]


def draw_opponents(
    specs: Sequence[GameSpec],
    learner: str,
    weights: Mapping[str, float],
    earlier: Sequence[str],
    start: str | None = None,
) -> dict[Pairing, list[GameSpec]]:
    """Group games by players: ``learner``, in either role, and an opponent, both drawn by the game's own seed, or by
    its ``opponent_seed``, so that the games of a group meet the same one.

    ``weights`` are those of a phase's ``opponents``. ``EARLIER`` stands for one of the names in ``earlier``, and for
    the learner itself while there is none; ``START`` for ``start``, where that is given.
    """
    matches: dict[Pairing, list[GameSpec]] = {}
    names = sorted(weights)
    for spec in specs:
        drawn_by = spec.seed if spec.opponent_seed is None else spec.opponent_seed
        rng = random.Random(derive_seed(drawn_by, "opponent"))
        [opponent] = rng.choices(names, [weights[name] for name in names])
        if opponent == EARLIER:
            opponent = rng.choice(earlier) if earlier else SELF
        elif opponent == START and start is not None:
            opponent = start
        players = [learner, learner if opponent == SELF else opponent]
        rng.shuffle(players)
        matches.setdefault(Pairing(tuple(players)), []).append(spec)
    return matches
