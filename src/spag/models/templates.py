"""A model's chat template, rendered within bounds. Imports no torch.

A template is a program shipped with the model. jinja2's sandbox blocks access to files and Python, but does not limit
memory and time: ``{{ 'x' * 10**10 }}``, or nested loops. Here every operation that grows text, and every loop step, is
charged to one budget before it runs. Otherwise templates behave as in transformers 5, whose environment this replicates
(``transformers.utils.chat_template_utils``).
"""

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.visitor import NodeTransformer

BUDGET = 50_000_000
"""Characters that a template may write and process in one rendering. A game's prompt takes about ten thousand."""
STEP = 100
"""The cost of a loop step, a call or a filter, in characters."""
_WIDE = re.compile(r"\d{5,}|\*")  # the width in a format
_DIGITS = 10_000  # of a number, in bits

_NO_TEXT = {
    *("attr", "batch", "count", "d", "default", "dictsort", "first", "groupby", "items", "last", "length", "list"),
    *("map", "max", "min", "random", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "sort"),
    "unique",
}
"""Filters that do not turn list items into text."""

_rendering = threading.local()


def render(source: str, **values: Any) -> str:
    """Return the text of a template. Raises ``TemplateError`` if it exceeds the budget, and jinja2's errors."""
    template = _compiled(source)
    _rendering.left = BUDGET
    return template.render(**values)


@lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    _rendering.left = BUDGET
    return _Bounded().from_string(source)


def _charge(amount: int) -> None:
    """Take ``amount`` characters from the budget."""
    left = getattr(_rendering, "left", BUDGET) - amount
    if left < 0:
        raise TemplateError(f"it asks for more than {BUDGET:,} characters of text and work")
    _rendering.left = left


def _weigh(value: Any) -> int:
    """Charge the characters of a value's text, and return their number; repeated list items count each time."""
    if isinstance(value, str):
        _charge(len(value))
        return len(value)
    items: Iterable[Any] = ()
    if isinstance(value, Mapping):
        items = (part for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple | set | frozenset):
        items = value
    _charge(8)
    return 8 + sum(map(_weigh, items))


def _written(value: Any) -> Any:
    _weigh(value)
    return value


def _concatenated(parts: Iterable[Any]) -> str:
    return "".join(str(_written(part)) for part in parts)


def _steps(values: Iterable[Any], cost: int) -> Iterator[Any]:
    """Yield ``values``, charging a loop whose body has ``cost`` characters."""
    for value in values:
        _charge(STEP + cost)
        yield value


def _growth(name: str, text: str, others: list[Any]) -> int:
    """Return an upper bound on the length of the result of ``name``, a string method or a filter, on ``text``."""
    number = max((abs(one) for one in others if isinstance(one, int)), default=0)
    length = max((len(str(one)) for one in others if isinstance(one, str)), default=0)
    if name == "replace":
        strings = [one for one in others if isinstance(one, str)]
        return text.count(strings[0]) * len(strings[1]) if len(strings) > 1 else 0
    if name in ("center", "ljust", "rjust", "zfill"):
        return number
    if name in ("expandtabs", "indent", "wordwrap"):
        return (text.count("\t") + text.count("\n") + len(text) * (name == "wordwrap") + 1) * max(number, length)
    if name in ("format", "format_map"):
        if _WIDE.search(text):
            _refuse("a format of such width")
        return (text.count("{") + text.count("%")) * (number + sum(map(_weigh, others)))
    return number if name in ("batch", "slice", "tojson") else 0


def _refuse(what: str) -> NoReturn:
    raise TemplateError(f"it asks for {what}")


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that charges its input and its output."""

    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        given = [*args[bool(getattr(function, "jinja_pass_arg", None)) :], *kwargs.values()]
        _charge(STEP)
        for value in given if name not in _NO_TEXT else ():
            if not isinstance(value, str):
                _weigh(value)
        if given and isinstance(given[0], str):
            _charge(len(given[0]) + _growth(name, given[0], given[1:]))
        if name == "join" and len(given) > 1 and isinstance(given[0], list | tuple):
            _charge(len(given[0]) * len(str(given[1])))
        return function(*args, **kwargs)

    return bounded


class _Generation(Extension):
    """``{% generation %}`` marks assistant text for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 says so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counting(NodeTransformer):
    """Charges loop steps and ``~`` to the budget."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2 calls it so
        self.generic_visit(node)
        cost = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        node.iter = nodes.Filter(node.iter, "_steps", [nodes.Const(cost)], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "_concatenated", [], [], None, None, lineno=node.lineno)


class _Bounded(ImmutableSandboxedEnvironment):
    """transformers' environment, with bounds."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_written
        )
        self.filters = {name: _checked(name, function) for name, function in self.filters.items()}
        self.filters |= {"tojson": _checked("tojson", _tojson), "_steps": _steps, "_concatenated": _concatenated}
        self.globals |= {"raise_exception": _refused, "strftime_now": lambda form: datetime.now().strftime(form)}
        self.globals |= {"range": _bounded_range}
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Counting().visit(super()._parse(source, name, filename))  # type: ignore[no-any-return]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, str) and operator == "%":
            _charge(_growth("format", left, [right]))
        sizes = [len(one) if isinstance(one, str | bytes | list | tuple) else None for one in (left, right)]
        if operator == "+" and None not in sizes:
            _charge(sum(size or 0 for size in sizes))
        if operator == "*" and sizes != [None, None]:
            size, count = (sizes[0], right) if sizes[0] is not None else (sizes[1], left)
            _charge((size or 0) * max(0, count) if isinstance(count, int) else 0)
        elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _DIGITS:
                _refuse("a number of such size")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _charge(STEP)
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str):
            if name == "translate":
                _refuse("str.translate")
            if name == "join" and args:
                args = (list(map(_written, args[0])),)
                _charge(len(owner) * len(args[0]))
            _charge(len(owner) + _growth(name, owner, [*args, *kwargs.values()]))
        return super().call(context, function, *args, **kwargs)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _bounded_range(*bounds: int) -> range:
    found = safe_range(*bounds)
    _charge(STEP * len(found))
    return found


def _refused(message: str) -> NoReturn:
    raise TemplateError(message)
