"""Imitation: behavior cloning of a teacher's wins with a KL term (arXiv 2404.10642, section 3.1).

The paper writes KL[policy || reference], an expectation over the policy's own replies; the published code takes only
the term of that sum for the teacher's reply, with length-normalised log-probabilities. We follow the code, because it
produced the published results. With ``kl_coef`` 0 it is weighted SFT, and computes no reference.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from spag.algorithms.base import Metrics, Needs, TokenBatch, mean_of, mixed
from spag.algorithms.settings import TeacherSettings
from spag.algorithms.winners import OfflineAlgorithm
from spag.core.episodes import SampleType
from spag.core.options import NonNegative

if TYPE_CHECKING:
    from torch import Tensor


class ImitationSettings(TeacherSettings):
    """Imitation of a teacher's play."""

    kl_coef: NonNegative = Field(
        0.1, description="weight of the KL term towards the start model; 0 computes no reference"
    )
    utterances: Literal["winners", "all"] = Field(
        "winners",
        description="whose utterances are imitated: the winners' (the paper's), or all of games in which nobody broke "
        "a rule",
    )


class Imitation(OfflineAlgorithm):
    """Satisfies ``spag.algorithms.base.Algorithm``."""

    name: ClassVar[str] = "imitation"
    Settings: ClassVar[type[TeacherSettings]] = ImitationSettings

    @property
    def needs(self) -> Needs:
        return Needs(reference=self.settings.kl_coef > 0)

    def reward_settings(self) -> dict[str, Any]:
        return {"sample_type": SampleType.IMITATION, "everyone": self.settings.utterances == "all"}

    def loss(self, batch: TokenBatch) -> "tuple[Tensor, Metrics]":
        sft, logprob = batch.is_sft, batch.mean(batch.logprob)
        reference = batch.mean(batch.ref_logprob)
        columns = logprob, reference, batch.weight
        plain, own = (imitation_terms(*columns, kl_coef=kl_coef) for kl_coef in (0.0, self.settings.kl_coef))
        terms = plain.where(sft, own)
        counted = (batch.group >= 0).float()
        metrics = dict(batch.by_group("loss_{}", terms, counted, batch.group))
        if self.needs.reference:
            metrics["kl"] = mean_of(logprob - reference, counted * ~sft)
        return mixed(terms, sft, self.settings.sft_coef, batch.totals.samples, batch.totals.sft), metrics


def imitation_terms(logprob: "Tensor", ref_logprob: "Tensor", weight: "Tensor", *, kl_coef: float) -> "Tensor":
    """Return the imitation loss of each sample, weight included: (B,).

    ``logprob``, ``ref_logprob``: mean log-probability of a sample's trained tokens, in nats, under the policy and the
    reference, (B,). ``weight``: (B,).
    """
    return weight * (-logprob + kl_coef * logprob.exp() * (logprob - ref_logprob))


def imitation_loss(logprob: "Tensor", ref_logprob: "Tensor", weight: "Tensor", *, kl_coef: float) -> "Tensor":
    """Return 1/B * sum_i weight_i * (-lp_i + kl_coef * exp(lp_i) * (lp_i - lp_ref_i)): a scalar; 0 without samples.

    ``logprob``, ``ref_logprob`` and ``weight`` are (B,).
    """
    return imitation_terms(logprob, ref_logprob, weight, kl_coef=kl_coef).sum() / max(len(logprob), 1)
