"""spag's games in TRL: a ``rollout_func`` for ``GRPOTrainer`` whose completions are whole games (extra ``trl``).

    rollout = GameRollout(game, Opponent(game, engine_of("bot:random", game)))
    GRPOTrainer(model, game_reward, args, Dataset.from_list(game_prompts(game, 100)), rollout_func=rollout, ...)

A prompt of the dataset is a task and a seed, as JSON. The samples of its group take the roles in turn. Against an
``Opponent`` each sample is a separate game; without one the model plays both sides, and each game gives one sample per
role. A sample is one token sequence: the prompt of the role's first turn, then its utterances (``env_mask`` 1), and
between them the additions of its later prompts (``env_mask`` 0).

TRL (1.16) has no public method to generate in a rollout: ``_generate_single_turn`` supports vLLM and transformers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from spag.adapters.opponent import Opponent
from spag.adapters.turns import after, new_lines
from spag.core.errors import ConfigError
from spag.core.types import Split, State, Task
from spag.engines.base import text_before_stop
from spag.games.base import Game
from spag.models.tokens import PromptStyle, encode_follow_up, encode_prompt, opening_of, spoken, token_texts
from spag.rollout.runner import game_specs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
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


@dataclass(slots=True)
class Trajectory:
    """The tokens of a ``role`` in game number ``game``. ``completion_ids``, ``env_mask`` (1: sampled from the model)
    and ``logprobs`` have one length. ``stopped``: the last utterance ended with a stop string.
    """

    game: int
    role: str
    prompt: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    env_mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    stopped: bool = False

    def add(self, ids: Sequence[int], mask: int, logprobs: Sequence[float] | None) -> None:
        """Append tokens; if the log-probabilities of one piece are unknown, so are all."""
        self.completion_ids += ids
        self.env_mask += [mask] * len(ids)
        self.logprobs = None if self.logprobs is None or logprobs is None else [*self.logprobs, *logprobs]

    def extend_context(
        self, tokenizer: "PreTrainedTokenizerBase", prompt: str, style: PromptStyle, *, thinking: bool = False
    ) -> list[int]:
        """Append the new part of ``prompt``, and return the tokens that the role's next utterance continues."""
        if self.prompt:
            new_text = new_lines(self.prompt, prompt)
            new = encode_follow_up(tokenizer, self.completion_ids, new_text, style, thinking=thinking)
            self.add(new, 0, [0.0] * len(new))
        else:
            self.prompt_ids = encode_prompt(tokenizer, prompt, style, thinking=thinking)
        self.prompt = prompt
        return [*self.prompt_ids, *self.completion_ids]


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
        _check_groups(prompts, trainer)
        _check_role_reward(self.roles or self.game.roles, trainer)
        states, trajectories, samples = self._deal(prompts)
        while _most(trainer, sum(state.result is None for state in states)):
            due = [one for one in trajectories if self.game.to_move(states[one.game]) == one.role]
            ours = {one.game for one in due}
            others = [at for at, state in enumerate(states) if state.result is None and at not in ours]
            if self.opponent is not None and others:
                for at, reply in zip(others, self.opponent.replies([states[at] for at in others]), strict=True):
                    states[at] = self.game.apply(states[at], reply)
            if most := _most(trainer, len(due)):
                for one, text in zip(due, self._generate(due, most, states, trainer), strict=True):
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

    def _generate(
        self, due: Sequence[Trajectory], most: int, states: Sequence[State], trainer: "GRPOTrainer"
    ) -> list[str]:
        """Sample the next utterance of each trajectory in ``due``, and return the texts.

        Processes generate together, ``most`` replies each: TRL deals out a server's replies by equal numbers.
        """
        tokenizer, stops = trainer.processing_class, self.game.stop_strings()
        prompts = [self.game.prompt(self.game.observe(states[one.game], one.role)) for one in due]
        contexts = [
            one.extend_context(tokenizer, prompt, self.style, thinking=self.thinking)
            for one, prompt in zip(due, prompts, strict=True)
        ]
        filler = contexts[-1:] or [[tokenizer.eos_token_id]]  # a reply that ends like the others
        generated, logprobs = trainer._generate_single_turn(contexts + filler * (most - len(contexts)), None, {}, 1)
        texts = []
        for number, (one, context) in enumerate(zip(due, contexts, strict=True)):
            ids, text, one.stopped = _cut(
                tokenizer, context, generated[number], stops, self.style, thinking=self.thinking
            )
            one.add(ids, 1, None if logprobs is None else logprobs[number][: len(ids)])
            texts.append(text)
        return texts


def _check_groups(prompts: Sequence[str], trainer: "GRPOTrainer") -> None:
    """Raise ``ConfigError`` if a group is spread over processes: each assigns roles and computes means on its own."""
    if trainer.accelerator.num_processes > 1 and prompts:
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        if (least := min(Counter(prompts).values())) < size:
            what = f"num_generations={size}: a process gets {least} of a group"
            fix = "make per_device_train_batch_size * steps_per_generation a multiple of it"
            raise ConfigError(f"{what}, but roles and their means need the whole group; {fix}")


def _check_role_reward(roles: Sequence[str], trainer: "GRPOTrainer") -> None:
    """Raise ``ConfigError`` for groups with a single sample of a role: its ``role_reward`` would always be 0."""
    if role_reward in trainer.reward_funcs and trainer.num_generations < (least := 2 * len(roles)):
        what = f"num_generations={trainer.num_generations}: role_reward needs two samples of each role in a group"
        raise ConfigError(f"{what}; set num_generations={least} or more, or use game_reward")


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


def _most(trainer: "GRPOTrainer", here: int) -> int:
    """Return the largest of the processes' numbers; ``here`` is this one's."""
    if trainer.accelerator.num_processes == 1:
        return here
    import torch  # noqa: PLC0415

    return int(trainer.accelerator.gather(torch.tensor([here], device=trainer.accelerator.device)).max())


def _fields(
    game: Game, states: Sequence[State], samples: Sequence[Trajectory], tokenizer: Any
) -> dict[str, list[Any] | None]:
    for one in samples:
        if not one.completion_ids:  # the game ended before its first turn; TRL accepts no empty completion: weight 0
            one.prompt_ids, one.logprobs = one.prompt_ids or [tokenizer.eos_token_id], []
        if not one.completion_ids or one.stopped:  # without EOS, TRL takes a whole sample for truncated
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


def _cut(
    tokenizer: "PreTrainedTokenizerBase",
    context: Sequence[int],
    ids: Sequence[int],
    stops: tuple[str, ...],
    style: PromptStyle,
    *,
    thinking: bool = False,
) -> tuple[list[int], str, bool]:
    """Return sampled tokens up to the one that completes a stop string, the text before it, and whether there is one:
    as engines see it, which look at every token as it comes.

    Thoughts may contain stop strings. A template may open a thought unasked; the text then includes the mark.
    """
    tagged = style is PromptStyle.TAGGED
    whole = opening_of(tokenizer, context, style, thinking=thinking or not tagged)
    for count, added in enumerate(token_texts(tokenizer, context, ids), start=1):
        whole += added
        if (text := text_before_stop(whole, stops, thinking=True, tagged=tagged)) is not None:
            return list(ids[:count]), spoken(text, style, thinking=thinking), True
    return list(ids), spoken(whole, style, thinking=thinking), False
