"""vLLM's own server: its command line for the models to serve. Imports no vLLM."""

import json
from collections.abc import Sequence
from typing import Any

from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import ConfigError
from spag.engines.prompts import context_length
from spag.engines.vllm.setup import max_lora_rank, most_at_once, placement, step_tokens, visible_gpus
from spag.models.finding import read_adapter, resolve_model
from spag.serve.guard import TOKEN_VARIABLE, TokenGuard
from spag.storage.home import expanded

GUARD = f"{TokenGuard.__module__}.{TokenGuard.__name__}"


def vllm_command(models: Sequence[tuple[str, ModelConfig]], engine: EngineConfig, host: str, port: int) -> list[str]:
    """Return ``vllm serve`` and its arguments for ``models``: one base model, and adapters of it by their names. Raises
    ``ConfigError`` for models that one vLLM cannot serve, ``ModelError`` for one without a readable config.
    """
    from spag.models.loading import load_config  # noqa: PLC0415 - imports torch

    found = {name: read_adapter(expanded(model.name)) for name, model in models}
    adapters = {name: adapter for name, adapter in found.items() if adapter}
    wanted = {adapter.base if (adapter := found[name]) else model.name for name, model in models}
    bases = sorted(set(map(resolve_model, wanted)))
    if len(bases) != 1:
        what = f"vLLM's server serves one base model, not {', '.join(bases)}"
        raise ConfigError(f"{what}; serve them one by one, or with engine.backend=transformers")
    first, [folder] = models[0][1], bases
    copies = len(placement(engine, first.device or "cuda", visible_gpus()))
    config = load_config(folder, folder, trust_remote_code=first.trust_remote_code)
    positions = getattr(config, "max_position_embeddings", None)  # vLLM refuses longer texts
    length, requests = context_length(engine.max_length, positions), most_at_once(engine.concurrency, copies)
    options: dict[str, Any] = {
        "served-model-name": [name for name in found if name not in adapters] or bases,
        "host": host,
        "port": port,
        "dtype": first.dtype,
        "max-model-len": length,
        "max-num-seqs": requests,
        "max-num-batched-tokens": step_tokens(requests, length),
        "tensor-parallel-size": engine.tensor_parallel,
        "data-parallel-size": copies,
        "generation-config": "vllm",  # no sampling defaults from the model's folder
        "load-format": "safetensors",  # never pickles
        "middleware": GUARD,
    }
    if engine.memory is not None:
        options["gpu-memory-utilization"] = engine.memory
    if first.trust_remote_code:
        options["trust-remote-code"] = []
    if adapters:
        options |= {"enable-lora": [], "max-lora-rank": max_lora_rank(adapters.values()), "max-loras": len(adapters)}
        # as JSON: vLLM splits NAME=PATH at the first =, and refuses a comma in it
        options["lora-modules"] = [
            json.dumps({"name": name, "path": str(one.folder)}) for name, one in adapters.items()
        ]
    command = ["vllm", "serve", folder]
    for option, value in options.items():
        command += [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
    return command


def vllm_environment(model: ModelConfig, engine: EngineConfig, token: str | None) -> dict[str, str]:
    """Return the variables of vLLM's server: the token, which others could see on the command line and ``GUARD`` reads,
    and the GPUs from ``model.device`` on, if it is one of several.
    """
    first = (model.device or "").removeprefix("cuda:")
    gpus = visible_gpus()[int(first) :][: engine.gpus] if first.isdecimal() else []
    return ({TOKEN_VARIABLE: token} if token else {}) | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
