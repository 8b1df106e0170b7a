"""The policy's log-probability of each target, with logits for target positions only.

A query is ten times as long as its target, and logits of 50,000 or more entries for every position cost more time and memory than a small
model's layers. Models of transformers take the wanted positions (``logits_to_keep``); others compute all logits, of which the wanted are
kept.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from spag.training.data import Batch
from spag.training.losses import aligned_mean_logprob


def takes_logits_to_keep(model: nn.Module) -> bool:
    """Whether ``model`` (a LoRA adapter's base model, where it has one) can compute logits for chosen positions."""
    policy: Any = model
    base = policy.get_base_model() if hasattr(policy, "get_base_model") else policy
    return "logits_to_keep" in inspect.signature(base.forward).parameters


def target_logprobs(model: nn.Module, batch: Batch, *, logits_to_keep: bool) -> Tensor:
    """Return (B,): each row's log-probability averaged over its trained tokens, with gradient.

    ``model`` may be wrapped (DDP, FSDP, peft).
    """
    if logits_to_keep:
        logits = model(input_ids=batch["input_ids"], logits_to_keep=batch["positions"], use_cache=False).logits
    else:
        logits = model(input_ids=batch["input_ids"], use_cache=False).logits[:, batch["positions"]]
    return aligned_mean_logprob(logits, batch["labels"])


def to_device(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
