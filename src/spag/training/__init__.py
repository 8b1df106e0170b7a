"""Training: imitation and offline RL, on transformers' Trainer. ``train`` is the entry point.

The names below load on first use: they import torch, which a run with nothing left to train does not need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spag.training.callbacks import Phase, TrainProgress
    from spag.training.run import Stage, TrainResult, train

__all__ = ["Phase", "Stage", "TrainProgress", "TrainResult", "train"]

_HOMES = {"Phase": "callbacks", "TrainProgress": "callbacks", "Stage": "run", "TrainResult": "run", "train": "run"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"spag.training.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'spag.training' has no attribute {name!r}")
