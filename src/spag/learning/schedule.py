"""Learning rates as a share of the peak, by update.

transformers' ``linear`` and ``cosine`` begin a warm-up at 0. Online this would waste a step's games, so there the
warm-up begins one increment above 0. ``warmup_decay`` is DeepSpeed's WarmupDecayLR: upstream's DeepSpeed file sets it,
so that ``--lr_scheduler_type cosine`` on its command line has no effect. Its warm-up is logarithmic, at half the peak
after the square root of the warm-up's updates. ``warmup_decay_0.13`` is DeepSpeed's behavior before 0.15.3 (its pull
request 6597), including upstream's 0.13.1: the scheduler is first called after the first update, which therefore has
the peak learning rate, and every later update has the rate of the one before.
"""

import math


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
