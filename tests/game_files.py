"""Files of games that other processes write."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spag.core.episodes import Episode
from spag.storage.episodes import read_episodes


def games_in(path: Path) -> dict[str, Episode]:
    """Return the games by id, each there once, less log-probabilities, whose last digits depend on the batch."""
    episodes = list(read_episodes(path))
    without = {"logprobs": None, "sampling_logprobs": None}
    games = {e.id: replace(e, history=tuple(replace(said, **without) for said in e.history)) for e in episodes}
    assert len(games) == len(episodes), "a game was counted twice"
    return games


def wait_until(happened: Callable[[], bool], seconds: float = 600.0) -> None:
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)


def reached(path: Path, lines: int) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") >= lines


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_lines(path: Path, count: int, seconds: float = 600.0) -> None:
    wait_until(lambda: lines(path) >= count, seconds)
