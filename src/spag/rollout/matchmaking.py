"""Matchmaking: the pairings of an arena and the opponents of self-play.

An arena game's id is ``FIRST vs SECOND: TASK``, the players in the order of the game's roles, and its seed comes from
(run seed, task) alone, so two models with equal replies play the same game.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spag.algorithms.settings import SELF
from spag.core.seeds import derive_seed
from spag.core.types import Task
from spag.games.base import Game
from spag.rollout.runner import GameSpec


@dataclass(frozen=True, slots=True)
class Pairing:
    """The players of a match by name, in the order of the game's roles."""

    players: tuple[str, ...]

    @property
    def title(self) -> str:
        return " vs ".join(self.players)

    def by_role(self, game: Game) -> Mapping[str, str]:
        """Return the player of each role."""
        return dict(zip(game.roles, self.players, strict=True))


def pairings(names: Sequence[str]) -> list[Pairing]:
    """Return each pair of different players in both role assignments; any two neighbours in the list share a player."""
    found = []
    for index, one in enumerate(names):
        others = names[index + 1 :]
        for other in others if index % 2 == 0 else reversed(others):
            found += [Pairing((one, other)), Pairing((other, one))]
    return found


def match_specs(pairing: Pairing, tasks: Sequence[Task], seed: int) -> list[GameSpec]:
    """Return the specs of one pairing's games."""
    return [GameSpec(f"{pairing.title}: {task.id}", task, derive_seed(seed, "arena", task.id)) for task in tasks]


def spread(weights: Mapping[str, float], groups: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return ``weights`` with each name of ``groups`` replaced by its members, weighted equally; the weight of a group
    without members goes to ``SELF``.
    """
    found: dict[str, float] = {}
    for name, weight in weights.items():
        members = groups.get(name, (name,)) or (SELF,)
        for member in members:
            found[member] = found.get(member, 0.0) + weight / len(members)
    return found


def draw_opponents(
    specs: Sequence[GameSpec], learner: str, weights: Mapping[str, float], seats: Sequence[int] = (0, 1)
) -> dict[Pairing, list[GameSpec]]:
    """Group games by players: ``learner``, in one of ``seats``, and an opponent. Both are drawn by the game's seed, or
    by its ``opponent_seed``, so that all games of a group meet the same opponent.

    ``weights`` are by player; ``SELF`` means the learner.
    """
    matches: dict[Pairing, list[GameSpec]] = {}
    names = sorted(weights)
    for spec in specs:
        drawn_by = spec.seed if spec.opponent_seed is None else spec.opponent_seed
        rng = random.Random(derive_seed(drawn_by, "opponent"))
        [opponent] = rng.choices(names, [weights[name] for name in names])
        other = learner if opponent == SELF else opponent
        players = (learner, other) if rng.choice(seats) == 0 else (other, learner)
        matches.setdefault(Pairing(players), []).append(spec)
    return matches
