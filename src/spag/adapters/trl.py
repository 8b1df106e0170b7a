"""spag's games in TRL: a ``rollout_func`` for ``GRPOTrainer`` whose completions are whole games (``pip install
'.[trl]'``).

    rollout = GameRollout(game, Opponent(game, engine_of("bot:random", game)))
    GRPOTrainer(model, game_reward, args, Dataset.from_list(game_prompts(game, 100)), rollout_func=rollout, ...)

A prompt of the dataset is a task and a seed, as JSON. The samples of its group take the roles in turn. Against an
``Opponent`` each sample is a separate game; without one the model plays both sides, and each game gives one sample per
role. A sample is one token sequence: the prompt of the role's first turn, then its utterances (``env_mask`` 1), and
between them the additions of its later prompts (``env_mask`` 0).

TRL (1.16) has no public method for generation inside a rollout: ``_generate_single_turn`` supports both vLLM and
transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from spag.adapters.opponent import Opponent
from spag.adapters.transcript import Trajectory, cut
from spag.adapters.turns import after, prompt_of
from spag.core.errors import ConfigError
from spag.core.types import Split, State, Task
from spag.games.base import Game
from spag.models.tokens import PromptStyle
from spag.rollout.runner import game_specs

if TYPE_CHECKING:
    from trl import GRPOTrainer


class GroupTask(msgspec.Struct):
    """A prompt of the dataset: the task and seed of a group of games."""

    task: Task
    seed: int


def game_prompts(
    game: Game, count: int | None = None, *, split: Split = Split.TRAIN, seed: int = 0
) -> list[dict[str, str]]:
    """Return ``count`` rows of a dataset, each a task with a seed; all tasks when ``None``."""
    specs = game_specs(game.tasks(split, count, seed), 1, seed)
    return [{"prompt": msgspec.json.encode(GroupTask(spec.task, spec.seed)).decode()} for spec in specs]


@dataclass(frozen=True)
class GameRollout:
    """The ``rollout_func``. ``roles``: those that are trained, all by default; ``style``: how prompts become tokens;
    ``thinking``: chat templates ask for a private thought before each utterance. Raises ``ConfigError`` for a role that
    the game lacks.
    """

    game: Game
    opponent: Opponent | None = None
    roles: tuple[str, ...] = ()
    style: PromptStyle = PromptStyle.CHAT
    thinking: bool = False

    def __post_init__(self) -> None:
        if unknown := sorted({*self.roles} - {*self.game.roles}):
            raise ConfigError(f"role {unknown[0]!r}: {self.game.name} has the roles {', '.join(self.game.roles)}")

    def __call__(self, prompts: list[str], trainer: "GRPOTrainer") -> dict[str, list[Any] | None]:
        """Play the games of ``prompts``; return TRL's fields and those that ``game_reward`` reads, in their order."""
        states, trajectories, samples = self._deal(prompts)
        while _anyone(trainer, any(state.result is None for state in states)):
            due = [one for one in trajectories if self.game.to_move(states[one.game]) == one.role]
            ours = {one.game for one in due}
            others = [at for at, state in enumerate(states) if state.result is None and at not in ours]
            if self.opponent is not None and others:
                for at, reply in zip(others, self.opponent.replies([states[at] for at in others]), strict=True):
                    states[at] = self.game.apply(states[at], reply)
            if due or trainer.accelerator.num_processes > 1:  # sharded models generate together: every process joins
                for one, text in zip(due, self._generate(due, states, trainer), strict=True):
                    states[one.game] = after(self.game, states[one.game], text)
        return _fields(self.game, states, samples, trainer.processing_class)

    def _deal(self, prompts: Sequence[str]) -> tuple[list[State], list[Trajectory], list[Trajectory]]:
        """Return the games, the model's trajectories, and each sample's trajectory."""
        roles = self.roles or self.game.roles
        states: list[State] = []
        trajectories: list[Trajectory] = []
        samples, copies = [], dict.fromkeys(prompts, 0)
        playing: dict[str, dict[str, Trajectory]] = {}  # by prompt, the latest game's roles
        for prompt in prompts:
            deal, number = msgspec.json.decode(prompt, type=GroupTask), copies[prompt]
            role = roles[(number + deal.seed) % len(roles)]
            if self.opponent is not None or number % len(roles) == 0:
                played = (role,) if self.opponent else self.game.roles
                playing[prompt] = {own: Trajectory(len(states), own) for own in played}
                trajectories += playing[prompt].values()
                states.append(self.game.start(deal.task, deal.seed))
            samples.append(playing[prompt][role])
            copies[prompt] += 1
        return states, trajectories, samples

    def _generate(self, due: Sequence[Trajectory], states: Sequence[State], trainer: "GRPOTrainer") -> list[str]:
        """Sample the next utterance of each trajectory in ``due``, and return the texts."""
        tokenizer, stops = trainer.processing_class, self.game.stop_strings()
        prompts = [prompt_of(self.game, states[one.game], one.role) for one in due]
        contexts = [
            one.extend_context(tokenizer, prompt, self.style, thinking=self.thinking)
            for one, prompt in zip(due, prompts, strict=True)
        ]
        generated, logprobs = trainer._generate_single_turn(contexts or [[tokenizer.eos_token_id]], None, {}, 1)
        texts = []
        for number, (one, context) in enumerate(zip(due, contexts, strict=True)):
            ids, text = cut(tokenizer, context, generated[number], stops, self.style, thinking=self.thinking)
            one.add(ids, 1, None if logprobs is None else logprobs[number][: len(ids)])
            texts.append(text)
        return texts


