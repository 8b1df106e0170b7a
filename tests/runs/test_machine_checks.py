"""Checks of players, of GPUs and of a cluster's dtype, on machines that are pretended."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from spag.cli import main
from spag.config.files import load_config, parse_config
from spag.config.schema import RunConfig
from spag.core.errors import ConfigError, ModelError
from spag.core.progress import SilentReporter
from spag.engines.vllm.setup import Backend
from spag.runs import execute, machine_checks
from spag.runs.machine_checks import check_dtype, check_machine, check_players, players

PER_ROLE = """
game: {name: GAME}
phases: [{algorithm: reinforce, game: {name: PHASE}, opponents: {"FOLDER": 1}}]
arena: {entrants: [base, "ENTRANT"]}
"""
ELSEWHERE = "cluster.address=10.0.0.1:6379"
AUTO = "model.dtype=auto"


def online(*changes: str) -> RunConfig:
    return load_config("taboo-qwen3-1.7b", changes)


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spag.learning.launch.gpu_count", lambda model: 8)
    monkeypatch.setattr(machine_checks, "backend_here", lambda *_: Backend.VLLM)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("eight_gpus")
def test_each_process_that_plays_needs_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    check_machine(online("engine.tensor_parallel=2", "reinforce.processes=4"))
    check_machine(online("reinforce.processes=8"))
    for change in ("engine.tensor_parallel=2", "engine.data_parallel=2"):
        for processes in (5, "null"):  # all eight
            refusal = r"phases\.0\.processes=[58]: .* has fewer groups of 2 GPUs .* \(4\); lower it"
            with pytest.raises(ConfigError, match=refusal):
                check_machine(online(change, f"reinforce.processes={processes}"))
    actors = ("cluster.address=local", "cluster.online_workers=1")
    check_machine(online("engine.tensor_parallel=2", "reinforce.processes=5", *actors))
    check_machine(online("engine.tensor_parallel=2", "reinforce.processes=5", ELSEWHERE))
    with pytest.raises(ConfigError, match=r"=2: on Ray, each .* has one GPU .*; set cluster\.online_workers"):
        check_machine(online("engine.tensor_parallel=2", "reinforce.processes=4", "cluster.address=local"))
    monkeypatch.setenv("WORLD_SIZE", "8")  # torchrun on two machines
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    check_machine(online("engine.tensor_parallel=2"))
    monkeypatch.setattr(machine_checks, "backend_here", lambda *_: Backend.TRANSFORMERS)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    check_machine(online("engine.tensor_parallel=2"))


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of a cluster may have one core of a machine of many."""
    monkeypatch.setattr("spag.learning.launch.gpu_count", lambda model: 0)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3})
    refusal = r"^phases\.0\.processes=2: this machine has fewer CPU cores \(1\); lower it$"
    with pytest.raises(ConfigError, match=refusal):
        check_machine(online("reinforce.processes=2", "engine.backend=transformers"))


