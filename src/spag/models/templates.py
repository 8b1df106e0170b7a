"""A model's chat template, rendered within bounds. Imports no torch.

A template is a program shipped with the model. jinja2's sandbox blocks access to files and Python, but does not limit
memory and time: ``{{ 'x' * 10**10 }}``, or nested loops. Here every operation that grows text, every list and every
loop step is charged to one budget before it runs. A list counts with all that it holds, each time: one that holds the
same list twice, sixty levels deep, could be neither compared nor written. Otherwise templates behave as in
transformers 5, whose environment this replicates (``transformers.utils.chat_template_utils``).
"""

import json
import re
import threading
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sized, ValuesView
from datetime import date
from functools import lru_cache, wraps
from string import Formatter
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

BUDGET = 50_000_000
"""Characters that a template may write and process in one rendering. A game's prompt takes about ten thousand."""
STEP = 100
"""The cost of a loop step, a call, a filter or a value other than a text, in characters."""
_WIDE = re.compile(r"%(\(.*?\))?[-#0 +]*[\d.]*?(\*|\d{5})")  # a width of %, or one that is given
_WIDE_FIELD = re.compile(r"\{|\d{5}")  # the same in a field of str.format
_DIGITS = 10_000  # of a number, in bits
_DAY = date(2024, 7, 26)  # for all templates, LLaMA 3's own default: else a run's prompts would depend on the day
_MISSING = ("lipsum", "pprint", "urlize")  # their results have no bound that is easily given
_REFUSED = ("encode", "to_bytes", "translate")  # methods that make bytes, or texts of any length

_NO_TEXT = {
    *("attr", "batch", "count", "d", "default", "dictsort", "first", "groupby", "items", "last", "length", "list"),
    *("map", "max", "min", "random", "reject", "rejectattr", "reverse", "round", "select", "selectattr", "slice"),
    *("sort", "unique"),
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
    """Charge a value's characters and a step for each item, again for each repetition; return the charge."""
    if isinstance(value, str):
        _charge(len(value) + 8)
        return len(value) + 8
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    items: Iterable[Any] = ()
    if isinstance(value, Mapping):
        items = (part for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple | set | frozenset | KeysView | ItemsView | ValuesView):
        items = value
    own = STEP + (value.bit_length() // 3 if isinstance(value, int) else 0)
    _charge(own)
    return own + sum(map(_weigh, items))


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


def _growth(name: str, value: Any, others: list[Any]) -> int:
    """Return an upper bound on what ``name``, a string method or a filter, adds to the length of ``value``."""
    number = max((abs(one) for one in others if isinstance(one, int)), default=0)
    texts = [str(one) for one in others if isinstance(one, int | str)] or [""]
    length = max(map(len, texts))
    if name in ("center", "ljust", "rjust", "zfill", "batch", "slice", "tojson"):
        return max(number, length)
    if name == "join":
        return len(value) * length
    if name == "replace":
        return max(map(str(value).count, texts)) * length
    if name in ("expandtabs", "indent", "wordwrap"):
        text = str(value)
        return (text.count("\t") + text.count("\n") + len(text) * (name == "wordwrap") + 1) * max(number, length)
    if name in ("%", "format", "format_map"):
        text = str(value)
        fields = [field or "" for _, _, field, _ in Formatter().parse(text)] if name != "%" else []
        if any(map(_WIDE_FIELD.search, fields)) or (name == "%" and _WIDE.search(text)):
            _refuse("a format of such width")
        return (text.count("{") + text.count("%")) * sum(map(_weigh, others))
    if name == "round" and number > _DIGITS:
        _refuse("a number of such size")
    return 0


def _refuse(what: str) -> NoReturn:
    raise TemplateError(f"it asks for {what}")


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that charges its input and its output."""
    first = int(hasattr(function, "jinja_pass_arg"))

    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        if name == "join":  # an iterator can be read only once
            args = (*args[:first], list(args[first]), *args[first + 1 :])
        given = [*args[first:], *kwargs.values()]
        _charge(STEP + (len(given[0]) if given and isinstance(given[0], Sized) else 0))
        for value in given if name not in _NO_TEXT else ():
            _weigh(value)
        _charge(_growth("%" if name == "format" else name, given[0], given[1:]) if given else 0)
        return function(*args, **kwargs)

    return bounded


class _Generation(Extension):
    """``{% generation %}`` marks assistant text for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 says so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counting(NodeTransformer):
    """Charges loop steps, lists and ``~`` to the budget."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2 calls it so
        self.generic_visit(node)
        cost = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        node.iter = nodes.Filter(node.iter, "_steps", [nodes.Const(cost)], [], None, None, lineno=node.lineno)
        return node

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        is_target = isinstance(node, nodes.Tuple) and node.ctx != "load"
        return node if is_target else nodes.Filter(node, "_written", [], [], None, None, lineno=node.lineno)

    visit_Tuple = visit_Dict = visit_List  # noqa: N815

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
        filters = {**self.filters, "tojson": _tojson}
        self.filters = {name: _checked(name, function) for name, function in filters.items() if name not in _MISSING}
        self.filters |= {"_steps": _steps, "_concatenated": _concatenated, "_written": _written}
        self.globals |= {"raise_exception": _refused, "strftime_now": _DAY.strftime, "range": _bounded_range}
        self.globals = {name: value for name, value in self.globals.items() if name not in _MISSING}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Counting().visit(super()._parse(source, name, filename))  # type: ignore[no-any-return]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, str) and operator == "%":
            _charge(_growth("%", left, [right]))
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
        if isinstance(owner, str | int) and name in _REFUSED:
            _refuse(name)
        if function is dict or function is Namespace:
            _weigh([*args, *kwargs.values()])
        if isinstance(owner, str):
            if name == "join" and args:
                args = (list(map(_written, args[0])),)
                _charge(len(owner) * len(args[0]))
            _charge(len(owner) + _growth(name, owner, [*args, *kwargs.values()]))
        return super().call(context, function, *args, **kwargs)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return _concatenated(encoder.iterencode(value))


def _bounded_range(*bounds: int) -> range:
    found = safe_range(*bounds)
    _charge(STEP * len(found))
    return found


def _refused(message: str) -> NoReturn:
    raise TemplateError(_concatenated([message]))
