"""Copies of the trained weights: a fixed or moving reference policy, and the average of a run's policies."""

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from spag.algorithms.online_settings import MovingReference

_ALIGNMENT = 64
"""Alignment of tensors in a file, in bytes."""


class WeightCopy:
    """Another set of values for the trained weights; frozen weights are shared. Sharded weights stay sharded.

    With LoRA this is only the adapter, so a reference policy needs no second model.
    """

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self.weights = weights
        self.values: list[Tensor] = [weight.detach().clone() for weight in weights]

    @torch.no_grad()
    def move(self, share: float) -> None:
        """Move ``share`` of the way to the current weights; 1 copies them."""
        for value, weight in zip(self.values, self.weights, strict=True):
            value.lerp_(weight.detach(), share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model compute with these values until the block ends."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's values and these."""
        for at, weight in enumerate(self.weights):
            if isinstance(weight, DTensor):  # FSDP2 keeps views of the storage: its contents must change, not its place
                before = weight.detach().clone()
                weight.copy_(self.values[at])
                self.values[at].copy_(before)
            else:
                weight.data, self.values[at] = self.values[at], weight.data


class Reference(WeightCopy):
    """The reference policy of a KL term: the start model, or a policy that follows the trained one.

    As in magnetic mirror descent (arXiv 2206.05825) and NashPG (arXiv 2510.18183), where a moving anchor converges to
    an equilibrium and a fixed one stays biased. ``folder``: a fixed reference on a CPU is kept there, in an unnamed
    file, so that it takes memory only while the model uses it.
    """

    def __init__(
        self, weights: Sequence[nn.Parameter], settings: "str | MovingReference", folder: Path | None = None
    ) -> None:
        super().__init__(weights)
        self.settings = settings if isinstance(settings, MovingReference) else None
        on_cpu = all(weight.device.type == "cpu" and not isinstance(weight, DTensor) for weight in weights)
        self._space: mmap.mmap | None = None
        if folder is not None and self.settings is None and on_cpu:
            self._space = _file_space(self.values, folder)
            self.values = [*_values_in(self._space, self.values)]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with super().in_place():
            yield
        if self._space is not None:
            self._space.madvise(mmap.MADV_DONTNEED)

    def after_step(self, step: int) -> bool:
        """Update the reference after ``step`` as the settings require; return whether it changed."""
        if self.settings is None:
            return False
        if self.settings.ema is not None:
            self.move(self.settings.ema)
            return True
        if step % (self.settings.every or 1) == 0:
            self.move(1.0)
            return True
        return False


def _file_space(values: Sequence[Tensor], folder: Path) -> mmap.mmap:
    """Write ``values`` of any shape to a temporary file in ``folder``; return its memory map."""
    with TemporaryFile(dir=folder) as file:
        for value in values:
            content = value.flatten().view(torch.uint8).numpy().tobytes()
            file.write(content)
            file.write(bytes(-len(content) % _ALIGNMENT))
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _values_in(space: mmap.mmap, values: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield tensors with the shapes of ``values`` over the memory map from ``_file_space``."""
    start = 0
    for value in values:
        yield torch.frombuffer(space, dtype=value.dtype, count=value.numel(), offset=start).view_as(value)
        start += value.nbytes + -value.nbytes % _ALIGNMENT
