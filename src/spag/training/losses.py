"""The two training objectives, as pure tensor functions. ``tests/golden/losses.json`` pins value and gradient.

Both come from section 3 of "Self-playing Adversarial Language Game Enhances LLM Reasoning" (SPAG, arXiv 2404.10642), in the form of its
published code (Linear95/SPAG). Where that code departs from the paper we follow the code, because the published results are its results;
each function says where.

Shapes: B samples, T tokens, V vocabulary. Labels hold -100 where a token is not trained. Losses are sums over a batch divided by a number
of samples: by default that of this batch, as upstream; a caller that splits one batch over several forward passes or processes gives the
number of the whole batch instead.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

IGNORED_LABEL = -100


def mean_logprob(logits: Tensor, labels: Tensor) -> Tensor:
    """Return each sample's log-probability, averaged over its trained tokens: (B,). No trained token gives 0.

    ``logits`` (B, T, V) at position t predict ``labels`` (B, T) at position t + 1; the first label of a row is never used.
    """
    logits, labels = logits[:, :-1], labels[:, 1:]
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    nll = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="none").view_as(labels)
    return -nll.sum(dim=1) / (labels != IGNORED_LABEL).sum(dim=1).clamp(min=1)


def mean_over_samples(logprobs: Tensor, sample: Tensor, samples: int) -> Tensor:
    """Return the mean of ``logprobs`` (K,) over each of ``samples`` samples: (B,). ``sample`` (K,) says whose each one is."""
    ones = torch.ones_like(logprobs)
    total, count = (torch.zeros(samples, dtype=ones.dtype, device=ones.device).index_add(0, sample, values) for values in (logprobs, ones))
    return total / count.clamp(min=1)


def importance_ratio(logprob: Tensor, ref_logprob: Tensor) -> Tensor:
    """Return exp(lp - lp_ref), (B,): one length-normalised ratio a sample (what TRL and GSPO call sequence-level)."""
    return torch.exp(logprob - ref_logprob)


def imitation_terms(logprob: Tensor, ref_logprob: Tensor, weight: Tensor, *, kl_coef: float) -> Tensor:
    """Return the imitation loss of each sample, weight included: (B,)."""
    return weight * (-logprob + kl_coef * logprob.exp() * (logprob - ref_logprob))


def imitation_loss(logprob: Tensor, ref_logprob: Tensor, weight: Tensor, *, kl_coef: float, n: int | Tensor | None = None) -> Tensor:
    """Behaviour cloning with a KL term towards the reference policy (arXiv 2404.10642, section 3.1): a scalar.

    loss = 1/n * sum_i weight_i * (-lp_i + kl_coef * exp(lp_i) * (lp_i - lp_ref_i))

    ``logprob``, ``ref_logprob`` and ``weight`` are (B,). ``n`` is the number of samples of the whole batch. The paper writes KL[policy ||
    reference], an expectation over the policy's own replies; the code takes the one term of that sum that belongs to the teacher's reply,
    with length-normalised lp.
    """
    return imitation_terms(logprob, ref_logprob, weight, kl_coef=kl_coef).sum() / _at_least_one(len(logprob) if n is None else n)


def offline_rl_terms(
    logprob: Tensor, ref_logprob: Tensor, reward: Tensor, weight: Tensor, is_sft: Tensor, *, kl_coef: float, clip_range: float
) -> Tensor:
    """Return the loss of each sample, weight included, ``sft_coef`` not: (B,)."""
    ratio = importance_ratio(logprob, ref_logprob)
    advantage = reward - kl_coef * (logprob - ref_logprob)
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
    surrogate = torch.minimum(advantage * ratio, advantage * clipped)
    return -weight * torch.where(is_sft.bool(), logprob, surrogate)


def offline_rl_loss(
    logprob: Tensor,
    ref_logprob: Tensor,
    reward: Tensor,
    weight: Tensor,
    is_sft: Tensor,
    *,
    kl_coef: float,
    sft_coef: float,
    clip_range: float,
    n_rl: int | Tensor | None = None,
    n_sft: int | Tensor | None = None,
) -> Tensor:
    """Clipped policy gradient on self-play samples, mixed with instruction data (arXiv 2404.10642, section 3.2 and 3.3): a scalar.

    ratio_i = exp(lp_i - lp_ref_i);  A_i = reward_i - kl_coef * (lp_i - lp_ref_i) loss = -1/n_rl * sum_RL weight_i * min(A_i * ratio_i, A_i
    * clip(ratio_i, 1 - clip_range, 1 + clip_range)) - sft_coef/n_sft * sum_SFT weight_i * lp_i

    All tensors are (B,); ``is_sft`` is true (or 1) for rows of the SFT mix, whose ``reward`` and ``ref_logprob`` are not used. ``n_rl`` and
    ``n_sft`` count the rows of the whole batch; a batch without rows of a kind gets 0 for it. In the paper the advantage is a constant
    estimate and the KL term stands beside the clipped one. In the code the KL estimate is part of A and A is NOT detached, so it is clipped
    together with the reward and its gradient flows; ratios are of length-normalised probabilities; and one frozen model is both behaviour
    policy and KL reference.
    """
    terms = offline_rl_terms(logprob, ref_logprob, reward, weight, is_sft, kl_coef=kl_coef, clip_range=clip_range)
    sft = is_sft.bool()
    rl_loss = terms.masked_fill(sft, 0.0).sum() / _at_least_one((~sft).sum() if n_rl is None else n_rl)
    sft_loss = terms.masked_fill(~sft, 0.0).sum() / _at_least_one(sft.sum() if n_sft is None else n_sft)
    return rl_loss + sft_coef * sft_loss


def _at_least_one(n: int | Tensor) -> int | Tensor:
    return n.clamp(min=1) if isinstance(n, Tensor) else max(n, 1)
