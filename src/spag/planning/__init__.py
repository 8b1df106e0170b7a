"""A run's GPU memory and hours before machines are rented: ``spag plan``. No weights are read, no torch imported."""

from spag.planning.hours import Assumptions
from spag.planning.plan import Planner, StagePlan
from spag.planning.specs import GIB, GPU, GPUS, find_gpu, read_shape

__all__ = ["GIB", "GPU", "GPUS", "Assumptions", "Planner", "StagePlan", "find_gpu", "read_shape"]
