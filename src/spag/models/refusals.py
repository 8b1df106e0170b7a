"""Translates the errors of transformers, tokenizers, safetensors, peft, jinja2 and torch about a model's files into one
line each.

The libraries rarely validate their files, so a wrong one can cause any of the errors below. Imports no torch.
"""

import re
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from huggingface_hub.errors import StrictDataclassError
from jinja2 import TemplateError
from safetensors import SafetensorError

from spag.core.errors import ModelError, SpagError
from spag.models.finding import BAICHUAN, model_type
from spag.models.hub import check_reachable

LIBRARY_ERRORS = (
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


class Refusals(AbstractContextManager[None]):
    """Raises ``explain(error)`` in place of a library's error in the block; ``also`` lists further error classes.

    A ``SpagError`` passes through, as do all other errors.
    """

    def __init__(
        self, explain: Callable[[BaseException], SpagError], also: tuple[type[BaseException], ...] = ()
    ) -> None:
        self._explain, self._also = explain, also

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (_is_refusal(error) or isinstance(error, self._also)):
            raise self._explain(error) from error


def _is_refusal(error: BaseException) -> bool:
    """Whether the error comes from a library. tokenizers raises plain ``Exception``, and Rust panics are
    ``BaseException``.
    """
    return isinstance(error, LIBRARY_ERRORS) or type(error) is Exception or type(error).__module__ == "pyo3_runtime"


def loading(name: str, source: str, *, trust_remote_code: bool = False) -> Refusals:
    """Translate errors while ``name`` is read from ``source``, a folder or a hub id, into ``ModelError``. Raises it at
    once if the hub is needed and cannot be reached.
    """
    if not Path(source).exists():
        check_reachable(source)
    return Refusals(lambda error: ModelError(_load_failure(name, source, error, trust_remote_code)))


def described(error: BaseException, longest: int = 300) -> str:
    """Return an error's message on one line: its first line, and the next if the first only introduces it."""
    lines = [" ".join(line.split()) for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:longest]


def _load_failure(name: str, source: str, error: BaseException, trust_remote_code: bool) -> str:
    """Return why ``name``, read from ``source``, cannot be loaded, and the fix."""
    text, conversion = str(error), _conversion(name, source)
    if "trust_remote_code" in text:
        return (
            f"{name}: this model brings its own code; "
            f"{conversion or 'review it, then set model.trust_remote_code=true'}"
        )
    if isinstance(error, OSError) and "safetensors" in text and not [*Path(source).glob("*.safetensors")]:
        fix = conversion or "convert it first or choose a revision that has them"
        return f"{name}: no safetensors weights found (pickled weights are never loaded); {fix}"
    if trust_remote_code and _in_own_code(error):
        import transformers  # noqa: PLC0415 - imports torch

        fix = conversion or "use a version of transformers that it was written for"
        return f"{name}: its own code fails on transformers {transformers.__version__} ({described(error, 120)}); {fix}"
    return f"{name}: {_broken(source, error)}"


def _broken(source: str, error: BaseException) -> str:
    text = str(error)
    if not Path(source).exists():
        return f"cannot be loaded (neither a local folder nor a hub model that can be reached): {described(error)}"
    if isinstance(error, SafetensorError):
        return f"a weights file is cut short or no safetensors file ({described(error)}); download it again"
    if isinstance(error, MemoryError) or "out of memory" in text.lower() or "allocate memory" in text:
        return (
            f"not enough memory to load it ({described(error, 120)}); take a smaller model, "
            "another dtype or another device"
        )
    # The messages of these say little.
    terse = isinstance(error, LookupError | AttributeError | TypeError | ArithmeticError | AssertionError)
    return f"cannot be loaded: {f'a file of it is broken: {type(error).__name__}: ' if terse else ''}{described(error)}"


def _in_own_code(error: BaseException) -> bool:
    """Whether ``error`` comes from the model's own code."""
    trace, modules = error.__traceback__, []
    while trace is not None:
        modules.append(str(trace.tb_frame.f_globals.get("__name__")))
        trace = trace.tb_next
    return any(module.startswith(_OWN_CODE) for module in modules)


def _conversion(name: str, source: str) -> str | None:
    """Return how to convert a model that must be converted first, ``None`` for others."""
    if model_type(source) != BAICHUAN and "baichuan" not in name.lower():
        return None
    return "download the folder, convert it once with spag import model FOLDER --output NEW, and set model.name=NEW"


def template(name: str) -> Refusals:
    """Translate errors from the chat template of tokenizer ``name`` into ``ModelError``."""
    return Refusals(
        lambda error: ModelError(
            f"{name}: its chat template fails ({described(error, 200)}); fix it, or use prompt_style plain"
        )
    )
