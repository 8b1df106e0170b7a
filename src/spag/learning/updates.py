"""An update of the weights: its learning rate, and the parts that depend on how processes share the model.

transformers' ``linear`` and ``cosine`` begin a warm-up at 0. Online this would waste a step's games, so there the
warm-up begins one increment above 0. ``warmup_decay`` is DeepSpeed's WarmupDecayLR: upstream's DeepSpeed file sets it,
so that ``--lr_scheduler_type cosine`` on its command line has no effect. Its warm-up is logarithmic, at half the peak
after the square root of the warm-up's updates. ``warmup_decay_0.13`` is DeepSpeed's behavior before 0.15.3 (its pull
request 6597), including upstream's 0.13.1: the scheduler is first called after the first update, which therefore has
the peak learning rate, and every later update has the rate of the one before.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from accelerate.utils import DistributedType
from torch import Tensor
from torch.distributed.tensor import DTensor

from spag.algorithms.online_settings import OnlineSettings
from spag.core.errors import RunError
from spag.learning.policy import TrainedPolicy


def set_learning_rate(policy: TrainedPolicy, update: int, total: int) -> float:
    """Set the learning rate of ``update`` = 0, 1, ..., ``total`` - 1, and return it."""
    settings = policy.settings
    warmup = min(math.ceil(settings.warmup_ratio * total), total - 1)  # a single update would learn nothing in one
    online = isinstance(settings, OnlineSettings)
    share = learning_rate_share(settings.lr_scheduler, update, warmup=warmup, total=total, online=online)
    for group in policy.optimizer.param_groups:
        group["lr"] = settings.learning_rate * share
    return settings.learning_rate * share


def learning_rate_share(name: str, update: int, *, warmup: int, total: int, online: bool = False) -> float:
    """Return the share of the peak learning rate at ``update`` = 0, 1, ..., ``total`` - 1."""
    if name == "warmup_decay":
        return warmup_decay(update, warmup=warmup, total=total)
    if name == "warmup_decay_0.13":
        return warmup_decay(update - 1, warmup=warmup, total=total) if update else 1.0
    if update < warmup:
        return (update + 1) / (warmup + 1) if online else update / warmup
    done = (update - warmup) / max(1, total - warmup)
    if name == "linear":
        return max(0.0, 1.0 - done)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * done))) if name == "cosine" else 1.0


def warmup_decay(update: int, *, warmup: int, total: int) -> float:
    """Return ln(update + 1) / ln(warmup) for update < warmup, then (total - update) / (total - warmup).

    As in DeepSpeed, a warm-up has at least two updates; unlike DeepSpeed, no warm-up is possible.
    """
    warmup = max(warmup, 2) if warmup else 0
    if update < warmup:
        return math.log(update + 1) / math.log(warmup)
    return max(0.0, (total - update) / max(1, total - warmup))


@contextmanager
def syncing(policy: TrainedPolicy, *, last: bool) -> Iterator[None]:
    """Average gradients only in the ``last`` micro-batch of an update; those of adapters of roles later.

    Sharded gradients are averaged in every micro-batch: otherwise FSDP2 would keep whole ones until the last, 4 bytes
    per parameter on every GPU.
    """
    accelerator = policy.accelerator
    later = not last or policy.settings.per_role  # by ``apply_gradients``
    sharded = accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED)
    accelerator.gradient_state._set_sync_gradients(last)
    with nullcontext() if sharded or not later else accelerator.no_sync(policy.model):
        yield


def apply_gradients(policy: TrainedPolicy) -> float | None:
    """Clip the gradients, let the optimiser take a step, and return the norm before clipping."""
    if policy.settings.per_role:
        _average_gradients(policy)
    norm = policy.accelerator.clip_grad_norm_(policy.model.parameters(), policy.settings.max_grad_norm or math.inf)
    policy.optimizer.step()
    policy.optimizer.zero_grad()
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    return None if norm is None else float(norm)


def _average_gradients(policy: TrainedPolicy) -> None:
    """Average gradients over the processes, 0 for unused adapters, for which DDP would wait in its last micro-batch."""
    trained = [weight for weight in policy.bare.parameters() if weight.requires_grad]
    gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in trained]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    whole: Tensor = policy.accelerator.reduce(flat, reduction="mean")
    for weight, part in zip(trained, torch.split(whole, [weight.numel() for weight in trained]), strict=True):
        weight.grad = part.view_as(weight)


def checked_norm(norm: float | None, what: str, dtype: str) -> float | None:
    """Return the gradient's norm. Raises ``RunError`` if it is not finite; in float16 the scaler skips the update."""
    if norm is not None and not math.isfinite(norm) and dtype != "float16":
        raise RunError(f"{what}: the gradient's norm is {norm}; lower the learning rate")
    return norm
