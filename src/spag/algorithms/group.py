"""Group-relative advantages, as in GRPO (arXiv 2402.03300): several games on one task are compared with each other.

The advantage of a player's utterances is its reward minus the mean reward of the same role over those of this step's
games on the same task against the same opponent in which that role spoke, this game included: the natural choice if the
task decides most of the reward. Opponents and seats are drawn once per group. As a game is part of its own mean, the
expected gradient of a group of n games is (n - 1)/n of the exact one. Advantages are not divided by the group's
standard deviation unless asked for, which favours tasks that are nearly decided (arXiv 2503.20783).
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from spag.algorithms.credit import RoleRewards, opponents_of, relative_to_mean
from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.reinforce import PolicyGradient, Turn
from spag.core.episodes import Episode


class GroupSettings(OnlineSettings):
    """Group-relative advantages."""

    group_size: Annotated[int, Field(ge=2, le=1000)] = Field(
        8, description="games per task in each step, all against one opponent"
    )
    normalize_advantages: bool = Field(
        False, description="divide a group's advantages by their standard deviation, as GRPO does"
    )

    @property
    def repeats(self) -> int:
        return self.group_size


class Group(PolicyGradient):
    """Satisfies ``spag.algorithms.base.Algorithm``."""

    name: ClassVar[str] = "group"
    Settings: ClassVar[type[OnlineSettings]] = GroupSettings

    def advantages(
        self, turns: Sequence[Turn], episodes: Sequence[Episode], role: str, learner: str | None, rewards: RoleRewards
    ) -> Sequence[float]:
        played = {id(turn.episode): turn.episode for turn in turns}
        relative = relative_to_mean(
            [rewards.of(one, role) for one in played.values()],
            [(one.task.id, opponents_of(one, role, learner)) for one in played.values()],
            rewards.spread,
            normalize=self.settings.normalize_advantages,
        )
        by_game = dict(zip(played, relative, strict=True))
        return [by_game[id(turn.episode)] for turn in turns]
