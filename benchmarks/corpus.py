"""Made-up games, put together from the utterances of teacher play."""

import random
from collections.abc import Iterator, Sequence

from spag.algorithms.credit import taught_games
from spag.algorithms.imitation import ImitationSettings
from spag.core.episodes import Episode
from spag.core.types import Task, Utterance
from spag.games.taboo.taboo import AdversarialTaboo
from spag.games.taboo.types import Role
from spag.games.taboo.words import common_words
from spag.runs.teachers import teacher_path
from spag.storage.episodes import read_episodes


def teacher_utterances() -> list[str]:
    return [
        utterance.content
        for episode in read_episodes(teacher_path(AdversarialTaboo()))
        for utterance in episode.history
    ]


def teacher_games(limit: int, seed: int) -> Sequence[Episode]:
    """Return ``limit`` games of teacher play, drawn by seed, on tasks that are not held out."""
    path = teacher_path(game := AdversarialTaboo())
    return taught_games([*read_episodes(path)], game, ImitationSettings(max_episodes=limit), seed, str(path))[0]


def made_up(name: str, target_word: str, texts: Sequence[str], max_turns: int) -> Episode:
    """Return the game in which the attacker and the defender say ``texts`` in turn."""
    history = tuple(Utterance((Role.ATTACKER, Role.DEFENDER)[at % 2], text) for at, text in enumerate(texts))
    return Episode(
        id=name, task=Task(target_word, {"target_word": target_word, "max_turns": max_turns}), history=history
    )


def long_games(turns: int, samples: int, seed: int = 0) -> Iterator[Episode]:
    """Yield games of ``turns`` turns that the attacker wins at the end, enough of them that its utterances make
    ``samples``.

    An utterance is one to three of the teacher's. There are twice as many games, for some in which the judge finds the
    target too early.
    """
    rng = random.Random(seed)
    words = common_words(20_000)
    said = [
        text for text in teacher_utterances() if "word" not in text.lower()
    ]  # announcements of a guess would end the game
    for number in range(2 * -(-samples // turns)):
        target = rng.choice(words)
        texts = [" ".join(rng.sample(said, rng.randint(1, 3))) for _ in range(2 * turns)]
        texts[-1] = f"{texts[-1]} Do you mean the {target}?"
        yield made_up(f"long-{number}", target, texts, turns)
