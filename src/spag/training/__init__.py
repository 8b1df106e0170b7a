"""Training: imitation and offline RL, on transformers' Trainer. ``train`` is the way in; ``losses`` holds the mathematics."""

from spag.training.callbacks import Phase, TrainProgress
from spag.training.run import Stage, TrainResult, train

__all__ = ["Phase", "Stage", "TrainProgress", "TrainResult", "train"]
