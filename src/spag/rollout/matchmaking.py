"""Matchmaking: the games of an arena and of an online step, and who plays them.

An arena game's id is ``FIRST vs SECOND: TASK``, the players in the order of the game's roles, and its seed comes from
(run seed, task) alone, so two models with equal replies play the same game.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from spag.algorithms.settings import SELF
from spag.core.errors import ConfigError
from spag.core.seeds import derive_seed
from spag.core.types import Split, Task
from spag.games.base import Game
from spag.rollout.runner import GameSpec, game_specs


@dataclass(frozen=True, slots=True)
class Pairing:
    """The players of a match by name, in the order of the game's roles."""

    players: tuple[str, ...]

    @property
    def title(self) -> str:
        return " vs ".join(self.players)

    def by_role(self, roles: Sequence[str]) -> Mapping[str, str]:
        """Return the player of each role."""
        return dict(zip(roles, self.players, strict=True))


def pairings(names: Sequence[str]) -> list[Pairing]:
    """Return each pair of different players in both role assignments; any two neighbours in the list share a player."""
    found = []
    for index, one in enumerate(names):
        others = names[index + 1 :]
        for other in others if index % 2 == 0 else reversed(others):
            found += [Pairing((one, other)), Pairing((other, one))]
    return found


def match_specs(pairing: Pairing, tasks: Sequence[Task], seed: int) -> list[GameSpec]:
    """Return the specs of one pairing's games. A game's seed is that of the other role assignment on its task."""
    return [GameSpec(f"{pairing.title}: {task.id}", task, derive_seed(seed, "arena", task.id)) for task in tasks]


def step_specs(
    mix: Sequence[tuple[Game, float]], count: int, step: int, seed: int, repeats: int = 1
) -> list[tuple[Game, GameSpec]]:
    """Return the ``count`` games of a step in order, in groups of ``repeats`` games on one task against one opponent;
    ``repeats`` divides ``count``. ``mix``: the games with their weights. Each step draws new tasks; a game with fewer
    tasks than groups uses each several times.
    """
    shares = groups_by_weight([weight for _, weight in mix], count // repeats)
    found = []
    for (game, _), groups in zip(mix, shares, strict=True):
        drawn = derive_seed(seed, "online", step, game.name)
        for spec in training_specs(game, groups, drawn, repeats):
            found.append((game, replace(spec, id=f"{step}/{game.name}/{spec.id}")))
    return found


def groups_by_weight(weights: Sequence[float], groups: int) -> list[int]:
    """Return how many of a step's ``groups`` of episodes each game of a mix gets, by its weight."""
    total = sum(weights)
    bounds = [0, *(round(groups * weight / total) for weight in accumulate(weights))]
    return [last - first for first, last in pairwise(bounds)]


def training_specs(game: Game, groups: int, seed: int, size: int = 1) -> list[GameSpec]:
    """Return ``groups`` groups of ``size`` games on tasks of the training split; every task gets one before any gets a
    second. Raises ``ConfigError`` if there are no such tasks.
    """
    try:
        tasks = game.tasks(Split.TRAIN, groups, seed)
    except ConfigError:  # it has fewer; Taboo takes long to make all of its tasks
        every = game.tasks(Split.TRAIN, None, 0)
        tasks = game.tasks(Split.TRAIN, len(every), seed) if every else ()
    if groups and not tasks:
        raise ConfigError(f"{game.name} has no task to train on: all of its tasks are held out; add more tasks")
    rounds = -(-groups // max(1, len(tasks)))
    specs = game_specs(tasks, rounds * size, seed)
    in_order = [
        [replace(spec, opponent_seed=specs[first].seed) for spec in specs[first : first + size]]
        for number in range(rounds)
        for first in range(number * size, len(specs), rounds * size)
    ]
    return [spec for group in in_order[:groups] for spec in group]


def spread(weights: Mapping[str, float], groups: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return ``weights`` with names of ``groups`` replaced by members in equal shares, by ``SELF`` without any."""
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
