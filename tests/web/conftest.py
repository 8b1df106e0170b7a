"""A run with hostile games in it, and a visitor of its page whose opponent always says the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from web_fixtures import at_once, make_run, site, visitor


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("web") / "run", hostile=True)


@pytest.fixture(scope="module")
def client(run: Path) -> Iterator[TestClient]:
    with visitor(site(run, at_once(lambda request: "What a lovely river."))) as made:
        yield made
