"""Credit for each turn, after MARSHAL (arXiv 2510.15414): a return counts what the player gets from then on.

``Game.turn_rewards`` gives a reward for each utterance: the final reward at a role's last one, unless the game knows
better (the value of a position before and after a move). The return of a player's k-th utterance is
``sum_{j >= k} discount**(j - k) * r_j`` over the player's own turns; its advantage is the return minus the mean of the
role's returns in this step, divided by their standard deviation if asked for. A blunder is then charged to the move
that made it, not to all moves of a lost game.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, ClassVar

from pydantic import Field

from spag.algorithms.credit import as_sampled, normalized, result_of, trained_turns, without_drift
from spag.algorithms.policy_gradient import PolicyGradient
from spag.algorithms.settings import OnlineSettings
from spag.core.episodes import Episode, TrainingSample
from spag.games.base import Game


class TurnwiseSettings(OnlineSettings):
    """Credit for each turn."""

    discount: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        1.0, description="what later turns of the same player count; 0: each turn by its own reward alone"
    )
    normalize_advantages: bool = Field(
        True, description="divide a role's advantages by their standard deviation over the step"
    )


class Turnwise(PolicyGradient):
    """Satisfies ``spag.algorithms.base.Algorithm``."""

    name: ClassVar[str] = "turnwise"
    Settings: ClassVar[type[OnlineSettings]] = TurnwiseSettings

    def credit(self, episodes: Sequence[Episode], game: Game, learner: str | None) -> list[TrainingSample]:
        rewards = {
            id(episode): game.turn_rewards(episode.task, episode.history, result_of(episode, game))
            for episode in episodes
        }
        samples: list[TrainingSample | None] = []
        for role in (role for role in game.roles if self.settings.roles in ("both", role)):
            turns = list(trained_turns(episodes, game, role, learner))
            returns = returns_of([(turn.later, rewards[id(turn.episode)][turn.at]) for turn in turns], self.settings)
            centre = fmean(returns) if returns else 0.0
            spread = game.reward_range[1] - game.reward_range[0]
            advantages = without_drift([value - centre for value in returns], spread)
            if self.settings.normalize_advantages:
                advantages = normalized(advantages, spread)
            samples += [as_sampled(turn, game, advantage) for turn, advantage in zip(turns, advantages, strict=True)]
        return [sample for sample in samples if sample is not None]


def returns_of(turns: Sequence[tuple[int, float]], settings: TurnwiseSettings) -> list[float]:
    """Return the discounted return of each turn, given as (own turns that follow, reward), game after game in order."""
    found: list[float] = []
    ahead = 0.0
    for later, reward in reversed(turns):
        ahead = reward + (settings.discount * ahead if later else 0.0)
        found.append(ahead)
    return found[::-1]
