"""Nothing finished is lost: appending, torn lines, full disks, replaced files, locked folders."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from spag.core.episodes import Episode
from spag.core.errors import DataError, RunError, StorageError
from spag.core.types import Task, Utterance
from spag.storage.disk import lock_file, lock_folder, open_locked
from spag.storage.episodes import JsonlStore, read_episodes
from spag.storage.jsonfile import MAX_LINE, is_torn
from spag.storage.store import cut_torn_line, folder_beside, sync_files, write_atomically, write_json, write_rows
from taboo_games import task_of


def episode(number: int) -> Episode:
    said = (
        Utterance("attacker", "Where do you\nswim? é"),
        Utterance("defender", "In a lake.", "eos", (1, 2), (-0.5, -1.25)),
    )
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


def test_none_within_the_data_of_a_task_stays(tmp_path: Path) -> None:
    task = Task("deal-1", {"trump": None, "cards": [{"suit": None}, 3]})
    game = Episode(task=task, history=(Utterance("first", "Hello."),), game="other")
    write_rows(tmp_path / "e.jsonl", [game])
    assert list(read_episodes(tmp_path / "e.jsonl")) == [game]


TORN = [b"{", b'{"id":"g9","task":{"id":"ri', '{"id":"é'.encode()[:-1], b'{"a":[-', b"\0" * 4096, b'{"a":1\0\0', b"  "]


@pytest.mark.parametrize("torn", [*TORN, b'{"a":"' + b"x" * 200_000])
def test_a_torn_last_line_is_cut_off_and_only_that(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "e.jsonl"
    with JsonlStore(path) as store:
        store.append(episode(0))
    with path.open("ab") as stream:
        stream.write(torn)
    whole = path.stat().st_size - len(torn)
    with JsonlStore(path) as store:
        assert path.stat().st_size == whole
        store.append(episode(1))
    assert [e.id for e in read_episodes(path)] == ["g0", "g1"]


def test_every_beginning_of_a_row_is_torn_and_the_row_is_not(tmp_path: Path) -> None:
    write_rows(tmp_path / "e.jsonl", [episode(0)])
    row = (tmp_path / "e.jsonl").read_bytes().rstrip()
    assert [end for end in range(1, len(row) + 1) if not is_torn(row[:end])] == [len(row)]


@pytest.mark.parametrize("end", [b"", b"\0\0", b" "])
def test_a_whole_last_row_without_its_line_break_is_kept(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "e.jsonl"
    write_rows(path, [episode(0), episode(1)])
    path.write_bytes(path.read_bytes().rstrip(b"\n") + end)
    with JsonlStore(path) as store:
        store.append(episode(2))
    assert list(read_episodes(path)) == [episode(0), episode(1), episode(2)]


FOREIGN = {
    "a list of games": b'[{"id": "g0"}, {"id": "g1"}]',
    "text": b"a letter to\nsomebody",
    "a picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "JSON that ends too early": b'{"name": [1, 2, 3',
    "bytes in braces": b'{}\n{"a":"\xff\xff',
    "nested text": b"{}\n" + b'{"a":' * 100_000,
    "a row that is too long": b'{}\n{"a":"' + b"x" * MAX_LINE,
    "a number": b"{}\n3",
    "a list, then rows": b'[]\n{"a":1}\n',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file_is_never_touched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{path}: does not (begin|end) with a JSON Lines row"):
        JsonlStore(path, b'{"task":{"id":')
    assert path.read_bytes() == content


@pytest.mark.parametrize("torn", [b"{", b'{"task":', b'{"task":{"id":"river"'])
def test_a_file_that_is_one_torn_row_becomes_empty(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(torn)
    cut_torn_line(path, b'{"task":{"id":')
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "write",
    ["write_atomically(path, 'x' * 99_999)", "write_json(path, 'x' * 99_999)", "write_rows(path, ['x'] * 99_999)"],
)
def test_what_really_does_not_fit_is_one_error_and_leaves_the_old_file(tmp_path: Path, write: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("old")
    code = (
        "import resource; from pathlib import Path; from spag.storage.store import *; from "
        "spag.core.errors import StorageError\n"
    )
    code += f"resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); path = Path({str(path)!r})\n"
    code += f"try: {write}\nexcept StorageError as error: print(error)"
    described = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert described == f"{path}: cannot be written: File too large; free space, then run again to resume\n"
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


def no_file(folder: Path, kind: str) -> Path:
    """Return a path where no output can be."""
    path = folder / kind
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as opened:
                opened.bind(str(path))
        case "link to a device":
            path.symlink_to("/dev/full")
        case "link to itself":
            path.symlink_to(path)
        case "below a file":
            path.write_text("a file")
            return path / "below"
        case "a name of 300 letters":
            return folder / ("x" * 300)
        case _:
            return Path(kind)
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    {
        "/dev/full": "is a device; choose the name of a file",
        "link to a device": "is a device; choose the name of a file",
        "folder": "is a folder; choose the name of a file",
        "/": "is a folder; choose the name of a file",
        ".": "is a folder; choose the name of a file",
        "pipe": "is a pipe; choose the name of a file",
        "socket": "is a socket; choose the name of a file",
        "link to itself": "cannot be written: Too many levels of symbolic links; choose another output",
        "below a file": "cannot be written: Not a directory; choose another output",
        "a name of 300 letters": "cannot be written: File name too long; choose another output",
    }.items(),
)
def test_an_output_that_is_no_file_is_refused_and_stays(tmp_path: Path, kind: str, message: str) -> None:
    path = no_file(tmp_path, kind)
    before = os.lstat("/dev/full")
    for write in (JsonlStore, lock_file, lambda path: write_atomically(path, "x"), lambda path: write_rows(path, [1])):
        with pytest.raises(StorageError) as caught:
            write(path)
        assert str(caught.value) == f"{path}: {message}"
    assert os.lstat("/dev/full").st_ino == before.st_ino and len(list(tmp_path.iterdir())) <= 1


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "elsewhere" / "file"
    file.parent.mkdir()
    link.symlink_to(file)
    for text in ("new", "newer"):
        write_atomically(link, text)
        assert link.is_symlink() and file.read_text() == text


def test_text_that_is_not_utf8_is_one_line_and_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    for write in (
        lambda: write_rows(path, [{"model": "\udcff"}]),
        lambda: JsonlStore(path).append({"model": "\udcff"}),
        lambda: write_json(path, {"files": ["\udcff"]}),
    ):
        with pytest.raises(DataError, match=r"'\\udcff' cannot be written as JSON: it is not UTF-8"):
            write()
    assert path.read_bytes() == b""


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


def test_a_row_that_nobody_could_read_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    with pytest.raises(
        DataError, match=r"^a row of 33,554,434 bytes cannot be written: the longest that can be read has 33,554,432;"
    ):
        JsonlStore(path).append("x" * MAX_LINE)
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("lock", "target", "name", "message"),
    [
        (lock_folder, "", ".lock", "is working in this run folder"),
        (lock_file, "e.jsonl", ".e.jsonl.lock", "is writing this file; wait for it, or choose another output"),
    ],
)
def test_a_second_process_is_kept_out_and_a_dead_one_is_not_in_the_way(
    tmp_path: Path, lock: Callable[[Path], AbstractContextManager[None]], target: str, name: str, message: str
) -> None:
    path = tmp_path / target
    code = f"import pathlib, spag.storage.disk as d\nwith d.{lock.__name__}(pathlib.Path({str(path)!r})):\n"
    code += "  print('in', flush=True)\n  input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(RunError, match=rf"^{path}: another process \(pid {other.pid}\) {message}"):
            lock(path).__enter__()
        other.kill()
    assert (tmp_path / name).is_file()
    with lock(path):
        assert (tmp_path / name).read_text() == str(os.getpid())


def test_a_holder_that_ends_before_it_is_named_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spag.storage.disk.open_locked", lambda path: None)  # and removed at once
    with pytest.raises(RunError, match=rf"^{tmp_path}: another process \(pid unknown\) is working in this run folder"):
        lock_folder(tmp_path).__enter__()


def test_a_lock_leaves_nothing(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        assert (tmp_path / ".lock").exists()
    assert not [*tmp_path.iterdir()]


def test_a_lock_on_a_file_leaves_nothing_and_holds_for_all_of_its_names(tmp_path: Path) -> None:
    file, link = tmp_path / "e.jsonl", tmp_path / "link"
    link.symlink_to(file)
    with lock_file(link):
        write_atomically(file, "replaced")
        with pytest.raises(RunError, match=f"^{file}: another process"):
            lock_file(file).__enter__()
    assert sorted(tmp_path.iterdir()) == [file, link]
    with lock_file(file):
        pass


def test_a_lock_is_on_the_file_under_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that was opened may be renamed before it is locked, by a process that has just ended with it."""
    path, real, calls = tmp_path / "lock", fcntl.flock, iter([True, False])

    def late(descriptor: int, operation: int) -> None:
        if next(calls):
            path.rename(tmp_path / "elsewhere")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    descriptor = open_locked(path)
    assert descriptor is not None and os.path.samestat(os.fstat(descriptor), path.stat())
    os.close(descriptor)


