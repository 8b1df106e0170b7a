"""A moving average of weights: policies that circle an equilibrium have an average that is nearer to it than any of them."""

from collections.abc import Sequence

import torch
from torch import Tensor


class WeightAverage:
    """An exponential moving average of trained weights, a term a step; nothing with ``decay`` 0. Sharded weights stay sharded."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.values: list[Tensor] = []

    @torch.no_grad()
    def add(self, weights: Sequence[Tensor]) -> None:
        if not self.decay:
            return
        if not self.values:
            self.values = [weight.detach().clone() for weight in weights]
        for value, weight in zip(self.values, weights, strict=True):
            value.lerp_(weight.detach(), 1.0 - self.decay)

    @torch.no_grad()
    def copy_to(self, weights: Sequence[Tensor]) -> None:
        for value, weight in zip(self.values, weights, strict=bool(self.values)):
            weight.copy_(value)
