"""Imitation: behavior cloning of a teacher's winning play with a KL term (arXiv 2404.10642, section 3.1).

Samples come from ``spag.algorithms.spag.iterate_rewards`` over the teacher's games; their rewards are not used here. The paper writes
KL[policy || reference], an expectation over the policy's own replies; the published code takes the one term of that sum that belongs to the
teacher's reply, with length-normalised log-probabilities. The code is followed, because the published results are its results.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from spag.algorithms.base import PolicyBatch, at_least_one

if TYPE_CHECKING:
    from torch import Tensor


def imitation_terms(logprob: "Tensor", ref_logprob: "Tensor", weight: "Tensor", *, kl_coef: float) -> "Tensor":
    """Return the imitation loss of each sample, weight included: (B,)."""
    return weight * (-logprob + kl_coef * logprob.exp() * (logprob - ref_logprob))


def imitation_loss(
    logprob: "Tensor", ref_logprob: "Tensor", weight: "Tensor", *, kl_coef: float, n: "int | Tensor | None" = None
) -> "Tensor":
    """Return 1/n * sum_i weight_i * (-lp_i + kl_coef * exp(lp_i) * (lp_i - lp_ref_i)): a scalar.

    ``logprob``, ``ref_logprob`` and ``weight`` are (B,). ``n`` is the number of samples of the whole batch, by default B.
    """
    return imitation_terms(logprob, ref_logprob, weight, kl_coef=kl_coef).sum() / at_least_one(len(logprob) if n is None else n)


@dataclass(frozen=True, slots=True)
class Imitation:
    """Behavior cloning mixed with instruction data, which has no KL term. With ``kl_coef`` 0 it is weighted SFT."""

    kl_coef: float
    sft_coef: float
    clip_range: float | None = None
    name: ClassVar[str] = "imitation"

    def loss(self, batch: PolicyBatch) -> "Tensor":
        columns, sft = (batch.logprob, batch.ref_logprob, batch.weight), batch.is_sft
        imitation = imitation_loss(*(column[~sft] for column in columns), kl_coef=self.kl_coef, n=batch.n)
        return imitation + self.sft_coef * imitation_loss(*(column[sft] for column in columns), kl_coef=0.0, n=batch.n_sft)

    def terms(self, batch: PolicyBatch) -> "Tensor":
        columns = (batch.logprob, batch.ref_logprob, batch.weight)
        return imitation_terms(*columns, kl_coef=0.0).where(batch.is_sft, imitation_terms(*columns, kl_coef=self.kl_coef))