def game_reward(game_reward: list[float], game_role: list[str], log_metric: Any = None, **_: Any) -> list[float]:
    """A reward function: the game's reward, also logged by role."""
    if log_metric is not None:
        for role, reward in zip(game_role, game_reward, strict=True):
            log_metric(f"reward/{role}", reward)
    return game_reward


def role_reward(prompts: list[str], game_reward: list[float], game_role: list[str], **_: Any) -> list[float]:
    """A reward function: the game's reward minus the mean of its role in the group, so that an easier role earns
    nothing (arXiv 2506.24119).
    """
    groups: dict[tuple[str, str], list[float]] = {}
    keys = list(zip(prompts, game_role, strict=True))
    for key, reward in zip(keys, game_reward, strict=True):
        groups.setdefault(key, []).append(reward)
    return [reward - sum(groups[key]) / len(groups[key]) for key, reward in zip(keys, game_reward, strict=True)]


def _anyone(trainer: "GRPOTrainer", here: bool) -> bool:
    """Tell whether any process is still playing."""
    if trainer.accelerator.num_processes == 1:
        return here
    import torch  # noqa: PLC0415

    return bool(trainer.accelerator.gather(torch.tensor([here], device=trainer.accelerator.device)).any())


def _fields(
    game: Game, states: Sequence[State], samples: Sequence[Trajectory], tokenizer: Any
) -> dict[str, list[Any] | None]:
    for one in samples:
        if not one.completion_ids:  # the game ended before its first turn; TRL accepts no empty completion: weight 0
            one.prompt_ids, one.logprobs = one.prompt_ids or [tokenizer.eos_token_id], []
            one.add([tokenizer.eos_token_id], 0, [0.0])
    results = [game.result(states[one.game]) for one in samples]
    return {
        "prompt_ids": [one.prompt_ids for one in samples],
        "completion_ids": [one.completion_ids for one in samples],
        "logprobs": None if any(one.logprobs is None for one in samples) else [one.logprobs for one in samples],
        "env_mask": [one.env_mask for one in samples],
        "game_role": [one.role for one in samples],
        "game_reward": [result.rewards[one.role] for one, result in zip(samples, results, strict=True)],
        "game_outcome": [result.outcome for result in results],
    }
