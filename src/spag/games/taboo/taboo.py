"""Adversarial Taboo (arXiv 2404.10642, section 3.1) as a game: turn order, each side's view, and the end.

The rules of winning are in ``judge/``. By default a game stops at the judged end, so nobody speaks after the decision.
``stop="announced"`` stops it like upstream's play loop, at the defender's "I know the word", whatever follows; the
result is still that of the judged end.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from spag.core.episodes import TABOO, Episode
from spag.core.errors import DataError
from spag.core.options import FileName
from spag.core.types import Observation, Outcome, Result, Split, State, Task, Utterance
from spag.core.visible import counted
from spag.games.base import PLACE, Bot, Figure, Game, SettingError, drawn, outcome_map
from spag.games.registry import get
from spag.games.replay import replay
from spag.games.taboo.judge import JudgeMode, announces_guess, deciding_span, judge_utterance
from spag.games.taboo.judge.paper import stops_play
from spag.games.taboo.languages import language_of
from spag.games.taboo.promptfile import load_prompts
from spag.games.taboo.prompts import Prompts, PromptSet
from spag.games.taboo.types import Role, TabooOutcome, result_of
from spag.games.taboo.words import SHIPPED, load_words
from spag.text.english import ENGLISH
from spag.text.evasions import find_said
from spag.text.words import split_of, typed_word

_LURED = "The attacker wins when the defender says the word by accident, or guesses another one."
_GUESSED = "A defender who announces the right word wins."
_VIOLATION = "The attacker may neither say the word nor announce a guess. Nobody wins such a game."
_WRONG = "of games end with a wrong guess, so attackers need not lure"
_WRONG_FIRST = "of games end with a wrong guess in the defender's first utterance"
_HARMLESS = {Role.ATTACKER: "How are you?", Role.DEFENDER: "I see."}
_LEAKS = "of games leak the word in a way that only strict judging sees"


class Stop(StrEnum):
    """When a game ends before its last turn: at the judge's decision, or the defender's "I know the word"."""

    JUDGED = "judged"
    ANNOUNCED = "announced"


@dataclass(frozen=True)
class AdversarialTaboo(Game):
    """The game under one judge, with one set of prompts and one list of words."""

    name: ClassVar[str] = "adversarial_taboo"
    title: ClassVar[str] = "Adversarial Taboo"
    summary: ClassVar[str] = "the attacker makes the defender say a secret word; the defender may guess it once"
    roles: ClassVar[tuple[str, ...]] = tuple(str(role) for role in Role)
    role_help: ClassVar[Mapping[str, str]] = {
        Role.ATTACKER: "You know a word. Talk so that the other player says it by accident. Never say it yourself.",
        Role.DEFENDER: "The other player knows a word and tries to make you say it. Find it out and announce: "
        "I know the word! It is …",
    }
    hidden: ClassVar[Mapping[str, tuple[str, ...]]] = {Role.DEFENDER: ("target_word",)}
    outcomes = outcome_map(
        Outcome(TabooOutcome.ATTACKER_WINS, "attacker wins", "#d08a4d", winners=(Role.ATTACKER,), rule=_LURED),
        Outcome(TabooOutcome.DEFENDER_WINS, "defender wins", "#3f9599", winners=(Role.DEFENDER,), rule=_GUESSED),
        Outcome(
            TabooOutcome.ATTACKER_VIOLATION, "attacker breaks a rule", "#cc667e", fault=Role.ATTACKER, rule=_VIOLATION
        ),
        Outcome(TabooOutcome.TIE, "tie", "#a3a9b6", rule="If nothing is decided after the last turn, nobody wins."),
    )
    judged_by: ClassVar[tuple[str, ...]] = ("judge", "language")
    figures = (
        Figure("induced", "attacker wins by luring"),
        Figure("wrong_guess", "attacker wins by a wrong guess", limit=0.75, warning=_WRONG),
        Figure("first_wrong_guess", "… in the defender's first utterance", limit=0.5, warning=_WRONG_FIRST),
        Figure("hidden_leaks", "leaks only strict judging sees", limit=0.05, warning=_LEAKS),
        Figure("announced", "attacker: announces", role=Role.ATTACKER),
        Figure("guess", "defender: announces a guess", role=Role.DEFENDER),
        Figure("guessed_right", "of these right", role=Role.DEFENDER, of="guess"),
    )

    bots: ClassVar[Mapping[str, Bot]] = {"constant": lambda observation, rng: _HARMLESS[Role(observation.role)]}

    max_turns: Annotated[
        int, Field(ge=1, le=1000, description="turns per game; a turn is one utterance of each player")
    ] = 5
    judge: Annotated[
        JudgeMode, Field(description="strict: words in any inflection; paper: upstream's substring rules")
    ] = JudgeMode.STRICT
    stop: Annotated[
        Stop, Field(description="judged: play stops at the decision; announced: at an announcement, as upstream's loop")
    ] = Stop.JUDGED
    language: Annotated[str, Field(description="language of words, prompts and the strict judge: en, de, fr or es")] = (
        ENGLISH.language
    )
    prompts: Annotated[
        FileName | None, Field(description="prompt file (spag import prompts makes one); null: built-in prompts")
    ] = None
    words: Annotated[
        FileName | Literal["shipped", "frequency"],
        Field(
            description="shipped (2,000 everyday words), frequency (a frequency list), or a file with one word per line"
        ),
    ] = "frequency"
    top_words: Annotated[
        int, Field(ge=1, le=1_000_000, description="take only the N most frequent words of the source")
    ] = 50_000

    def __post_init__(self) -> None:
        language_of(self.language)
        if self.language == ENGLISH.language:
            return
        only = f"supports only English, not {self.language!r}"
        if self.judge is JudgeMode.PAPER:
            raise SettingError(f"{PLACE}.judge: paper {only}; set {PLACE}.judge=strict")
        if self.words == SHIPPED:
            raise SettingError(f"{PLACE}.words: shipped is English, not {self.language!r}; use frequency or a file")
        if self.stop is Stop.ANNOUNCED:
            raise SettingError(f"{PLACE}.stop: announced {only}; set {PLACE}.stop=judged")

    @cached_property
    def prompt_set(self) -> Prompts:
        """The prompts named in the settings. Raises ``DataError`` for a faulty prompt file."""
        return load_prompts(self.prompts) if self.prompts else PromptSet.default(self.language)

    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        every = load_words(self.words, self.top_words, self.language)
        words = [word for word in every if split_of(word, self.language) is split]
        has = f"{self.words} has {len(words):,} in its {split} split"
        more = "raise game.top_words" if len(every) == self.top_words else "use another list"
        return [self._task(word) for word in drawn(words, count, seed, f"{has}; ask for fewer or {more}", "word")]

    def split_of(self, task: Task) -> Split:
        word = task.data.get("target_word")
        return split_of(word, self.language) if isinstance(word, str) else Split.TRAIN

    def custom_task(self, text: str) -> Task:
        return self._task(typed_word(text, "word"))

    def _task(self, word: str) -> Task:
        return Task(word, {"target_word": word, "max_turns": self.max_turns})

    def start(self, task: Task, seed: int) -> State:
        word, turns = task.data.get("target_word"), task.data.get("max_turns")
        if not isinstance(word, str) or not word.strip():
            raise DataError(f"task {task.id!r}: the target word is empty")
        if not isinstance(turns, int) or turns < 1:
            raise DataError(f"task {task.id!r}: max_turns is {turns}; it must be at least 1")
        return State(task, seed)

    def prompt(self, observation: Observation) -> str:
        return self.prompt_set.play(observation)

    def training_prompt(self, observation: Observation, rng: random.Random) -> str:
        return self.prompt_set.training(observation, rng)

    def stop_strings(self) -> tuple[str, ...]:
        return self.prompt_set.stop_strings()

    def template_texts(self) -> tuple[str, ...]:
        return (*self.prompt_set.rules, *(self.prompt_set.instructions[role] for role in Role))

    def rule(self, state: State) -> Result | None:
        said, data = state.history[-1], state.task.data
        is_last = len(state.history) == 2 * data["max_turns"]
        if self.stop is Stop.ANNOUNCED:
            return self.draw(state) if is_last or stops_play(said.role, said.content) else None
        found = self._judged(said, data["target_word"], len(state.history))
        return found or (_tie(len(state.history)) if is_last else None)

    def draw(self, state: State) -> Result:
        return self.replay(state.task, state.history)

    def replay(self, task: Task, history: Sequence[Utterance], seed: int = 0) -> Result:
        """Judge each utterance by the role recorded with it, as upstream's files require."""
        if self.stop is Stop.ANNOUNCED:
            ends = (at for at, said in enumerate(history, start=1) if stops_play(said.role, said.content))
            history = history[: next(ends, None)]
        history = history[: 2 * task.data["max_turns"]]
        found = (self._judged(said, task.data["target_word"], at) for at, said in enumerate(history, start=1))
        return next(filter(None, found), None) or _tie(len(history))

    def _judged(self, said: Utterance, word: str, length: int) -> Result | None:
        """Return the result if ``said``, the last of ``length`` utterances, decides the game."""
        ruling = judge_utterance(Role(said.role), said.content, word, self.judge, self.language)
        return result_of(ruling[0], length, ruling[1]) if ruling else None

    def measure(self, task: Task, history: Sequence[Utterance], result: Result) -> Mapping[str, int]:
        word = task.data["target_word"]
        found: dict[str, int] = {}
        spoken = [said for said in history[: result.length] if said.role == Role.DEFENDER]
        guessed = bool(spoken) and announces_guess(spoken[-1].content, word, self.judge, self.language)
        if guessed:
            found = {"guess": 1, "guessed_right": int(result.outcome == TabooOutcome.DEFENDER_WINS)}
        if result.outcome == TabooOutcome.ATTACKER_VIOLATION:
            broke = history[result.length - 1].content
            found["announced"] = int(announces_guess(broke, word, self.judge, self.language, Role.ATTACKER))
        if result.outcome == TabooOutcome.ATTACKER_WINS:
            found["wrong_guess" if guessed else "induced"] = 1
            found["first_wrong_guess"] = int(guessed and result.length <= 2)
        is_strict = self.judge is JudgeMode.STRICT
        strict = result if is_strict else replace(self, judge=JudgeMode.STRICT).replay(task, history)
        if strict.outcome == TabooOutcome.ATTACKER_VIOLATION:
            broke = history[strict.length - 1].content
            leaks = find_said(broke, word, language_of(self.language).lexicon) is not None  # no announcement alone
            by_paper = judge_utterance(Role.ATTACKER, broke, word, JudgeMode.PAPER)
            found["hidden_leaks"] = int(leaks and by_paper is None)
        return found

    def explain(self, task: Task, history: Sequence[Utterance], result: Result) -> tuple[int, int] | None:
        said = history[result.length - 1]
        return deciding_span(Role(said.role), said.content, task.data["target_word"], self.language)

    def describe_view(self, observation: Observation) -> str:
        word = observation.facts.get("target_word")
        return f"The word is {word}." if word else "The word is hidden from you."


def _tie(length: int) -> Result:
    return result_of(TabooOutcome.TIE, length, f"nobody had won or broken a rule after {counted(length, 'utterance')}")


def judge_episode(episode: Any, mode: JudgeMode | str = JudgeMode.STRICT) -> Result:
    """Judge an English episode, or any object with a history, ``target_word`` and ``max_turns``; ignore its outcome.

    Judging stops at the first decision or after ``2 * max_turns`` utterances; ``Result.length`` counts up to there.
    Each utterance is judged by the role recorded with it. Raises ``ConfigError`` for an unknown mode, and ``DataError``
    for an episode of another game.
    """
    if not hasattr(episode, "task"):
        task = Task(episode.target_word, {"target_word": episode.target_word, "max_turns": episode.max_turns})
        episode = Episode(task=task, history=tuple(episode.history))
    return replay(get(TABOO, judge=mode), episode)
