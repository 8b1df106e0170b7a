"""A GGUF file as a plain transformers folder, because transformers refuses to save a model that it loaded from GGUF.

The file is dequantised once, into the user's cache.
"""

import errno
import functools
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils
from transformers.utils import logging as transformers_logging

from spag.core.errors import ModelError, first_line
from spag.models.finding import cache_folder
from spag.models.loading import quietly, save_model
from spag.models.refusals import library_errors
from spag.storage.disk import storage_errors
from spag.storage.store import file_digest, folder_beside

logger = logging.getLogger(__name__)


@quietly()
def dequantised(source: Path) -> Path:
    """Return a plain transformers folder with the weights of ``source`` in float32, converting on first use.

    The folder is named by content hash, so that all copies of a file, in any environment, are converted once. Raises
    ``ModelError`` for a file that cannot be read.
    """
    stat = source.stat()
    folder = cache_folder() / f"{source.stem}-{_digest(source, stat.st_size, stat.st_mtime_ns)}"
    if (folder / "config.json").exists():
        return folder
    logger.info("converting %s into %s (once)", source.name, folder)
    file = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    fault = f"{source}: transformers cannot load this GGUF file"
    with library_errors(lambda error: ModelError(f"{fault}: {first_line(error)}; download it again")), _read_once():
        tokenizer = AutoTokenizer.from_pretrained(**file)
        model = AutoModelForCausalLM.from_pretrained(**file, dtype=torch.float32)
        model.hf_quantizer = None  # which would refuse to save the weights, plain as they are now
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
    with storage_errors(folder), folder_beside(folder) as beside:
        save_model(model, tokenizer, beside)
        _move_unless_there(beside, folder)
    return folder


@contextmanager
def _read_once() -> Iterator[None]:
    """Let transformers parse the file once, not for the tokenizer, each config and the weights, and build the table of
    names once, not for every module: that takes more than half of the time. Hide its bar, which ignores ``quietly``.
    """
    slow = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    bar, modeling_gguf_pytorch_utils.tqdm = modeling_gguf_pytorch_utils.tqdm, transformers_logging.tqdm
    try:
        for name, function in slow.items():
            setattr(gguf, name, functools.cache(function))
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = bar
        for name, function in slow.items():
            setattr(gguf, name, function)


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
def _digest(path: Path, size: int, mtime_ns: int) -> str:
    """Return a hash of the file's contents, read once per process while ``size`` and ``mtime_ns`` are unchanged."""
    return file_digest(path)
