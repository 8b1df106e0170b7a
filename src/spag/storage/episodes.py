"""Files of episodes and training samples: the two row types, readers of our JSON lines and upstream's JSON, and the
store to which games are appended as they end.

One row of ``episodes.jsonl``:

    {"id":"river-0","game":"adversarial_taboo","task":{"id":"river","data":{"target_word":"river","max_turns":5}},
     "history":[{"role":"attacker","content":"...","finish_reason":"eos","token_ids":[...],"logprobs":[...],
                 "prompt_digest":"..."}],
     "outcome":"tie","rewards":{"attacker":0.0,"defender":0.0},"reason":"...","seed":7,
     "players":{"attacker":{"model":"m","sampling":{},
                            "identity":{"weights":"...","dtype":"float32","prompt_style":"plain"}}},
     "settings":{"max_turns":5,"judge":"strict"},"schema_version":2}

One row of ``samples.jsonl``:

    {"prompt":"...","completion":"...","reward":0.55,"weight":0.75,"role":"attacker","type":"rl",
     "episode_id":"river-0","turn":2,"completion_ids":[...]}

Upstream's files (a JSON list, or JSON lines, with fewer fields) hold one game, Adversarial Taboo, and are read by the
same functions; a sample's prompt may also be named ``query`` and its completion ``target`` or ``answer``. A row with an
``instruction`` is Alpaca's (``alpaca.py``).
"""

import logging
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from spag.core.episodes import SCHEMA_VERSION, TABOO, TABOO_ROLES, Episode, SampleType, TrainingSample
from spag.core.errors import DataError
from spag.storage.alpaca import is_alpaca, prompt_and_completion
from spag.storage.disk import storage_errors
from spag.storage.jsonfile import begins_list, convert, decode, encode_line, lines_of, reading
from spag.storage.store import cut_torn_line

logger = logging.getLogger(__name__)


class _TabooTask(msgspec.Struct):
    """The task of Adversarial Taboo, which upstream's rows have at their top level."""

    target_word: str
    max_turns: int


_OTHER_NAMES = {"query": "prompt", "answer": "completion", "target": "completion"}
"""Upstream's names; if a row has several for one field, the last one here counts, as in upstream."""
_EPISODES = msgspec.json.Decoder(Episode)
_OBJECTS = msgspec.json.Decoder()
ROW_START = b'{"task":{"id":'
"""The beginning of every row of ``episodes.jsonl``, as msgspec writes it."""
MAX_LIST = 2**30
"""Bytes of a file that is one JSON list."""
MAX_ID, MAX_WORD, MAX_UTTERANCE, MAX_UTTERANCES = 20_000, 200, 100_000, 10_000
"""Characters of an id (an arena's holds two paths), of a target word and of an utterance; utterances of a game. All are
far above real games: the time of prompts and judges grows faster than linearly.
"""


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """The episodes of a file, one in memory at a time. Every iteration reads the file again.

    ``torn_ok``: skip a last row that a crash cut short.
    """

    path: Path
    torn_ok: bool = False

    def __iter__(self) -> Iterator[Episode]:
        places: dict[str, str] = {}
        for place, row in _rows(self.path, _EPISODES, torn=ROW_START if self.torn_ok else None):
            episode = _checked(row, place) if isinstance(row, Episode) else episode_of(_object(row, place), place)
            if episode.id and (first := places.setdefault(episode.id, place)) is not place:
                fix = "keep one, or give one another id"
                raise DataError(f"{place}: the game {episode.id!r} occurs twice, first at {first}; {fix}")
            yield episode


def read_episodes(path: str | Path, *, torn_ok: bool = False) -> EpisodeFile:
    """Return the episodes of a file, ours or upstream's. Iterating raises ``DataError`` naming file and line."""
    return EpisodeFile(Path(path), torn_ok)


def is_file_of_samples(path: Path) -> bool:
    """Tell whether the rows of a file are training samples, not games. Raises ``DataError`` naming file and line."""
    first = next(raw_rows(path), None)
    return first is not None and "history" not in first[1]


def read_samples(path: str | Path) -> Iterator[TrainingSample]:
    """Yield the training samples of a file, ours or upstream's. Empty utterances, found in upstream's files, are
    skipped and their number is logged; empty instruction data trains its end token, as upstream.

    Raises ``DataError`` naming file and line.
    """
    total = empty = 0
    for sample in all_samples(path):
        total += 1
        if sample.completion.strip() or sample.type is SampleType.SFT:
            yield sample
        else:
            empty += 1
    if empty:
        logger.warning("%s: skipped %d of %d rows with an empty completion: nothing to train on", path, empty, total)


def all_samples(path: str | Path) -> Iterator[TrainingSample]:
    """Yield the samples of a file, including empty completions. Raises ``DataError`` naming file and line."""
    return (sample_of(row, place) for place, row in raw_rows(Path(path)))


def sample_of(row: Mapping[str, Any], place: str) -> TrainingSample:
    """Turn a raw row with our field names, upstream's or Alpaca's into a sample; Alpaca's rows are SFT."""
    renamed = {name: value for name, value in row.items() if name not in _OTHER_NAMES}
    renamed |= {ours: row[theirs] for theirs, ours in _OTHER_NAMES.items() if theirs in row}
    if is_alpaca(row):
        renamed |= {"type": SampleType.SFT, **prompt_and_completion(row, place)}
    if not renamed.get("role"):
        renamed.pop("role", None)
    return convert(renamed, TrainingSample, place)


