"""Credit for each turn, after MARSHAL (arXiv 2510.15414): a return sums the player's rewards from that turn on.

``Game.turn_rewards`` gives a reward for each utterance: the final reward at a role's last one, unless the game defines
rewards per turn (the change of a position's value). The return of a player's k-th utterance is
``sum_{j >= k} discount**(j - k) * r_j`` over the player's own turns; its advantage is the return minus the mean of the
role's returns in this step's games against the same opponent, divided by their standard deviation if asked for. A
blunder is then charged to the move that made it, by ``discount`` to those before it, and to none after it.

If ``rewards`` replaces the reward of a tie or a broken rule, only the reward of the role's last utterance changes, by
the difference. So the sum over a game changes by the same amount.

A mean over positions is a poor baseline if some have no bad move: there every move beats it, and the first moves drawn
become certain. If rewards are differences of values and ``discount`` is 0, they are advantages already: ``centre:
false`` leaves them as they are.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from spag.algorithms.credit import RoleRewards, opponents_of, relative_to_mean, result_of, without_drift
from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.reinforce import PolicyGradient, Turn
from spag.core.episodes import Episode


class TurnwiseSettings(OnlineSettings):
    """Credit for each turn."""

    discount: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        1.0, description="discount of the same player's later turns; 0: each turn gets only its own reward"
    )
    normalize_advantages: bool = Field(
        True, description="divide a role's advantages by their standard deviation over the step, by opponent"
    )
    centre: bool = Field(
        True,
        description="subtract the mean of the role's returns; set false if the game's turn rewards are already "
        "advantages (differences of a position's value, with discount 0)",
    )

    @model_validator(mode="after")
    def _centred_to_normalize(self) -> "TurnwiseSettings":
        if self.normalize_advantages and not self.centre:
            raise ValueError("centre=false: normalize_advantages centres too; set it to false")
        return self


class Turnwise(PolicyGradient):
    """Satisfies ``spag.algorithms.base.Algorithm``."""

    name: ClassVar[str] = "turnwise"
    Settings: ClassVar[type[OnlineSettings]] = TurnwiseSettings

    def advantages(
        self, turns: Sequence[Turn], episodes: Sequence[Episode], role: str, learner: str | None, rewards: RoleRewards
    ) -> Sequence[float]:
        played = {id(turn.episode): turn.episode for turn in turns}
        paid = {game: turn_rewards(episode, rewards) for game, episode in played.items()}
        returns = returns_of([(turn.later, paid[id(turn.episode)][turn.at]) for turn in turns], self.settings)
        if not self.settings.centre:
            return without_drift(returns, rewards.spread)
        opponents = [opponents_of(turn.episode, role, learner) for turn in turns]
        return relative_to_mean(returns, opponents, rewards.spread, normalize=self.settings.normalize_advantages)


def turn_rewards(episode: Episode, final: RoleRewards) -> list[float]:
    """Return the reward of each utterance for its speaker; at a role's last one, the override's difference is added."""
    result = result_of(episode, final.game)
    found = list(final.game.turn_rewards(episode.task, episode.history, result))
    for role, last in {said.role: at for at, said in enumerate(episode.history[: result.length])}.items():
        found[last] += final.of(episode, role) - result.rewards[role]
    return found


def returns_of(turns: Sequence[tuple[int, float]], settings: TurnwiseSettings) -> list[float]:
    """Return the discounted return of each turn; turns are (own turns that follow, reward) in order, game by game."""
    found: list[float] = []
    ahead = 0.0
    for later, reward in reversed(turns):
        ahead = reward + (settings.discount * ahead if later else 0.0)
        found.append(ahead)
    return found[::-1]
