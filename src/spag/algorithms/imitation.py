"""Imitation: behavior cloning of a teacher's wins with a KL term (arXiv 2404.10642, section 3.1).

The paper writes KL[policy || reference], an expectation over the policy's own replies; the published code takes only
the term of that sum for the teacher's reply, with length-normalised log-probabilities. We follow the code, because it
produced the published results. With ``kl_coef`` 0 it is weighted SFT, and computes no reference.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from spag.algorithms.base import Needs, TokenBatch
from spag.algorithms.settings import TeacherSettings
from spag.algorithms.winners import OfflineAlgorithm
from spag.core.episodes import SampleType
from spag.core.options import NonNegative

if TYPE_CHECKING:
    from torch import Tensor


class ImitationSettings(TeacherSettings):
    """Imitation of a teacher's play."""

    kl_coef: NonNegative = Field(
        0.1, description="weight of the KL term towards the start model; at 0 no reference is computed"
    )
    utterances: Literal["winners", "all"] = Field(
        "winners",
        description="whose utterances are imitated: the winners' (as in the paper), or everybody's in games in which "
        "nobody broke a rule",
    )


class Imitation(OfflineAlgorithm):
    """Satisfies ``spag.algorithms.base.Algorithm``."""

    name: ClassVar[str] = "imitation"
    Settings: ClassVar[type[TeacherSettings]] = ImitationSettings
    sample_type = SampleType.IMITATION

    @property
    def needs(self) -> Needs:
        return Needs(reference=self.settings.kl_coef > 0)

    def terms(self, batch: TokenBatch, logprob: "Tensor", reference: "Tensor") -> "tuple[Tensor, dict[str, Tensor]]":
        """Return the loss and figures of each sample, (B,), from its ``logprob`` and ``reference``, (B,)."""
        kl_coef = self.settings.kl_coef * ~batch.is_sft
        values = {"kl": logprob - reference} if self.needs.reference else {}
        return imitation_terms(logprob, reference, batch.weight, kl_coef=kl_coef), values


def imitation_terms(
    logprob: "Tensor", ref_logprob: "Tensor", weight: "Tensor", *, kl_coef: "float | Tensor"
) -> "Tensor":
    """Return the imitation loss of each sample, weight included: (B,).

    ``logprob``, ``ref_logprob``: mean log-probability of a sample's trained tokens, in nats, under the policy and the
    reference, (B,). ``weight`` and ``kl_coef``: (B,), or one coefficient for all.
    """
    return weight * (-logprob + kl_coef * logprob.exp() * (logprob - ref_logprob))


def imitation_loss(logprob: "Tensor", ref_logprob: "Tensor", weight: "Tensor", *, kl_coef: float) -> "Tensor":
    """Return 1/B * sum_i weight_i * (-lp_i + kl_coef * exp(lp_i) * (lp_i - lp_ref_i)): a scalar; 0 without samples.

    ``logprob``, ``ref_logprob`` and ``weight`` are (B,).
    """
    return imitation_terms(logprob, ref_logprob, weight, kl_coef=kl_coef).sum() / max(len(logprob), 1)
