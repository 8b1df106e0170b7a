"""spag's games in verifiers (0.4, ``verifiers.v1``) and in prime-rl: an environment with an agent for each role, and a taskset.

    import spag_taboo    # or spag_kuhn_poker, ...; the modules beside ``spag``, one a game
    vf-eval spag-taboo -m MODEL --client.base-url URL -n 16        # both roles by one model
    vf-eval spag-taboo ... --env.defender.model OTHER --env.trained '["attacker"]'

An agent's trace is the game as its role saw it: the prompt of its first turn, then what each later prompt adds. It holds nothing of the
task; the episode's task does. A role's reward is recorded on its own trace. Models speak through ``Speaker``, a harness that asks for one
reply a turn, without tools or a sandbox.
"""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import openai
import verifiers.v1 as vf
from pydantic import Field, create_model
from verifiers.v1.dialects.chat import message_to_wire

from spag.adapters.transcript import new_lines
from spag.core.seeds import derive_seed
from spag.core.types import Result, Split, Utterance
from spag.core.types import Task as GameTask
from spag.engines.base import text_before_stop
from spag.games.base import Game
from spag.games.registry import get


class Speaker(vf.Harness[vf.HarnessConfig]):
    """One reply a turn, asked for in this process."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: vf.ModelContext, trace: vf.Trace, runtime: vf.Runtime, endpoint: str, secret: str, mcp_urls: Any, data: vf.TaskData
    ) -> vf.ProgramResult:
        _, prompt = self.resolve_prompt(data)
        messages: Any = (
            [message_to_wire(message) for message in prompt] if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        )
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class DealData(vf.TaskData):
    """A game to play. ``deal`` is all of its task, what is hidden included; no agent is given it."""

    deal: dict[str, Any]
    seed: int


class Deal(vf.Task[DealData, vf.State, vf.TaskConfig]):
    """A row of the taskset."""


class GameTasksetConfig(vf.TasksetConfig):
    """Which tasks of the game."""

    split: Split = Split.TRAIN
    seed: int = 0
    game: dict[str, Any] = Field(default_factory=dict)
    """Settings of the game, as in the ``game`` section of a config."""


class GameTaskset(vf.Taskset[Deal, GameTasksetConfig]):
    """The tasks of ``GAME`` in a drawn order."""

    GAME: ClassVar[str]

    def load(self) -> Iterator[Deal]:
        config = self.config
        tasks = sorted(
            get(self.GAME, **config.game).tasks(config.split, None, 0), key=lambda task: derive_seed(config.seed, task.id, "place")
        )
        for number, task in enumerate(tasks):
            data = DealData(
                name=f"{self.GAME}#{number}", deal={"id": task.id, "data": dict(task.data)}, seed=derive_seed(config.seed, task.id)
            )
            yield Deal(data, config.task)


class GameEnvConfig(vf.EnvConfig):
    """The roles come as further fields, an agent each. ``trained``: those whose tokens are training data; all when ``None``."""

    trained: list[str] | None = None


class GameEnv(vf.Env[GameEnvConfig]):
    """One task, one game: the agents speak in turn, and each is paid by the game."""

    GAME: ClassVar[str]

    def __init__(self, config: GameEnvConfig) -> None:
        super().__init__(config)
        self.game: Game = get(self.GAME, **config.taskset.game)
        unknown = {*(config.trained or ())} - {*self.game.roles}
        if unknown:
            raise ValueError(f"env.trained names {', '.join(sorted(unknown))}; {self.GAME} has the roles {', '.join(self.game.roles)}")

    async def setup(self, agents: vf.Agents) -> None:
        for role in self.game.roles:
            getattr(agents, role).trainable = self.config.trained is None or role in self.config.trained

    async def run(self, task: Deal, agents: vf.Agents) -> None:
        game, open_ = self.game, dict[str, Any]()
        state = game.start(GameTask(**task.data.deal), task.data.seed)
        prompts = dict.fromkeys(game.roles, "")
        async with AsyncExitStack() as stack:
            while (role := game.to_move(state)) is not None:
                prompt = game.prompt(game.observe(state, role))
                if role not in open_:
                    blank = vf.Task(vf.TaskData(idx=task.data.idx, name=task.data.name))
                    open_[role] = await stack.enter_async_context(getattr(agents, role).interaction(blank))
                segment = await open_[role].turn(new_lines(prompts[role], prompt))
                if segment.terminated:
                    break
                prompts[role], reply = prompt, segment.last_reply
                cut = text_before_stop(reply, game.stop_strings())
                state = game.apply(state, Utterance(role, (reply if cut is None else cut).strip()))
        result = state.result or game.replay(state.task, state.history, state.seed)
        for role, interaction in open_.items():
            self._pay(interaction.trace, role, result)

    def _pay(self, trace: vf.Trace, role: str, result: Result) -> None:
        trace.record_reward("game", result.rewards[role])
        trace.record_metrics({"utterances": result.length, **{f"outcome/{name}": name == result.outcome for name in self.game.outcomes}})
        trace.info["outcome"] = {"outcome": result.outcome, "reason": result.reason}


def plugin(game: str) -> tuple[type[GameEnv], type[GameTaskset], type[Speaker]]:
    """Return environment, taskset and harness of a game, for the ``__all__`` of a module that verifiers finds by name."""
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
