"""Plans of these tests count equal phases once."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _counted_once(counted_once: None) -> None:
    pass
