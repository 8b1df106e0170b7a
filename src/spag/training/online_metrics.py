"""The figures of an online step: sums over its trained tokens by role, over micro-batches and processes."""

import math
import time
from collections.abc import Sequence

import torch
from accelerate import Accelerator
from torch import Tensor

from spag.algorithms.reinforce import TokenBatch
from spag.core.errors import RunError
from spag.training.base import Row
from spag.training.data import Batch

_FEATURES = ("tokens", "entropy", "kl", "ratio", "clipped", "mismatch", "mismatch_kl")


class StepSums:
    """Sums of a step's losses, and of its tokens' features by role. ``roles``: every ``GAME/ROLE`` that may be trained."""

    def __init__(self, roles: Sequence[str], clip_range: float, device: torch.device) -> None:
        self.roles, self.clip_range = tuple(roles), clip_range
        self.sums = torch.zeros(1 + len(self.roles) * len(_FEATURES), dtype=torch.float64, device=device)
        self.largest_mismatch = torch.zeros((), device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, batch: TokenBatch, inputs: Batch) -> None:
        """Add a micro-batch: its ``loss``, a scalar, and its K tokens; ``inputs`` has their samples, weights and groups."""
        weight, group = inputs["weight"][inputs["sample"]], inputs["group"][inputs["sample"]]
        ratio = (batch.logprob - batch.old_logprob).exp()
        to_reference, to_engine = batch.ref_logprob - batch.logprob, batch.old_logprob - batch.sampling_logprob
        features = torch.stack(
            [
                torch.ones_like(ratio),
                batch.entropy,
                to_reference.exp() - 1.0 - to_reference,
                ratio,
                ((ratio - 1.0).abs() > self.clip_range).float(),
                to_engine.abs(),
                to_engine.exp() - 1.0 - to_engine,
            ],
            dim=1,
        )
        member = group.unsqueeze(0) == torch.arange(len(self.roles), device=group.device).unsqueeze(1)
        self.sums[0] += loss
        self.sums[1:] += ((member * weight).double() @ features.double()).flatten()
        if bool((weight > 0).any()):
            self.largest_mismatch = self.largest_mismatch.maximum(to_engine.abs()[weight > 0].max())

    def take(self, step: int, updates: int, accelerator: Accelerator, *, has_reference: bool) -> Row:
        """Return the figures of ``step``, which had ``updates`` updates, and begin anew. Every process must call it.

        Raises ``RunError`` when the loss is not finite.
        """
        loss, *rest = accelerator.reduce(self.sums, reduction="sum").tolist()
        largest = float(accelerator.gather(self.largest_mismatch).max())
        self.sums.zero_()
        self.largest_mismatch.zero_()
        if not math.isfinite(loss):
            raise RunError(f"online step {step}: the loss is {loss}; lower the learning rate")
        size = len(_FEATURES)
        by_group = {name: rest[at * size : (at + 1) * size] for at, name in enumerate(self.roles)}
        tokens, entropy, kl, ratio, clipped, mismatch, mismatch_kl = (sum(column) for column in zip(*by_group.values(), strict=True))
        row: Row = {"loss": loss / updates, "tokens": tokens / updates, "entropy": _mean(entropy, tokens)}
        if has_reference:
            row["kl"] = _mean(kl, tokens)
        if updates > 1:
            row["importance_ratio"], row["clip_fraction"] = _mean(ratio, tokens), _mean(clipped, tokens)
        row |= {"mismatch": _mean(mismatch, tokens), "mismatch_max": largest, "mismatch_kl": _mean(mismatch_kl, tokens)}
        return row | {f"{name}/entropy": _mean(group[1], group[0]) for name, group in by_group.items()}


class Timer:
    """Adds the seconds of a block to an entry."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self.seconds, self.name = seconds, name

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.name] = self.seconds.get(self.name, 0.0) + time.perf_counter() - self.began


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None
