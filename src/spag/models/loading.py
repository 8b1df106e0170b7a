"""Loading and saving of causal language models and their tokenizers, by the names of ``finding.py``.

Weights are read from safetensors only, never from pickles (``gguf.py`` and ``convert.py`` convert other files to
safetensors). Broken files, weights that do not match their config, and non-finite numbers are refused (``refusals.py``,
``weights.py``).
"""

import json
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import logging as transformers_logging

import spag.models.baichuan  # noqa: F401 - registers the model with transformers
from spag.core.errors import ConfigError, ModelError
from spag.models.adapters import with_adapter
from spag.models.finding import adapter_base, check_generation_config, resolve_model
from spag.models.refusals import loading
from spag.models.roles import LONE_ADAPTER, ROLES, adapter_names, weights_of_adapter
from spag.models.speed import core_speeds
from spag.models.weights import check_finite, check_own_code, check_size, refuse_unless_equal, weights_of
from spag.storage.home import expanded
from spag.storage.machine import limit_kernel_caches
from spag.storage.store import folder_beside, sync_files, write_json

_LOADING = threading.RLock()
"""Held while a model is loaded: meanwhile transformers replaces methods of its classes, and torch's default dtype, for
all threads.
"""


@contextmanager
def quietly() -> Iterator[None]:
    """Load or save, one thread at a time, without transformers' progress bars and its tables of errors that we report
    in one line.
    """
    with _LOADING:
        shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(verbosity)
            if shown:
                transformers_logging.enable_progress_bar()


def load_config(name: str, source: str, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Return the config of the text model ``name``, read from ``source``, a folder or hub id. Raises ``ModelError``."""
    with loading(name, source, trust_remote_code=trust_remote_code):
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        return config.get_text_config(decoder=True)


@quietly()
def load_tokenizer(name: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer of ``name``, of an adapter saved without one its base model's. Its pad token falls back to the
    end-of-sequence token. Raises ``ModelError``.
    """
    source = resolve_model(name)
    if (base := adapter_base(Path(source))) and not (Path(source) / "tokenizer_config.json").exists():
        source = resolve_model(base)
    with loading(name, source, trust_remote_code=trust_remote_code):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        tokenizer.decode(tokenizer.encode("a", add_special_tokens=False))  # some broken files fail only here
        # Lone surrogates would fail when it is saved.
        json.dumps(tokenizer.init_kwargs, ensure_ascii=False, default=str).encode()
    return tokenizer


@quietly()
def load_model(
    name: str,
    *,
    dtype: str = "bfloat16",
    device: str | None = None,
    trust_remote_code: bool = False,
    trainable_adapter: bool = False,
    adapter: str = LONE_ADAPTER,
    quantization: transformers.BitsAndBytesConfig | None = None,
) -> PreTrainedModel:
    """Load a causal LM in evaluation mode.

    ``dtype`` is a torch dtype's name. ``device`` defaults to the first GPU, else the CPU. A LoRA adapter folder is
    loaded over its base model, as ``adapter``; ``trainable_adapter`` leaves its weights trainable. ``quantization``
    freezes the base model, for an adapter to train. Raises ``ModelError`` for broken files and for missing, unexpected
    or non-finite weights, and ``ConfigError`` for a missing device.
    """
    limit_kernel_caches()
    # cuDNN's attention compiles a plan for each new shape, and play and packed rows have new ones all the time
    torch.backends.cuda.enable_cudnn_sdp(False)
    device = checked_device(device)
    source = resolve_model(name)
    adapted = adapter_base(Path(source))
    base = source if adapted is None else resolve_model(adapted)
    check_generation_config(base)
    options: dict[str, Any] = {"quantization_config": quantization, "device_map": {"": device}} if quantization else {}
    with loading(name, base, trust_remote_code=trust_remote_code):
        config = AutoConfig.from_pretrained(base, trust_remote_code=trust_remote_code)
        if Path(base).is_dir() and not hasattr(config, "auto_map") and not is_deepspeed_zero3_enabled():
            check_size(name, Path(base), config)
        if getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None):
            options["attn_implementation"] = "eager"  # torch's kernel would not cap scores, as Gemma 2 and vLLM do
        model, info = AutoModelForCausalLM.from_pretrained(
            base,
            dtype=getattr(torch, dtype),
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # reported in ``info``, and refused there
            output_loading_info=True,
            **options,
        )
        # ``info`` omits tied weights and those that the model's class allows to be missing
        kinds = (info["missing_keys"], info["unexpected_keys"], info["mismatched_keys"])
        refuse_unless_equal(name, f"a {config.model_type}", *kinds)
        if not is_deepspeed_zero3_enabled():  # shards cannot compute yet; the model was probed whole before
            check_own_code(name, model)
        if quantization:
            model = _freeze_quantized(model)
    with loading(name, source):
        if adapted is not None:
            model = with_adapter(model, Path(source), name=adapter, trainable=trainable_adapter)
        # ZeRO-3 has its shards in place; frozen weights that it gathers go where their placeholders are
        model = model if quantization or is_deepspeed_zero3_enabled() else model.to(device)
    fix = "it was damaged in training or when it was saved; use an earlier checkpoint or download it again"
    check_finite(name, weights_of(model), fix)
    return model.eval()


