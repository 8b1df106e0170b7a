"""Prompt templates in ``str.format`` syntax: reading a prompt file's fields, and allowed placeholders."""

import string
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from spag.core.errors import DataError
from spag.core.options import fault_of
from spag.games.taboo.types import Role

Kind = TypeVar("Kind")
_RULES_FIELDS = frozenset({"max_turns"})
_INSTRUCTION_FIELDS = {Role.ATTACKER: frozenset({"max_turns", "target_word"}), Role.DEFENDER: frozenset({"max_turns"})}


def read_as(kind: type[Kind], data: Any) -> Kind:
    """Return the JSON value of a prompt file as ``kind``, a dataclass. Raises ``DataError``, which begins with the
    field at fault, if there is one.
    """
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        first, known = error.errors()[0], ", ".join(field.name for field in fields(kind))  # type: ignore[arg-type]
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"{place}: {fault_of(first)}; the fields are {known}".removeprefix(": ")) from error


def check_rules(rules: tuple[str, ...]) -> None:
    """Raise ``DataError`` unless there are paraphrases of the rules, each a valid template."""
    if not rules:
        raise DataError("rules is empty; give at least one paraphrase of the rules")
    for index, text in enumerate(rules):
        check_template(f"rules[{index}]", text, _RULES_FIELDS)


def check_by_role(
    name: str, texts: Mapping[Role, str], placeholders: Mapping[Role, frozenset[str]] = _INSTRUCTION_FIELDS
) -> None:
    """Raise ``DataError`` unless each role has a valid template; of instructions only the attacker's names the word."""
    for role, allowed in placeholders.items():
        if role not in texts:
            raise DataError(f"{name} has no {role}; give one text for each role")
        check_template(f"{name}.{role}", texts[role], allowed, allowed & {"target_word"})


def check_template(
    name: str, template: str, allowed: frozenset[str], needed: frozenset[str] = frozenset(), *, blank: bool = False
) -> None:
    """Raise ``DataError`` unless ``template`` is a ``str.format`` text with the ``needed`` fields, all ``allowed``.

    A placeholder has no conversion or format: ``{max_turns:99999999}`` would give a text of that many characters.
    """
    if not template.strip() and not blank:
        raise DataError(f"{name} is empty; write its text")
    if any("\ud800" <= char <= "\udfff" for char in template):
        raise DataError(f"{name} holds half a character (a lone surrogate); write the whole one")
    used = set()
    try:
        for _, field, spec, conversion in string.Formatter().parse(template):
            if field is not None:
                used.add(field + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else ""))
    except ValueError as error:
        raise DataError(f"{name} is not a template: {error}; write {{{{ and }}}} for literal braces") from error
    for field in sorted(used - allowed):
        known = ", ".join(f"{{{one}}}" for one in sorted(allowed)) or "none"
        raise DataError(f"{name} uses the placeholder {{{field[:80]}}}; allowed here: {known}")
    for field in sorted(needed - used):
        raise DataError(f"{name} lacks the placeholder {{{field}}}; add it")
