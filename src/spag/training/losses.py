"""The paper's losses and the log-probability that they use, in one place for tools.

Shapes: B samples, T tokens, V vocabulary. ``tests/golden/losses.json`` pins value and gradient of the published code
(Linear95/SPAG).
"""

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from spag.algorithms.imitation import imitation_loss
from spag.algorithms.spag import offline_rl_loss

__all__ = ["imitation_loss", "mean_logprob", "offline_rl_loss"]


def mean_logprob(logits: Tensor, labels: Tensor) -> Tensor:
    """Return each sample's log-probability, averaged over its trained tokens: (B,); 0 without trained tokens.

    ``logits`` (B, T, V) at position t predict ``labels`` (B, T) at position t + 1; the first label of a row is never
    used. Labels are -100 for tokens that are not trained. Half precision is summed in float32.
    """
    logits, labels = logits[:, :-1], labels[:, 1:]
    if logits.dtype.itemsize < 4:
        logits = logits.float()
    flat = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none")
    nll = flat.view_as(labels)
    return -nll.sum(dim=1) / (labels != -100).sum(dim=1).clamp(min=1)
