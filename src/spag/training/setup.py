"""Trainer's arguments, made from our settings."""

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import TrainingArguments

from spag.config.schema import ModelConfig, OnlineConfig, TrainingConfig, UpdateConfig
from spag.core.errors import ConfigError, require_package
from spag.models.loading import checked_device, default_device
from spag.training.schedule import OWN
from spag.training.sharding import deepspeed_settings, fsdp_settings


def training_arguments(state: Path, model: ModelConfig, training: UpdateConfig, steps: int, seed: int) -> TrainingArguments:
    """Return Trainer's arguments for ``steps`` optimiser steps; under torchrun this joins the process group. Raises ``ConfigError``."""
    device = model.device or default_device()
    on_cpu = device == "cpu"
    if on_cpu:  # else DeepSpeed, which transformers imports wherever it is installed, takes a GPU, or warns that there is none
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    check_settings(model, training)
    arguments = TrainingArguments(
        output_dir=str(state),
        run_name="/".join(state.parent.absolute().parts[-2:]),
        per_device_train_batch_size=training.micro_batch_size,
        gradient_accumulation_steps=accumulation_steps(training) if isinstance(training, TrainingConfig) else 1,
        max_steps=steps,  # the schedule of order.py holds all epochs
        learning_rate=training.learning_rate,
        lr_scheduler_type="linear" if training.lr_scheduler in OWN else training.lr_scheduler,  # trainers.py puts ours in its place
        # The first warm-up step has learning rate 0: a single step gets no warm-up, or it would learn nothing.
        warmup_steps=min(math.ceil(training.warmup_ratio * steps), steps - 1),
        weight_decay=training.weight_decay,
        adam_beta1=training.adam_beta1,
        adam_beta2=training.adam_beta2,
        max_grad_norm=training.max_grad_norm,
        bf16=model.dtype == "bfloat16",
        fp16=model.dtype == "float16",
        use_cpu=on_cpu,
        ddp_backend=_backend(on_cpu, training),
        ddp_find_unused_parameters=False,
        gradient_checkpointing=training.gradient_checkpointing and training.parallel != "fsdp",  # fsdp has its own
        gradient_checkpointing_kwargs={"use_reentrant": False},
        seed=seed,
        logging_steps=training.log_steps if isinstance(training, TrainingConfig) else 1,
        logging_nan_inf_filter=False,
        save_steps=training.save_steps,
        remove_unused_columns=False,
        report_to=[],  # callbacks.py makes the integrations
        disable_tqdm=True,
        **_sharing(model, training),
    )
    if training.parallel == "fsdp" and model.dtype != "float32":
        # accelerate's own policy would sum gradients and keep log-probabilities in model.dtype
        policy = MixedPrecisionPolicy(param_dtype=getattr(torch, model.dtype), reduce_dtype=torch.float32)
        arguments.fsdp_plugin_args["mixed_precision_policy"] = policy
    if training.parallel == "deepspeed" and on_cpu:
        import deepspeed  # noqa: PLC0415 - an optional package

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled now, which takes a compiler and a minute
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)  # accelerate does not on the CPU
    arguments._n_gpu = min(arguments.n_gpu, 1)  # one process a GPU: several in one process would mean nn.DataParallel
    return arguments


def check_settings(model: ModelConfig, training: UpdateConfig, processes: int | None = None) -> None:
    """Raise ``ConfigError`` for settings by which ``processes`` processes (``None``: torchrun's) cannot train on this machine."""
    device = checked_device(model.device)
    _check_device(device, model.dtype)
    for name in training.report_to:
        require_package(name, f"training.report_to={name}", f"pip install {name}, or take it out of report_to")
    if training.lora is not None and training.lora.quantize:
        require_package("bitsandbytes", "lora.quantize", "pip install bitsandbytes, or set lora.quantize=false")
    if isinstance(training, TrainingConfig):
        accumulation_steps(training, processes)
    _check_sharing(model, training, device)


def accumulation_steps(training: TrainingConfig, processes: int | None = None) -> int:
    """Return how many micro-batches of each process make a global batch. Raises ``ConfigError`` unless that is a whole number."""
    processes = processes or int(os.environ.get("WORLD_SIZE", "1"))  # torchrun's
    steps, rest = divmod(training.global_batch_size, training.micro_batch_size * processes)
    if rest or not steps:
        product = f"micro_batch_size={training.micro_batch_size} times {processes} processes"
        raise ConfigError(f"global_batch_size={training.global_batch_size} is not a multiple of {product}")
    return steps


def _backend(on_cpu: bool, training: UpdateConfig) -> str | None:
    if on_cpu:
        return "gloo" if "LOCAL_RANK" in os.environ else None
    return "cuda:nccl,cpu:gloo" if training.parallel == "fsdp" else None  # with offload, some tensors to sum are on the CPU


def _sharing(model: ModelConfig, training: UpdateConfig) -> dict[str, Any]:
    """Return Trainer's arguments for sharing the model between processes. Raises ``ConfigError``."""
    kind = training.parallel
    if kind == "replicas":
        return {}
    if "LOCAL_RANK" not in os.environ:
        raise ConfigError(
            f"training.parallel={kind}: processes share the model, so call spag.training.launch.train_on, or start with torchrun"
        )
    if kind == "fsdp":
        return {"fsdp": True, "fsdp_config": fsdp_settings(training)}
    return {"deepspeed": deepspeed_settings(training, model.dtype)}


def _check_sharing(model: ModelConfig, training: UpdateConfig, device: str) -> None:
    kind = training.parallel
    if kind == "replicas":
        return
    if training.lora is not None and training.lora.quantize:
        raise ConfigError(f"training.parallel={kind} with lora.quantize: a model in 4 bits is not sharded; set parallel=replicas")
    if isinstance(training, OnlineConfig) and training.per_role:
        raise ConfigError(f"training.parallel={kind} with lora.per_role: adapters take turns in whole models; set parallel=replicas")
    if kind == "fsdp" and model.dtype == "float16":
        raise ConfigError("training.parallel=fsdp with model.dtype=float16: set model.dtype to bfloat16 or float32")
    if kind == "deepspeed":
        require_package("deepspeed", "training.parallel=deepspeed", "pip install deepspeed, or set parallel=fsdp")
        if device == "cpu" and model.dtype != "float32":
            what = f"training.parallel=deepspeed with model.dtype={model.dtype} on the CPU"
            raise ConfigError(f"{what}: set model.dtype=float32, or parallel=fsdp")


def _check_device(device: str, dtype: str) -> None:
    kind, _, index = device.partition(":")
    if index not in ("", "0"):
        raise ConfigError(f"model.device={device}: training takes the first visible GPU; choose it with CUDA_VISIBLE_DEVICES")
    if kind == "cpu" and dtype == "float16":
        raise ConfigError("model.dtype=float16: training on the CPU needs bfloat16 or float32")
    if kind == "cuda" and dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise ConfigError("model.dtype=bfloat16: this GPU does not support it; use float16 or float32")
