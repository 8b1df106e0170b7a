"""Episodes and training samples: the two row types, their append-only JSONL store, and upstream's formats in and out.

One sample row of ``episodes.jsonl``:

    {"id":"river-0","game":"adversarial_taboo","target_word":"river","max_turns":5,"history":[{"role":"attacker","content":"..."}],
     "outcome":"defender_wins","reason":"...","seed":7,"players":{"attacker":{"model":"m","sampling":{}}},"schema_version":1}

Writing is crash-safe: one ``write`` and ``fsync`` a row, so that a row is on disk before it counts; a torn last line (a crash in mid-write) is cut off when
the file is opened again. Anything else that cannot be read is an error that names the line.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from spag.errors import DataError, StorageError
from spag.game.base import Outcome, Role, Utterance

SCHEMA_VERSION = 1


class SampleType(StrEnum):
    """What a training sample is for: offline RL, an SFT mix-in, or imitation."""

    RL = "rl"
    SFT = "sft"
    IMITATION = "imitation"


@dataclass(frozen=True, slots=True)
class PlayerInfo:
    """Who played a role: the model's name or path, and the sampling settings."""

    model: str
    sampling: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One game. ``outcome`` and ``reason`` are the judge's at play time; upstream's files carry none."""

    target_word: str
    max_turns: int
    history: tuple[Utterance, ...]
    id: str = ""
    game: str = "adversarial_taboo"
    outcome: Outcome | None = None
    reason: str = ""
    seed: int | None = None
    players: Mapping[Role, PlayerInfo] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One (query, target) pair. ``turn`` is the 1-based number of the turn the target was spoken in; SFT rows have no role, episode or turn."""

    query: str
    target: str
    reward: float = 1.0
    weight: float = 1.0
    role: Role | None = None
    type: SampleType = SampleType.RL
    episode_id: str = ""
    turn: int | None = None


Row = TypeVar("Row", Episode, TrainingSample)