@quietly()
def load_adapters(adapters: Mapping[str, str], *, trainable: bool = False, **options: Any) -> PreTrainedModel:
    """Load a base model once with several adapters, folders by name; the first is active until ``use_adapter``.

    ``options`` and errors are those of ``load_model``; adapters of different base models also raise ``ModelError``.
    """
    named = [adapter_base(expanded(folder)) for folder in adapters.values()]
    if len(bases := {base and resolve_model(base) for base in named}) > 1:
        raise ModelError(f"{', '.join(adapters.values())}: are adapters of {len(bases)} base models; one is needed")
    (first, folder), *others = adapters.items()
    model = load_model(folder, trainable_adapter=trainable, adapter=first, **options)
    for name, folder in others:
        with loading(folder, folder):
            model = with_adapter(model, expanded(folder), name=name, trainable=trainable)
        check_finite(folder, weights_of_adapter(dict(weights_of(model)), name).items(), "train it again")
    return model.eval()


def _freeze_quantized(model: PreTrainedModel) -> PreTrainedModel:
    """Prepare a quantized model for training an adapter: frozen, with unquantized parts in float32."""
    from peft import prepare_model_for_kbit_training  # noqa: PLC0415 - slow to import, and only adapters need it

    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):  # evaluation would repack weights, which ends gradients
            module.support_avx512bf16_for_cpu = False
    frozen: PreTrainedModel = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return frozen


def fastest_dtype(device: str | None = None) -> str:
    """Return ``bfloat16`` on a GPU that has it, ``float16`` on an older one; on a CPU, bfloat16 or float32, whichever
    multiplies matrices faster here.

    CPUs differ by a factor of two either way, and no feature flag tells which is faster.
    """
    if torch.cuda.is_available() and device != "cpu":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    half, full = core_speeds()
    return "float32" if full >= half else "bfloat16"


def default_device() -> str:
    """Return the default device of a model: the first GPU, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def checked_device(device: str | None) -> str:
    """Return ``device``, or the default one. Raises ``ConfigError`` if it does not exist."""
    if device is None:
        return default_device()
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"model.device={device}: no such device; set cpu, cuda or cuda:N, or omit it") from error
    if wanted.type == "cpu":
        return device
    found = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    kind = torch.accelerator.current_accelerator() if found else None
    if kind is None or wanted.type != kind.type or (wanted.index or 0) >= found:
        seen = f"{found} visible ({kind.type})" if kind else "no GPU is visible"
        raise ConfigError(f"model.device={device}: {seen}; set model.device=cpu, or omit it")
    return device


@quietly()
def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    weights: dict[str, torch.Tensor] | None = None,
    roles: Sequence[str] = (),
) -> None:
    """Save ``model`` and ``tokenizer`` as a plain transformers folder, which is complete or absent even after a crash.

    ``weights`` by name are saved in place of the model's own, which may be sharded over processes. ``roles``: the model
    has an adapter for each, and they are saved in the layout of ``roles.py``. Raises ``ModelError`` for weights that
    are not finite; ``folder`` then keeps its contents.
    """
    saved, names = weights_of(model) if weights is None else weights.items(), adapter_names(roles)
    check_finite(f"{folder}: not saved", saved, "lower the learning rate and train again")
    _make_savable(model)
    options: dict[str, Any] = {}
    if hasattr(model, "peft_config"):  # else peft saves the base model's embeddings with every adapter for them
        options["save_embedding_layers"] = getattr(model, "has_other_embeddings", False)
    if names:
        options["selected_adapters"] = [*names.values()]
    with folder_beside(folder) as beside:
        model.save_pretrained(beside, safe_serialization=True, state_dict=weights, **options)
        for place in [beside / name for name in names.values()] or [beside]:
            tokenizer.save_pretrained(place)
        if names:
            (beside / "README.md").unlink(missing_ok=True)  # peft's name for a single adapter
            write_json(beside / ROLES, names)
        sync_files(beside)
        if folder.exists():
            shutil.rmtree(folder)
        beside.rename(folder)


def _make_savable(model: PreTrainedModel) -> None:
    """Reduce a generation config that transformers loads but refuses to save (``temperature`` without ``do_sample``,
    say) to its special tokens; how replies are sampled is our own option.
    """
    config = model.generation_config
    if config is None:
        return
    try:
        config.validate(strict=True)
    except ValueError:
        ids = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        model.generation_config = GenerationConfig(
            **{name: value for name, value in ids.items() if not isinstance(value, int) or value >= 0}
        )


def library_versions() -> dict[str, str]:
    """Return the library versions that affect a run's results."""
    return {"torch": str(torch.__version__), "transformers": str(transformers.__version__)}
