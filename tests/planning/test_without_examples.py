"""A game without bots and teacher games has no plan: its dry run shows the stages, its run needs ``engine.memory``."""

from pathlib import Path

import pytest

from spag.config.files import load_config
from spag.config.schema import RunConfig
from spag.core.errors import ConfigError
from spag.core.progress import SilentReporter
from spag.engines.vllm.setup import Backend
from spag.games.nim.nim import Nim
from spag.planning import doctor, here
from spag.planning.doctor import Status, examine_presets
from spag.planning.estimate import estimate_run
from spag.planning.specs import find_gpu

ONLINE = "phases=[{algorithm: reinforce, evaluation_opponents: [start], processes: 1, steps: 3, games: 8}]"


@pytest.fixture(autouse=True)
def _no_bots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nim, "bots", {})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, on which vLLM plays."""
    for name in ("gpus_at_hand", "at_hand"):
        monkeypatch.setattr(here, name, lambda model: (find_gpu("H100"), 1))
    monkeypatch.setattr(here, "_backend", lambda config, device: Backend.VLLM)


def config(*more: str) -> RunConfig:
    return load_config("kuhn", ["game.name=nim", ONLINE, "arena.entrants=[base, reinforce]", *more])


def test_a_dry_run_shows_the_stages_without_work_and_memory(tmp_path: Path) -> None:
    found = estimate_run(config(), tmp_path / "run", SilentReporter())
    assert [(stage.name, stage.work) for stage in found.stages] == [("1-reinforce/train", ""), ("arena", "")]
    assert found.facts["plan"].startswith("none: nim: a plan needs a bot or teacher games")
    assert not any(name.startswith("memory of") for name in found.facts)


def test_an_online_run_with_vllm_needs_a_share_that_is_set(gpu: None, tmp_path: Path) -> None:
    for refused in (here.planned_engines, lambda config: estimate_run(config, tmp_path / "run", SilentReporter())):
        with pytest.raises(ConfigError, match=r"share a GPU, and nim: a plan needs .*; or set engine\.memory to"):
            refused(config())
    assert here.planned_engines(config("engine.memory=0.4"))["reinforce"].memory == 0.2  # the policy and its start


def test_the_doctor_has_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "load_config", lambda name: config())
    [found] = examine_presets(["mine"])
    assert found.status is Status.LIMITED and found.detail.startswith("no plan: nim: a plan needs a bot")
