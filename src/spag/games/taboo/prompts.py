"""The prompts of Adversarial Taboo: one canonical prompt for play, many shapes of it for training.

In play the rules come first (always the first paraphrase), then the history, one line per utterance, and the role's
instruction last: the prompts of both roles and of all turns share a growing prefix, so a key-value cache survives from
turn to turn. For training the paper's code draws paraphrase, layout and player names per utterance (arXiv 2404.10642,
upstream's ``utils.py``). The layouts here are our own, and so is the wording of ``data/languages``, short on
purpose: every sample and every move carries one paraphrase of the rules. A set that was imported from upstream is
rendered by ``upstream.py`` instead.

A prompt ends with a line break, because targets are tokenised on their own: the first token of a reply has no leading
space in play either.
"""

import random
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Annotated

from pydantic import AfterValidator

from spag.core.options import Section
from spag.core.types import Observation, Utterance
from spag.games.taboo.languages import language_data
from spag.games.taboo.templates import ByRole, Instructions, Rules, Template, Text
from spag.games.taboo.types import Role
from spag.games.taboo.upstream import UpstreamPrompts

PLAYER_NAMES = (
    ("attacker", "defender"), ("Player 1", "Player 2"), ("Alice", "Bob"), ("Player A", "Player B"), ("Sam", "Kim"),
    ("Red", "Blue"),
)  # fmt: skip
"""(attacker, defender) names that training prompts may use; the first pair is that of play."""
_LINE = Template(frozenset({"role", "content"}), frozenset({"role", "content"}))


class Layout(Enum):
    """The order of rules, history and instruction in a prompt for training."""

    RULES_FIRST = "rules, history, instruction: the prompt of play"
    RULES_LAST = "history, rules, instruction"
    INSTRUCTION_FIRST = "instruction, rules, history, cue"
    INSTRUCTION_STYLE = "headed sections, as in instruction tuning"
    CHAT_LOG = "rules and instruction, then a bare log that ends with the speaker's name"


def _one_a_line(line: str) -> str:
    if not line.endswith("\n"):
        raise ValueError("end it with a line break, one utterance is one line")
    return line


class PromptSet(Section):
    """Templates in ``str.format`` syntax.

    ``rules``: paraphrases, ``{max_turns}`` allowed; play uses the first. ``instructions``: one per role; the attacker's
    needs ``{target_word}``, the defender's may not have it. ``header`` stands between rules and history; ``line`` is
    one utterance, with ``{role}`` and ``{content}`` and a line break at its end; ``cue``, the last words of a prompt,
    may name the ``{role}`` that speaks next. ``names`` are the roles' names where they are not English; training then
    draws the paraphrase only, because the other layouts are English.
    """

    rules: Rules
    instructions: Instructions
    header: Annotated[Text, AfterValidator(Template(blank=True))] = "\n\nThe conversation so far:\n"
    line: Annotated[Text, AfterValidator(_LINE), AfterValidator(_one_a_line)] = "- {role}: {content}\n"
    cue: Annotated[Text, AfterValidator(Template(frozenset({"role"}), blank=True))] = "{role} says:\n"
    names: ByRole | None = None

    @staticmethod
    @cache
    def default(language: str = "en") -> "PromptSet":
        """Return the project's own prompts in ``language``."""
        return PromptSet.model_validate(language_data(language)["prompts"])

    def name_of(self, role: str) -> str:
        """Return what the prompts call a role."""
        return role if self.names is None else self.names[role].format()

    def play(self, observation: Observation) -> str:
        """Return the canonical prompt of ``observation``: rules, history, instruction, cue."""
        return self._in_play(self.rules[0], observation)

    def training(self, observation: Observation, rng: random.Random) -> str:
        """Return a prompt of ``observation`` with paraphrase, layout and player names drawn from ``rng``."""
        template = rng.choice(self.rules)
        if self.names is not None:
            return self._in_play(template, observation)
        rules = template.format(max_turns=observation.facts["max_turns"])
        layout = rng.choice(tuple(Layout))
        attacker, defender = rng.choice(PLAYER_NAMES)
        if (attacker, defender) != PLAYER_NAMES[0]:
            rules = f"{rules} {attacker} is the attacker and {defender} is the defender."
        return self._laid_out(layout, rules, {Role.ATTACKER: attacker, Role.DEFENDER: defender}, observation)

    def stop_strings(self) -> tuple[str, ...]:
        """Return new lines that start with a player's label. The history's own come first: some endpoints take four."""
        roles = (self.name_of(Role.DEFENDER), self.name_of(Role.ATTACKER))
        patterns = (self.line, "{role}:", self.cue, "The {role} says:")
        labels = [
            pattern.format(role=name, content="\0").partition("\0")[0].rstrip()
            for pattern in patterns
            if "{role}" in pattern.partition("{content}")[0]
            for name in roles
        ]
        capitals = [f"{role.capitalize()}:" for role in roles]
        return tuple(dict.fromkeys(f"\n{label}" for label in [*labels, *capitals]))

    def _in_play(self, template: str, observation: Observation) -> str:
        rules = template.format(max_turns=observation.facts["max_turns"])
        return self._laid_out(Layout.RULES_FIRST, rules, {role: self.name_of(role) for role in Role}, observation)

    def _laid_out(self, layout: Layout, rules: str, names: Mapping[Role, str], observation: Observation) -> str:
        role, facts = Role(observation.role), observation.facts
        if role is Role.ATTACKER and "target_word" not in facts:
            raise ValueError("the attacker's observation has no target word")
        instruction, speaker = self.instructions[role].format(**facts), names[role]
        header, cue = self.header.format(), self.cue.format(role=speaker)
        history = _history(self.line, names, observation)
        match layout:
            case Layout.RULES_FIRST:
                return f"{rules}{header}{history}\n{instruction}\n{cue}"
            case Layout.RULES_LAST:
                return f"{header.lstrip()}{history}\n{rules}\n\n{instruction}\n{cue}"
            case Layout.INSTRUCTION_FIRST:
                return f"{instruction}\n\n{rules}{header}{history}\n{cue}"
            case Layout.INSTRUCTION_STYLE:
                talk = f"### Rules\n{rules}\n\n### History\n{history}\n"
                return f"{talk}### Task\n{instruction}\n\n### Reply of {speaker}\n"
            case Layout.CHAT_LOG:
                log = _history("{role}: {content}\n", names, observation)
                return f"[{rules}]\n[{instruction}]\n\n{log}{speaker}:\n"


Prompts = PromptSet | UpstreamPrompts
"""The prompts of a game: a set in our own shape, or upstream's."""


def _history(line: str, names: Mapping[Role, str], observation: Observation) -> str:
    return "".join(line.format(role=names[Role(said.role)], content=_one_line(said)) for said in observation.history)


def _one_line(said: Utterance) -> str:
    """Join an utterance to one line, so that no player can forge a line of the other."""
    return " ".join(line.strip() for line in said.content.splitlines() if line.strip())
