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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share a cluster, an engine, a browser or a model on one worker, and start them first."""
    for item in items:
        if mark := next((name for name in HEAVY if item.get_closest_marker(name)), None):
            item.add_marker(pytest.mark.xdist_group(mark))
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in HEAVY))
