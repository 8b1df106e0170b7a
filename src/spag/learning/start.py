"""The model that training starts from, and its capabilities (``policy.py``).

QLoRA (arXiv 2305.14314): the base model's weights in 4 bits (NF4, with quantised constants), computing in
``model.dtype``, and an ordinary adapter. Play loads the adapter over the base model in full precision, so the playing
policy differs slightly from the trained one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, broadcast_object_list
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

from spag.algorithms.settings import LoraConfig
from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError, first_line
from spag.models.finding import adapter_base
from spag.models.forward import Capabilities, probe_capabilities, set_packed_attention
from spag.models.loading import load_adapters, load_model
from spag.models.refusals import library_errors
from spag.models.roles import LONE_ADAPTER, adapter_names, model_of_role
from spag.models.speed import choose_products
from spag.storage.home import expanded

Roles = Mapping[str, bool]
"""Every ``GAME/ROLE`` with its own adapter, and whether that is trained."""


def trainable(
    model: ModelConfig,
    lora: LoraConfig | None,
    accelerator: Accelerator,
    seed: int,
    longest: int,
    roles: Roles,
    *,
    sharded: bool,
) -> tuple[PreTrainedModel, Capabilities]:
    """Return the model from ``load``, which the accelerator then places, and its capabilities for ``longest`` tokens.

    The first process probes them, because with sharding only it has the weights. Frozen layers are then stored
    in ``model.dtype``, unless the model is to be ``sharded``. Raises ``ModelError``.
    """
    choose_products(accelerator.device, getattr(torch, model.dtype))
    found: Capabilities | None = None
    if accelerator.state.deepspeed_plugin is not None and accelerator.is_main_process:
        with _unsharded(accelerator.state.deepspeed_plugin):
            found = probe_capabilities(load(model, lora, accelerator, seed, {}), longest)
    policy = load(model, lora, accelerator, seed, roles)
    if sharded and getattr(policy, "has_other_embeddings", False):  # shards are saved without them
        what = f"{model.name}: this adapter has its own embeddings, and processes share one model"
        raise ConfigError(f"{what}; set parallel=replicas, or start from the merged model")
    if found is None and accelerator.is_main_process:
        with _full_precision(policy):
            found = probe_capabilities(policy, longest)
    capabilities = broadcast_object_list([found])[0]
    if capabilities.packed:
        set_packed_attention(policy)
    if not sharded:  # FSDP2 shards weights of one precision together, and ZeRO-3 has its own
        _store_frozen(policy, getattr(torch, model.dtype))
    return policy, capabilities


def load(
    model: ModelConfig, lora: LoraConfig | None, accelerator: Accelerator, seed: int, roles: Roles
) -> PreTrainedModel:
    """Return ``model`` in float32: an adapter, which is trained further, or a plain model, to which ``lora`` adds one.

    Adapters of ``roles`` are initialised like a single one.
    """
    in_4_bits = lora is not None and lora.quantize
    options: dict[str, Any] = {
        "dtype": "float32",
        "device": str(accelerator.device) if in_4_bits else "cpu",
        "trust_remote_code": model.trust_remote_code,
        "quantization": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=getattr(torch, model.dtype),
        )
        if in_4_bits
        else None,
    }
    names = adapter_names(roles)
    starts = {name: model_of_role(model.name, *role.rsplit("/", 1)) for role, name in names.items()}
    if any(adapter_base(expanded(start)) for start in starts.values()):
        policy: Any = load_adapters(starts, trainable=True, **options)
    else:
        policy = load_model(model.name, trainable_adapter=True, **options)
    if lora is not None and hasattr(policy, "peft_config"):
        _refuse_other_shape(policy, lora, model.name)
    elif lora is not None:
        for name in names.values() or [LONE_ADAPTER]:
            policy = _with_new_adapter(policy, name, lora, seed, model.name)
    if roles:
        policy.set_requires_grad([name for role, name in names.items() if roles[role]])
        policy.set_requires_grad([name for role, name in names.items() if not roles[role]], requires_grad=False)
    _turn_dropout_off(policy)
    return policy


def _refuse_other_shape(policy: Any, lora: LoraConfig, name: str) -> None:
    """Raise ``ConfigError`` if the start's adapters, which are trained further, differ from ``lora``."""
    for config in policy.peft_config.values():
        values: list[tuple[str, Any, Any]] = [("rank", lora.rank, config.r), ("alpha", lora.alpha, config.lora_alpha)]
        if isinstance(lora.target_modules, list):  # "all-linear" has become names
            values.append(("target_modules", sorted(lora.target_modules), sorted(config.target_modules)))
        for option, asked, has in values:
            if asked != has:
                what = f"the adapter of {name} is trained further, and its {option} is {has}"
                raise ConfigError(f"lora.{option}={asked}: {what}; set lora.{option}={has}")


def _turn_dropout_off(model: nn.Module) -> None:
    """Set every rate of dropout, and of noise in routers of experts, to 0: a module's or an attention's number.

    The policy that is trained is then the one that played and that old log-probabilities are of: ratios start at 1, and
    results do not depend on the size of micro-batches. ``eval()`` would also turn gradient checkpointing off.
    """
    for module in model.modules():
        numbers = [name for name, value in vars(module).items() if isinstance(value, float)]
        rates = [name for name in numbers if "drop" in name or "jitter" in name]
        for name in [*rates, *(["p"] if isinstance(module, nn.Dropout) else [])]:
            setattr(module, name, 0.0)


def _store_frozen(model: nn.Module, dtype: torch.dtype) -> None:
    """Store the frozen linear layers under adapters in ``dtype``: autocast computes in it anyway, from copies that it
    makes again in every pass. Results are bitwise the same.

    A tied head stays as it is, because embeddings are not cast, and so does a base of DoRA, which takes norms of it.
    """
    configs = getattr(model, "peft_config", {}).values()
    if not configs or dtype is torch.float32 or any(config.use_dora for config in configs):
        return
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, module in model.named_modules():
        is_base = isinstance(module, nn.Linear) and ".lora_" not in name and id(module.weight) not in embedded
        if is_base and module.weight.dtype is torch.float32 and not module.weight.requires_grad:
            module.to(dtype)
    for weight in model.parameters():  # the others are views of the file's memory, and would keep it
        if weight.dtype is torch.float32 and weight.device.type == "cpu":
            weight.data = weight.data.clone()


def _with_new_adapter(policy: Any, name: str, lora: LoraConfig, seed: int, model: str) -> Any:
    import peft  # noqa: PLC0415 - slow to import, and only adapters need it

    settings = peft.LoraConfig(
        task_type="CAUSAL_LM", r=lora.rank, lora_alpha=lora.alpha, target_modules=lora.target_modules
    )
    torch.manual_seed(seed)
    with library_errors(lambda error: ConfigError(f"lora: {model} supports no such adapter: {first_line(error)}")):
        if isinstance(policy, peft.PeftModel):
            policy.add_adapter(name, settings)
            return policy
        return peft.get_peft_model(policy, settings, adapter_name=name)


@contextmanager
def _full_precision(model: nn.Module) -> Iterator[None]:
    """Let 4-bit layers compute in float32, so that results are comparable."""
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
def _unsharded(plugin: DeepSpeedPlugin) -> Iterator[None]:
    """Load whole models: under ZeRO-3, transformers shards them while loading, and the shards cannot compute yet."""
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(plugin.dschf)
