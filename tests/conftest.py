"""What many tests need: no network, and a tiny random Llama made on the spot."""

import atexit
import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

os.environ["HF_HUB_OFFLINE"] = "1"
settings.register_profile("spag", deadline=None)  # no test fails because a machine is slow
settings.load_profile("spag")


def pytest_collection_finish() -> None:
    """Leave out of collections of garbage what tests imported: each would look at a million objects, for half a
    second.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # or extensions complain of leaks


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_model import make_model

    return make_model(tmp_path_factory.mktemp("model") / "tiny")


HEAVY = (
    "tests/cluster/",
    "tests/engines/test_conformance.py",
    "tests/engines/test_vllm.py",
    "tests/evaluation/test_reasoning",
    "tests/planning/test_measured.py",
    "tests/test_embedded_model.py",
    "tests/test_gpu.py",
    "tests/learning/test_parallel.py",
    "tests/web/test_browser.py",
)
"""Tests that use a cluster, vLLM, a browser, a language model, or several processes: two at once would take all cores
from each other.
"""


class OneWorkerForHeavy(LoadScopeScheduling):
    """Gives all heavy tests to one worker, and the others file by file to whichever is free, so that files share what
    they set up.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "heavy" if nodeid.startswith(HEAVY) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return OneWorkerForHeavy(config, log)
