"""What a run takes in GPU memory and hours, before machines are rented: ``spag plan``. No weights are read, no torch imported."""

from spag.planning.assumptions import Assumptions
from spag.planning.gpus import GPUS, find_gpu
from spag.planning.plan import Plan, StagePlan, plan_run
from spag.planning.reading import read_shape
from spag.planning.workload import Inputs

__all__ = ["GPUS", "Assumptions", "Inputs", "Plan", "StagePlan", "find_gpu", "plan_run", "read_shape"]
