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
