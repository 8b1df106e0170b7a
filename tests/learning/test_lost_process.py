"""The cause that is named when one of several training processes is lost, and the launcher ends the others."""

import json
import signal
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from spag.learning import processes
from spag.learning.job import TrainingJob

KILLED = (-signal.SIGKILL, "")
FULL = (1, "StorageError: /runs: no space left")
TORCH = (1, "RuntimeError: Connection closed by peer")


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        (
            [(*TORCH, 100), (*KILLED, 101)],
            r"process 1 of 2 .* was killed by SIGKILL, as when the system runs out of memory",
        ),
        ([(*KILLED, 105), (*FULL, 100)], "^/runs: no space left$"),  # the launcher killed it, five seconds later
        ([(*TORCH, 100), (*FULL, 100)], "^/runs: no space left$"),
        ([(*KILLED, 106), (*TORCH, 100)], "process 1 of 2 .* failed: RuntimeError: Connection closed by peer"),
    ],
)
def test_the_first_cause_is_named(failures: list[tuple[int, str, int]], cause: str, tmp_path: Path) -> None:
    found = dict[int, ProcessFailure]()
    for rank, (status, message, timestamp) in enumerate(failures):
        file = tmp_path / f"error-{rank}.json"
        about = {"message": message, "extraInfo": {"timestamp": str(timestamp)}}
        file.write_text(json.dumps({"message": about}))
        found[rank] = ProcessFailure(rank, 1000 + rank, status, str(file))
    job = TrainingJob.model_construct(output=tmp_path, seed=0)
    with pytest.raises(Exception, match=cause):
        raise processes._cause(ChildFailedError("train", found), job, len(found))
