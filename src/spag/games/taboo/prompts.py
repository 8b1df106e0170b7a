"""The prompts of Adversarial Taboo: one canonical prompt for play, many shapes of it for training.

In play the rules come first (always the first paraphrase), then the history, one line an utterance, and the role's
instruction last: the prompts of both roles and of all turns share a growing prefix, so a key-value cache survives from
turn to turn. For training the paper's code draws paraphrase, layout and player names per utterance (arXiv 2404.10642,
upstream's ``utils.py``). The layouts here are our own, and so is the wording of ``data/languages``, short on
purpose: every sample and every move carries one paraphrase of the rules. A set that was imported from upstream is
rendered by ``upstream_prompts.py`` instead.

A prompt ends with a line break, because targets are tokenised on their own: the first token of a reply has no leading
space in play either.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from spag.core.errors import DataError
from spag.core.types import Observation, Utterance
from spag.games.taboo.languages import language_data
from spag.games.taboo.templates import by_role, check_instructions, check_rules, check_template, fields_of, rules_of
from spag.games.taboo.types import Role
from spag.games.taboo.upstream_prompts import Draws, UpstreamPrompts, upstream_play_prompt, upstream_training_prompt

PLAYER_NAMES = (
    ("attacker", "defender"),
    ("Player 1", "Player 2"),
    ("Alice", "Bob"),
    ("Player A", "Player B"),
    ("Sam", "Kim"),
    ("Red", "Blue"),
)
"""(attacker, defender) names that training prompts may use; the first pair is that of play."""
_FIELDS = ("rules", "instructions", "header", "line", "cue", "names")
_LINE_FIELDS = frozenset({"role", "content"})
_CUE_FIELDS = frozenset({"role"})


@dataclass(frozen=True)
class PromptSet:
    """Templates in ``str.format`` syntax. Raises ``DataError`` when one lacks a placeholder, or names one that it may
    not use.

    ``rules``: paraphrases, ``{max_turns}`` allowed; play uses the first. ``instructions``: one a role; the attacker's
    needs ``{target_word}``, the defender's may not have it. ``header`` stands between rules and history; ``line`` is
    one utterance, with ``{role}`` and ``{content}`` and a line break at its end; ``cue``, the last words of a prompt,
    may name the ``{role}`` that speaks next. ``names`` are the roles' names where they are not English; training then
    draws the paraphrase only, because the other layouts are English.
    """

    rules: tuple[str, ...]
    instructions: Mapping[Role, str]
    header: str = "\n\nThe conversation so far:\n"
    line: str = "- {role}: {content}\n"
    cue: str = "{role} says:\n"
    names: Mapping[Role, str] | None = None

    def __post_init__(self) -> None:
        check_rules(self.rules)
        check_instructions("instructions", self.instructions)
        check_template("header", self.header, frozenset(), blank=True)
        check_template("cue", self.cue, _CUE_FIELDS, blank=True)
        check_template("line", self.line, _LINE_FIELDS, _LINE_FIELDS)
        if self.names is not None:
            for role in Role:
                check_template(f"names.{role}", self.names.get(role), frozenset())
        if not self.line.endswith("\n"):
            raise DataError(f"line is {self.line!r}; end it with a line break, one utterance is one line")

    @staticmethod
    @cache
    def default(language: str = "en") -> "PromptSet":
        """Return the project's own prompts in ``language``, those of its file in ``data/languages``."""
        return PromptSet.parse(language_data(language)["prompts"])

    @staticmethod
    def parse(data: Any) -> "PromptSet":
        """Build a set from the JSON value of a prompt file; ``header``, ``line`` and ``cue`` may be absent. Raises
        ``DataError``.
        """
        fields = fields_of(data, _FIELDS)
        shape = {name: fields[name] for name in ("header", "line", "cue") if name in fields}
        names = by_role(fields, "names") if "names" in fields else None
        return PromptSet(rules_of(fields), by_role(fields, "instructions"), **shape, names=names)

    def dump(self) -> dict[str, Any]:
        """Return the JSON value that ``parse`` reads back."""
        instructions = {str(role): self.instructions[role] for role in Role}
        shape = {"header": self.header, "line": self.line, "cue": self.cue}
        names = {} if self.names is None else {"names": {str(role): self.names[role] for role in Role}}
        return {"rules": list(self.rules), "instructions": instructions, **shape, **names}

    def name_of(self, role: str) -> str:
        """Return what the prompts call a role."""
        return role if self.names is None else self.names[Role(role)].format()


