"""Errors of Ray Train, in one line."""

from pathlib import Path

import pytest

from spag.core.errors import RunError

train = pytest.importorskip("ray.train")


@pytest.mark.slow
def test_a_controller_that_gave_up_says_why(tmp_path: Path) -> None:
    from spag.learning import ray as on_ray
    from spag.learning.job import TrainingJob

    job = TrainingJob.model_construct(output=tmp_path, seed=0)
    fault = on_ray._cause(train.ControllerError(TimeoutError("no room for 3 workers")), job, 3)
    assert isinstance(fault, RunError) and "no room for 3 workers" in str(fault)
