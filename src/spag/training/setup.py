"""From our settings to Trainer's arguments and a trainable model."""

import importlib.util
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, TrainingArguments, set_seed

from spag.config import LoraConfig, ModelConfig, TrainingConfig
from spag.errors import ConfigError
from spag.models import default_device, load_model


def training_arguments(state: Path, model: ModelConfig, training: TrainingConfig, steps: int, seed: int) -> TrainingArguments:
    """Return Trainer's arguments for ``steps`` optimiser steps; under torchrun this joins the process group. Raises ``ConfigError``."""
    device = model.device or default_device()
    on_cpu = device == "cpu"
    _check_device(device, model.dtype)
    _check_installed(training.report_to)
    arguments = TrainingArguments(
        output_dir=str(state),
        run_name="/".join(state.parent.absolute().parts[-2:]),
        per_device_train_batch_size=training.micro_batch_size,
        gradient_accumulation_steps=accumulation_steps(training),
        max_steps=steps,  # the schedule of order.py holds all epochs
        learning_rate=training.learning_rate,
        lr_scheduler_type=training.lr_scheduler,
        # The first warm-up step has learning rate 0: a training of a single step gets no warm-up, or it would learn nothing.
        warmup_steps=min(math.ceil(training.warmup_ratio * steps), steps - 1),
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        bf16=model.dtype == "bfloat16",
        fp16=model.dtype == "float16",
        use_cpu=on_cpu,
        ddp_backend="gloo" if on_cpu and _processes() > 1 else None,
        ddp_find_unused_parameters=False,
        gradient_checkpointing=training.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        seed=seed,
        logging_steps=training.log_steps,
        logging_nan_inf_filter=False,
        save_steps=training.save_steps,
        remove_unused_columns=False,
        report_to=[],  # callbacks.py makes the integrations
        disable_tqdm=True,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # one process a GPU: several in one process would mean nn.DataParallel
    return arguments


def accumulation_steps(training: TrainingConfig) -> int:
    """Return how many micro-batches of each process make a global batch. Raises ``ConfigError`` when that is no whole number."""
    processes = _processes()
    steps, rest = divmod(training.global_batch_size, training.micro_batch_size * processes)
    if rest or not steps:
        product = f"micro_batch_size={training.micro_batch_size} times {processes} processes"
        raise ConfigError(f"global_batch_size={training.global_batch_size} is not a multiple of {product}")
    return steps


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))  # torchrun's


def _check_device(device: str, dtype: str) -> None:
    kind, _, index = device.partition(":")
    if index not in ("", "0"):
        raise ConfigError(f"model.device={device}: training takes the first visible GPU; choose it with CUDA_VISIBLE_DEVICES")
    if kind == "cpu" and dtype == "float16":
        raise ConfigError("model.dtype=float16: training on the CPU needs bfloat16 or float32")
    if kind == "cuda" and dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise ConfigError("model.dtype=bfloat16: this GPU does not support it; use float16 or float32")


def _check_installed(packages: Sequence[str]) -> None:
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"training.report_to={name}: {name} is not installed; pip install {name}, or take it out of report_to")


def load_trainable(start_from: str, model: ModelConfig, lora: LoraConfig | None, seed: int) -> PreTrainedModel:
    """Load ``start_from`` in float32 on the CPU (Trainer places it).

    An adapter folder is trained on; ``lora`` puts a new adapter on a plain model.
    """
    policy = load_model(start_from, dtype="float32", device="cpu", trust_remote_code=model.trust_remote_code, trainable_adapter=True)
    if lora is None or hasattr(policy, "peft_config"):
        return policy
    import peft  # noqa: PLC0415 - slow to import, and only adapters need it

    settings: dict[str, Any] = {
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": lora.target_modules,
    }
    set_seed(seed)
    adapted: PreTrainedModel = peft.get_peft_model(policy, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    return adapted
