"""The manifest of a run folder: what it refuses to read, and what it notices of results that were lost or replaced."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spag.core.errors import DataError, RunError
from spag.core.manifest import Manifest
from spag.runs.folder import check_free


def do(manifest: Manifest, stage: str, text: str, inputs: Sequence[str] = (), **settings: Any) -> bool:
    """Run a stage that writes ``text`` into a file of its name; return whether it was due."""
    if not manifest.begin(stage, settings, inputs):
        return False
    with manifest.running(stage, [stage]):
        (manifest.folder / stage).mkdir(parents=True, exist_ok=True)
        (manifest.folder / stage / "file").write_text(text)
    return True


def do_all(folder: Path, *, force: bool = False, first: str = "one", second: str = "two", **settings: Any) -> list[bool]:
    manifest = Manifest.open(folder, force=force)
    return [do(manifest, "first", first, **settings), do(manifest, "second", second, ["first"])]


def test_done_stages_stay_done_wherever_the_folder_is_copied_to(tmp_path: Path) -> None:
    assert do_all(tmp_path) == [True, True]
    assert do_all(tmp_path) == [False, False]
    os.utime(tmp_path / "first" / "file", ns=(1, 1))  # as a copy has
    assert do_all(tmp_path) == [False, False]
    (tmp_path / "first" / "README").write_text("added by hand")
    assert do_all(tmp_path) == [False, False]


@pytest.mark.parametrize("text", ["ONE", "another length"])
def test_a_replaced_file_is_noticed_and_forced_away(tmp_path: Path, text: str) -> None:
    do_all(tmp_path)
    (tmp_path / "first" / "file").write_text(text)
    with pytest.raises(RunError, match=r"first is done, but first/file is not what it made; use a new run folder, or --force to redo it"):
        do_all(tmp_path)
    assert do_all(tmp_path, force=True) == [True, False]  # it makes what it made before, so the second one still stands on it
    assert do_all(tmp_path) == [False, False]


def test_what_was_built_on_other_results_is_noticed_and_redone(tmp_path: Path) -> None:
    do_all(tmp_path)
    (tmp_path / "first" / "file").unlink()
    manifest = Manifest.open(tmp_path, force=True)
    assert do(manifest, "first", "another")
    with pytest.raises(RunError, match="second was built on other results of first"):
        do_all(tmp_path)
    assert do_all(tmp_path, force=True) == [False, True]
    assert do_all(tmp_path) == [False, False]


def test_a_lost_file_matters_to_the_stage_that_needs_it(tmp_path: Path) -> None:
    do_all(tmp_path)
    (tmp_path / "first" / "file").unlink()
    assert do_all(tmp_path) == [False, False]
    assert Manifest.open(tmp_path).lost("first") == ["first/file"]
    manifest = Manifest.open(tmp_path)
    message = r"first/file: is gone, and third needs it; restore it, or let --force redo first and what builds on it"
    with pytest.raises(RunError, match=message):
        do(manifest, "third", "three", ["first"])
    manifest = Manifest.open(tmp_path, force=True)
    assert [do(manifest, "first", "one"), do(manifest, "second", "two", ["first"]), do(manifest, "third", "three", ["first"])] == [
        True, False, True,
    ]  # fmt: skip


STAGE: dict[str, Any] = {"status": "done", "fingerprint": "", "settings": {}, "seconds": 1.0}
GOOD: dict[str, Any] = {"schema_version": 1, "measured": {}, "stages": {"arena": STAGE}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: it is empty"),
        ("{", "not JSON: it ends in the middle of a value"),
        ('{"measured": ' + "[" * 100_000, "nested deeper than 100 levels"),
        ("[]", "expected `object`, got `array`"),
        ("{}", "object missing required field `schema_version`"),
        (json.dumps(GOOD)[:-9], "not JSON: it ends in the middle of a value"),
        (json.dumps(GOOD).replace("1.0", "NaN"), "not JSON: invalid character"),
        (json.dumps(GOOD).replace("1.0", "1e999"), "not JSON: number out of range"),
        (json.dumps(GOOD | {"schema_version": 99}), "schema_version is 99, and this version of spag reads 1"),
        (json.dumps(GOOD | {"stages": {"arena": {**STAGE, "status": "gone"}}}), "arena: invalid enum value 'gone' - at `$.status`"),
        (json.dumps(GOOD | {"stages": {"arena": {**STAGE, "results": [1]}}}), "arena: expected `object`, got `array` - at `$.results`"),
        (json.dumps(GOOD | {"stages": {"arena": {**STAGE, "outputs": {"a": 1}}}}), "arena: expected `object`, got `int` - at `$.outputs"),
    ],
)
def test_what_is_no_manifest_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError) as caught:
        Manifest.open(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'manifest.json'}:")
    assert message.lower() in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def test_bytes_and_folders_in_its_place_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(json.dumps(GOOD).encode("utf-16"))
    with pytest.raises(DataError, match="not UTF-8 at byte 0"):
        Manifest.open(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        Manifest.open(tmp_path)


def test_no_other_training_may_write_into_a_run(tmp_path: Path) -> None:
    do(Manifest.open(tmp_path), "imitation/train", "weights")
    with pytest.raises(RunError, match="belongs to the run"):
        check_free(tmp_path / "arena" / ".." / "imitation")
    check_free(tmp_path / "mine")
    check_free(tmp_path)