Prompts = PromptSet | UpstreamPrompts
"""The prompts of a game: a set in our own shape, or upstream's."""


class Layout(Enum):
    """A layout of a training prompt: the order of its parts, and their headings."""

    RULES_FIRST = "rules, history, instruction: the prompt of play"
    RULES_LAST = "history, rules, instruction"
    INSTRUCTION_FIRST = "instruction, rules, history, cue"
    INSTRUCTION_STYLE = "headed sections, as in instruction tuning"
    CHAT_LOG = "rules and instruction, then a bare log that ends with the speaker's name"


def play_prompt(observation: Observation, prompts: Prompts | None = None) -> str:
    """Return the canonical prompt of ``observation``: rules, history, instruction, cue."""
    prompts = prompts or PromptSet.default()
    if isinstance(prompts, UpstreamPrompts):
        return upstream_play_prompt(observation, prompts)
    return _in_play(prompts.rules[0], observation, prompts)


def _in_play(template: str, observation: Observation, prompts: PromptSet) -> str:
    rules = template.format(max_turns=observation.facts["max_turns"])
    names = {role: prompts.name_of(role) for role in Role}
    return _lay_out(Layout.RULES_FIRST, rules, names, observation, prompts)


def training_prompt(observation: Observation, rng: random.Random, prompts: Prompts | None = None) -> str:
    """Return a prompt of ``observation`` with paraphrase, layout and player names drawn from ``rng``."""
    prompts = prompts or PromptSet.default()
    if isinstance(prompts, UpstreamPrompts):
        draws = Draws.draw(rng, Role(observation.role), len(prompts.rules))
        return upstream_training_prompt(observation, prompts, draws)
    template = rng.choice(prompts.rules)
    if prompts.names is not None:
        return _in_play(template, observation, prompts)
    rules = template.format(max_turns=observation.facts["max_turns"])
    layout = rng.choice(tuple(Layout))
    attacker, defender = rng.choice(PLAYER_NAMES)
    if (attacker, defender) != PLAYER_NAMES[0]:
        rules = f"{rules} {attacker} is the attacker and {defender} is the defender."
    return _lay_out(layout, rules, {Role.ATTACKER: attacker, Role.DEFENDER: defender}, observation, prompts)


def stop_strings(prompts: Prompts | None = None) -> tuple[str, ...]:
    """Return the strings that end an utterance: a new line that starts with a player's label, as the history writes it
    or otherwise.

    The likeliest come first, because some endpoints take only four. Upstream has none: there an utterance ends with the
    end token, or at the token limit.
    """
    prompts = prompts or PromptSet.default()
    if isinstance(prompts, UpstreamPrompts):
        return ()
    roles = (prompts.name_of(Role.DEFENDER), prompts.name_of(Role.ATTACKER))
    patterns = (prompts.line, "{role}:", prompts.cue, "The {role} says:")
    labels = [
        pattern.format(role=name, content="\0").partition("\0")[0].rstrip()
        for pattern in patterns
        if "{role}" in pattern.partition("{content}")[0]
        for name in roles
    ]
    capitals = [f"{role.capitalize()}:" for role in roles]
    return tuple(dict.fromkeys(f"\n{label}" for label in [*labels, *capitals]))


def _lay_out(
    layout: Layout, rules: str, names: Mapping[Role, str], observation: Observation, prompts: PromptSet
) -> str:
    history = _history(prompts.line, names, observation)
    instruction = _instruction(observation, prompts)
    speaker = names[Role(observation.role)]
    header, cue = prompts.header.format(), prompts.cue.format(role=speaker)
    match layout:
        case Layout.RULES_FIRST:
            return f"{rules}{header}{history}\n{instruction}\n{cue}"
        case Layout.RULES_LAST:
            return f"{header.lstrip()}{history}\n{rules}\n\n{instruction}\n{cue}"
        case Layout.INSTRUCTION_FIRST:
            return f"{instruction}\n\n{rules}{header}{history}\n{cue}"
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
