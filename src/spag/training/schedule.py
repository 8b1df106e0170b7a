"""Learning rates of upstream: DeepSpeed's WarmupDecayLR, which transformers has no name for.

Upstream's DeepSpeed file names that scheduler, and then ``--lr_scheduler_type cosine`` on its command line has no effect. The warm-up is a
logarithm, steep at first: it is at half of the peak after the square root of the warm-up's steps.

``warmup_decay_0.13`` is what DeepSpeed did before 0.15.3 (its pull request 6597), upstream's 0.13.1 included: the scheduler is first asked
after the first step, which therefore has the peak learning rate, and every later step has the rate due the step before.
"""

import math
from collections.abc import Callable
from functools import partial


def warmup_decay(step: int, *, warmup: int, total: int) -> float:
    """Return the share of the peak learning rate at ``step`` = 0, 1, ..., ``total`` - 1.

    ln(step + 1) / ln(warmup) for step < warmup, then (total - step) / (total - warmup). As in DeepSpeed a warm-up has at least two steps;
    unlike there, none stays none.
    """
    warmup = max(warmup, 2) if warmup else 0
    if step < warmup:
        return math.log(step + 1) / math.log(warmup)
    return max(0.0, (total - step) / max(1, total - warmup))


def late_warmup_decay(step: int, *, warmup: int, total: int) -> float:
    """Return the share of the peak learning rate at ``step`` under DeepSpeed 0.13: the peak, then ``warmup_decay`` one step late."""
    return warmup_decay(step - 1, warmup=warmup, total=total) if step else 1.0


OWN = {"warmup_decay": warmup_decay, "warmup_decay_0.13": late_warmup_decay}
"""The schedulers by the names of ``training.lr_scheduler``; the other names are transformers' own."""


def schedule(name: str, *, warmup: int, total: int) -> Callable[[int], float] | None:
    """Return the share of the peak learning rate as a function of the step, or ``None`` for a scheduler of transformers."""
    return partial(OWN[name], warmup=warmup, total=total) if name in OWN else None
