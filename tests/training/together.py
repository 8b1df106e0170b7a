"""Several trainings of the tiny model, one after the other, in each of the processes that torchrun or a test started.

together.py FILE, a JSON list of {"name", "model", "output", "settings", "count", "stop"}. ``stop`` ends a training after that step, as
an error would. What the processes saw goes to OUTPUT.json: whether the model was sharded while it trained, and what DeepSpeed offloaded.
"""

import json
import os
import sys
from pathlib import Path

import torch
from tiny import train_tiny
from torch.distributed.tensor import DTensor

from spag.config.schema import OfflineRLConfig
from spag.training.trainers import PolicyTrainer


class StoppedError(Exception):
    pass


def run(job: dict) -> None:
    chosen, output = OfflineRLConfig.model_validate(job["settings"]), Path(job["output"])
    kinds: set[str] = set()
    original = PolicyTrainer.compute_loss

    def compute_loss(self, model, inputs, *rest, **more):
        kinds.update("fsdp" if isinstance(p, DTensor) else "zero3" if hasattr(p, "ds_id") else "whole" for p in model.parameters())
        if self.is_deepspeed_enabled:
            engine = self.model_wrapped
            offloaded = {"parameters": engine.zero_offload_param(), "optimizer": engine.zero_offload_optimizer()}
            kinds.update(f"{name} on the CPU" for name, place in offloaded.items() if place is not None and place.device == "cpu")
        if self.state.global_step == job.get("stop"):
            raise StoppedError  # in all processes at once
        return original(self, model, inputs, *rest, **more)

    PolicyTrainer.compute_loss = compute_loss
    try:
        train_tiny(Path(job["model"]), output, chosen, count=job.get("count", 41))
    except StoppedError:
        pass
    finally:
        PolicyTrainer.compute_loss = original
    if os.environ.get("RANK", "0") == "0":
        output.with_suffix(".json").write_text(json.dumps(sorted(kinds)))


def main(path: str) -> None:
    torch.set_num_threads(1)
    import spag.training.policy as policy

    policy.CHUNK = 16  # several chunks in each micro-batch
    for job in json.loads(Path(path).read_text()):
        run(job)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
