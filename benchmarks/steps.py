"""A step of training, written the paper's way and ours, on the same samples. What is measured of them is said in
``training.py``.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from statistics import fmean
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.corpus import long_games, teacher_games
from spag.algorithms.settings import UpdateSettings
from spag.algorithms.spag import offline_rl_loss
from spag.algorithms.winners import RewardSettings, assign_rewards
from spag.config.schema import ModelConfig
from spag.learning.batches import TrainingData
from spag.learning.devices import make_accelerator, make_optimizer
from spag.learning.references import LARGER, logprobs_of
from spag.models.finding import EMBEDDED_NAME
from spag.models.forward import Capabilities, probe_capabilities, to_device, token_scores
from spag.models.loading import default_device, load_model, load_tokenizer
from spag.models.samples import Batch, EncodedSample, collate, encode_samples
from spag.models.speed import choose_products
from spag.models.tokens import PromptStyle
from spag.planning.specs import read_shape

GLOBAL_BATCH = 128
COEFFICIENTS: dict[str, Any] = {"kl_coef": 0.2, "sft_coef": 0.5, "clip_range": 0.2}
PAPER_MICRO_BATCH = 2
PAPER_SHARE = 6  # of so many pairs, one is run
Optimizer = Literal["adamw", "adamw_8bit"]


@dataclass(frozen=True, slots=True)
class Work:
    """What is trained: ``template`` random (drawn per utterance, as the paper) or play (one for a game: its prefixes
    are shared).

    ``turns`` is 0 for the shipped teacher play, else made-up games are that long.
    """

    model: str = EMBEDDED_NAME
    template: str = "random"
    dtype: str = "bfloat16"
    samples: int = GLOBAL_BATCH
    micro_batch: int = 8
    turns: int = 0
    checkpointing: int = 0
    optimizer: Optimizer = "adamw"

    @property
    def settings(self) -> UpdateSettings:
        checkpointing = bool(self.checkpointing)
        return UpdateSettings(learning_rate=1e-6, gradient_checkpointing=checkpointing, optimizer=self.optimizer)


def encoded_samples(work: Work) -> list[EncodedSample]:
    """The samples of as many games as it takes."""
    episodes = list(long_games(work.turns, work.samples)) if work.turns else teacher_games(work.samples, seed=1)
    samples = assign_rewards(episodes, settings=RewardSettings(template=work.template))
    return encode_samples(samples, load_tokenizer(work.model), PromptStyle.PLAIN, max_length=2048)[: work.samples]


class Setting:
    """A policy with its optimiser; one a process, because both contestants start from the same weights and leave the
    memory as it was.
    """

    def __init__(self, work: Work, samples: list[EncodedSample] | None = None) -> None:
        self.work, self.samples = work, encoded_samples(work) if samples is None else samples
        self.device = torch.device(default_device())
        self.policy = load_model(work.model, dtype="float32", device=self.device.type)
        if work.checkpointing:
            self.policy.gradient_checkpointing_enable({"use_reentrant": False})
        self.optimizer = make_optimizer(self.policy, work.settings)

    def autocast(self) -> AbstractContextManager[None]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.work.dtype == "bfloat16")

    def gradients(self) -> float:
        """Compute and add up the gradients of a global batch, and return how much of it was done."""
        raise NotImplementedError

    def passes(self) -> Iterator[tuple[int, int, int]]:
        """Yield what a whole global batch takes: forward passes (a backward pass is two), tokens, and how many of them
        have logits.
        """
        raise NotImplementedError

    def flops(self) -> float:
        """Return the operations of all matrix products, without attention's and without those that checkpointing
        repeats.
        """
        shape = read_shape(self.work.model)
        return sum(
            2.0 * times * (tokens * shape.layers * shape.layer + logits * shape.embedding)
            for times, tokens, logits in self.passes()
        )

    def loss(self, logprob: Tensor, reference: Tensor, rows: Sequence[EncodedSample]) -> Tensor:
        reward = torch.tensor([sample.reward for sample in rows], device=self.device)
        weight = torch.tensor([sample.weight for sample in rows], device=self.device)
        loss = offline_rl_loss(logprob, reference, reward, weight, torch.zeros_like(reward), **COEFFICIENTS)
        return loss * len(rows) / len(self.samples)

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class PaperStyle(Setting):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.reference = load_model(work.model, dtype=work.dtype, device=self.device.type)

    def pairs(self) -> list[list[EncodedSample]]:
        order = list(range(len(self.samples)))
        random.Random(0).shuffle(order)
        starts = range(0, len(order), PAPER_MICRO_BATCH)
        return [[self.samples[index] for index in order[at : at + PAPER_MICRO_BATCH]] for at in starts]

    def gradients(self) -> float:
        pairs = self.pairs()
        run = pairs[: max(len(pairs) // PAPER_SHARE, 1)]
        for rows in run:
            with torch.no_grad():
                reference = self.logprob(self.reference, rows)
            self.loss(self.logprob(self.policy, rows), reference, rows).backward()  # type: ignore[no-untyped-call]
        return sum(map(len, run)) / len(self.samples)

    def passes(self) -> Iterator[tuple[int, int, int]]:
        for rows in self.pairs():
            tokens = len(rows) * max(len(sample.input_ids) for sample in rows)
            yield 4, tokens, tokens

    def logprob(self, model: nn.Module, rows: Sequence[EncodedSample]) -> Tensor:
        width = max(len(sample.input_ids) for sample in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        mask = torch.zeros_like(ids)
        for row, sample in enumerate(rows):
            length = len(sample.input_ids)
            ids[row, :length] = torch.tensor(sample.input_ids)
            labels[row, sample.completion_start : length] = ids[row, sample.completion_start : length]
            mask[row, :length] = 1
        with self.autocast():
            logits = model(input_ids=ids.to(self.device), attention_mask=mask.to(self.device), use_cache=False).logits
        return mean_logprob(logits.float(), labels.to(self.device))


def mean_logprob(logits: Tensor, labels: Tensor) -> Tensor:
    """Return each sample's log-probability, averaged over its tokens with labels other than -100: (B,).

    ``logits`` (B, T, V) at position t predict ``labels`` (B, T) at position t + 1.
    """
    labels = labels[:, 1:]
    nll = functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels, ignore_index=-100, reduction="none")
    return -nll.sum(dim=1) / (labels != -100).sum(dim=1)


class Ours(Setting):
    def __init__(self, work: Work, samples: list[EncodedSample] | None = None) -> None:
        super().__init__(work, samples)
        choose_products(self.device, getattr(torch, work.dtype))
        found = probe_capabilities(self.policy, 2048)
        self.capabilities: Capabilities = replace(found, checkpointed=bool(work.checkpointing))
        self.reference_batch = LARGER * work.micro_batch
        model = ModelConfig(name=work.model, dtype=work.dtype, device=self.device.type)
        self.accelerator = make_accelerator(model, work.settings, seed=0)

    def autocast(self) -> AbstractContextManager[None]:
        autocast: AbstractContextManager[None] = self.accelerator.autocast()
        return autocast

    def batches(self, size: int) -> list[list[int]]:
        data = TrainingData(self.samples, size, packed=self.capabilities.packed)
        return data.split(range(len(self.samples)))

    def gradients(self) -> float:
        data = TrainingData(self.samples, self.work.micro_batch, packed=self.capabilities.packed)
        parts = {"model": self.policy, "capabilities": self.capabilities, "accelerator": self.accelerator}
        policy: Any = SimpleNamespace(**parts, use_role=lambda batch, groups: None)
        found = logprobs_of(data, policy, range(len(self.samples)))
        self.policy.train()
        self.learn({index: fmean(logprobs) for index, logprobs in found.items()})
        return 1.0

    def learn(self, reference: Mapping[int, float]) -> None:
        """Add up the gradients of all samples, whose reference log-probabilities are given by index."""
        for batch in self.batches(self.work.micro_batch):
            rows = [self.samples[index] for index in batch]
            with self.autocast():
                logprob = self.logprob(to_device(self.collated(batch), self.device))
            self.loss(logprob, torch.tensor([reference[index] for index in batch], device=self.device), rows).backward()  # type: ignore[no-untyped-call]

    def logprob(self, batch: Batch) -> Tensor:
        """Return each sample's log-probability, averaged over its trained tokens: (B,)."""
        found = token_scores(self.policy, batch, self.capabilities)[:, 0]
        count = torch.bincount(batch["sample"], minlength=len(batch["weight"]))
        return found.new_zeros(len(count)).index_add(0, batch["sample"], found) / count

    def passes(self) -> Iterator[tuple[int, int, int]]:
        for times, size in ((1, self.reference_batch), (3, self.work.micro_batch)):
            for batch in map(self.collated, self.batches(size)):
                yield times, batch["input_ids"].numel(), batch["picks"].numel()

    def collated(self, batch: Sequence[int]) -> Batch:
        return collate([self.samples[index] for index in batch], packed=self.capabilities.packed)
