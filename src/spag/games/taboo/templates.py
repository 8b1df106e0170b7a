"""Prompt templates in ``str.format`` syntax: required fields of a prompt file, and allowed placeholders."""

import string
from collections.abc import Mapping
from typing import Any

from spag.core.errors import DataError
from spag.games.taboo.types import Role

MAX_LENGTH = 20_000
"""Characters of a template. Upstream's longest have some 2,000."""
MAX_PLACEHOLDERS = 20
"""Placeholders of a template, a bound on the size of rendered prompts."""
_REQUIRED = ("rules", "instructions", "player_instructions")
_BY_ROLE = ("instructions", "player_instructions", "names")
_RULES_FIELDS = frozenset({"max_turns"})
_INSTRUCTION_FIELDS = {Role.ATTACKER: frozenset({"max_turns", "target_word"}), Role.DEFENDER: frozenset({"max_turns"})}


def fields_of(data: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a prompt file's JSON value, except ``format``, with texts of a role by ``Role``.

    Raises ``DataError`` unless all are among ``known``, and lists and mappings of texts where they have to be.
    """
    if not isinstance(data, dict):
        raise DataError(f"expected a JSON object, got {type(data).__name__}")
    for name in data:
        if name not in known:
            raise DataError(f"unknown field {name!r}; known are {', '.join(known)}")
    for name in _REQUIRED:
        if name in known and name not in data:
            raise DataError(f"the field {name!r} is missing; a prompt file needs rules and instructions")
    fields = {name: value for name, value in data.items() if name != "format"}
    if not isinstance(data["rules"], list):
        raise DataError(f"rules is a {type(data['rules']).__name__}; it must be a list of texts")
    fields["rules"] = tuple(data["rules"])
    return fields | {name: _by_role(name, data[name]) for name in _BY_ROLE if name in data}


def _by_role(name: str, texts: Any) -> dict[Role, str]:
    if not isinstance(texts, dict):
        raise DataError(f"{name} is a {type(texts).__name__}; it must be a text for each role")
    for role in texts:
        if role not in set(Role):
            raise DataError(f"{name} has the role {role!r}; the roles are {', '.join(Role)}")
    return {Role(role): text for role, text in texts.items()}


def check_rules(rules: tuple[str, ...]) -> None:
    """Raise ``DataError`` unless there are paraphrases of the rules, each a valid template."""
    if not rules:
        raise DataError("rules is empty; give at least one paraphrase of the rules")
    for index, text in enumerate(rules):
        check_template(f"rules[{index}]", text, _RULES_FIELDS)


def check_instructions(name: str, texts: Mapping[Role, str]) -> None:
    """Raise ``DataError`` unless each role has an instruction, and only the attacker's names the target word."""
    for role, allowed in _INSTRUCTION_FIELDS.items():
        if role not in texts:
            raise DataError(f"{name} has no {role}; give one instruction for each role")
        check_template(f"{name}.{role}", texts[role], allowed, allowed & {"target_word"})


def check_template(
    name: str, template: Any, allowed: frozenset[str], needed: frozenset[str] = frozenset(), *, blank: bool = False
) -> None:
    """Raise ``DataError`` unless ``template`` is a ``str.format`` text with the ``needed`` fields, all ``allowed``.

    A placeholder has no conversion or format: ``{max_turns:99999999}`` would give a text of that many characters.
    """
    if not isinstance(template, str):
        raise DataError(f"{name} is a {type(template).__name__}; it must be a text")
    if not template.strip() and not blank:
        raise DataError(f"{name} is empty; write its text")
    if len(template) > MAX_LENGTH:
        raise DataError(f"{name} has {len(template):,} characters; a template has at most {MAX_LENGTH:,}")
    if any("\ud800" <= char <= "\udfff" for char in template):
        raise DataError(f"{name} holds half a character (a lone surrogate); write the whole one")
    try:
        placeholders = [parts[1:] for parts in string.Formatter().parse(template) if parts[1] is not None]
    except ValueError as error:
        raise DataError(f"{name} is not a template: {error}; write {{{{ and }}}} for literal braces") from error
    used = {str(field) for field, _, _ in placeholders}
    for field in sorted(used - allowed):
        known = ", ".join(f"{{{one}}}" for one in sorted(allowed)) or "none"
        raise DataError(f"{name} uses the placeholder {{{field[:80]}}}; allowed here: {known}")
    for field in sorted(needed - used):
        raise DataError(f"{name} lacks the placeholder {{{field}}}; add it")
    if formatted := next((field for field, spec, conversion in placeholders if spec or conversion), None):
        raise DataError(f"{name} formats a placeholder; write {{{formatted}}} alone, without : or !")
    if len(placeholders) > MAX_PLACEHOLDERS:
        raise DataError(f"{name} has {len(placeholders):,} placeholders; a template has at most {MAX_PLACEHOLDERS}")
