"""A run's GPU memory and hours before machines are rented: ``spag plan``. No weights are read, no torch imported."""

from spag.planning.hours import Assumptions, Inputs
from spag.planning.plan import Plan, StagePlan, plan_run
from spag.planning.specs import GIB, GPU, GPUS, find_gpu, read_shape

__all__ = ["GIB", "GPU", "GPUS", "Assumptions", "Inputs", "Plan", "StagePlan", "find_gpu", "plan_run", "read_shape"]
