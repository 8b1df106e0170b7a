"""Prompt templates in ``str.format`` syntax: the placeholders that each may have, and the texts of both roles."""

import string
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from spag.core.options import Section
from spag.games.taboo.types import Role

MAX_LENGTH = 20_000
"""Characters of a template. Upstream's longest have some 2,000."""
MAX_PLACEHOLDERS = 20
"""Placeholders of a template, a bound on the size of rendered prompts."""


@dataclass(frozen=True)
class Template:
    """Accepts a template with all placeholders ``needed``, and no others than ``allowed``.

    A placeholder has no conversion or format: ``{max_turns:99999999}`` would give a text of that many characters.
    """

    allowed: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    blank: bool = False

    def __call__(self, text: str) -> str:
        if not text.strip() and not self.blank:
            raise ValueError("it is empty; write its text")
        try:
            placeholders = [parts[1:] for parts in string.Formatter().parse(text) if parts[1] is not None]
        except ValueError as error:
            raise ValueError(f"it is not a template: {error}; write {{{{ and }}}} for literal braces") from error
        used = {str(field) for field, _, _ in placeholders}
        for field in sorted(used - self.allowed):
            known = ", ".join(f"{{{one}}}" for one in sorted(self.allowed)) or "none"
            raise ValueError(f"it uses the placeholder {{{field[:80]}}}; allowed here: {known}")
        for field in sorted(self.needed - used):
            raise ValueError(f"it lacks the placeholder {{{field}}}; add it")
        if formatted := next((field for field, spec, conversion in placeholders if spec or conversion), None):
            raise ValueError(f"it formats a placeholder; write {{{formatted}}} alone, without : or !")
        if len(placeholders) > MAX_PLACEHOLDERS:
            raise ValueError(f"it has {len(placeholders):,} placeholders; a template has at most {MAX_PLACEHOLDERS}")
        return text


_TURNS, _WORD = frozenset({"max_turns"}), frozenset({"target_word"})
Text = Annotated[str, Field(max_length=MAX_LENGTH)]
Rules = Annotated[tuple[Annotated[Text, AfterValidator(Template(_TURNS))], ...], Field(min_length=1)]
"""Paraphrases of the rules; play uses the first."""


class ByRole(Section):
    """A text for each role."""

    attacker: Annotated[Text, AfterValidator(Template())]
    defender: Annotated[Text, AfterValidator(Template())]

    def __getitem__(self, role: str) -> str:
        return self.attacker if role == Role.ATTACKER else self.defender


class Instructions(ByRole):
    """Each role's instruction. Only the attacker's contains the target word."""

    attacker: Annotated[Text, AfterValidator(Template(_TURNS | _WORD, _WORD))]
    defender: Annotated[Text, AfterValidator(Template(_TURNS))]
