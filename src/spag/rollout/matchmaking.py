"""Matchmaking: the games of an arena and of an online step, and who plays them.

An arena game's id is ``FIRST vs SECOND: TASK``, the players in the order of the game's roles, and its seed comes from
(run seed, task) alone, so two models with equal replies play the same game.

Online, opponents may be drawn by results. A result is scored as in the arena: 1 if the policy earned the whole range of
rewards more than the opponent, 0.5 if both earned the same. The policy changes, so results decay from step to step
towards 0.5, the score of an imaginary game: an opponent that was beaten long ago is met again. Everything is computed
from the games of finished steps on disk, so a resumed phase draws the same opponents as an uninterrupted one.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import log10
from threading import Lock

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import SELF, SNAPSHOT, IterationSettings, snapshot_name
from spag.config.schema import ModelConfig
from spag.core.episodes import Episode
from spag.core.errors import ConfigError
from spag.core.options import SamplingConfig
from spag.core.seeds import derive_seed
from spag.core.types import Split, Task
from spag.engines.players import Kind, PlayerConfig, kind_of
from spag.games.base import Game, tasks_of
from spag.rollout.runner import GameSpec, game_specs

FADE = 0.9
"""The factor by which a result decays with each further step."""
PRIOR = 0.5
"""Initial wins, and losses, against every opponent."""


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


@dataclass(frozen=True, slots=True)
class Match:
    """Games between the same players, given by role."""

    title: str
    specs: Sequence[GameSpec]
    players: Mapping[str, PlayerConfig]

    @property
    def models(self) -> set[ModelConfig]:
        """Those of the players that are not bots."""
        return {player.model for player in self.players.values() if kind_of(player.model.name) is not Kind.BOT}


def make_matches(
    pairs: Mapping[Pairing, Sequence[GameSpec]],
    models: Mapping[str, ModelConfig],
    sampling: SamplingConfig,
    roles: Sequence[str],
    title: str,
) -> list[Match]:
    """Return a match for each pairing; ``models`` are by the names in the pairings."""
    return [
        Match(
            f"{title} {pairing.title}" if len(pairs) > 1 else title,
            specs,
            {role: PlayerConfig(name, models[name], sampling) for role, name in pairing.by_role(roles).items()},
        )
        for pairing, specs in pairs.items()
    ]


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


def games_of_iteration(game: Game, settings: IterationSettings) -> int:
    """Return how many games an iteration plays."""
    return (settings.tasks or len(tasks_of(game, settings.splits, None, 0))) * settings.repeats


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


@dataclass(frozen=True, slots=True)
class OpponentResults:
    """The policy's decayed results against one opponent: ``won`` of ``games``. ``met``: all games, not decayed."""

    won: float = 0.0
    games: float = 0.0
    met: int = 0

    @property
    def score(self) -> float:
        """The policy's score, between 0 and 1."""
        return (self.won + PRIOR) / (self.games + 2 * PRIOR)

    @property
    def rating(self) -> float:
        """How many Elo points the opponent is above the present policy."""
        return 400 * log10(1 / self.score - 1)

    def then(self, scores: Sequence[float]) -> "OpponentResults":
        """Return the results after one more step with games of these ``scores``."""
        won, games = FADE * self.won + sum(scores), FADE * self.games + len(scores)
        return OpponentResults(won, games, self.met + len(scores))


@dataclass
class Opponents:
    """The opponents of a phase's steps. ``episodes`` returns the games of a finished step, by game."""

    settings: OnlineSettings
    learner: str
    episodes: Callable[[int], Sequence[tuple[Game, Sequence[Episode]]]]

    def __post_init__(self) -> None:
        self._scores: list[dict[tuple[str, str], list[float]]] = []  # by step, then by game and opponent
        self._reading = Lock()  # a thread may be playing the next step

    def add(self, step: int, games: Sequence[tuple[Game, Sequence[Episode]]]) -> None:
        """Take the games of ``step`` from memory, if all earlier ones are known; else they are read when needed."""
        with self._reading:
            if len(self._scores) == step - 1:
                self._scores.append(self._scores_of(games))

    def weights(self, step: int, game: Game) -> dict[str, float]:
        """Return the possible opponents of ``step`` with their weights: every snapshot by its own name."""
        settings = self.settings
        known = max(0, step - 1 - settings.overlap)  # the last step that had finished when this one began
        every = settings.keeps_snapshots_every
        taken = [snapshot_name(at) for at in range(every, known + 1, every)] if every else []
        weights = spread(settings.opponents, {SNAPSHOT: taken})
        if settings.matchmaking == "weights":
            return weights
        return by_results(weights, self.results(known, game, weights))

    def results(self, step: int, game: Game, names: Iterable[str]) -> dict[str, OpponentResults]:
        """Return the learner's results up to ``step``, which has finished, against each of ``names`` but itself."""
        with self._reading:
            while len(self._scores) < step:
                self._scores.append(self._scores_of(self.episodes(len(self._scores) + 1)))
        found = dict.fromkeys((name for name in names if name != SELF), OpponentResults())
        for scores in self._scores[:step]:
            found = {name: result.then(scores.get((game.name, name), ())) for name, result in found.items()}
        return found

    def _scores_of(self, games: Sequence[tuple[Game, Sequence[Episode]]]) -> dict[tuple[str, str], list[float]]:
        scores: dict[tuple[str, str], list[float]] = defaultdict(list)
        for game, episodes in games:
            for episode in episodes:
                if (met := _result(episode, game, self.learner)) is not None:
                    scores[game.name, met[0]].append(met[1])
        return dict(scores)


def by_results(weights: Mapping[str, float], results: Mapping[str, OpponentResults]) -> dict[str, float]:
    """Return ``weights`` (by opponent), each times the share that the policy still loses to it: prioritised fictitious
    self-play (Vinyals et al., "Grandmaster level in StarCraft II", 2019) with the weighting 1 - x. For self-play, which
    has no results, the share is one half.
    """
    return {name: weight * (1 - results.get(name, OpponentResults()).score) for name, weight in weights.items()}


def _result(episode: Episode, game: Game, learner: str) -> tuple[str, float] | None:
    """Return the opponent and the learner's score from 0 to 1; ``None`` for a game against itself."""
    players = {role: info.model for role, info in episode.players.items()}
    others = [role for role, name in players.items() if name != learner]
    own = [role for role, name in players.items() if name == learner]
    if len(own) != 1 or len(others) != 1:
        return None
    low, high = game.reward_range
    lead = (episode.rewards[own[0]] - episode.rewards[others[0]]) / (high - low)
    return players[others[0]], min(1.0, max(0.0, (1 + lead) / 2))
