"""Three kills of the storm (``make storm`` makes a hundred): nothing is lost, nothing is left running, and the end is
that of no kill.
"""

from pathlib import Path

import pytest

from storm import storm


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_is_stopped_at_random_moments_ends_as_if_undisturbed(tmp_path: Path) -> None:
    assert not storm(tmp_path, kills=3, seed=12325, processes=False)  # all signals: in play, training, arena
