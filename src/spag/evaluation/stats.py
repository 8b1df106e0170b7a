"""Rates with intervals."""

from dataclasses import dataclass

from scipy.stats import binomtest


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of ``total``, with its 95 % Wilson interval (score interval, no continuity correction)."""

    count: int
    total: int
    rate: float
    low: float
    high: float


def wilson(count: int, total: int) -> Rate:
    """Return ``count / total`` with its interval; nothing observed gives a rate of 0 in [0, 1]."""
    if total == 0:
        return Rate(0, 0, 0.0, 0.0, 1.0)
    interval = binomtest(count, total).proportion_ci(0.95, method="wilson")
    return Rate(count, total, count / total, float(interval.low), float(interval.high))