@pytest.mark.parametrize(
    ("here", "there", "changes", "is_refused"),
    [
        (0, 2, (AUTO, ELSEWHERE), True),
        (1, 2, (AUTO, ELSEWHERE), False),  # measured here
        (0, 0, (AUTO, ELSEWHERE), False),  # CPUs everywhere
        (0, 2, (AUTO, ELSEWHERE, "model.device=cpu"), False),
        (0, 2, (AUTO, "cluster.address=local"), False),
        (0, 2, (ELSEWHERE,), False),
    ],
)
def test_a_cpu_does_not_choose_the_dtype_of_gpus(
    here: int, there: int, changes: tuple[str, ...], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spag.learning.launch.gpu_count", lambda model: here)
    monkeypatch.setattr(machine_checks, "cluster_gpus", lambda address: there)
    if is_refused:
        with pytest.raises(ConfigError, match=r"^model\.dtype=auto: this machine has no GPU on which .*; set bf"):
            check_dtype(online(*changes))
    else:
        check_dtype(online(*changes))


def test_commands_are_refused_as_a_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spag.learning.launch.gpu_count", lambda model: 0)
    monkeypatch.setattr(machine_checks, "cluster_gpus", lambda address: 2)
    common = ["--config", "demo", "--set", ELSEWHERE, "--output", str(tmp_path / "games.jsonl")]
    refused = CliRunner().invoke(main, ["play", "org/model", *common])
    assert refused.exit_code == 2 and "model.dtype=auto: this machine has no GPU" in refused.output
    config = load_config("demo", [ELSEWHERE])
    assert execute.resolve_dtype(config, here=True).model.dtype != "auto"  # to serve it, for example


def test_a_run_is_refused_before_it_measures_and_a_dry_run_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spag.learning.launch.gpu_count", lambda model: 0)
    monkeypatch.setattr(machine_checks, "cluster_gpus", lambda address: 2)
    monkeypatch.setattr(execute, "check_run", lambda config, game: None)
    config = load_config("demo", [ELSEWHERE])
    assert config.model.dtype == "auto"
    with pytest.raises(ConfigError, match=r"model\.dtype=auto"):
        execute.run(config, tmp_path / "run", SilentReporter())
    assert not (tmp_path / "run" / "config.yaml").exists()
    assert execute.preview_run(config, tmp_path / "run", SilentReporter())


@pytest.mark.parametrize(
    ("game", "phase", "entrant", "lacks"),
    [
        ("nim", "kuhn_poker", "bot:random", None),
        ("kuhn_poker", "nim", "bot:random", "nim"),
        ("nim", "kuhn_poker", "FOLDER", "nim"),
        ("kuhn_poker", "kuhn_poker", "FOLDER", None),
    ],
)
def test_a_player_needs_adapters_for_the_games_that_it_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, game: str, phase: str, entrant: str, lacks: str | None
) -> None:
    monkeypatch.setattr(machine_checks, "_check_model", lambda model, config: None)
    roles = {f"kuhn_poker/player_{number}": f"kuhn_poker-player_{number}" for number in range(2)}
    (tmp_path / "roles.json").write_text(json.dumps(roles))
    text = PER_ROLE.replace("GAME", game).replace("PHASE", phase).replace("ENTRANT", entrant)
    config = parse_config(text.replace("FOLDER", str(tmp_path)), "test", ["model.device=cpu"])
    if lacks is None:
        return check_players(config, players(config))
    with pytest.raises(ModelError, match=f"{tmp_path}: has no adapter for {lacks}/player_0, only for kuhn_poker/"):
        check_players(config, players(config))


def test_a_lone_training_needs_no_arena() -> None:
    config = parse_config("{phases: [{algorithm: spag}], arena: {entrants: [base, imitation]}}", "test", [])
    check_machine(config)


@pytest.mark.parametrize(("backend", "gpus", "fits"), [
    (Backend.VLLM, 3, 2), (Backend.VLLM, 8, 4), (Backend.VLLM, 4, None), (Backend.TRANSFORMERS, 3, None),
])  # fmt: skip
def test_vllm_must_be_able_to_split_the_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Backend, gpus: int, fits: int | None
) -> None:
    monkeypatch.setattr(machine_checks, "backend_and_reason", lambda model, engine: (backend, ""))
    heads = {"num_attention_heads": 28, "num_key_value_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "hidden_size": 3584, **heads}))
    (tmp_path / "model.safetensors").touch()
    changes = (f"model.name={tmp_path}", "model.prompt_style=plain", f"engine.tensor_parallel={gpus}")
    config = online(*changes, "engine.concurrency=1")
    if fits is None:
        return check_players(config, {str(tmp_path): []})
    with pytest.raises(ConfigError, match=f"tensor_parallel={gpus}: vLLM cannot split 28 .*; lower it to {fits}"):
        check_players(config, {str(tmp_path): []})


@pytest.mark.parametrize(
    ("kind", "has"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"lora_bias": True}, r"biases \(lora_bias\)"),
        ({"modules_to_save": ["lm_head"]}, r"whole modules \(lm_head\)"),
    ],
)
def test_vllm_must_be_able_to_take_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, object], has: str
) -> None:
    monkeypatch.setattr("spag.engines.opening.installed_vllm", lambda: ("0.32", True))
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir()
    adapter.mkdir()
    (base / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (base / "model.safetensors").touch()
    lora = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": str(base)}
    changes = ("model.prompt_style=plain", "model.device=cpu", "engine.concurrency=1", "engine.backend=vllm")
    config = online(f"model.name={adapter}", *changes)
    (adapter / "adapter_config.json").write_text(json.dumps(lora))
    check_players(config, {str(adapter): []})
    (adapter / "adapter_config.json").write_text(json.dumps(lora | kind))
    with pytest.raises(
        ConfigError, match=f"backend=vllm, but .* with {has}, which .*; set engine.backend=transformers"
    ):
        check_players(config, {str(adapter): []})
    check_players(online(f"model.name={adapter}", *changes[:-1]), {str(adapter): []})
