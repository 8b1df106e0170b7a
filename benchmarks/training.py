"""Training: samples a second and peak memory, against a step written the paper's way.

One step with the paper's global batch of 128 samples. The paper's way (arXiv 2404.10642 and its code): batches of 2
random samples, padded; all logits of the policy; a second model in memory for the reference, run in every step. Ours:
prefix-sharing packed rows, logits of trained tokens in chunks, reference log-probabilities computed once in larger
batches (their time is counted). Samples, optimiser and precision are the same. Of the paper's pairs, which are random,
one in six is run, and its time is taken for six. On CPUs ours in float32 is also compared with itself, with torch's
default products (``spag.models.speed``: these differ on AMD's CPUs with AVX-512).

    python -m benchmarks --only training
    python -m benchmarks.training paper --template random  # one contestant, in a process of its own for its peak memory
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial

import psutil
import torch

from benchmarks.harness import Contest, Reading, alone, peak_mib, print_reading
from benchmarks.machine import datasheet
from benchmarks.steps import GLOBAL_BATCH, Ours, PaperStyle, Setting, Work
from spag.models.loading import fastest_dtype
from spag.planning.memory import PROGRAM, training_memory
from spag.planning.specs import GIB, read_shape

CONTESTANTS = {"paper": PaperStyle, "ours": Ours, "default-products": Ours}
KINDS = {
    "a template per utterance": Work(template="random", micro_batch=8),
    "a template per game": Work(template="play", micro_batch=16),
}
TARGETS = {"a template per utterance": 4.0, "a template per game": 8.0}


def run(name: str, work: Work) -> Reading:
    """Take a step of training: samples a second."""
    setting = CONTESTANTS[name](work)
    if name == "default-products":
        torch.set_float32_matmul_precision("highest")
    setting.policy.train()
    for parameter in setting.policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    setting.step()  # Adam's state is there before the step that counts, as in any step but the first
    if setting.device.type == "cuda":  # kernels are loaded at their first call
        setting.gradients()
        setting.step()
        torch.cuda.reset_peak_memory_stats()
    resting = held_gib(setting.device)
    began = now(setting.device)
    share = setting.gradients()
    gradients = (now(setting.device) - began) / share
    began = now(setting.device)
    setting.step()
    seconds = gradients + now(setting.device) - began
    peak = held_gib(setting.device, peak=True)
    more = {"seconds": seconds, "peak_gib": peak, "resting_gib": resting, "samples": len(setting.samples)}
    if isinstance(setting, Ours):
        more["planned_gib"] = planned_gib(setting)
    return Reading(len(setting.samples) / seconds, {**more, **speeds(setting, seconds)})


def planned_gib(setting: Ours) -> float:
    """Return the peak that the memory plan predicts for the largest micro-batch."""
    work, on_cpu = setting.work, setting.device.type == "cpu"
    fed, trained = (
        max(sizes) for sizes in zip(*(sizes for times, *sizes in setting.passes() if times > 1), strict=True)
    )
    number = 2 if work.dtype == "bfloat16" else 4
    planned = training_memory(read_shape(work.model), work.settings, fed, trained, number, 1, on_gpu=not on_cpu)
    return (planned.total + PROGRAM * on_cpu) / GIB


def speeds(setting: Setting, seconds: float) -> dict[str, float]:
    """Return tokens of samples a second (without padding, and as many as if no prefix were shared), TFLOP/s, and on a
    GPU the share of what its datasheet says.
    """
    flops = setting.flops() / seconds
    found = {
        "tokens_per_second": sum(len(sample.input_ids) for sample in setting.samples) / seconds,
        "tflops": flops / 1e12,
    }
    if setting.device.type == "cuda":
        gpu = datasheet(torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory)
        found |= {"mfu": flops / gpu.flops} if gpu else {}
    return found


def now(device: torch.device) -> float:
    """Return the time at which all work given to ``device`` is done, in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def held_gib(device: torch.device, *, peak: bool = False) -> float:
    """Return what tensors hold of a GPU's memory, or what this process holds of the machine's."""
    if device.type == "cuda":
        return (torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()) / GIB
    return peak_mib() / 1024 if peak else psutil.Process().memory_info().rss / GIB


def against_paper(name: str, work: Work, target: float | None = None) -> Contest:
    paper, ours = (partial(alone, "training", side, work) for side in ("paper", "ours"))
    return Contest(f"training, {name}", "samples/s", paper, ours, target)


def contests(samples: int = GLOBAL_BATCH) -> Iterator[Contest]:
    """Both sides without gradient checkpointing, and in the precision that ``dtype: auto`` finds fastest here; the
    reference's time is counted.
    """
    for name, work in KINDS.items():
        yield against_paper(name, replace(work, samples=samples, dtype=fastest_dtype()), TARGETS[name])
    if not torch.cuda.is_available():
        work = replace(KINDS["a template per game"], samples=samples, dtype="float32")
        torchs, ours = (partial(alone, "training", side, work) for side in ("default-products", "ours"))
        yield Contest("training, float32: oneDNN's products over torch's choice", "samples/s", torchs, ours)


def large_contests(model: str, label: str, samples: int = GLOBAL_BATCH) -> Iterator[Contest]:
    """A full fine-tune of a large model on one GPU: gradient checkpointing on both sides."""
    for name, work in KINDS.items():
        yield against_paper(f"{label}, {name}", replace(work, model=model, samples=samples, checkpointing=1))


def main() -> None:
    parser = argparse.ArgumentParser(description="Let one contestant train, and print its reading as JSON.")
    parser.add_argument("contestant", choices=CONTESTANTS)
    for option in fields(Work):
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default)
    chosen = vars(parser.parse_args())
    reading = run(chosen.pop("contestant"), Work(**chosen))
    print_reading(reading)


if __name__ == "__main__":
    main()
