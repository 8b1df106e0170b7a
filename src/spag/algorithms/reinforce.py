"""Online self-play: policy gradient on the games of the current policy, with a baseline for each role of each game.

REINFORCE (Williams, 1992) with role-conditioned advantage estimation (SPIRAL, arXiv 2506.24119): an utterance's
advantage is ``discount**k * (reward - baseline)``. The reward is its player's at the end of the game, k counts the
player's later utterances, and the baseline is a moving average of this role's rewards in this game in earlier steps.
Both roles are trained, winners and losers. Differs from SPIRAL: the baseline moves once per step, so it is the same for
all games of a step in any order; opponents other than the policy itself have separate baselines.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Any, ClassVar

from pydantic import Field

from spag.algorithms.credit import RoleRewards, is_trained, opponents_of, relative_to_mean, without_drift
from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.policy_gradient import PolicyGradient, Turn
from spag.core.episodes import Episode
from spag.core.options import Fraction
from spag.games.base import Game


class ReinforceSettings(OnlineSettings):
    """REINFORCE with role baselines."""

    baseline_decay: Fraction = Field(
        0.5, description="decay per step of each role's moving average of rewards; 1 trains without baselines"
    )
    normalize_advantages: bool = Field(
        False,
        description="centre a role's advantages against an opponent and divide them by their standard deviation over "
        "the step",
    )
    discount: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="an advantage counts discount^k for an utterance that k more of the same player follow"
    )


class Reinforce(PolicyGradient):
    """Satisfies ``spag.algorithms.base.Algorithm``."""

    name: ClassVar[str] = "reinforce"
    Settings: ClassVar[type[OnlineSettings]] = ReinforceSettings

    def __init__(self, settings: ReinforceSettings, *, seed: int = 0, state: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        self.baselines = Baselines(settings.baseline_decay, dict((state or {}).get("baselines", {})))

    def advantages(
        self, turns: Sequence[Turn], episodes: Sequence[Episode], role: str, learner: str | None, rewards: RoleRewards
    ) -> Sequence[float]:
        played = [episode for episode in episodes if is_trained(episode, role, learner)]
        keys = {id(episode): _baseline_key(episode, rewards.game, role, learner) for episode in played}
        paid = {id(episode): rewards.of(episode, role) for episode in played}
        baselines = self.baselines.move([(key, paid[game]) for game, key in keys.items()])
        relative = {game: paid[game] - baselines[key] for game, key in keys.items()}
        advantages = [self.settings.discount**turn.later * relative[id(turn.episode)] for turn in turns]
        if not self.settings.normalize_advantages:
            return without_drift(advantages, rewards.spread)
        groups = [keys[id(turn.episode)] for turn in turns]
        return relative_to_mean(advantages, groups, rewards.spread, normalize=True)

    def state(self) -> dict[str, Any]:
        return {"baselines": self.baselines.values}

    def summary(self) -> dict[str, Any]:
        return {f"{key}/baseline": value for key, value in self.baselines.values.items()}


def _baseline_key(episode: Episode, game: Game, role: str, learner: str | None) -> str:
    """Return ``GAME/ROLE``, and ``GAME/ROLE against NAME`` for games against another player than the learner."""
    opponents = opponents_of(episode, role, learner)
    return f"{game.name}/{role}{opponents and f' against {opponents}'}"


@dataclass(slots=True)
class Baselines:
    """Moving averages of rewards, one value per step: b <- decay * b + (1 - decay) * mean reward of the step.

    A step's games use the average of earlier steps; those of a first step use its own mean. With ``decay`` 1 there are
    no baselines: plain REINFORCE.
    """

    decay: float = 0.5
    values: dict[str, float] = field(default_factory=dict)

    def move(self, rewards: Sequence[tuple[str, float]]) -> dict[str, float]:
        """Take the rewards of a step's games by key; return the baselines that these games get."""
        if self.decay == 1.0:
            return dict.fromkeys((key for key, _ in rewards), 0.0)
        by_key: dict[str, list[float]] = defaultdict(list)
        for key, reward in rewards:
            by_key[key].append(reward)
        found = {}
        for key, own in by_key.items():
            mean = fmean(own)
            found[key] = self.values.get(key, mean)
            self.values[key] = self.decay * found[key] + (1.0 - self.decay) * mean
        return found
