"""Nothing finished is lost: appending, torn lines, full disks, replaced files, locked folders."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spag.core.episodes import Episode, read_episodes
from spag.core.errors import RunError, StorageError
from spag.core.store import FolderLock, JsonlStore, cut_torn_line, write_atomically, write_rows
from spag.core.types import Utterance
from taboo_games import task_of


def episode(number: int) -> Episode:
    said = (Utterance("attacker", "Where do you\nswim? é"), Utterance("defender", "In a lake.", "eos", (1, 2), (-0.5, -1.25)))
    return Episode(id=f"g{number}", task=task_of("river"), history=said, seed=number)


def test_rows_come_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "episodes.jsonl"
    with JsonlStore(path) as store:
        store.append(episode(0))
        store.append(episode(1), episode(2))
    assert list(read_episodes(path)) == [episode(0), episode(1), episode(2)]
    assert path.read_text().count("\n") == 3


@pytest.mark.parametrize("said", ["plain", 'a text with {"key":null} in it', '":null'])
@pytest.mark.parametrize("finish", [None, "eos"])
def test_a_field_that_is_none_takes_no_room_whatever_texts_say(tmp_path: Path, said: str, finish: str | None) -> None:
    path = tmp_path / "e.jsonl"
    game = Episode(task=task_of("river", 1), history=(Utterance("attacker", said, finish),))
    write_rows(path, [game])
    [row] = map(json.loads, path.read_text().splitlines())
    assert row["history"] == [{"role": "attacker", "content": said, **({"finish_reason": finish} if finish else {})}]
    assert "outcome" not in row and "seed" not in row
    assert list(read_episodes(path)) == [game]


@pytest.mark.parametrize("torn", [b"{", b'{"id":"g9","task":{"id":"ri', b'{"id":"g9"}', b"x" * 200_000])
def test_a_torn_last_line_is_cut_off_and_only_that(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "e.jsonl"
    with JsonlStore(path) as store:
        store.append(episode(0))
    with path.open("ab") as stream:
        stream.write(torn)
    with JsonlStore(path) as store:
        assert store.torn_bytes == len(torn)
        store.append(episode(1))
    assert [e.id for e in read_episodes(path)] == ["g0", "g1"]


def test_a_file_that_is_one_torn_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"y" * 70_000)
    assert cut_torn_line(path) == 70_000
    assert path.read_bytes() == b""


def test_a_full_disk_leaves_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e.jsonl"
    real = os.write
    with JsonlStore(path) as store:
        store.append(episode(0))
        calls = iter([True, False])  # half of the row gets through, then the disk is full

        def full(descriptor: int, data: bytes) -> int:
            if next(calls):
                return real(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StorageError, match=r"e\.jsonl: cannot be written: No space left on device; free space"):
            store.append(episode(1))
    assert [e.id for e in read_episodes(path)] == ["g0"]


def test_a_really_full_device_is_one_clear_error() -> None:
    with JsonlStore(Path("/dev/full")) as store, pytest.raises(StorageError, match="No space left on device"):
        store.append(episode(0))


def test_a_failed_replacement_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "manifest.json"
    write_atomically(path, "old")

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageError):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_process_is_kept_out_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    code = "import pathlib, spag.core.store as s\n"
    code += f"lock = s.FolderLock(pathlib.Path({str(tmp_path)!r})).__enter__()\nprint('in', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(RunError, match=rf"another process \(pid {other.pid}\) is working in this run folder"):
            FolderLock(tmp_path).__enter__()
        other.kill()
    with FolderLock(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
