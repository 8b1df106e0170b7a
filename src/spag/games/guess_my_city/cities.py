"""Guess My City: open questions about a large city, until a question names it.

An answer has at most 50 words and names neither the city nor its country or people ("France", "French"). The continent
may be named, even if it contains the country's name ("North American"). ``cities.txt`` is our own selection:
``[continent; country | people]``, then lines ``city | alias``.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from spag.core.errors import DataError
from spag.core.types import Task
from spag.games.guessing import ANSWERER, QUESTIONER, Entries, GuessingGame, find_name, guessing_bots, read_entries

_MOST_WORDS = 50
_CONTINENT = re.compile(r"\b(?:(?:north|south|central|latin)[\s-]+americas?n?s?|the[\s-]+americas)\b", re.IGNORECASE)
_TALK = ("How many people live there?", "What is the weather like?", "Is it by the sea?", "What is it famous for?")
_ANSWERS = (
    "It is a large city with a long history.",
    "Many visitors come every year.",
    "The food is famous.",
    "I would rather not say.",
)


@cache
def cities() -> Entries:
    """Return the shipped cities by name."""
    found = {}
    for heading, (name, *aliases) in read_entries("spag.games.guess_my_city", "cities.txt"):
        continent, _, countries = heading.partition("; ")
        country, *people = countries.split(" | ")
        found[name] = {"city": name, "aliases": aliases, "country": country, "people": people, "continent": continent}
    return found


@dataclass(frozen=True)
class GuessMyCity(GuessingGame):
    """The game about the cities of ``cities.txt``."""

    name = "guess_my_city"
    title = "Guess My City"
    summary = "the questioner asks open questions to find out which large city the answerer has"
    role_help: ClassVar[Mapping[str, str]] = {
        QUESTIONER: "The other player knows a large city. Ask anything about it, and name the city in a question to "
        "win together.",
        ANSWERER: "You know a city. Answer in one or two sentences. Never say its name, nor that of its country or "
        "people.",
    }
    hidden: ClassVar[Mapping[str, tuple[str, ...]]] = {
        QUESTIONER: ("city", "aliases", "country", "people", "continent")
    }
    bots = guessing_bots(cities, "continent", "Is it in {}?", _TALK, _ANSWERS)
    secret, detail = "city", "country"
    rules = (
        "Guess My City is a game of two players. The answerer knows a secret large city, somewhere in the world. The "
        "questioner does not know it and asks at most {max_questions} questions about it, of any kind. The answerer "
        "replies truthfully to each one in one or two sentences, at most 50 words, and never says the name of the "
        "city, of its country or of its people. As soon as a question names the city (Is it ...?), both players win. "
        "If no question names it, or the answerer breaks a rule, nobody wins."
    )
    instructions: ClassVar[Mapping[str, str]] = {
        QUESTIONER: "You are the questioner. This is question {question} of {max_questions}. Ask one short question. "
        "If you have an idea which city it is, ask whether it is that.",
        ANSWERER: "You are the answerer. The city is {city} ({country}). Answer the last question in one or two "
        "sentences. Never say {city} or {country}.",
    }

    def entries(self) -> Entries:
        return cities()

    def find_secret(self, text: str, role: str, data: Mapping[str, Any]) -> str | None:
        found = super().find_secret(text, role, data)
        if role == QUESTIONER or found is not None:
            return found
        without_continent = _CONTINENT.sub(lambda match: "." * len(match.group()), text)
        return find_name(without_continent, (data["country"], *data["people"]))

    def illegal(self, answer: str) -> str | None:
        words = len(answer.split())
        if 0 < words <= _MOST_WORDS:
            return None
        return f"used {words} words; {_MOST_WORDS} are allowed" if words else "said nothing"

    def custom_task(self, text: str) -> Task:
        task = self.task_called(text)
        if task is None:
            near = difflib.get_close_matches(text, cities(), n=1)
            hint = f"did you mean {near[0]}?" if near else "type one such as London"
            raise DataError(f"{text[:40]!r} is not one of the {len(cities())} cities of {self.title}; {hint}")
        return task
