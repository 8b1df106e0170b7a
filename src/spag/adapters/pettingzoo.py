"""Our games as AEC environments of PettingZoo (extra ``pettingzoo``): agents are roles, all they see and do is text.

There is no ``state()``: a global view would hold the secrets. PettingZoo's api_test compares the dtypes of observation
and space, so observations are strings with a dtype.
"""

import string
from typing import Any

import numpy as np
from gymnasium.spaces import Text
from pettingzoo import AECEnv
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from spag.adapters.turns import after, begin
from spag.core.types import Split, State
from spag.games.base import Game
from spag.games.registry import DEFAULT, get

LONGEST_OBSERVATION = 1_000_000


class AnyText(Text):
    """A space of all texts up to a length, in any script; it samples printable ASCII."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class Observed(str):
    """A prompt, with the dtype of its space."""

    dtype = np.dtype(str)


def env(game: str = DEFAULT, **settings: Any) -> AECEnv[str, str, str]:
    """Return ``SpagAEC`` with PettingZoo's check that its methods are called in order."""
    return OrderEnforcingWrapper(SpagAEC(game, **settings))


class SpagAEC(AECEnv[str, str, str]):
    """A game on the tasks of ``split``; ``settings`` are its own. Actions longer than ``longest`` are played, too."""

    metadata = {"name": "spag_v0", "render_modes": [], "is_parallelizable": False}  # noqa: RUF012 - AECEnv says so

    def __init__(self, game: str = DEFAULT, split: str = Split.TRAIN, longest: int = 2_000, **settings: Any) -> None:
        super().__init__()
        self.game: Game = get(game, **settings)
        self.render_mode = None
        self.possible_agents = list(self.game.roles)
        self._tasks = self.game.tasks(Split(split), None, 0)
        self._observations = {role: AnyText(LONGEST_OBSERVATION) for role in self.game.roles}
        self._actions = {role: AnyText(longest) for role in self.game.roles}

    def observation_space(self, agent: str) -> Text:
        return self._observations[agent]

    def action_space(self, agent: str) -> Text:
        return self._actions[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._position: State = begin(self.game, self._tasks, seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, str]] = {agent: {} for agent in self.agents}
        self._skip_agent_selection = None
        self.agent_selection = self.game.to_move(self._position) or self.agents[0]

    def observe(self, agent: str) -> Observed:
        return Observed(self.game.prompt(self.game.observe(self._position, agent)))

    def step(self, action: str | None) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[self.agent_selection] = 0.0
        self._clear_rewards()
        self._position = after(self.game, self._position, str(action))
        result = self._position.result
        if result is None:
            self.agent_selection = self.game.to_move(self._position) or self.agents[0]
            return
        self.rewards = {role: result.rewards[role] for role in self.agents}
        self.terminations = dict.fromkeys(self.agents, True)
        self.infos = {agent: {"outcome": result.outcome, "reason": result.reason} for agent in self.agents}
        self._accumulate_rewards()
        self._deads_step_first()
