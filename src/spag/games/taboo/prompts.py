"""The prompts of Adversarial Taboo: one canonical prompt for play, many shapes of it for training.

In play the rules come first (always the first paraphrase), then the history, one line an utterance, and the role's instruction last:
the prompts of both roles and of all turns share a growing prefix, so a key-value cache survives from turn to turn. For training the paper's
code draws paraphrase, layout and player names per utterance (arXiv 2404.10642, upstream's ``utils.py``). The layouts here are our own,
and so is the wording of ``data/prompts.json``, short on purpose: every sample and every move carries one paraphrase of the rules.

A prompt ends with a line break, because targets are tokenised on their own: the first token of a reply has no leading space in play either.
"""

import json
import random
import string
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any

from spag.core.errors import DataError
from spag.core.types import Observation, Utterance
from spag.games.taboo.types import Role

PLAYER_NAMES = (
    ("attacker", "defender"),
    ("Player 1", "Player 2"),
    ("Alice", "Bob"),
    ("Player A", "Player B"),
    ("Sam", "Kim"),
    ("Red", "Blue"),
)
"""(attacker, defender) names that training prompts may use; the first pair is that of play."""
_FIELDS = ("rules", "instructions", "header", "line", "cue")
_RULES_FIELDS = frozenset({"max_turns"})
_LINE_FIELDS = frozenset({"role", "content"})
_CUE_FIELDS = frozenset({"role"})
_INSTRUCTION_FIELDS = {Role.ATTACKER: frozenset({"max_turns", "target_word"}), Role.DEFENDER: frozenset({"max_turns"})}


@dataclass(frozen=True)
class PromptSet:
    """Templates in ``str.format`` syntax. Raises ``DataError`` when one lacks a placeholder, or names one that it may not use.

    ``rules``: paraphrases, ``{max_turns}`` allowed; play uses the first. ``instructions``: one a role; the attacker's needs
    ``{target_word}``, the defender's may not have it. ``header`` stands between rules and history; ``line`` is one utterance, with
    ``{role}`` and ``{content}`` and a line break at its end; ``cue``, the last words of a prompt, may name the ``{role}`` that speaks next.
    """

    rules: tuple[str, ...]
    instructions: Mapping[Role, str]
    header: str = "\n\nThe conversation so far:\n"
    line: str = "- {role}: {content}\n"
    cue: str = "{role} says:\n"

    def __post_init__(self) -> None:
        if not self.rules:
            raise DataError("rules is empty; give at least one paraphrase of the rules")
        for index, rules in enumerate(self.rules):
            _check_template(f"rules[{index}]", rules, _RULES_FIELDS)
        for role, allowed in _INSTRUCTION_FIELDS.items():
            if role not in self.instructions:
                raise DataError(f"instructions has no {role}; give one instruction for each role")
            needed = allowed & {"target_word"}
            _check_template(f"instructions.{role}", self.instructions[role], allowed, needed)
        _check_template("header", self.header, frozenset(), blank=True)
        _check_template("cue", self.cue, _CUE_FIELDS, blank=True)
        _check_template("line", self.line, _LINE_FIELDS, _LINE_FIELDS)
        if not self.line.endswith("\n"):
            raise DataError(f"line is {self.line!r}; end it with a line break, one utterance is one line")

    @staticmethod
    @cache
    def default() -> "PromptSet":
        """Return the project's own prompts, those of ``data/prompts.json``."""
        return PromptSet.parse(json.loads((resources.files("spag.games.taboo.data") / "prompts.json").read_text(encoding="utf-8")))

    @staticmethod
    def parse(data: Any) -> "PromptSet":
        """Build a set from the JSON value of a prompt file; ``header``, ``line`` and ``cue`` may be absent. Raises ``DataError``."""
        if not isinstance(data, dict):
            raise DataError(f"expected a JSON object, got {type(data).__name__}")
        unknown = [key for key in data if key not in _FIELDS]
        if unknown:
            raise DataError(f"unknown field {unknown[0]!r}; known are {', '.join(_FIELDS)}")
        rules, instructions = _required(data, "rules", list), _required(data, "instructions", dict)
        strange = [name for name in instructions if name not in set(Role)]
        if strange:
            raise DataError(f"instructions has the role {strange[0]!r}; the roles are {', '.join(Role)}")
        shape = {name: data[name] for name in ("header", "line", "cue") if name in data}
        return PromptSet(tuple(rules), {Role(name): text for name, text in instructions.items()}, **shape)

    def dump(self) -> dict[str, Any]:
        """Return the JSON value that ``parse`` reads back."""
        instructions = {str(role): self.instructions[role] for role in Role}
        return {"rules": list(self.rules), "instructions": instructions, "header": self.header, "line": self.line, "cue": self.cue}


class Layout(Enum):
    """The order and dress of a training prompt's parts."""

    RULES_FIRST = "rules, history, instruction: the prompt of play"
    RULES_LAST = "history, rules, instruction"
    INSTRUCTION_FIRST = "instruction, rules, history, cue"
    INSTRUCTION_STYLE = "headed sections, as in instruction tuning"
    CHAT_LOG = "rules and instruction, then a bare log that ends with the speaker's name"


