"""Sample log-probabilities from token log-probabilities; the losses over them live in ``spag.algorithms`` and are re-exported here.

Shapes: B samples, T tokens, V vocabulary, K trained tokens. Labels hold -100 where a token is not trained.
``tests/golden/losses.json`` pins value and gradient of the published code (Linear95/SPAG).
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from spag.algorithms.imitation import imitation_loss
from spag.algorithms.spag import offline_rl_loss

__all__ = ["imitation_loss", "mean_logprob", "mean_over_samples", "offline_rl_loss"]

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
    """Return the mean of ``logprobs`` (K,) over each of ``samples`` samples: (B,). ``sample`` (K,) gives the sample of each."""
    ones = torch.ones_like(logprobs)
    total, count = (torch.zeros(samples, dtype=ones.dtype, device=ones.device).index_add(0, sample, values) for values in (logprobs, ones))
    return total / count.clamp(min=1)
