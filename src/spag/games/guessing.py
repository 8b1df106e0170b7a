"""Guessing games: a questioner finds out what an answerer knows, and both win if a question names it in time.

Two of them are the paper's non-adversarial controls (arXiv 2404.10642), with the rules of LMRL-Gym (arXiv 2311.18232).
Here the judge uses rules only. The secret counts as named if a question contains it or an alias in any form that
``spag.text`` finds: inflected, spelled out, disguised, in a list of words. The answerer may not say it at all. The last
question needs no answer: it names the secret or the game ends.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any, ClassVar

from pydantic import Field

from spag.core.errors import DataError
from spag.core.types import Observation, Outcome, Result, Split, State, Task, Utterance
from spag.core.visible import counted
from spag.games.base import Bot, Figure, Game, drawn, outcome_map
from spag.text.evasions import find_said
from spag.text.folding import fold
from spag.text.matching import find_span, quoted
from spag.text.words import split_of

QUESTIONER, ANSWERER = "questioner", "answerer"
Entries = Mapping[str, Mapping[str, Any]]
"""Task data by the name of the secret, without the number of questions."""
_NAMED = "Both players win when a question names the secret."
_NOT_NAMED = "If no question named the secret, nobody wins."
_VIOLATION = "No answer may say the secret, or too much."
_LISTED = "of games end with a list of words for a question"
_ILLEGAL = "of games end with an answer in an illegal form"
_LEAKED = "of games end with an answer that gives the secret away"
_LONG_QUESTION = 25  # words; a longer one that names the secret is most likely a list
_STOPS = tuple(f"\n{form.format(role)}" for form in ("- {}:", "{}:", "{} says:") for role in (ANSWERER, QUESTIONER))


@dataclass(frozen=True)
class GuessingGame(Game):
    """The base of the guessing games. A game defines the class attributes, ``entries`` and ``illegal``.

    ``secret`` is the key of the secret in ``Task.data``, ``detail`` the key of further information. ``rules`` and
    ``instructions`` are templates over the facts of an observation and ``{question}``, the number of the current one.
    """

    roles = (QUESTIONER, ANSWERER)
    outcomes = outcome_map(
        Outcome("named", "named in time", "#3f9599", winners=roles, rule=_NAMED),
        Outcome("not_named", "not named", "#a3a9b6", rule=_NOT_NAMED),
        Outcome("answerer_violation", "answerer breaks a rule", "#cc667e", fault=ANSWERER, rule=_VIOLATION),
    )
    figures = (
        Figure("named", "named in time", role=QUESTIONER),
        Figure("questions", "questions asked", role=QUESTIONER, is_count=True),
        Figure("listed", "named in a long list", role=QUESTIONER, limit=0.1, warning=_LISTED),
        Figure("illegal_answer", "illegal answers", role=ANSWERER, limit=0.25, warning=_ILLEGAL),
        Figure("leak", "gives it away", role=ANSWERER, limit=0.25, warning=_LEAKED),
    )
    secret: ClassVar[str]
    detail: ClassVar[str]
    rules: ClassVar[str]
    instructions: ClassVar[Mapping[str, str]]

    max_questions: Annotated[
        int, Field(ge=1, le=1000, description="questions per game; the last one needs no answer")
    ] = 20

    def entries(self) -> Entries:
        """Return all possible secrets with their task data."""
        raise NotImplementedError

    def illegal(self, answer: str) -> str | None:
        """Return what is wrong with the form of ``answer``, as words that follow "the answerer", or ``None``."""
        raise NotImplementedError

    def find_secret(self, text: str, role: str, data: Mapping[str, Any]) -> str | None:
        """Return the piece of ``text`` that names the secret, or says something forbidden to the answerer."""
        return find_name(text, (data[self.secret], *data["aliases"]))

    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        names = [name for name in self.entries() if split_of(name) is split]
        shortage = f"{self.name} has {len(names)} in its {split} split; ask for fewer"
        return [self.task_of(self.entries()[name]) for name in drawn(names, count, seed, shortage)]

    def split_of(self, task: Task) -> Split:
        name = task.data.get(self.secret)
        return split_of(name) if isinstance(name, str) else Split.TRAIN

    def task_of(self, entry: Mapping[str, Any]) -> Task:
        """Return the task about ``entry``."""
        return Task(entry[self.secret], {**entry, "max_questions": self.max_questions})

    def task_called(self, text: str) -> Task | None:
        """Return the task about the entry that has ``text`` among its names, ignoring case and accents."""
        entries, wanted = self.entries().values(), fold(text).strip()
        named = (entry for entry in entries if wanted in map(fold, (entry[self.secret], *entry["aliases"])))
        return next(map(self.task_of, named), None)

    def start(self, task: Task, seed: int) -> State:
        for key, like in next(iter(self.entries().values())).items():
            value: Any = task.data.get(key)
            fits = type(value) is type(like) and all(isinstance(part, str) for part in value)
            if not fits or (key == self.secret and not value.strip()):
                wanted = "text" if isinstance(like, str) else "a list of names"
                raise DataError(f"task {task.id!r}: {key} is {value!r}; it must be {wanted}")
        count = task.data.get("max_questions")
        if not isinstance(count, int) or count < 1:
            raise DataError(f"task {task.id!r}: max_questions is {count!r}; it must be at least 1")
        return State(task, seed)

    def rule(self, state: State) -> Result | None:
        said, data = state.history[-1], state.task.data
        found = self.find_secret(said.content, said.role, data)
        if said.role == QUESTIONER:
            if found is not None:
                return self._end(state, "named", f"the questioner named {quoted(found)}")
            return self.draw(state) if len(state.history) == 2 * data["max_questions"] - 1 else None
        leak = f"said {quoted(found)} before the {self.secret} was named" if found is not None else None
        fault = leak or self.illegal(said.content)
        return self._end(state, "answerer_violation", f"the answerer {fault}") if fault else None

    def draw(self, state: State) -> Result:
        questions = counted((len(state.history) + 1) // 2, "question")
        return self._end(state, "not_named", f"the {self.secret} was not named in {questions}")

    def _end(self, state: State, outcome: str, reason: str) -> Result:
        shown = self.outcomes[outcome]
        rewards = {role: float((role in shown.winners) - (role == shown.fault)) for role in self.roles}
        return self.end(state, outcome, rewards, reason)

    def prompt(self, observation: Observation) -> str:
        # one line per utterance, so nobody can forge a line of the other
        history = "".join(f"- {said.role}: {' '.join(said.content.split())}\n" for said in observation.history)
        facts = {**observation.facts, "question": len(observation.history) // 2 + 1}
        rules, instruction = self.rules.format(**facts), self.instructions[observation.role].format(**facts)
        return f"{rules}\n\nThe conversation so far:\n{history}\n{instruction}\n{observation.role} says:\n"

    def stop_strings(self) -> tuple[str, ...]:
        return (*_STOPS, "\nAnswerer:", "\nQuestioner:")

    def template_texts(self) -> tuple[str, ...]:
        return (self.rules, *self.instructions.values())

    def measure(self, task: Task, history: Sequence[Utterance], result: Result) -> Mapping[str, int]:
        found = {"questions": (result.length + 1) // 2}
        if result.outcome == "named":
            found |= {"named": 1, "listed": int(len(history[result.length - 1].content.split()) > _LONG_QUESTION)}
        elif result.outcome == "answerer_violation":
            said = history[result.length - 1]
            found["illegal_answer" if self.find_secret(said.content, said.role, task.data) is None else "leak"] = 1
        return {name: value for name, value in found.items() if value}

    def explain(self, task: Task, history: Sequence[Utterance], result: Result) -> tuple[int, int] | None:
        said = history[result.length - 1]
        piece = self.find_secret(said.content, said.role, task.data)
        return find_span(said.content, piece) if piece else None

    def describe_view(self, observation: Observation) -> str:
        name, detail = (observation.facts.get(key) for key in (self.secret, self.detail))
        if name is None:
            return f"The {self.secret} is hidden from you."
        return f"The {self.secret} is {name} ({detail})." if detail else f"The {self.secret} is {name}."


def find_name(text: str, names: Iterable[str]) -> str | None:
    """Return the first piece of ``text`` that says one of ``names``, openly or not."""
    return next((piece for name in names if (piece := find_said(text, name))), None)


def read_entries(package: str, file: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (heading, names) for each line ``name | alias | alias`` under a ``[heading]`` of a data file."""
    heading = ""
    for line in (resources.files(package) / file).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            heading = line.strip("[]")
        elif line:
            yield heading, [name.strip() for name in line.split("|")]


