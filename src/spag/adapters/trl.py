"""spag's games in TRL: a ``rollout_func`` for ``GRPOTrainer`` whose completions are whole games (``pip install '.[trl]'``).

    rollout = GameRollout(game, Opponent(game, engine_of("bot:random", game)))
    GRPOTrainer(model, game_reward, args, Dataset.from_list(game_prompts(game, 100)), rollout_func=rollout, ...)

A prompt of the dataset is a task and a seed, as JSON. Its group is one task and one seed from every seat: the samples take the roles in
turn. Against an ``Opponent`` each sample is a game of its own; without one the model plays both sides, and each game gives a sample to each
role. A sample is what its role saw and said, as one sequence of tokens: the prompt of its first turn, then its utterances
(``env_mask`` 1), and between them what its later prompts add (``env_mask`` 0).

TRL (1.16) has no public call for generation inside a rollout: ``_generate_single_turn`` is the one that serves vLLM and transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from spag.adapters.opponent import Opponent
from spag.adapters.transcript import Seat, cut
from spag.core.types import Split, State, Task, Utterance
from spag.games.base import Game
from spag.models.tokens import PromptStyle
from spag.rollout.runner import game_specs

if TYPE_CHECKING:
    from trl import GRPOTrainer


class Deal(msgspec.Struct):
    """A prompt of the dataset: what a group of games is about."""

    task: Task
    seed: int


def game_prompts(game: Game, count: int | None = None, *, split: Split = Split.TRAIN, seed: int = 0) -> list[dict[str, str]]:
    """Return ``count`` rows of a dataset, each a task with a seed; all tasks when ``None``."""
    specs = game_specs(game.tasks(split, count, seed), 1, seed)
    return [{"prompt": msgspec.json.encode(Deal(spec.task, spec.seed)).decode()} for spec in specs]


@dataclass(frozen=True)
class GameRollout:
    """The ``rollout_func``. ``roles`` are those that are trained, all by default; ``style`` is how prompts become tokens."""

    game: Game
    opponent: Opponent | None = None
    roles: tuple[str, ...] = ()
    style: PromptStyle = PromptStyle.CHAT

    def __call__(self, prompts: list[str], trainer: "GRPOTrainer") -> dict[str, list[Any] | None]:
        """Play the games of ``prompts``; return TRL's fields and those that ``game_reward`` reads, all in the order of ``prompts``."""
        states, seats, samples = self._deal(prompts)
        while _anyone(trainer, any(state.result is None for state in states)):
            due = [seat for seat in seats if self.game.to_move(states[seat.game]) == seat.role]
            others = sorted({at for at, state in enumerate(states) if state.result is None} - {seat.game for seat in due})
            if self.opponent is not None and others:
                for at, said in zip(others, self.opponent.replies([states[at] for at in others]), strict=True):
                    states[at] = self.game.apply(states[at], said)
            if due or trainer.accelerator.num_processes > 1:  # sharded models generate together, so nobody may stay out
                for seat, text in zip(due, self._generate(due, states, trainer), strict=True):
                    states[seat.game] = self.game.apply(states[seat.game], Utterance(seat.role, text))
        return _fields(self.game, states, samples, trainer.processing_class)

    def _deal(self, prompts: Sequence[str]) -> tuple[list[State], list[Seat], list[Seat]]:
        """Return the games, the seats at which the model plays, and those of them that are the samples."""
        roles = self.roles or self.game.roles
        states: list[State] = []
        seats: dict[tuple[int, str], Seat] = {}
        samples, copies, latest = [], dict.fromkeys(prompts, 0), dict.fromkeys(prompts, 0)
        for prompt in prompts:
            deal, number = msgspec.json.decode(prompt, type=Deal), copies[prompt]
            role = roles[(number + deal.seed) % len(roles)]
            if self.opponent is not None or number % len(roles) == 0:
                latest[prompt] = len(states)
                seats |= {(len(states), own): Seat(len(states), own) for own in ((role,) if self.opponent else self.game.roles)}
                states.append(self.game.start(deal.task, deal.seed))
            samples.append(seats[latest[prompt], role])
            copies[prompt] += 1
        return states, [*seats.values()], samples

    def _generate(self, due: Sequence[Seat], states: Sequence[State], trainer: "GRPOTrainer") -> list[str]:
        """Let the model speak at the seats ``due``, and return what it says."""
        tokenizer, stops = trainer.processing_class, self.game.stop_strings()
        prompts = [self.game.prompt(self.game.observe(states[seat.game], seat.role)) for seat in due]
        contexts = [seat.hear(tokenizer, prompt, self.style) for seat, prompt in zip(due, prompts, strict=True)]
        generated, logprobs = trainer._generate_single_turn(contexts or [[tokenizer.eos_token_id]], None, {}, 1)
        texts = []
        for number, (seat, context) in enumerate(zip(due, contexts, strict=True)):
            ids, text = cut(tokenizer, context, generated[number], stops)
            seat.add(ids, 1, None if logprobs is None else logprobs[number][: len(ids)])
            texts.append(text.strip())
        return texts


def game_reward(game_reward: list[float], game_role: list[str], log_metric: Any = None, **_: Any) -> list[float]:
    """A reward function: what the game pays, logged for each role too."""
    if log_metric is not None:
        for role, reward in zip(game_role, game_reward, strict=True):
            log_metric(f"reward/{role}", reward)
    return game_reward


def role_reward(prompts: list[str], game_reward: list[float], game_role: list[str], **_: Any) -> list[float]:
    """A reward function: what the game pays, less the mean of its role in the group: an easier role is no merit (arXiv 2506.24119)."""
    groups: dict[tuple[str, str], list[float]] = {}
    keys = list(zip(prompts, game_role, strict=True))
    for key, reward in zip(keys, game_reward, strict=True):
        groups.setdefault(key, []).append(reward)
    return [reward - sum(groups[key]) / len(groups[key]) for key, reward in zip(keys, game_reward, strict=True)]


def _anyone(trainer: "GRPOTrainer", here: bool) -> bool:
    """Tell whether any process still plays."""
    if trainer.accelerator.num_processes == 1:
        return here
    import torch  # noqa: PLC0415

    return bool(trainer.accelerator.gather(torch.tensor([here], device=trainer.accelerator.device)).any())


def _fields(game: Game, states: Sequence[State], samples: Sequence[Seat], tokenizer: Any) -> dict[str, list[Any] | None]:
    for seat in samples:
        if not seat.completion_ids:  # the game ended before its first turn: TRL takes no empty completion, and this one counts for nothing
            seat.prompt_ids, seat.logprobs = seat.prompt_ids or [tokenizer.eos_token_id], []
            seat.add([tokenizer.eos_token_id], 0, [0.0])
    known = all(seat.logprobs is not None for seat in samples)
    results = [game.result(states[seat.game]) for seat in samples]
    return {
        "prompt_ids": [seat.prompt_ids for seat in samples],
        "completion_ids": [seat.completion_ids for seat in samples],
        "logprobs": [seat.logprobs for seat in samples] if known else None,
        "env_mask": [seat.env_mask for seat in samples],
        "game_role": [seat.role for seat in samples],
        "game_reward": [result.rewards[seat.role] for seat, result in zip(samples, results, strict=True)],
        "game_outcome": [result.outcome for result in results],
    }
