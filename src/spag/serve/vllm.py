"""vLLM's own server: its command line for the models to serve. Imports no vLLM."""

from collections.abc import Sequence
from pathlib import Path

from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import ConfigError
from spag.engines.vllm.setup import CPU_STEP_TOKENS, LORA_RANKS
from spag.models.finding import Adapter, read_adapter, resolve_model

KEY_VARIABLE = "VLLM_API_KEY"


def vllm_command(
    models: Sequence[tuple[str, ModelConfig]], engine: EngineConfig, host: str, port: int, *, on_cpu: bool = False
) -> list[str]:
    """Return ``vllm serve`` and its arguments for ``models``: one base model under one name at most, and adapters of it under theirs.

    The token is not among them: vLLM reads it from ``VLLM_API_KEY``, where nobody else sees it. Raises ``ConfigError`` for models that one
    vLLM cannot serve.
    """
    adapters: dict[str, Adapter] = {}
    names: dict[str, str] = {}  # of models that are no adapters, and what they are called
    for name, model in models:
        if adapter := read_adapter(Path(model.name).expanduser()):
            adapters[name] = adapter
        else:
            names[name] = model.name
    bases = sorted({*names.values(), *(adapter.base for adapter in adapters.values())})
    if len(bases) != 1:
        raise ConfigError(
            f"vLLM's server holds one base model, not {', '.join(bases)}; serve them apart, or with engine.backend=transformers"
        )
    first = models[0][1]
    command = ["vllm", "serve", resolve_model(bases[0]), "--served-model-name", *(names or bases), "--host", host, "--port", str(port)]
    command += ["--dtype", first.dtype, "--max-model-len", str(engine.max_length), "--max-num-seqs", str(engine.concurrency)]
    command += ["--generation-config", "vllm", "--load-format", "safetensors", "--tensor-parallel-size", str(engine.tensor_parallel)]
    command += ["--data-parallel-size", str(engine.data_parallel)]
    if engine.memory is not None:
        command += ["--gpu-memory-utilization", str(engine.memory)]
    if on_cpu:  # as our own vLLM engine does, and for its reasons: draws that cannot be taken back, and a free slot beside the adapters
        command += ["--enforce-eager", "--no-enable-chunked-prefill"]
        command += ["--max-num-batched-tokens", str(max(engine.max_length, CPU_STEP_TOKENS))]
    if first.trust_remote_code:
        command.append("--trust-remote-code")
    if adapters:
        needed = min(max(adapter.rank for adapter in adapters.values()), LORA_RANKS[-1])
        rank = next(rank for rank in LORA_RANKS if rank >= needed)
        command += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", str(len(adapters) + on_cpu)]
        command += ["--lora-modules", *(f"{name}={adapter.folder}" for name, adapter in adapters.items())]
    return command
