"""spag's games in verifiers (0.4, ``verifiers.v1``) and prime-rl: an environment with an agent for each role, and a
taskset. The packages in environments/ export them, one for each game.

    vf-eval spag-taboo -m MODEL --client.base-url URL -n 16        # one model plays both roles
    vf-eval spag-taboo ... --env.defender.model OTHER --env.trained '["attacker"]'

An agent's trace is the game as its role saw it: the prompt of its first turn, then the additions of later prompts. It
contains nothing of the task; the episode's task does. Each role's reward is recorded on its own trace.
"""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import openai
import verifiers.v1 as vf
from pydantic import Field, create_model
from verifiers.v1.dialects.chat import message_to_wire

from spag.adapters.turns import after, new_lines
from spag.core.errors import EngineError, first_line
from spag.core.seeds import derive_seed
from spag.core.types import Result, Split
from spag.core.types import Task as GameTask
from spag.engines.base import text_before_stop
from spag.games.base import Game
from spag.games.registry import get


class Speaker(vf.Harness[vf.HarnessConfig]):
    """Requests one reply per turn in this process, without tools or a sandbox."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: vf.ModelContext, trace: vf.Trace, runtime: vf.Runtime, endpoint: str, secret: str, mcp_urls: Any,
        data: vf.TaskData,
    ) -> vf.ProgramResult:  # fmt: skip
        system, prompt = self.resolve_prompt(data)
        messages: Any = [{"role": "user", "content": prompt}]
        if isinstance(prompt, list):
            messages = [message_to_wire(message) for message in prompt]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class DealData(vf.TaskData):
    """A game to play. ``deal`` is its whole task, including hidden parts; no agent sees it."""

    deal: dict[str, Any]
    seed: int


class Deal(vf.Task[DealData, vf.State, vf.TaskConfig]):
    """A row of the taskset."""


class GameTasksetConfig(vf.TasksetConfig):
    """The tasks of the game."""

    split: Split = Split.TRAIN
    seed: int = 0
    game: dict[str, Any] = Field(default_factory=dict)
    """Settings of the game, as in the ``game`` section of a config."""


class GameTaskset(vf.Taskset[Deal, GameTasksetConfig]):
    """The tasks of ``GAME`` in an order drawn by the seed."""

    GAME: ClassVar[str]

    def load(self) -> Iterator[Deal]:
        seed, tasks = self.config.seed, get(self.GAME, **self.config.game).tasks(self.config.split, None, 0)
        for number, task in enumerate(sorted(tasks, key=lambda task: derive_seed(seed, task.id, "place"))):
            deal = {"id": task.id, "data": dict(task.data)}
            data = DealData(name=f"{self.GAME}#{number}", deal=deal, seed=derive_seed(seed, task.id))
            yield Deal(data, self.config.task)


class GameEnvConfig(vf.EnvConfig):
    """Each role is a further field, an agent. ``trained``: the roles whose tokens are training data; ``None``: all."""

    trained: list[str] | None = None


class GameEnv(vf.Env[GameEnvConfig]):
    """One game on one task: the agents take turns, and the game rewards each."""

    GAME: ClassVar[str]

    def __init__(self, config: GameEnvConfig) -> None:
        super().__init__(config)
        self.game: Game = get(self.GAME, **config.taskset.game)
        if unknown := {*(config.trained or ())} - {*self.game.roles}:
            known = f"{self.GAME} has the roles {', '.join(self.game.roles)}"
            raise ValueError(f"env.trained names {', '.join(sorted(unknown))}; {known}")

    async def setup(self, agents: vf.Agents) -> None:
        for role in self.game.roles:
            getattr(agents, role).trainable = self.config.trained is None or role in self.config.trained

    async def run(self, task: Deal, agents: vf.Agents) -> None:
        game, data, interactions = self.game, task.data, dict[str, Any]()
        state = game.start(GameTask(**data.deal), data.seed)
        prompts = dict.fromkeys(game.roles, "")
        async with AsyncExitStack() as stack:
            while (role := game.to_move(state)) is not None:
                if role not in interactions:
                    blank = vf.Task(vf.TaskData(idx=data.idx, name=data.name, system_prompt=data.system_prompt))
                    interactions[role] = await stack.enter_async_context(getattr(agents, role).interaction(blank))
                before, prompts[role] = prompts[role], game.prompt(game.observe(state, role))
                segment = await interactions[role].turn(new_lines(before, prompts[role]))
                if segment.terminated:  # by a limit, which leaves the game undecided, or by a failure
                    _check(interactions[role].trace, role)
                    break
                cut = text_before_stop(segment.last_reply, game.stop_strings(), thinking=True)
                state = after(game, state, segment.last_reply if cut is None else cut)
        result = state.result or game.replay(state.task, state.history, state.seed)
        for role, interaction in interactions.items():
            self._record(interaction.trace, role, result)

    def _record(self, trace: vf.Trace, role: str, result: Result) -> None:
        outcomes = {f"outcome/{name}": name == result.outcome for name in self.game.outcomes}
        trace.record_reward("game", result.rewards[role])
        trace.record_metrics({"utterances": result.length, **outcomes})
        trace.info["outcome"] = {"outcome": result.outcome, "reason": result.reason}


def _check(trace: vf.Trace, role: str) -> None:
    """Raise ``EngineError`` if a model failed, so that the episode fails: a game cut short is not a draw."""
    if (error := trace.last_error) is not None:
        raise EngineError(f"the model of {role} failed: {first_line(Exception(error.message))}")


def plugin(game: str) -> tuple[type[GameEnv], type[GameTaskset], type[Speaker]]:
    """Return environment, taskset and harness of a game, for the ``__all__`` of a package."""
    title = "".join(part.capitalize() for part in game.split("_"))
    agent = vf.AgentConfig(runtime=vf.SubprocessConfig())
    roles: dict[str, Any] = dict.fromkeys(get(game).roles, (vf.AgentConfig, agent))
    config: Any = create_model(f"{title}EnvConfig", __base__=GameEnvConfig, **roles)

    class Environment(GameEnv, vf.Env[config]):
        GAME = game

    class Tasks(GameTaskset):
        GAME = game

    Environment.__name__, Tasks.__name__ = f"{title}Env", f"{title}Taskset"
    return Environment, Tasks, Speaker
