"""Several trainings of the tiny model, one after the other, in each of the processes that torchrun or a test started.

together.py FILE, a JSON list of {"model", "output", "settings", "count", "stop"}. ``stop`` ends a training after that
update, as an error would. What the processes saw goes to OUTPUT.json: whether the model was sharded while it trained,
and its gradients were not between micro-batches, what DeepSpeed offloaded, and how long they would have waited for each
other.
"""

import json
import os
import sys
from pathlib import Path

import torch
from tiny import train_tiny
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from spag.config.schema import PhaseConfig
from spag.learning.loop import Loop


class StoppedError(Exception):
    pass


def has_whole_gradients(module: torch.nn.Module) -> bool:
    """Whether FSDP2 keeps a gradient of ``module`` whole: in the precision of reductions, or in its own."""
    group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
    found = (
        [(p.unsharded_accumulated_grad, getattr(p, "_unsharded_param", None)) for p in group.fsdp_params]
        if group
        else []
    )
    return any(kept is not None or getattr(whole, "grad", None) is not None for kept, whole in found)


def run(job: dict) -> None:
    chosen, output = PhaseConfig.model_validate(job["settings"]), Path(job["output"])
    kinds: set[str] = set()
    original = Loop._loss

    def loss(self, batch, *rest):
        kinds.update(
            "fsdp" if isinstance(p, DTensor) else "zero3" if hasattr(p, "ds_id") else "whole"
            for p in self.policy.model.parameters()
        )
        if any(map(has_whole_gradients, self.policy.model.modules())):
            kinds.add("whole gradients")
        if hasattr(self.policy.model, "zero_offload_param"):
            offloaded = {
                "parameters": self.policy.model.zero_offload_param(),
                "optimizer": self.policy.model.zero_offload_optimizer(),
            }
            kinds.update(
                f"{name} on the CPU" for name, place in offloaded.items() if place is not None and place.device == "cpu"
            )
        if self.updates_done == job.get("stop"):
            raise StoppedError  # in all processes at once
        return original(self, batch, *rest)

    Loop._loss = loss
    try:
        train_tiny(Path(job["model"]), output, chosen, count=job.get("count", 41))
    except StoppedError:
        pass
    finally:
        Loop._loss = original
    if torch.distributed.is_initialized():
        group = torch.distributed.distributed_c10d._get_default_group()
        kinds.add(f"waits {group._get_backend(torch.device('cpu')).options._timeout}")
    if os.environ.get("RANK", "0") == "0":
        output.with_suffix(".json").write_text(json.dumps(sorted(kinds)))


def main(path: str) -> None:
    torch.set_num_threads(1)
    from spag.models import forward

    forward.CHUNK = 16  # several chunks in each micro-batch
    for job in json.loads(Path(path).read_text()):
        run(job)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
