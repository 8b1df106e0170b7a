"""Parts of an update that depend on how processes share the model."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spag.algorithms.settings import UpdateSettings
from spag.core.errors import RunError
from spag.models.loading import save_model, save_roles
from spag.models.weights import weights_of


@contextmanager
def syncing(accelerator: Accelerator, model: nn.Module, *, last: bool, by_hand: bool) -> Iterator[None]:
    """Synchronise gradients only in the ``last`` micro-batch of an update; ``by_hand``: not at all."""
    deepspeed = accelerator.distributed_type is DistributedType.DEEPSPEED
    accelerator.gradient_state._set_sync_gradients(last)
    with nullcontext() if (last and not by_hand) or deepspeed else accelerator.no_sync(model):
        yield


def apply_gradients(
    accelerator: Accelerator, model: nn.Module, optimizer: Any, settings: UpdateSettings
) -> float | None:
    """Clip the gradients, let the optimiser take a step, and return the norm before clipping."""
    if settings.per_role:
        _average_gradients(accelerator, model)
    norm = accelerator.clip_grad_norm_(model.parameters(), settings.max_grad_norm or math.inf)
    optimizer.step()
    optimizer.zero_grad()
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    return None if norm is None else float(norm)


def _average_gradients(accelerator: Accelerator, model: nn.Module) -> None:
    """Average all gradients over the processes; an adapter without samples in this update has gradient 0.

    DDP would wait for gradients of adapters that were not used in its last micro-batch.
    """
    trained = [weight for weight in accelerator.unwrap_model(model).parameters() if weight.requires_grad]
    gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in trained]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    whole: Tensor = accelerator.reduce(flat, reduction="mean")
    for weight, part in zip(trained, torch.split(whole, [weight.numel() for weight in trained]), strict=True):
        weight.grad = part.view_as(weight)


def checked_norm(norm: float | None, what: str, dtype: str) -> float | None:
    """Return the gradient's norm. Raises ``RunError`` if it is not finite; in float16 the scaler skips the update."""
    if norm is not None and not math.isfinite(norm) and dtype != "float16":
        raise RunError(f"{what}: the gradient's norm is {norm}; lower the learning rate")
    return norm


def save_policy(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    settings: UpdateSettings,
    roles: Sequence[str],
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Save a model, or the adapters of ``roles``; full weights are saved in the precision of the settings."""
    if roles:
        save_roles(policy, tokenizer, folder, roles)
        return
    if settings.save_dtype == "bfloat16" and settings.lora is None and not hasattr(policy, "peft_config"):
        exact = weights_of(policy) if weights is None else weights.items()  # of tied weights only one
        weights = {name: weight.detach().bfloat16() for name, weight in exact}
    save_model(policy, tokenizer, folder, weights)
