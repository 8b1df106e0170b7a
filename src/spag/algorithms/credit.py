"""What algorithms share in crediting games: results, which players are trained, rewards, and baselines."""

import hashlib
import random
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from spag.algorithms.online_settings import RewardOverride
from spag.algorithms.settings import TeacherSettings, opponent_group
from spag.core.episodes import Episode
from spag.core.errors import DataError
from spag.core.seeds import derive_seed
from spag.core.types import Result, Split
from spag.games.base import Game
from spag.games.replay import replay

DRIFT = 0.01
"""Advantages below this share of a game's range of rewards count as 0: they are the lag of a baseline when all games
end alike, and AdamW takes full steps with them if it has seen no larger ones (``benchmarks/drift.py``).
"""


def result_of(episode: Episode, game: Game) -> Result:
    """Return how a game ended: as judged when it was played; if it was not, as judged now.

    Raises ``DataError`` for an episode of another game, on a task that it cannot play, or that cannot be replayed, and
    one whose recorded result is none of the game's.
    """
    if episode.outcome is None or episode.length is None or episode.game != game.name:
        return replace(replay(game, episode), reason="")  # refuses an episode of another game
    faults = {
        f"outcome {episode.outcome!r}": episode.outcome not in game.outcomes,
        f"rewards of {', '.join(episode.rewards) or 'nobody'}": not set(game.roles) <= set(episode.rewards),
        f"length {episode.length}": not 0 <= episode.length <= len(episode.history),
    }
    if fault := next((what for what, wrong in faults.items() if wrong), ""):
        raise DataError(
            f"game {episode.id!r}: its recorded result, {fault}, is none of {game.name}; judge it again by spag judge"
        )
    replay(game, replace(episode, history=()))  # refuses a task that the game cannot play
    return Result(episode.outcome, episode.rewards, episode.length, "")


def taught_games(
    games: Sequence[Episode], game: Game, settings: TeacherSettings, seed: int, source: str
) -> tuple[list[Episode], str]:
    """Return the games of a teacher to learn from, in their order, and a note of how many are on held-out tasks, which
    are left out unless ``keep_held_out``. ``max_episodes`` draws from the others by ``seed``.

    Raises ``DataError`` if all are left out.
    """
    kept = [one for one in games if settings.keep_held_out or game.split_of(one.task) is not Split.HELD_OUT]
    left_out, note = len(games) - len(kept), ""
    if left_out and not kept:
        fix = "name games on other tasks, or train on these with keep_held_out=true"
        raise DataError(f"{source}: all {left_out:,} games are on held-out tasks, which are skipped; {fix}")
    if left_out:
        note = f"{source}: {left_out:,} of {len(games):,} games skipped, because their tasks are held out"
    if settings.max_episodes is not None and settings.max_episodes < len(kept):
        drawn = random.Random(derive_seed(seed, "teacher")).sample(range(len(kept)), settings.max_episodes)
        kept = [kept[at] for at in sorted(drawn)]
    return kept, note


def is_trained(episode: Episode, role: str, learner: str | None) -> bool:
    """Tell whether the player of ``role`` learns; with ``learner`` ``None``, every player does."""
    player = episode.players.get(role)
    return learner is None or (player is not None and player.model == learner)


def opponents_of(episode: Episode, role: str, learner: str | None) -> str:
    """Return the joined names of the players that ``role`` meets; empty if they are the learner too.

    All snapshots are one opponent. Without a learner (every player is trained), all games count as self-play.
    """
    others = {info.model for other, info in episode.players.items() if other != role} - {learner}
    return ", ".join(sorted({opponent_group(name) for name in others})) if learner is not None else ""


def prompt_digest(prompt: str) -> str:
    """Return a short hash that identifies the prompt of an utterance."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class RoleRewards:
    """Rewards of finished games, replaced where ``override`` gives others."""

    game: Game
    override: RewardOverride

    def of(self, episode: Episode, role: str) -> float:
        """Return the reward of ``role`` at the end of ``episode``."""
        outcome = self.game.outcomes[episode.outcome or ""]
        if outcome.is_draw and role in self.override.tie_by_role:
            return self.override.tie_by_role[role]
        if outcome.is_draw and self.override.tie is not None:
            return self.override.tie
        if outcome.fault == role and self.override.illegal is not None:
            return self.override.illegal
        return episode.rewards[role]

    @property
    def spread(self) -> float:
        """The range of the rewards that a role can get, without a penalty that ``override`` sets for breaking a rule:
        a heavy one would make all others look like drift.
        """
        low, high = self.game.reward_range
        given = [self.override.tie, *self.override.tie_by_role.values()]
        paid = [low, high, *(reward for reward in given if reward is not None)]
        return max(paid) - min(paid)


def relative_to_mean(
    values: Sequence[float], groups: Sequence[Hashable], spread: float, *, normalize: bool
) -> list[float]:
    """Return each value minus the mean of its group; drift, a small share of the rewards' range ``spread``, is 0.

    ``groups`` names the group of each value. ``normalize``: a group's results are divided by their standard deviation,
    but at least by a tenth of ``spread``, so that a step whose games end alike is not blown up.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for at, group in enumerate(groups):
        members[group].append(at)
    found = [0.0] * len(values)
    for places in members.values():
        own = [values[at] for at in places]
        mean = fmean(own)
        scale = max(pstdev(own), 0.1 * spread) if normalize else 1.0
        for at, centred in zip(places, without_drift([value - mean for value in own], spread), strict=True):
            found[at] = centred / scale
    return found


def without_drift(advantages: Sequence[float], spread: float) -> list[float]:
    """Return ``advantages`` with values below ``DRIFT`` of the range of rewards, ``spread``, set to 0."""
    return [0.0 if abs(advantage) < DRIFT * spread else advantage for advantage in advantages]
