"""Sharding of a model over processes: settings for FSDP2 and ZeRO-3, sharded checkpoints, gathered weights.

Replicas and FSDP2 use one format, torch's distributed checkpoint by parameter names: each process writes its own shard
(a gathered state dict would take 16 bytes per parameter on one process) and reads the shards it needs. So any number of
processes can resume, with or without FSDP2. DeepSpeed writes its own format, which only the same number of processes
can read.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from spag.algorithms.settings import UpdateSettings
from spag.core.errors import RunError
from spag.models.weights import weights_of

SHARES = "shares"
"""The folder of weights and optimiser state in a checkpoint."""

Tensors = Mapping[str, Sequence[Tensor]]
"""Lists of tensors of any shape, by name."""
_TRAINED = StateDictOptions(ignore_frozen_params=True)


def fsdp_plugin(settings: UpdateSettings, dtype: str) -> FullyShardedDataParallelPlugin:
    """Return accelerate's settings of FSDP2: decoder layers are sharded one by one; one process reads the start model.

    Gradients are reduced, and log-probabilities kept, in float32.
    """
    precision = None
    if dtype != "float32":
        precision = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype), reduce_dtype=torch.float32)
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        cpu_offload=settings.offload and torch.cuda.is_available(),  # on the CPU everything is already in place
        cpu_ram_efficient_loading=True,
        activation_checkpointing=settings.gradient_checkpointing,
        state_dict_type="SHARDED_STATE_DICT",
        mixed_precision_policy=precision,
    )


def deepspeed_settings(settings: UpdateSettings, dtype: str) -> dict[str, Any]:
    """Return DeepSpeed's configuration for the paper's setting: ZeRO-3, bfloat16, clipped gradients, torch's AdamW.

    ``auto`` values depend on the model's width; accelerate fills them in.
    """
    place = {"device": "cpu", "pin_memory": torch.cuda.is_available()} if settings.offload else {"device": "none"}
    return {
        "zero_optimization": {
            "stage": 3,
            "offload_param": place,
            "offload_optimizer": place,
            "overlap_comm": torch.cuda.is_available(),
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
        },
        "bf16": {"enabled": dtype == "bfloat16"},
        "fp16": {"enabled": dtype == "float16"},
        "data_types": {"keep_in_fp32_modules": ["inv_freq"]},  # positions in float32, as in play
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's optimiser needs a compiler at run time
        "gradient_clipping": settings.max_grad_norm,
        "gradient_accumulation_steps": 1,  # the loop sets the boundaries of an update itself
        "train_micro_batch_size_per_gpu": settings.micro_batch_size,
        "steps_per_print": 1_000_000_000,
    }


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 shards the weights of ``model``."""
    return any(isinstance(weight, DTensor) for weight in model.parameters())


def release_gathered(model: nn.Module) -> None:
    """Let FSDP2 drop its gathered weights: its outermost module keeps them after a pass without gradients, and would
    use them although the shards have changed since.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    """Silence torch's warning that a single process saves alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


@_alone_is_fine()
def save_shares(folder: Path, model: nn.Module, optimizer: Optimizer, moving: Tensors) -> None:
    """Write trained weights, the optimiser's state and ``moving`` into ``folder``. Every process must call it."""
    unused = not optimizer.state
    state = _state(model, optimizer, moving)
    if unused:  # torch has made it by an update with learning rate 0, which would count as the first
        for values in state["optimizer"]["state"].values():
            values["step"] = torch.zeros_like(values["step"]) if isinstance(values["step"], Tensor) else 0
        optimizer.state.clear()
    save(state, checkpoint_id=folder / SHARES)


@_alone_is_fine()
def load_shares(folder: Path, model: nn.Module, optimizer: Optimizer, moving: Tensors) -> None:
    """Load the result of ``save_shares`` into tensors of the same shapes. Every process must call it."""
    state = _state(model, optimizer, moving)
    load(state, checkpoint_id=folder / SHARES)
    set_model_state_dict(model, state["model"], options=StateDictOptions(ignore_frozen_params=True, strict=False))
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=_TRAINED)


def _state(model: nn.Module, optimizer: Optimizer, moving: Tensors) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(model, options=_TRAINED),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=_TRAINED),
        "moving": {f"{name}.{index}": one for name, tensors in moving.items() for index, one in enumerate(tensors)},
    }


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the full weights of an FSDP2 model by name, of tied ones only one, on the CPU of the first process; with
    adapters, theirs alone. Every process must call it.
    """
    trained_only = hasattr(model, "peft_config")
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=trained_only)
    return _without_copies(model, get_model_state_dict(model, options=options))


def gathered_weights(model: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the full trained weights of an FSDP2 model by name, of tied ones only one, on every process. Every process
    must call it.

    They are gathered one by one, and those of a whole model kept in ``dtype``: in float32 they would take 4 bytes per
    parameter on every GPU. Adapters stay float32, as engines hold them.
    """
    found = {}
    for name, weight in _without_copies(model, get_model_state_dict(model, options=_TRAINED)).items():
        whole: Any = weight
        if isinstance(weight, DTensor):  # with offload, its shards are on the CPU
            shards: Any = weight.to(weight.device_mesh.device_type)
            whole = shards.full_tensor()
        found[name] = whole if hasattr(model, "peft_config") else whole.to(dtype)
    return found


def _without_copies(model: nn.Module, weights: Mapping[str, Any]) -> dict[str, Tensor]:
    copies = getattr(model, "all_tied_weights_keys", {})
    return {name: value for name, value in weights.items() if isinstance(value, Tensor) and name not in copies}


def whole_zero3_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the float32 weights of a ZeRO-3 model by name, on the first process; with adapters, theirs alone. Every
    process must call it.
    """
    from deepspeed.runtime.zero import GatheredParameters  # noqa: PLC0415 - optional
    from deepspeed.utils import safe_get_full_fp32_param  # noqa: PLC0415 - optional

    found, is_first = {}, torch.distributed.get_rank() == 0
    for name, weight in weights_of(model):
        if weight.requires_grad:
            whole = safe_get_full_fp32_param(weight)
            if is_first:
                found[name] = whole.cpu()
        elif not hasattr(model, "peft_config"):
            with GatheredParameters([weight] if isinstance(weight, nn.Parameter) else []):
                if is_first:
                    found[name] = weight.detach().to("cpu", copy=True)
    return found


def check_resumable(folder: Path, parallel: str, processes: int) -> None:
    """Raise ``RunError`` for a checkpoint that ``processes`` cannot read: DeepSpeed's needs the same number."""
    saved = len(list(folder.glob("global_step*/*_optim_states.pt")))  # one file per process
    if saved == (processes if parallel == "deepspeed" else 0):
        return
    by = "without DeepSpeed; resume without"
    if saved:
        by = f"by DeepSpeed; resume with parallel=deepspeed and processes={saved}"
    raise RunError(f"{folder} was saved {by}, or delete {folder.parent} to start over")
