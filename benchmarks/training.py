"""Training: samples a second and peak memory, against a step written the paper's way.

One step with the paper's global batch of 128 samples. The paper's way (arXiv 2404.10642 and its code): batches of 2 random samples,
padded; all logits of the policy; a second model in memory for the reference, run in every step. Ours: prefix-sharing packed rows, logits of
trained tokens in chunks, reference log-probabilities computed once in larger batches (their time is counted). Samples, optimiser and
precision are the same. Of the paper's pairs, which are random, one in six is run, and its time is taken for six.

    python -m benchmarks --only training
    python -m benchmarks.training paper --template random     # one contestant, in a process of its own for its peak memory
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import psutil
import torch
from torch import Tensor, nn

from benchmarks.harness import Contest, Reading, peak_mib
from spag.engines.base import PromptStyle
from spag.models import fastest_dtype, load_model, load_tokenizer
from spag.rewards import RewardSettings, Template, assign_rewards
from spag.stages import teacher_episodes
from spag.training.callbacks import REFERENCE_BATCH
from spag.training.data import EncodedSample, collate, encode_samples
from spag.training.losses import mean_logprob, offline_rl_loss
from spag.training.order import micro_batches
from spag.training.policy import Abilities, abilities_of, target_logprobs
from spag.training.reference import compute_reference

MODEL = "smollm2-135m"
GLOBAL_BATCH = 128
KL_COEF, SFT_COEF, CLIP_RANGE = 0.2, 0.5, 0.2
PAPER_MICRO_BATCH = 2
PAPER_SHARE = 6  # of so many pairs, one is run


@dataclass(frozen=True, slots=True)
class Work:
    """What is trained: ``template`` random (drawn per utterance, as the paper) or play (one for a game: its prefixes are shared)."""

    template: str = "random"
    dtype: str = "bfloat16"
    samples: int = GLOBAL_BATCH
    micro_batch: int = 8
    checkpointing: bool = False


def encoded_samples(work: Work) -> list[EncodedSample]:
    """The samples of as many teacher games as it takes."""
    episodes = teacher_episodes(["teacher"], work.samples, seed=1)
    samples = assign_rewards(episodes, settings=RewardSettings(template=Template(work.template)))
    return encode_samples(samples, load_tokenizer(MODEL), PromptStyle.PLAIN, max_length=2048)[: work.samples]


class Setting:
    """A policy with its optimiser; one a process, because both contestants start from the same weights and leave the memory as it was."""

    def __init__(self, work: Work) -> None:
        self.work, self.samples = work, encoded_samples(work)
        self.policy = load_model(MODEL, dtype="float32", device="cpu")
        if work.checkpointing:
            self.policy.gradient_checkpointing_enable({"use_reentrant": False})
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-6)

    def autocast(self) -> AbstractContextManager[None]:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.work.dtype == "bfloat16")

    def gradients(self) -> float:
        """Compute and add up the gradients of a global batch, and return how much of it was done."""
        raise NotImplementedError

    def loss(self, logprob: Tensor, reference: Tensor, rows: Sequence[EncodedSample]) -> Tensor:
        reward = torch.tensor([sample.reward for sample in rows])
        weight = torch.tensor([sample.weight for sample in rows])
        coefficients = {"kl_coef": KL_COEF, "sft_coef": SFT_COEF, "clip_range": CLIP_RANGE}
        return offline_rl_loss(logprob, reference, reward, weight, torch.zeros(len(rows)), n_rl=len(self.samples), n_sft=0, **coefficients)

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class PaperStyle(Setting):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.reference = load_model(MODEL, dtype=work.dtype, device="cpu")

    def gradients(self) -> float:
        order = list(range(len(self.samples)))
        random.Random(0).shuffle(order)
        run = order[: PAPER_MICRO_BATCH * (len(order) // PAPER_MICRO_BATCH // PAPER_SHARE)]
        for at in range(0, len(run), PAPER_MICRO_BATCH):
            rows = [self.samples[index] for index in run[at : at + PAPER_MICRO_BATCH]]
            with torch.no_grad():
                reference = self.logprob(self.reference, rows)
            self.loss(self.logprob(self.policy, rows), reference, rows).backward()
        return len(run) / len(order)

    def logprob(self, model: nn.Module, rows: Sequence[EncodedSample]) -> Tensor:
        width = max(len(sample.input_ids) for sample in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        mask = torch.zeros_like(ids)
        for row, sample in enumerate(rows):
            length = len(sample.input_ids)
            ids[row, :length] = torch.tensor(sample.input_ids)
            labels[row, sample.target_start : length] = ids[row, sample.target_start : length]
            mask[row, :length] = 1
        with self.autocast():
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return mean_logprob(logits.float(), labels)


class Ours(Setting):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.abilities: Abilities = abilities_of(self.policy, 2048)

    def gradients(self) -> float:
        size = REFERENCE_BATCH * self.work.micro_batch
        with self.autocast():
            reference = compute_reference(self.policy, self.samples, range(len(self.samples)), batch_size=size, abilities=self.abilities)
        self.policy.train()
        sequences = [sample.input_ids for sample in self.samples]
        for batch in micro_batches(range(len(sequences)), sequences, self.work.micro_batch, packed=self.abilities.packed):
            rows = [self.samples[index] for index in batch]
            with self.autocast():
                logprob = target_logprobs(self.policy, collate([(row, 0.0) for row in rows], packed=self.abilities.packed), self.abilities)
            self.loss(logprob, torch.tensor([reference[index] for index in batch]), rows).backward()
        return 1.0


CONTESTANTS = {"paper": PaperStyle, "ours": Ours}


def run(name: str, work: Work) -> Reading:
    """Take a step of training: samples a second."""
    setting = CONTESTANTS[name](work)
    setting.policy.train()
    for parameter in setting.policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    setting.step()  # Adam's state is there before the step that counts, as in any step but the first
    resting = psutil.Process().memory_info().rss / 2**30
    began = time.perf_counter()
    share = setting.gradients()
    gradients = (time.perf_counter() - began) / share
    began = time.perf_counter()
    setting.step()
    seconds = gradients + time.perf_counter() - began
    peak = peak_mib() / 1024
    count = len(setting.samples)
    return Reading(count / seconds, {"seconds": seconds, "peak_gib": peak, "resting_gib": resting, "samples": count})


def alone(name: str, work: Work) -> Reading:
    """``run`` in a process of its own, so that its peak memory is its own."""
    options = [
        f"--{key.replace('_', '-')}={value}"
        for key, value in (("template", work.template), ("dtype", work.dtype), ("samples", work.samples), ("micro-batch", work.micro_batch))
    ]
    command = [sys.executable, "-m", "benchmarks.training", name, *options, *["--checkpointing"] * work.checkpointing]
    row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return Reading(row["value"], row["more"])


def contests(samples: int = GLOBAL_BATCH) -> list[Contest]:
    """Both in bfloat16 as the targets ask, with the reference's time counted; then each as it runs by itself: the paper's way in bfloat16
    with gradient checkpointing, ours without and in the precision that ``dtype: auto`` finds fastest here.
    """
    apart, shared = Work("random", samples=samples), Work("play", samples=samples, micro_batch=16)
    own = replace(shared, dtype=fastest_dtype())
    usual = replace(shared, checkpointing=True)
    return [
        Contest("training, a template per utterance", "samples/s", partial(alone, "paper", apart), partial(alone, "ours", apart), 4.0),
        Contest("training, a template per game", "samples/s", partial(alone, "paper", shared), partial(alone, "ours", shared), 8.0),
        Contest("training, each as it runs by itself", "samples/s", partial(alone, "paper", usual), partial(alone, "ours", own)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Let one contestant train, and print its reading as JSON.")
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("--template", default="random")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--samples", type=int, default=GLOBAL_BATCH)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--checkpointing", action="store_true")
    chosen = parser.parse_args()
    reading = run(chosen.contestant, Work(chosen.template, chosen.dtype, chosen.samples, chosen.micro_batch, chosen.checkpointing))
    print(json.dumps({"value": reading.value, "more": dict(reading.more)}))


if __name__ == "__main__":
    main()