def read_sft(path: Path, limit: int | None, seed: int) -> list[TrainingSample]:
    """Return the SFT samples of ``path``, at most ``limit`` drawn by seed. Raises ``DataError`` naming the row.

    The paper mixes them into offline RL (Alpaca 52K) to keep general skills.
    """
    samples = [sample_of({**row, "type": SampleType.SFT, "role": None}, place) for place, row in raw_rows(path)]
    if limit is not None and limit < len(samples):
        samples = random.Random(seed).sample(samples, limit)
    return samples


def _checked(episode: Episode, place: str) -> Episode:
    _check_lengths(episode, place)
    if episode.game == TABOO:
        _check_taboo(episode, place)
    if episode.schema_version > SCHEMA_VERSION:
        fault = f"schema_version {episode.schema_version} is newer than this spag knows ({SCHEMA_VERSION})"
        raise DataError(f"{place}: {fault}; update spag")
    return episode


def _check_lengths(episode: Episode, place: str) -> None:
    if max(len(episode.id), len(episode.task.id)) > MAX_ID:
        raise DataError(f"{place}: an id is longer than {MAX_ID:,} characters; give a shorter one")
    if len(episode.history) > MAX_UTTERANCES:
        raise DataError(f"{place}: {len(episode.history):,} utterances; no game has more than {MAX_UTTERANCES:,}")
    for number, said in enumerate(episode.history, start=1):
        for what, text in (("utterance", said.content), ("the thought of utterance", said.thought or "")):
            if len(text) > MAX_UTTERANCE:
                fault = f"{what} {number} has {len(text):,} characters"
                raise DataError(f"{place}: {fault}; the longest may have {MAX_UTTERANCE:,}")


def _check_taboo(episode: Episode, place: str) -> None:
    """Check the game of upstream's files; other games check their tasks when they start."""
    task = convert(episode.task.data, _TabooTask, place)
    if not task.target_word.strip():
        raise DataError(f"{place}: target_word is empty")
    if (length := len(task.target_word)) > MAX_WORD:
        raise DataError(f"{place}: target_word has {length:,} characters; the longest word may have {MAX_WORD}")
    if task.max_turns < 1:
        raise DataError(f"{place}: max_turns is {task.max_turns}; it must be at least 1")
    for number, said in enumerate(episode.history, start=1):
        if said.role not in TABOO_ROLES:
            known = " and ".join(TABOO_ROLES)
            raise DataError(f"{place}: utterance {number} has the role {said.role!r}; the roles are {known}")


def episode_of(row: Mapping[str, Any], place: str) -> Episode:
    """Turn a raw row, ours or upstream's, into an episode. Raises ``DataError``."""
    if "task" not in row:
        task = convert(row, _TabooTask, place)
        fields = {name: value for name, value in row.items() if name not in _TabooTask.__struct_fields__}
        row = {**fields, "task": {"id": task.target_word, "data": msgspec.to_builtins(task)}}
    return _checked(convert(row, Episode, place), place)


def raw_rows(path: Path, torn: bytes | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, row): one JSON object a line, or one JSON list of objects (upstream)."""
    for place, row in _rows(path, _OBJECTS, torn):
        yield place, _object(row, place)


def _rows(path: Path, decoder: "msgspec.json.Decoder[Any]", torn: bytes | None = None) -> Iterator[tuple[str, Any]]:
    """Yield (place, row) as ``decoder`` reads it; lines that it cannot read, and rows of a list, as plain JSON."""
    with reading(path) as stream:
        if not begins_list(stream.peek(64)[:64]):
            yield from lines_of(stream, path, decoder, torn=torn)
            return
        data = stream.read(MAX_LIST + 1)
    if len(data) > MAX_LIST:
        raise DataError(f"{path}: a list of more than {MAX_LIST:,} bytes; write one row per line")
    for number, row in enumerate(decode(data, str(path), many_lines=True), start=1):
        yield f"{path}: row {number}", row  # a line number means nothing in a file of one line


def _object(row: Any, place: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f"{place}: expected a JSON object, got {type(row).__name__}; remove this row")
    return row


class JsonlStore(AbstractContextManager["JsonlStore"]):
    """An append-only JSON-lines file of one kind of row, which begins with ``start``. Use as a context manager.

    A row is on disk before it counts; one that a crash cut short is cut off when the file is opened again. Raises
    ``StorageError`` if the path is not a file, and ``DataError`` if the file ends with anything but a row.
    """

    def __init__(self, path: Path, start: bytes = b'{"') -> None:
        self.path = path
        cut_torn_line(path, start)
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, *rows: Any) -> None:
        """Write ``rows`` and wait until the disk has them. After a ``StorageError`` the file still ends with a row."""
        data = b"".join(encode_line(row) for row in rows)
        size = os.fstat(self._descriptor).st_size
        with storage_errors(self.path):
            try:
                written = 0
                while written < len(data):
                    written += os.write(self._descriptor, data[written:])
                os.fsync(self._descriptor)
            except OSError:
                with suppress(OSError):  # otherwise the next opening cuts it off
                    os.ftruncate(self._descriptor, size)
                raise

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
