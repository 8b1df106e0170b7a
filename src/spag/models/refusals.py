"""Translates errors of transformers, tokenizers, safetensors, peft, jinja2 and torch about a model into one line each.

The libraries rarely validate their files, so a wrong one can cause any of the errors below. Imports no torch.
"""

import re
import struct
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HTTPError, StrictDataclassError  # type: ignore[attr-defined]
from jinja2 import TemplateError
from safetensors import SafetensorError

from spag.core.errors import ModelError, SpagError, first_line, is_out_of_memory
from spag.models.finding import ADAPTER_CONFIG, BAICHUAN, CONFIG, model_type

_LIBRARY_ERRORS = (
    ArithmeticError,  # transformers, for sizes of 0; jinja2, from computations of a template
    AssertionError,  # peft's and torch's checks of arguments
    AttributeError,
    EOFError,  # torch, for an empty file
    ImportError,  # a package that a config asks for
    LookupError,
    MemoryError,
    NameError,  # the model's own code, written for another version
    OSError,  # missing files, and transformers' class for most other errors
    RuntimeError,  # torch, for shapes, devices and memory; a RecursionError, for JSON that is nested too deep
    SafetensorError,
    StrictDataclassError,  # transformers' configs: a field of the wrong type
    TemplateError,  # jinja2: a template that does not parse, gives up, or reaches out of its sandbox
    TypeError,
    ValueError,
    re.error,  # peft: target_modules that is not a valid pattern
    struct.error,  # gguf, for a truncated file
)
_OWN_CODE = ("transformers_modules.", "transformers.dynamic_module_utils")
_UNREACHABLE = "cannot be loaded (neither a local folder nor a hub model that can be reached)"
_TRIES, _PAUSE_S = 2, 1.0


@contextmanager
def library_errors(
    explain: Callable[[BaseException], SpagError], also: tuple[type[BaseException], ...] = ()
) -> Iterator[None]:
    """Raise ``explain(error)`` in place of a library's error in the block; ``also`` lists further error classes.

    A ``SpagError`` passes through, as do all other errors. tokenizers raises plain ``Exception``, and Rust panics are
    ``BaseException``.
    """
    try:
        yield
    except BaseException as error:
        is_plain = type(error) is Exception or type(error).__module__ == "pyo3_runtime"
        if is_plain or isinstance(error, (*_LIBRARY_ERRORS, *also)):
            raise explain(error) from error
        raise


def check_reachable(name: str) -> None:
    """Raise ``ModelError`` if ``name`` is not cached and the hub gives no answer. Loading reports all other errors.

    The hub's client asks for an uncached model six times, which takes 23 s where connections fail at once, and minutes
    where a firewall drops them. It has no setting for that, so we ask first, twice. Its retries of everything else
    stay: of answers that report an overloaded hub, and of downloads.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            if not any(isinstance(try_to_load_from_cache(name, file), str) for file in (CONFIG, ADAPTER_CONFIG)):
                get_hf_file_metadata(hf_hub_url(name, CONFIG))
            return
        except HfHubHTTPError:
            return  # an answer
        except HTTPError as error:  # of httpx or httpx2
            if not tries_left:
                fix = "correct the name, connect to the network, or name a local folder"
                raise ModelError(f"{name}: {_UNREACHABLE}: {first_line(error)}; {fix}") from error
            time.sleep(_PAUSE_S)
        except (OSError, ValueError):  # the hub's client is set offline; a name that no model can have
            return


def loading(name: str, source: str, *, trust_remote_code: bool = False) -> AbstractContextManager[None]:
    """Raise ``ModelError`` for errors while ``name`` is read from ``source``: a folder, or a hub id in reach."""
    if not Path(source).exists():
        check_reachable(source)
    return library_errors(lambda error: ModelError(_load_failure(name, source, error, trust_remote_code)))


def _load_failure(name: str, source: str, error: BaseException, trust_remote_code: bool) -> str:
    """Return why ``name``, read from ``source``, cannot be loaded, and the fix."""
    text, conversion = str(error), _conversion(name, source)
    if "trust_remote_code" in text:
        return f"{name}: the model has its own code; {conversion or 'review it, then set model.trust_remote_code=true'}"
    if isinstance(error, OSError) and "safetensors" in text and not [*Path(source).glob("*.safetensors")]:
        fix = conversion or "convert it first or choose a revision that has them"
        return f"{name}: no safetensors weights found (pickled weights are never loaded); {fix}"
    if trust_remote_code and _in_own_code(error):
        from transformers import __version__ as version  # noqa: PLC0415 - imports torch

        fix = conversion or "use the version of transformers it was written for"
        return f"{name}: its own code fails on transformers {version} ({first_line(error, 120)}); {fix}"
    return f"{name}: {_broken(source, error)}"


def _broken(source: str, error: BaseException) -> str:
    if not Path(source).exists():
        return f"{_UNREACHABLE}: {first_line(error)}"
    if isinstance(error, SafetensorError):
        return f"a weights file is truncated or not a safetensors file ({first_line(error)}); download it again"
    if is_out_of_memory(error):
        fix = "use a smaller model, another dtype or another device"
        return f"not enough memory to load it ({first_line(error, 120)}); {fix}"
    # The messages of these say little.
    terse = isinstance(error, LookupError | AttributeError | TypeError | ArithmeticError | AssertionError)
    kind = f"one of its files is broken: {type(error).__name__}: " if terse else ""
    return f"cannot be loaded: {kind}{first_line(error)}"


def _in_own_code(error: BaseException) -> bool:
    """Whether ``error`` comes from the model's own code."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(str(frame.f_globals.get("__name__")).startswith(_OWN_CODE) for frame, _ in frames)


def _conversion(name: str, source: str) -> str | None:
    """Return how to convert a model that must be converted first, ``None`` for others."""
    if model_type(source) != BAICHUAN and "baichuan" not in name.lower():
        return None
    return "download the folder, convert it once with spag import model FOLDER --output NEW, and set model.name=NEW"
