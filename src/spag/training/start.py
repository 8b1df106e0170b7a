"""The model that training starts from, and its capabilities (``policy.py``).

QLoRA (arXiv 2305.14314): the base model's weights in 4 bits (NF4, with quantised constants), computing in ``model.dtype``; the adapter is
an ordinary one. Play loads it over the base model in full precision, so the policy that plays differs a little from the trained one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel, TrainingArguments, set_seed
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

from spag.config.schema import LoraConfig, ModelConfig
from spag.core.errors import ConfigError, require_package
from spag.models.loading import load_model
from spag.models.refusals import Refusals, told
from spag.training.policy import Capabilities, probe_capabilities, set_packed_attention


def trainable(
    model: ModelConfig, lora: LoraConfig | None, arguments: TrainingArguments, longest: int
) -> tuple[PreTrainedModel, Capabilities]:
    """Return the model of ``load``, in float32 on the CPU or sharded (Trainer places it), and its capabilities for ``longest`` tokens.

    The first process probes them, because with sharding it alone has the weights. Raises ``ModelError``, and ``ConfigError`` without
    bitsandbytes.
    """
    is_first = arguments.process_index == 0
    found: Capabilities | None = None
    if arguments.deepspeed and is_first:
        with _unsharded(arguments):
            found = probe_capabilities(load(model, lora, arguments), longest)
    policy = load(model, lora, arguments)
    if found is None and is_first:
        with _full_precision(policy):
            found = probe_capabilities(policy, longest)
    capabilities = broadcast_object_list([found])[0]
    if capabilities.packed:
        set_packed_attention(policy)
    return policy, capabilities


def load(model: ModelConfig, lora: LoraConfig | None, arguments: TrainingArguments) -> PreTrainedModel:
    """Return ``model``: an adapter folder, which is trained further, or a plain model, to which ``lora`` adds a new adapter."""
    in_4_bits = lora is not None and lora.quantize
    policy = load_model(
        model.name,
        dtype="float32",
        device=str(arguments.device) if in_4_bits else "cpu",
        trust_remote_code=model.trust_remote_code,
        trainable_adapter=True,
        quantization=quantization(model.dtype) if in_4_bits else None,
    )
    if lora is None or hasattr(policy, "peft_config"):
        return policy
    import peft  # noqa: PLC0415 - slow to import, and only adapters need it

    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
    )
    set_seed(arguments.seed)
    with Refusals(lambda error: ConfigError(f"training.lora: {model.name} takes no such adapter: {told(error)}")):
        adapted: PreTrainedModel = peft.get_peft_model(policy, settings)
    return adapted


def quantization(dtype: str) -> BitsAndBytesConfig:
    """Return QLoRA's quantization of the base model. Raises ``ConfigError`` without bitsandbytes."""
    require_package("bitsandbytes", "lora.quantize", "pip install bitsandbytes, or set lora.quantize=false")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, dtype),
    )


@contextmanager
def _full_precision(model: nn.Module) -> Iterator[None]:
    """Let 4-bit layers compute in float32, so that two results can be compared."""
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "compute_dtype")]
    before = [layer.compute_dtype for layer in layers]
    for layer in layers:
        layer.compute_dtype = torch.float32
    try:
        yield
    finally:
        for layer, dtype in zip(layers, before, strict=True):
            layer.compute_dtype = dtype


@contextmanager
def _unsharded(arguments: TrainingArguments) -> Iterator[None]:
    """Load models whole: under ZeRO-3 transformers shards them while loading, and the shards cannot compute yet."""
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(arguments.hf_deepspeed_config)
