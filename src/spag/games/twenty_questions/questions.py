"""20 Questions: yes-or-no questions about an everyday thing, until a question names it.

An answer is one of the words of ``_ANSWER``, in any case, optionally after "Answer:" and followed by a mere repetition
("it is not", "they can"). Anything that says more is illegal: "Yes, it is yellow." ``things.txt`` is our own selection:
``[category]``, then lines ``name | alias``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from spag.core.types import Task
from spag.games.guessing import ANSWERER, QUESTIONER, Entries, GuessingGame, guessing_bots, read_entries
from spag.text.folding import fold
from spag.text.words import typed_word

_ANSWER = re.compile(
    r"(?:(?:my |the )?answer(?:er)?(?: says)?: ?)?"
    r"(?:yes|yeah|yep|no|nope|sometimes|usually|often|rarely|partly|maybe|it depends|not sure|i don't know)"
    r"(?:[,.;!]? (?:(?:it|they|this|that|there|one|you|people|some) "
    r"(?:(?:is|are|was|were|do|does|did|can|could|has|have|had|will|would|may|might)(?:n't|'t|not| not)?|won't)"
    r"|(?:it|this|that|there|one)'s not|(?:they|you)'re not))?[.!]*"
)
_TALK = (
    "Is it alive?",
    "Can you eat or drink it?",
    "Is it bigger than a person?",
    "Is it found indoors?",
    "Does it use electricity?",
)


@cache
def things() -> Entries:
    """Return the shipped things by name."""
    listed = read_entries("spag.games.twenty_questions", "things.txt")
    return {name: {"thing": name, "aliases": aliases, "category": category} for category, (name, *aliases) in listed}


@dataclass(frozen=True)
class TwentyQuestions(GuessingGame):
    """The game about the things of ``things.txt``, or a typed one."""

    name = "twenty_questions"
    title = "20 Questions"
    summary = "the questioner asks yes-or-no questions to find out which everyday object the answerer has"
    role_help: ClassVar[Mapping[str, str]] = {
        QUESTIONER: "The other player knows an everyday thing. Ask yes-or-no questions, and name the thing in a "
        "question to win together.",
        ANSWERER: "You know a thing. Answer each question with Yes, No or Sometimes, and nothing else. Never say what "
        "it is.",
    }
    hidden: ClassVar[Mapping[str, tuple[str, ...]]] = {QUESTIONER: ("thing", "aliases", "category")}
    bots = guessing_bots(things, "category", "Is this its category: {}?", _TALK, ("Yes.", "No.", "Sometimes."))
    fixed_form = (ANSWERER,)
    secret, detail = "thing", "category"
    rules = (
        "20 Questions is a game of two players. The answerer knows a secret thing: an animal, a food, an object, a "
        "place or another everyday thing. The questioner does not know it and asks at most {max_questions} yes-or-no "
        "questions. The answerer replies to each one with a single word, Yes, No or Sometimes, and never says what the "
        "thing is. As soon as a question names the thing (Is it a ...?), both players win. If no question names it, or "
        "the answerer breaks a rule, nobody wins."
    )
    instructions: ClassVar[Mapping[str, str]] = {
        QUESTIONER: "You are the questioner. This is question {question} of {max_questions}. Ask one short yes-or-no "
        "question. If you have an idea what the thing is, ask whether it is that.",
        ANSWERER: 'You are the answerer. The thing is "{thing}". Reply to the last question truthfully with Yes, No or '
        "Sometimes. Write nothing else.",
    }

    def entries(self) -> Entries:
        return things()

    def illegal(self, answer: str) -> str | None:
        plain = re.sub(r'["*_`]', "", " ".join(fold(answer).split())).strip("' ")
        if _ANSWER.fullmatch(plain):
            return None
        return f'answered "{plain[:60]}" instead of Yes, No or Sometimes' if plain else "said nothing"

    def find_secret(self, text: str, role: str, data: Mapping[str, Any]) -> str | None:
        if role == ANSWERER and self.illegal(text) is None:
            return None  # half of all utterances
        return super().find_secret(text, role, data)

    def custom_task(self, text: str) -> Task:
        thing = typed_word(text, "thing")
        return self.task_called(thing) or self.task_of({"thing": thing, "aliases": [], "category": ""})
