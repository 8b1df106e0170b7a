"""A model's chat template, rendered in a process of its own. Imports no torch.

A template is a program shipped with the model. jinja2's sandbox blocks access to files and Python, but does not limit
memory and time: ``{{ 'x' * 10**10 }}``, or nested loops. So another process renders, and the kernel limits both there.
Otherwise templates behave as in transformers 5, whose environment this replicates
(``transformers.utils.chat_template_utils``).
"""

import atexit
import json
import os
import resource
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import date
from functools import lru_cache
from math import ceil
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 2
"""CPU time of one rendering. A game's prompt takes about a millisecond."""
MEMORY = 2**29
"""Bytes of the process."""
LONGEST = 50_000_000
"""Characters of a text. A game's prompt has about ten thousand."""
_DAY = date(2024, 7, 26)  # for all templates, LLaMA 3's own default: else a run's prompts would depend on the day
_FAULTS = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, SyntaxError, TypeError, ValueError),
    TemplateError,
)


def render(source: str, **values: Any) -> str:
    """Return the text of a template. Raises ``TemplateError`` if it fails, or takes too much memory or time."""
    answer = _child.ask(json.dumps([source, values], default=str))
    if not answer:
        raise TemplateError(f"it needs more than {SECONDS} s, or too much memory")
    text, fault = json.loads(answer)
    if fault:
        raise TemplateError(fault)
    return str(text)


class _Child:
    """The process, started for the first question, and again after one that it did not survive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def ask(self, question: str) -> str:
        """Return the answer to a line, empty if the process ends over it."""
        with self._lock:
            # none while a question is open: its answer would be taken for another's after an interrupt
            process, self._process = self._process, None
            if process is None or process.poll() is not None or self._owner != os.getpid():  # forks must not share one
                process, self._owner = _started(), os.getpid()
            assert process.stdin and process.stdout
            process.stdin.write(question + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            self._process = process
            if answer.endswith("\n"):
                return answer
            self.close()
            return ""

    def close(self) -> None:
        """End the process, unless it is another's."""
        if self._process is not None and self._owner == os.getpid():
            self._process.communicate()
            self._process = None


def _started() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="ascii",
        start_new_session=True,  # Ctrl-C is for the process that asks; this one ends with its input
    )


_child = _Child()
atexit.register(_child.close)


def _serve() -> None:
    """Answer each line of the input, a template and its values, with a line: the text, or why there is none."""
    _limit(resource.RLIMIT_AS, MEMORY)
    _limit(resource.RLIMIT_CORE, 0)
    compiled = lru_cache(_environment().from_string)
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, ceil(used.ru_utime + used.ru_stime) + SECONDS)
        try:
            source, values = json.loads(line)
            text = compiled(source).render(**values)
            fault = f"its text has more than {LONGEST:,} characters" if len(text) > LONGEST else ""
            answer = json.dumps(["" if fault else text, fault])
        except _FAULTS as error:
            answer = json.dumps(["", str(error) or type(error).__name__])
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    with suppress(ValueError):  # macOS may not limit memory
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


class _Generation(Extension):
    """``{% generation %}`` marks assistant text for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 says so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    found = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    found.filters["tojson"] = _tojson
    found.globals |= {"raise_exception": _refused, "strftime_now": _DAY.strftime}
    return found


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refused(message: str) -> NoReturn:
    raise TemplateError(message)


if __name__ == "__main__":
    _serve()