def test_private_files_of_a_readable_folder_become_readable(tmp_path: Path) -> None:
    for folder, expected in ((0o755, 0o644), (0o750, 0o640), (0o700, 0o600)):
        tmp_path.chmod(folder)
        file = tmp_path / f"{folder:o}"
        file.touch(0o600)  # as safetensors makes them
        sync_files(tmp_path)
        assert file.stat().st_mode & 0o777 == expected


def test_two_that_replace_a_file_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "out"

    def rows() -> Iterator[int]:
        with pytest.raises(RunError, match=f"^{path}: another process is writing this file"):
            write_rows(path, [2])
        yield 1

    write_rows(path, rows())
    assert (path.read_text(), list(tmp_path.iterdir())) == ("1\n", [path])


def test_what_a_killed_process_left_beside_a_folder_goes_and_what_another_fills_stays(tmp_path: Path) -> None:
    model = tmp_path / "model"
    left, new = tmp_path / ".model.spag-killed12", tmp_path / ".model.spag-started1"
    backup = tmp_path / ".model-20261103"
    for folder in (left, new, backup):
        folder.mkdir()
    os.utime(backup, (0, 0))
    os.utime(left, (0, 0))
    with folder_beside(model) as filled:
        os.utime(filled.parent, (0, 0))
        with folder_beside(model) as other:
            assert filled.is_dir() and other.is_dir() and filled != other
        filled.rename(model)
    assert sorted(path.name for path in tmp_path.iterdir()) == [backup.name, new.name, "model"]
