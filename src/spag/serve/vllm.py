"""vLLM's own server: its command line for the models to serve. Imports no vLLM."""

from collections.abc import Sequence
from typing import Any

from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import ConfigError
from spag.engines.prompts import longest_text
from spag.engines.vllm.setup import LORA_RANKS, copy_count, visible_gpus
from spag.models.finding import Adapter, read_adapter, resolve_model
from spag.storage.home import expanded

KEY_VARIABLE = "VLLM_API_KEY"
"""The variable from which vLLM reads the token: on the command line others could see it."""


def vllm_command(models: Sequence[tuple[str, ModelConfig]], engine: EngineConfig, host: str, port: int) -> list[str]:
    """Return ``vllm serve`` and its arguments for ``models``: one base model, and adapters of it by their names. Raises
    ``ConfigError`` for models that one vLLM cannot serve, ``ModelError`` for one without a readable config.
    """
    adapters: dict[str, Adapter] = {}
    names: dict[str, str] = {}  # of models that are not adapters
    for name, model in models:
        if adapter := read_adapter(expanded(model.name)):
            adapters[name] = adapter
        else:
            names[name] = model.name
    bases = sorted({*names.values(), *(adapter.base for adapter in adapters.values())})
    if len(bases) != 1:
        what = f"vLLM's server holds one base model, not {', '.join(bases)}"
        raise ConfigError(f"{what}; serve them one by one, or with engine.backend=transformers")
    first, folder = models[0][1], resolve_model(bases[0])
    options: dict[str, Any] = {
        "served-model-name": list(names or bases),
        "host": host,
        "port": port,
        "dtype": first.dtype,
        "max-model-len": _longest(folder, engine, trust_remote_code=first.trust_remote_code),
        "max-num-seqs": engine.concurrency,
        "tensor-parallel-size": engine.tensor_parallel,
        "data-parallel-size": copy_count(engine, first.device or "cuda", visible_gpus()),
        "generation-config": "vllm",  # no sampling defaults from the model's folder
        "load-format": "safetensors",  # never pickles
    }
    if engine.memory is not None:
        options["gpu-memory-utilization"] = engine.memory
    if first.trust_remote_code:
        options["trust-remote-code"] = []
    if adapters:
        needed = min(max(adapter.rank for adapter in adapters.values()), LORA_RANKS[-1])
        options |= {"enable-lora": [], "max-lora-rank": next(rank for rank in LORA_RANKS if rank >= needed)}
        options |= {"max-loras": len(adapters)}
        options |= {"lora-modules": [f"{name}={adapter.folder}" for name, adapter in adapters.items()]}
    command = ["vllm", "serve", folder]
    for option, value in options.items():
        command += [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
    return command


def _longest(folder: str, engine: EngineConfig, *, trust_remote_code: bool) -> int:
    """Return the longest text, in tokens: vLLM refuses more than the model's positions."""
    from spag.engines.vllm.opening import load_config  # noqa: PLC0415 - imports torch

    positions = getattr(load_config(folder, trust_remote_code=trust_remote_code), "max_position_embeddings", None)
    return longest_text(engine.max_length, positions)