def guessing_bots(
    entries: Callable[[], Entries], group: str, question: str, talk: Sequence[str], answers: Sequence[str]
) -> dict[str, Bot]:
    """Return three bots.

    ``random`` asks a question of ``talk`` or for a random secret, and gives a random one of ``answers``. ``systematic``
    asks for each value of the key ``group`` with the template ``question``, then for the secrets of that group one by
    one; it answers such questions truthfully, and all others with no. ``constant`` always asks the first question of
    ``talk``, and gives the last of ``answers``.
    """

    def random_bot(observation: Observation, rng: random.Random) -> str:
        if observation.role == ANSWERER:
            return rng.choice(answers)
        return rng.choice((*talk, f"Is it {rng.choice(list(entries()))}?"))

    def systematic(observation: Observation, rng: random.Random) -> str:
        said = [utterance.content for utterance in observation.history]
        groups = {question.format(entry[group]): entry[group] for entry in entries().values()}
        if observation.role == ANSWERER:
            return "Yes." if groups.get(said[-1]) == observation.facts[group] else "No."
        answered = zip(said[::2], said[1::2], strict=True)
        known = {groups.get(asked) for asked, answer in answered if fold(answer).startswith("yes")}
        names = [f"Is it {name}?" for name, entry in entries().items() if entry[group] in known]
        left = [each for each in names or groups if each not in said]
        return rng.choice(left) if left else random_bot(observation, rng)

    def constant(observation: Observation, rng: random.Random) -> str:
        return answers[-1] if observation.role == ANSWERER else talk[0]

    return {"random": random_bot, "systematic": systematic, "constant": constant}
