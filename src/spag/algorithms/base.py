"""The seam between an algorithm and training: what a loss is computed from, and what the trainer asks of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """B samples of a micro-batch. All tensors are (B,), ``n`` and ``n_sft`` scalars.

    ``logprob``: log-probability of the completion under the policy, averaged over its trained tokens, with gradient. ``ref_logprob``: the
    same under the frozen reference model. ``is_sft``: True for rows of the SFT mix. ``n`` and ``n_sft`` count the other rows and the SFT
    rows of the whole global batch, so that any split into micro-batches and processes gives the same step.
    """

    logprob: "Tensor"
    ref_logprob: "Tensor"
    reward: "Tensor"
    weight: "Tensor"
    is_sft: "Tensor"
    n: "Tensor"
    n_sft: "Tensor"


class Objective(Protocol):
    """An algorithm's loss with its coefficients."""

    name: ClassVar[str]

    @property
    def clip_range(self) -> float | None:
        """Where importance ratios are clipped (1 -/+ this), for metrics; ``None``: they are not."""

    def loss(self, batch: PolicyBatch) -> "Tensor":
        """Return the batch's share of the global loss: a scalar."""

    def terms(self, batch: PolicyBatch) -> "Tensor":
        """Return each sample's loss, for metrics: (B,)."""


def at_least_one(n: "int | Tensor") -> "int | Tensor":
    """Return a count fit to divide by."""
    return max(n, 1) if isinstance(n, int) else n.clamp(min=1)
