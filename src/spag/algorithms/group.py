"""Group-relative advantages, as in GRPO (arXiv 2402.03300): several games on one task, each compared with the others.

The advantage of a player's utterances is its reward minus the mean reward of the same role in this step's games
on the same task, this one included: the natural choice where the task decides most of the reward. Advantages are not
divided by the group's standard deviation unless asked for, which favours tasks that are nearly decided (arXiv
2503.20783).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from spag.algorithms.credit import RoleRewards, as_sampled, normalized, trained_turns, without_drift
from spag.algorithms.policy_gradient import PolicyGradient
from spag.algorithms.settings import OnlineSettings, RewardOverride
from spag.core.episodes import Episode, TrainingSample
from spag.games.base import Game


class GroupSettings(OnlineSettings):
    """Group-relative advantages."""

    group_size: Annotated[int, Field(ge=2, le=1000)] = Field(8, description="games a task in each step")
    normalize_advantages: bool = Field(
        False, description="divide a group's advantages by their standard deviation, as GRPO does"
    )

    @property
    def repeats(self) -> int:
        return self.group_size

    @model_validator(mode="after")
    def _whole_groups(self) -> "GroupSettings":
        if self.games % self.group_size:
            raise ValueError(f"games={self.games} is not a multiple of group_size={self.group_size}")
        return self


class Group(PolicyGradient):
    """Satisfies ``spag.algorithms.base.Algorithm``."""

    name: ClassVar[str] = "group"
    Settings: ClassVar[type[OnlineSettings]] = GroupSettings

    def credit(self, episodes: Sequence[Episode], game: Game, learner: str | None) -> list[TrainingSample]:
        rewards = RoleRewards(game, self.settings.rewards.get(game.name, RewardOverride()))
        spread = rewards.spread
        samples: list[TrainingSample | None] = []
        for role in (role for role in game.roles if self.settings.roles in ("both", role)):
            turns = list(trained_turns(episodes, game, role, learner))
            played = {id(turn.episode): turn.episode for turn in turns}
            advantages = self._advantages({key: rewards.of(one, role) for key, one in played.items()}, played, spread)
            samples += [as_sampled(turn, game, advantages[id(turn.episode)]) for turn in turns]
        return [sample for sample in samples if sample is not None]

    def _advantages(self, paid: Mapping[int, float], played: Mapping[int, Episode], spread: float) -> dict[int, float]:
        """Return each game's advantage, by the keys of ``paid``."""
        groups: dict[str, list[int]] = defaultdict(list)
        for key, episode in played.items():
            groups[episode.task.id].append(key)
        found: dict[int, float] = {}
        for members in groups.values():
            mean = fmean(paid[key] for key in members)
            relative = without_drift([paid[key] - mean for key in members], spread)
            if self.settings.normalize_advantages:
                relative = normalized(relative, spread)
            found |= dict(zip(members, relative, strict=True))
        return found
