"""Five kills of the storm (``make storm`` makes a hundred): nothing is lost, nothing is left running, and the end is
that of no kill.
"""

from pathlib import Path

import pytest

from storm import storm


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_is_stopped_at_random_moments_ends_as_if_undisturbed(tmp_path: Path) -> None:
    assert not storm(tmp_path, kills=5, seed=407, processes=False)  # a seed with all signals, in five stages
