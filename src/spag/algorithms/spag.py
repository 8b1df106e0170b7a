"""SPAG: offline RL on games of self-play, with clipped importance ratios and a KL term (arXiv 2404.10642, section 3.3).

Rewards come from ``winners.py``. ``offline_rl_loss`` says where the published code, which we follow, and the paper
differ.
"""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from spag.algorithms.base import Needs, TokenBatch, mixed
from spag.algorithms.settings import IterationSettings
from spag.algorithms.winners import OfflineAlgorithm
from spag.core.options import NonNegative, Positive

if TYPE_CHECKING:
    from torch import Tensor


class SpagSettings(IterationSettings):
    """Offline RL on self-play."""

    learning_rate: Positive = Field(2e-6, description="peak learning rate")
    kl_coef: NonNegative = Field(0.2, description="weight of the KL term towards the policy that played")
    clip_range: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.2, description="importance ratios are clipped to 1 -/+ this"
    )
    loser_reward: float = Field(
        0.0, ge=-1.0, le=0.0, description="0 drops losers; -1 mirrors the winner's reward (upstream: did not converge)"
    )
    tie_reward: float = Field(0.0, ge=-1.0, le=1.0, description="total reward of each side in a tie; 0 drops ties")
    roles: str = Field(
        "both", description="whose samples are kept, with unchanged weights: both, or one role's (an ablation)"
    )
    objective: Literal["offline_rl", "sft"] = Field(
        "offline_rl",
        description="sft (an ablation): weighted likelihood of the same samples, without rewards, ratios and KL",
    )

    @model_validator(mode="after")
    def _sft_has_no_negative_rewards(self) -> "SpagSettings":
        if self.objective == "sft" and min(self.loser_reward, self.tie_reward) < 0:
            raise ValueError(
                "objective=sft would imitate samples with negative rewards; set loser_reward and tie_reward to 0"
            )
        return self


class Spag(OfflineAlgorithm):
    """Satisfies ``spag.algorithms.base.Algorithm``."""

    name: ClassVar[str] = "spag"
    Settings: ClassVar[type[IterationSettings]] = SpagSettings

    @property
    def needs(self) -> Needs:
        return Needs(reference=self.settings.objective == "offline_rl")

    def terms(self, batch: TokenBatch, logprob: "Tensor", reference: "Tensor") -> "tuple[Tensor, dict[str, Tensor]]":
        """Return the loss and figures of each sample, (B,), from its ``logprob`` and ``reference``, (B,)."""
        kl_coef, clip_range = self.settings.kl_coef, self.settings.clip_range
        if self.settings.objective == "sft":
            return -batch.weight * logprob, {}
        ratio = (logprob - reference).exp()
        clipped = ((ratio - 1.0).abs() > clip_range).float()
        columns = logprob, reference, batch.advantage, batch.weight, batch.is_sft
        terms = offline_rl_terms(*columns, kl_coef=kl_coef, clip_range=clip_range)
        return terms, {"kl": logprob - reference, "importance_ratio": ratio, "clip_fraction": clipped}


def offline_rl_terms(
    logprob: "Tensor",
    ref_logprob: "Tensor",
    reward: "Tensor",
    weight: "Tensor",
    is_sft: "Tensor",
    *,
    kl_coef: float,
    clip_range: float,
) -> "Tensor":
    """Return each sample's loss, weighted but without ``sft_coef``: (B,).

    ``logprob``, ``ref_logprob``, ``reward``, ``weight``, ``is_sft``: (B,), as in ``offline_rl_loss``.
    """
    sft = is_sft.bool()
    ref_logprob = ref_logprob.where(~sft, logprob.detach())  # SFT rows may hold anything: no infinite ratio
    ratio = (logprob - ref_logprob).exp()
    advantage = reward - kl_coef * (logprob - ref_logprob)
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
    surrogate = (advantage * ratio).minimum(advantage * clipped)
    return -weight * logprob.where(sft, surrogate)


def offline_rl_loss(
    logprob: "Tensor",
    ref_logprob: "Tensor",
    reward: "Tensor",
    weight: "Tensor",
    is_sft: "Tensor",
    *,
    kl_coef: float,
    sft_coef: float,
    clip_range: float,
) -> "Tensor":
    """Clipped policy gradient on self-play samples, mixed with instruction data: a scalar.

    ratio_i = exp(lp_i - lp_ref_i);  A_i = reward_i - kl_coef * (lp_i - lp_ref_i)
    loss = -1/n_rl * sum_RL weight_i * min(A_i * ratio_i, A_i * clip(ratio_i, 1 - clip_range, 1 + clip_range))
           - sft_coef/n_sft * sum_SFT weight_i * lp_i

    All tensors are (B,). ``logprob`` (lp) and ``ref_logprob`` are means over a sample's trained tokens, in nats, so a
    sample has one length-normalised ratio (sequence-level in TRL and GSPO). ``weight`` is its weight. ``is_sft`` is
    true (or 1) for rows of the SFT mix; their ``reward`` and ``ref_logprob`` are not used. ``n_rl`` and ``n_sft`` count
    both kinds. The paper's advantage is a constant estimate, with a separate KL term outside the clip. We follow the
    published code: A contains the KL estimate and is NOT detached, so the KL is clipped together with the reward and
    its gradient flows. The frozen model that played is both behavior policy and KL reference.
    """
    terms = offline_rl_terms(logprob, ref_logprob, reward, weight, is_sft, kl_coef=kl_coef, clip_range=clip_range)
    rows = int(is_sft.sum())
    return mixed(terms, is_sft.bool(), sft_coef, len(is_sft) - rows, rows)
