"""Looking at the file of games that a test's driver writes."""

import time
from dataclasses import replace
from pathlib import Path

from spag.episodes import Episode, read_episodes


def games_in(path: Path) -> dict[str, Episode]:
    """Return the games by id, each there once, less log-probabilities, whose last digits depend on the batch."""
    episodes = [replace(e, history=tuple(replace(said, logprobs=None) for said in e.history)) for e in read_episodes(path)]
    games = {episode.id: episode for episode in episodes}
    assert len(games) == len(episodes), "a game was counted twice"
    return games


def wait_for_lines(path: Path, count: int) -> None:
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        time.sleep(0.02)
