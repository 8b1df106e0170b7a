"""Training: imitation and offline RL, on transformers' Trainer. ``train`` is the entry point.

The names load on first use: they import torch, which a run that has nothing left to train does not need.
"""

from typing import Any

__all__ = ["Stage", "train"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from spag.training import run  # noqa: PLC0415 - imports torch

        return getattr(run, name)
    raise AttributeError(f"module 'spag.training' has no attribute {name!r}")
