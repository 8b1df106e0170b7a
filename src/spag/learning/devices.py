"""A training phase's accelerator and optimiser, and checks that settings fit this machine."""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import AutocastKwargs, DeepSpeedPlugin, DistributedType
from torch import nn
from torch.optim import AdamW, Optimizer

from spag.algorithms.settings import UpdateSettings
from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError, require_package
from spag.learning.sharding import deepspeed_settings, fsdp_plugin
from spag.models.loading import checked_device, default_device

PATIENCE = timedelta(days=1)
"""How long processes wait for each other: one alone evaluates, and saves models. torch's 10 minutes for NCCL and 30 for
gloo would end the training. The launcher notices a lost process.
"""


def make_accelerator(model: ModelConfig, settings: UpdateSettings, seed: int) -> Accelerator:
    """Return the accelerator of a phase; under torchrun this joins the process group. Raises ``ConfigError``."""
    on_cpu = (model.device or default_device()) == "cpu"
    if on_cpu:  # otherwise DeepSpeed, imported by transformers if installed, looks for a GPU, or warns
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    check_settings(model, settings)
    if settings.parallel != "replicas" and "LOCAL_RANK" not in os.environ:
        what = "processes share the model, so call spag.learning.launch, or start with torchrun"
        raise ConfigError(f"parallel={settings.parallel}: {what}")
    for name in ("fsdp", "deepspeed"):  # read by transformers and accelerate
        os.environ[f"ACCELERATE_USE_{name.upper()}"] = str(settings.parallel == name).lower()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    # autocast would keep copies of all weights through the forward pass; a checkpointed layer needs its own only once
    cached = on_cpu or not settings.gradient_checkpointing
    options: dict[str, Any] = {"kwargs_handlers": [AutocastKwargs(cache_enabled=cached)]}
    if settings.parallel == "fsdp":
        options["fsdp_plugin"] = fsdp_plugin(settings, model.dtype)
    if settings.parallel == "deepspeed":
        _prepare_deepspeed(on_cpu)
        options["deepspeed_plugin"] = DeepSpeedPlugin(hf_ds_config=deepspeed_settings(settings, model.dtype))
    precision = {"bfloat16": "bf16", "float16": "fp16"}.get(model.dtype, "no")
    backend = group_backend(settings, on_cpu=on_cpu) if "LOCAL_RANK" in os.environ else None
    PartialState(cpu=on_cpu, timeout=PATIENCE, backend=backend)
    cpu = on_cpu and settings.parallel != "deepspeed"  # with cpu=True, accelerate would skip DeepSpeed
    accelerator = Accelerator(cpu=cpu, mixed_precision=precision, **options)
    if settings.parallel == "fsdp" and on_cpu:  # accelerate supports FSDP2 only on GPUs, and would keep replicas
        accelerator.state.fsdp_plugin = options["fsdp_plugin"]
        PartialState._shared_state["distributed_type"] = accelerator.state.distributed_type = DistributedType.FSDP
    torch.manual_seed(seed)
    return accelerator


def group_backend(settings: UpdateSettings, *, on_cpu: bool) -> str | None:
    """Return the backend of a process group; ``None``: torch's own choice."""
    if on_cpu:
        return "gloo"
    return "cuda:nccl,cpu:gloo" if settings.parallel == "fsdp" else None  # with offload, some sums are on the CPU


def _prepare_deepspeed(on_cpu: bool) -> None:
    if on_cpu:
        import deepspeed  # noqa: PLC0415 - an optional package

        # This communication kernel would be compiled now, which needs a compiler and takes a minute.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, timeout=PATIENCE, verbose=False)


def make_optimizer(model: nn.Module, settings: UpdateSettings) -> Optimizer:
    """Return AdamW over the trained weights; biases and norms do not decay.

    8-bit moments are quantised in blocks of 256 with one scale each (arXiv 2110.02861); those of fewer than 4,096
    weights stay float32.
    """
    decayed, others = list[nn.Parameter](), list[nn.Parameter]()
    for weight in model.parameters():
        if weight.requires_grad:  # the placeholder of a weight that ZeRO-3 has sharded is one-dimensional
            (decayed if len(getattr(weight, "ds_shape", weight.shape)) >= 2 else others).append(weight)
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    betas = (settings.adam_beta1, settings.adam_beta2)
    groups = [group for group in groups if group["params"]]
    if settings.optimizer == "adamw_8bit":
        from bitsandbytes.optim import AdamW8bit  # noqa: PLC0415 - an optional package

        optimizer: Optimizer = AdamW8bit(groups, lr=settings.learning_rate, betas=betas)
        return optimizer
    return AdamW(groups, lr=settings.learning_rate, betas=betas, fused=True)


def allocate_moments(optimizer: Any) -> None:
    """Allocate the moments of an optimiser of ``make_optimizer``, which it would do in its first step.

    By then a GPU's memory is cut into pieces by activations and gradients. Moments in their gaps would keep PyTorch
    from releasing what engines on the same GPU need when they wake.
    """
    for number, group in enumerate(optimizer.param_groups):
        for index, weight in enumerate(group["params"]):
            if isinstance(optimizer, AdamW):
                moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[weight] = {"step": torch.zeros((), device=weight.device), **moments}
            else:  # bitsandbytes'
                optimizer.init_state(group, weight, number, index)


def check_settings(model: ModelConfig, settings: UpdateSettings, *, elsewhere: bool = False) -> None:
    """Raise ``ConfigError`` for settings that cannot train; ``elsewhere``: on machines with devices unknown here."""
    if not elsewhere:
        _check_device(checked_device(model.device), model.dtype, settings)
    if settings.lora is not None and settings.lora.quantize:
        require_package("bitsandbytes", "lora.quantize", "pip install bitsandbytes, or set lora.quantize=false")
    if settings.optimizer == "adamw_8bit":
        fix = "pip install bitsandbytes, or set optimizer=adamw"
        require_package("bitsandbytes", "optimizer=adamw_8bit", fix)
    for why in settings.refusals(model.dtype):
        raise ConfigError(why)
    if settings.parallel == "deepspeed":
        require_package("deepspeed", "parallel=deepspeed", "pip install deepspeed, or set parallel=fsdp")


def check_packages(names: Sequence[str]) -> None:
    """Raise ``ConfigError`` for a tracker in ``report_to`` whose package is missing."""
    for name in names:
        require_package(name, f"report_to={name}", f"pip install {name}, or take it out of report_to")


def _check_device(device: str, dtype: str, settings: UpdateSettings) -> None:
    kind, _, index = device.partition(":")
    if index not in ("", "0"):
        fix = "training uses the first visible GPU; select it with CUDA_VISIBLE_DEVICES"
        raise ConfigError(f"model.device={device}: {fix}")
    if kind == "cpu" and dtype == "float16":
        raise ConfigError("model.dtype=float16: training on the CPU needs bfloat16 or float32")
    if kind == "cpu" and dtype != "float32" and settings.parallel == "deepspeed":
        what = f"parallel=deepspeed with model.dtype={dtype} on the CPU"
        raise ConfigError(f"{what}: set model.dtype=float32, or parallel=fsdp")
    if kind == "cuda" and dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError("model.dtype=bfloat16: this GPU does not support it; use float16 or float32")
