"""The seam between online training and play: what plays the games of a step, seen from the trainer."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor
from transformers import PreTrainedModel

from spag.core.episodes import TrainingSample
from spag.training.base import Row


class Selfplay(Protocol):
    """What a step's samples come from. Every process has one, and all of them are asked alike."""

    def update_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Give the engines of this process the policy's weights."""

    def play(self, step: int) -> None:
        """Play this process's share of the games of ``step``, those of them that are not on disk yet. May run in a thread."""

    def samples(self, step: int) -> list[TrainingSample]:
        """Return the samples of all games of ``step``, the same on every process, once all processes have played."""

    def needs_weights(self, step: int) -> bool:
        """Whether ``finish_step`` plays or saves with the weights that ``step`` leads to."""

    def finish_step(self, step: int, row: Row, policy: PreTrainedModel | None) -> bool:
        """Take the figures of a finished step and add those of its games; return whether to go on, which the first process decides.

        ``policy``: the model, where this process has all of it.
        """

    def state(self) -> dict[str, Any]:
        """Return what resuming after the last step needs besides weights and optimiser: plain JSON."""

    def results(self) -> dict[str, Any]:
        """Return what the record of the training says besides steps and seconds."""

    def describe(self) -> str:
        """Return the figures that matter of the last step, for a line of progress."""
