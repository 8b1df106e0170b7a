"""What a training left on disk, damaged afterwards: named in one line, or computed again, and never a traceback."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny import found, settings, train_tiny

from spag.core.errors import DataError, RunError
from spag.learning.checkpoints import STATE, record_result, resuming
from spag.learning.metrics import MetricsLog, TrainProgress, Unit
from spag.learning.references import read_reference, write_reference

NO_OBJECTS = [b"", b"[]", b"3", b'{"fingerprint": 3, "result": {}}', b'{"fingerprint": "a"}']
"""Text that is not JSON at all is tested in ``storage/test_jsonfile.py``."""


@pytest.mark.parametrize("content", NO_OBJECTS, ids=lambda content: repr(content[:12]))
def test_a_broken_record_is_named_and_kept(content: bytes, tmp_path: Path) -> None:
    record = tmp_path / "training.json"
    record.write_bytes(content)
    with pytest.raises(DataError, match=r"training\.json") as error:
        found(tmp_path, "a")
    assert "\n" not in str(error.value)
    assert record.read_bytes() == content


def test_a_record_of_other_settings_is_removed(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    record_result(tmp_path, "a", {"steps": 3})
    assert found(tmp_path, "a") == ({"steps": 3}, None)
    assert found(tmp_path, "b") == (None, None)
    assert not (tmp_path / "training.json").exists()


@pytest.mark.parametrize("row", [b"{", b"[]", b"3", b"{}", b'{"step": "x"}', b'{"step": null}', b'{"step": 1.5}'])
def test_a_row_that_holds_no_metrics_is_named(row: bytes, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    content = b'{"step": 1, "loss": 0.5}\n' + row + b"\n"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: ") as error:
        MetricsLog(file, 5)
    assert "\n" not in str(error.value)
    assert file.read_bytes() == content


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    MetricsLog(file, 0).append({"step": 1, "loss": 0.5, "grad_norm": math.inf, "kl": None})
    assert json.loads(file.read_text()) == {"step": 1, "loss": 0.5, "grad_norm": None, "kl": None}
    assert MetricsLog(file, 1).last["loss"] == 0.5


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "{",
        "3",
        '{"fingerprint": "a", "rows": 2}\n{"sample": 0, "logprobs": [-1.0]}\n',
        '{"fingerprint": "a", "rows": 1}\n{"sample": 0}\n',
        '{"fingerprint": "a", "rows": 1}\n{"sample": 0, "logprobs": "x"}\n',
        '{"fingerprint": "a", "rows": 1}\n{"sample": 0, "log\n',
        '{"fingerprint": "b", "rows": 1}\n{"sample": 0, "logprobs": [-1.0]}\n',
    ],
)
def test_damaged_reference_log_probabilities_are_not_read(damaged: str, tmp_path: Path) -> None:
    file = tmp_path / "reference.jsonl"
    assert read_reference(file, "a") is None
    write_reference(file, "a", {1: [-0.5], 0: [-1, -2]})
    assert read_reference(file, "a") == {0: [-1.0, -2.0], 1: [-0.5]}
    file.write_text(damaged)
    assert read_reference(file, "a") is None


@pytest.mark.parametrize("content", [b"{", b"[]", b"3", b"\xff"])
def test_a_checkpoint_whose_state_is_unknown_is_named(content: bytes, tmp_path: Path) -> None:
    state = tmp_path / "state"
    found(tmp_path, "a")
    folder = state / "checkpoint-4"
    folder.mkdir()
    (folder / STATE).write_bytes(content)
    with pytest.raises(DataError, match=rf"state\.json.*; remove {state} to train from the start"):
        found(tmp_path, "a")


class StoppedError(Exception):
    pass


@pytest.fixture(scope="module")
def stopped(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that ended after step 5, with a checkpoint of step 4."""
    folder = tmp_path_factory.mktemp("stopped") / "run"

    def stop(at: TrainProgress) -> None:
        if (at.unit, at.step) == (Unit.UPDATES, 5):
            raise StoppedError

    with pytest.raises(StoppedError):
        train_tiny(model_folder, folder, settings(), progress=stop)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("file", ["shares/.metadata", "shares/*.distcp"])
@pytest.mark.parametrize("size", [0, 100])
def test_a_checkpoint_that_was_damaged_is_named(
    file: str, size: int, stopped: Path, model_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    [damaged] = (folder / "state" / "checkpoint-4").glob(file)
    damaged.write_bytes(damaged.read_bytes()[:size])
    with pytest.raises(
        RunError, match=r"checkpoint-4: cannot be resumed, a file in it is damaged .*; remove .*state to train from"
    ) as error:
        train_tiny(model_folder, folder, settings())
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_undamaged_it_is_resumed(stopped: Path, model_folder: Path, tmp_path: Path) -> None:
    result: Any = train_tiny(model_folder, Path(shutil.copytree(stopped, tmp_path / "run")), settings())
    assert result.steps == 6


def test_a_full_gpu_is_not_a_damaged_checkpoint(tmp_path: Path) -> None:
    said = r"checkpoint-4: out of memory while reading it; free memory, then retry"
    with pytest.raises(RunError, match=said), resuming(tmp_path / "checkpoint-4"):
        raise RuntimeError("CUDA error: out of memory")
