"""Opponents by results: the policy's results against each opponent in an online phase, and how often to meet it.

A result is scored as in the arena: 1 if the policy earned the whole range of rewards more than the opponent, 0.5 if
both earned the same. The policy changes, so results decay from step to step towards 0.5, the score of an imaginary
game: an opponent that was beaten long ago is met again. Everything is computed from the games of finished steps on
disk, so a resumed phase draws the same opponents as an uninterrupted one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from threading import Lock

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import SELF, SNAPSHOT, snapshot_name
from spag.core.episodes import Episode
from spag.games.base import Game
from spag.rollout.matchmaking import spread

FADE = 0.9
"""The factor by which a result decays with each further step."""
PRIOR = 0.5
"""Initial wins, and losses, against every opponent."""


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
