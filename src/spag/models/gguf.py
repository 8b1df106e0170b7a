"""A GGUF file as a plain transformers folder, because transformers cannot save a model that it loaded from GGUF.

The file is dequantised once, into the user's cache.
"""

import errno
import functools
import logging
import shutil
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from spag.core.errors import ModelError
from spag.models.finding import cache_folder
from spag.models.loading import no_progress_bars, save_model
from spag.models.refusals import Refusals, described
from spag.storage.disk import storage_errors
from spag.storage.store import file_digest, folder_beside

logger = logging.getLogger(__name__)


@no_progress_bars()
def dequantised(gguf: Path) -> Path:
    """Return a plain transformers folder with the weights of ``gguf`` in float32, converting on first use.

    The folder is named by content hash, so that all copies of a file, in any environment, are converted once. Raises
    ``ModelError`` for a file that cannot be read.
    """
    stat = gguf.stat()
    folder = cache_folder() / f"{gguf.stem}-{_digest(gguf, stat.st_size, stat.st_mtime_ns)}"
    if (folder / "config.json").exists():
        return folder
    logger.info("converting %s into %s (once)", gguf.name, folder)
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with Refusals(
        lambda error: ModelError(
            f"{gguf}: transformers cannot load this GGUF file: {described(error)}; download it again"
        )
    ):
        tokenizer = AutoTokenizer.from_pretrained(**source)
        loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        config = AutoConfig.from_pretrained(**source)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        clean = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        clean.load_state_dict(loaded.state_dict())
        clean.generation_config = loaded.generation_config
    with storage_errors(folder), folder_beside(folder) as beside:
        save_model(clean, tokenizer, beside / "model")
        _move_unless_there(beside / "model", folder)
    return folder


def _move_unless_there(made: Path, folder: Path) -> None:
    """Rename ``made`` to ``folder``, unless another process was first: it may be reading that folder already."""
    if (folder / "config.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    try:
        made.rename(folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


@functools.cache
def _digest(gguf: Path, size: int, mtime_ns: int) -> str:
    """Return a hash of the file's contents, read once per process while ``size`` and ``mtime_ns`` are unchanged."""
    return file_digest(gguf)
