"""What many tests need: no network, and a tiny random Llama made on the spot."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
settings.register_profile("spag", deadline=None)  # no test fails because a machine is slow
settings.load_profile("spag")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_model import make_model

    return make_model(tmp_path_factory.mktemp("model") / "tiny")


HEAVY = ("cluster", "vllm", "browser", "model")


def is_heavy(item: pytest.Item) -> bool:
    """Whether a test needs a cluster, vLLM, a browser or a language model."""
    return any(item.get_closest_marker(name) for name in HEAVY)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep heavy tests on one worker, one after another: two at once would take all cores from each other."""
    if is_heavy(item):
        item.add_marker(pytest.mark.xdist_group("heavy"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start heavy tests first, so that they are not what the last minutes wait for."""
    items.sort(key=lambda item: not is_heavy(item))