def play_prompt(observation: Observation, prompts: PromptSet | None = None) -> str:
    """Return the canonical prompt of ``observation``: rules, history, instruction, cue."""
    prompts = prompts or PromptSet.default()
    rules = prompts.rules[0].format(max_turns=observation.facts["max_turns"])
    return _lay_out(Layout.RULES_FIRST, rules, {role: str(role) for role in Role}, observation, prompts)


def training_prompt(observation: Observation, rng: random.Random, prompts: PromptSet | None = None) -> str:
    """Return a prompt of ``observation`` with paraphrase, layout and player names drawn from ``rng``."""
    prompts = prompts or PromptSet.default()
    rules = rng.choice(prompts.rules).format(max_turns=observation.facts["max_turns"])
    layout = rng.choice(tuple(Layout))
    attacker, defender = rng.choice(PLAYER_NAMES)
    if (attacker, defender) != PLAYER_NAMES[0]:
        rules = f"{rules} {attacker} is the attacker and {defender} is the defender."
    return _lay_out(layout, rules, {Role.ATTACKER: attacker, Role.DEFENDER: defender}, observation, prompts)


def stop_strings(prompts: PromptSet | None = None) -> tuple[str, ...]:
    """Return the strings that end an utterance: a new line that starts with a player's label, as the history writes it or otherwise.

    The likeliest come first, because some endpoints take only four.
    """
    prompts = prompts or PromptSet.default()
    roles = (Role.DEFENDER, Role.ATTACKER)
    patterns = (prompts.line.split("{content}")[0], "{role}:", prompts.cue, "The {role} says:")
    labels = [pattern.format(role=name).rstrip() for pattern in patterns if "{role}" in pattern for name in roles]
    capitals = [f"{role.capitalize()}:" for role in roles]
    return tuple(dict.fromkeys(f"\n{label}" for label in [*labels, *capitals]))


def _lay_out(layout: Layout, rules: str, names: Mapping[Role, str], observation: Observation, prompts: PromptSet) -> str:
    history = _history(prompts.line, names, observation)
    instruction = _instruction(observation, prompts)
    speaker = names[Role(observation.role)]
    cue = prompts.cue.format(role=speaker)
    match layout:
        case Layout.RULES_FIRST:
            return f"{rules}{prompts.header}{history}\n{instruction}\n{cue}"
        case Layout.RULES_LAST:
            return f"{prompts.header.lstrip()}{history}\n{rules}\n\n{instruction}\n{cue}"
        case Layout.INSTRUCTION_FIRST:
            return f"{instruction}\n\n{rules}{prompts.header}{history}\n{cue}"
        case Layout.INSTRUCTION_STYLE:
            return f"### Rules\n{rules}\n\n### History\n{history}\n### Task\n{instruction}\n\n### Reply of {speaker}\n"
        case Layout.CHAT_LOG:
            log = _history("{role}: {content}\n", names, observation)
            return f"[{rules}]\n[{instruction}]\n\n{log}{speaker}:\n"


def _history(line: str, names: Mapping[Role, str], observation: Observation) -> str:
    return "".join(line.format(role=names[Role(said.role)], content=_one_line(said)) for said in observation.history)


def _instruction(observation: Observation, prompts: PromptSet) -> str:
    role = Role(observation.role)
    if role is Role.ATTACKER and "target_word" not in observation.facts:
        raise ValueError("the attacker's observation has no target word")
    return prompts.instructions[role].format(**observation.facts)


def _one_line(said: Utterance) -> str:
    """Join an utterance to one line, so that no player can forge a line of the other."""
    return " ".join(line.strip() for line in said.content.splitlines() if line.strip())


def _required(data: dict[str, Any], name: str, kind: type) -> Any:
    if name not in data:
        raise DataError(f"the field {name!r} is missing; a prompt file needs rules and instructions")
    if not isinstance(data[name], kind):
        wanted = "list of texts" if kind is list else "text for each role"
        raise DataError(f"{name} is a {type(data[name]).__name__}; it must be a {wanted}")
    return data[name]


def _check_template(
    name: str, template: Any, allowed: frozenset[str], needed: frozenset[str] = frozenset(), *, blank: bool = False
) -> None:
    if not isinstance(template, str):
        raise DataError(f"{name} is a {type(template).__name__}; it must be a text")
    if not template.strip() and not blank:
        raise DataError(f"{name} is empty; write its text")
    try:
        used = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
        for field in sorted(used - allowed):
            known = ", ".join(f"{{{one}}}" for one in sorted(allowed)) or "none"
            raise DataError(f"{name} uses the placeholder {{{field}}}; allowed here: {known}")
        for field in sorted(needed - used):
            raise DataError(f"{name} lacks the placeholder {{{field}}}; add it")
        template.format(max_turns=1, target_word="w", role="r", content="c")  # a bad conversion or format spec shows only now
    except (ValueError, LookupError) as error:
        raise DataError(f"{name} is not a template: {error}; write {{{{ and }}}} for literal braces") from error
