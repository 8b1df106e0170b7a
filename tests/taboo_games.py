"""Adversarial Taboo for tests: tasks, episodes from texts, the game with everyday words."""

from spag.core.episodes import Episode
from spag.core.types import Task, Utterance
from spag.games.taboo.taboo import AdversarialTaboo

ROLES = ("attacker", "defender")
TABOO = AdversarialTaboo(words="shipped")


def task_of(word: str, max_turns: int = 5) -> Task:
    return Task(word, {"target_word": word, "max_turns": max_turns})


def words_of_first_prompts() -> int:
    """Return the words of the longer of both roles' prompts before anything is said."""
    start = TABOO.start(task_of("river"), 0)
    return max(len(TABOO.prompt(TABOO.observe(start, role)).split()) for role in ROLES)


def history_of(*texts: str) -> tuple[Utterance, ...]:
    return tuple(Utterance(ROLES[index % 2], text) for index, text in enumerate(texts))


def episode_of(word: str, *texts: str, max_turns: int = 5, **fields: object) -> Episode:
    return Episode(task=task_of(word, max_turns), history=history_of(*texts), **fields)  # type: ignore[arg-type]
