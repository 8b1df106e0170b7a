"""How trainer and vLLM share a GPU: the plan by hand, and on a stand-in GPU that refuses as a real one does."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from fake_vllm import FakeGPU, gpu_buffers, installed
from spag.config.files import load_config
from spag.config.schema import ModelConfig, PlannedEngine, RunConfig
from spag.core.errors import ConfigError, EngineError
from spag.core.options import SamplingConfig
from spag.core.progress import SilentReporter
from spag.engines.base import Request
from spag.engines.vllm import opening, transfer
from spag.engines.vllm.engine import VLLMEngine
from spag.engines.vllm.setup import Backend
from spag.learning import loop
from spag.learning.policy import TrainedPolicy
from spag.planning import here, specs
from spag.planning.estimate import estimate_run
from spag.planning.here import engines_of
from spag.planning.memory import transfer_memory
from spag.planning.plan import Planner, StagePlan
from spag.planning.sharing import ASLEEP, USABLE, Sharing, engine_players, share_out, sleep_level
from spag.planning.specs import GIB, KNOWN_SHAPES, Device, find_gpu, read_shape
from spag.runs.execute import run

GPU = 100 * GIB  # of which 92 can be filled
ALL = "reinforce.opponents={self: 1, snapshot: 1, start: 1}"
WHOLE = ["reinforce.kl_coef=0", "reinforce.evaluate_every=null"]  # one engine, no copy of the weights


def sharing(gpu: float = GPU, **changes: float) -> Sharing:
    """Share a GPU between an engine of 10 to 20 GiB and a trainer of 30 GiB, 60 at its peak."""
    sizes = {"least": 10, "roomy": 20, "resident": 30, "training": 60}
    known = {name: size * GIB for name, size in (sizes | changes).items() if name in sizes}
    rest = {name: value for name, value in changes.items() if name not in sizes}
    return share_out(gpu, **{"engines": 1, **rest}, **known)  # type: ignore[arg-type]


def shared(**changes: float) -> tuple[int, int] | None:
    """Return how many GiB each engine gets, and the level of sleep; ``None`` if they do not fit."""
    found = sharing(**changes)
    return (round(found.each * 100), found.sleep) if not found.shortage else None


def test_engines_get_what_training_leaves() -> None:
    assert shared() == (32, 0)  # 92 - 60
    assert shared(engines=2, least=8, roomy=16) == (16, 0)
    assert shared(resident=1, training=1) == (90, 0)  # never more than vLLM's own default
    assert shared(resident=70, training=60) == (22, 0)  # FSDP gathers the policy while engines play


def test_engines_sleep_where_all_texts_would_not_fit_otherwise() -> None:
    assert shared(roomy=40, sleep=1) == (62, 1)  # 92 - 30 while the trainer rests
    assert shared(roomy=40) == (32, 0)  # may not sleep: a smaller cache
    assert shared(training=88, sleep=2) == (62, 2)
    assert shared(roomy=70, sleep=1) == (62, 1)  # more than the 32 beside training, if less than it could use
    assert shared(training=88) is None
    assert shared(training=91.5, sleep=1) is None  # what sleeps keeps 1 GiB


def test_a_share_that_is_set_is_kept_or_refused() -> None:
    assert shared(share=0.3) == (30, 0)
    assert shared(share=0.3, engines=2) == (15, 0)
    assert shared(share=0.5, sleep=1) == (50, 1)
    assert shared(share=0.5, sleep=1, resident=45) is None  # 45 + 50 > 92
    assert shared(share=0.05) is None  # the engine needs 10


def test_what_training_leaves_fits_to_the_last_bit() -> None:
    """0.92 of 24 GiB, less 4.6, plus 4.6 is more than before in floating point."""
    found = sharing(24 * GIB, least=1, roomy=1, resident=1, training=4.6, sleep=1)
    assert not found.shortage and (found.sleep, found.each) == (0, 0.728)


def test_each_player_with_weights_of_its_own_is_an_engine() -> None:
    def engines(*changes: str) -> list[str]:
        return engine_players(load_config("taboo-qwen3-1.7b", changes).phases[0].settings)

    assert engines() == ["self", "start"]  # evaluations meet the start
    assert engines("reinforce.evaluate_every=null") == ["self"]
    adapted = load_config("taboo-qwen3-1.7b-lora").phases[0].settings
    assert engine_players(adapted, together=True) == ["self"]
    assert engine_players(adapted) == ["self", "start"]  # the transformers engine loads a base for each
    mixed = "reinforce.opponents={self: 1, snapshot: 1, start: 1, org/model: 1, 'bot:constant': 1, 'openai:gpt': 1}"
    assert engines(mixed) == ["self", "snapshot", "start", "org/model"]


def test_vllm_sleeps_as_deep_as_cpu_memory_asks() -> None:
    whole, adapter = (load_config(name).phases[0].settings for name in ("taboo-qwen3-1.7b", "taboo-qwen3-1.7b-lora"))
    assert sleep_level(adapter, 10, 20) == 1
    assert [sleep_level(online, 10, 19) for online in (whole, adapter)] == [2, 0]
    assert sleep_level(whole.model_copy(update={"overlap": 1}), 1, 100) == 0


def planner(name: str, memory: float, *changes: str, gpus: int = 1, host: float = 512) -> Planner:
    config = load_config(name, changes)
    gpu = replace(find_gpu("A100-80"), name="fake", memory=memory * GIB)
    return Planner(config, read_shape(config.model.name), gpu, gpus, host=host * GIB)


def online(plan: Planner) -> tuple[StagePlan, StagePlan]:
    play, training, _ = plan.stages
    return play, training


@pytest.mark.slow
def test_the_plan_of_both_moments_by_hand() -> None:
    play, training = online(planner("taboo-qwen3-1.7b", 120))
    parameters = KNOWN_SHAPES["Qwen/Qwen3-1.7B"].parameters
    assert play.sharing is not None and (play.sharing.engines, play.sharing.sleep) == (2, 0)
    # float32 weights and two moments stay, and a copy of the weights, which the KL term pulls to; new weights pass in
    # bfloat16 through a buffer as large as the embedding, and vLLM copies what is in it
    passing = 2 * (2 * 151_936 * 2048)
    assert play.memory.total - play.memory.engines == 16 * parameters + passing and play.memory.copies == passing
    assert (play.memory.weights, play.memory.optimizer, play.memory.policies) == (
        4 * parameters, 8 * parameters, 4 * parameters,
    )  # fmt: skip
    alone = training.memory.total - training.memory.engines
    assert 2 * play.sharing.each == pytest.approx(USABLE - alone / (120 * GIB), abs=2e-3)
    assert play.memory.engines == training.memory.engines == 2 * play.sharing.each * 120 * GIB


def test_a_small_model_passes_to_vllm_at_once_and_a_large_one_by_the_buffer() -> None:
    shape = replace(KNOWN_SHAPES["Qwen/Qwen3-1.7B"], vocab=1000)
    assert transfer_memory(shape, 2).copies == 2 * transfer.BUFFER_BYTES
    tiny = replace(shape, layers=1, intermediate=64)
    assert tiny.parameters * 2 < transfer.BUFFER_BYTES and transfer_memory(tiny, 2).copies == 2 * 2 * tiny.parameters


@pytest.mark.slow
def test_adapters_pass_to_vllm_by_files() -> None:
    play, _ = online(planner("taboo-qwen3-1.7b-lora", 80))
    assert play.memory.copies == 0


@pytest.mark.slow
def test_sharded_copies_are_shares_of_the_weights() -> None:
    play, _ = online(planner("marshal-qwen3-4b", 80, gpus=8))
    assert play.memory.policies == play.memory.weights == 4 * KNOWN_SHAPES["Qwen/Qwen3-4B"].parameters / 8


@pytest.mark.slow
def test_thoughts_count_in_play_and_training() -> None:
    silent = "reinforce.sampling.thinking.enabled=false"
    loud, quiet = (online(planner("taboo-qwen3-1.7b", 80, *changes)) for changes in ((), (silent,)))
    assert loud[1].count >= quiet[1].count  # no two thoughts are equal: nothing is merged
    assert loud[1].tokens - quiet[1].tokens >= 1000 * quiet[1].count
    assert loud[0].tokens > quiet[0].tokens + 200 * 128 * 1000
    assert loud[1].memory.activations > quiet[1].memory.activations
    short = online(planner("taboo-qwen3-1.7b", 80, "reinforce.sampling.thinking.max_tokens=100"))
    assert quiet[1].tokens < short[1].tokens < loud[1].tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    "play", [("cluster.address=auto", "cluster.online_workers=4"), ("engine.backend=transformers",)]
)
def test_sharded_trainers_gather_the_weights_for_their_engines(play: tuple[str, ...]) -> None:
    shape = KNOWN_SHAPES["baichuan-inc/Baichuan2-13B-Base"]
    short = ("reinforce.micro_batch_size=1", "reinforce.gradient_checkpointing=true", "engine.concurrency=1")
    sharded = ("reinforce.parallel=fsdp", "reinforce.processes=8", "reinforce.sampling.max_new_tokens=32", *short)
    changes = ("model.name=baichuan-inc/Baichuan2-13B-Base", *WHOLE, *sharded, *play)
    _, training = online(planner("taboo-qwen3-1.7b", 40, *changes, gpus=16))
    memory = training.memory
    assert (memory.weights, memory.optimizer, memory.gradients) == (shape.parameters / 2, shape.parameters, 0)
    assert memory.copies == 2 * shape.parameters + 2 * 2 * shape.vocab * shape.hidden  # and the buffer, as above
    assert (memory.policies > 0) == ("engine.backend=transformers" in play)
    assert training.problems == ["it needs more memory than there is"] and training.room == USABLE * 40 * GIB


CASES = {  # preset, GiB of the GPU, memory of the machine, changes: engines, level of sleep
    "awake": (("taboo-qwen3-1.7b", 120, 512, ()), (2, 0)),
    "level 1": (("taboo-qwen3-1.7b", 80, 512, ()), (2, 1)),
    "level 1, little room": (("taboo-qwen3-1.7b", 44, 512, ()), (2, 1)),
    "level 2": (("taboo-qwen3-1.7b", 56, 8, ()), (2, 2)),
    "awake, little room": (("taboo-qwen3-1.7b", 56, 512, ("reinforce.overlap=1",)), (2, 0)),
    "one engine": (("taboo-qwen3-1.7b", 35, 512, tuple(WHOLE)), (1, 1)),
    "one engine in turn": (("taboo-qwen3-1.7b", 44, 512, (ALL,)), (1, 1)),
    "adapter": (("taboo-qwen3-1.7b-lora", 24, 512, ()), (1, 1)),
    "adapter, awake": (("taboo-qwen3-1.7b-lora", 80, 512, ()), (1, 0)),
    "a share that is set": (("taboo-qwen3-1.7b", 120, 512, ("engine.memory=0.5",)), (2, 0)),
}


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGPU:
    """A stand-in GPU, yet without memory, for engines that are opened in this test."""
    found = FakeGPU.of(tmp_path / "gpu", 0)
    for name, value in installed(tmp_path / "packages", found, 2 * KNOWN_SHAPES["Qwen/Qwen3-1.7B"].parameters).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(opening, "checked_device", lambda device: "cuda")
    monkeypatch.setattr(opening, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(transfer, "gpu_buffers", gpu_buffers)
    return found


def opened(engine: PlannedEngine, model: Path, stack: ExitStack) -> VLLMEngine:
    [found] = opening.open_vllm([ModelConfig(name=str(model))], engine, 1)
    stack.callback(found.close)
    return found


def ask(engine: VLLMEngine) -> None:
    engine.submit(Request("0", "Hi", SamplingConfig(), 0))
    while not engine.poll():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_steps_go_through_on_the_stand_in(case: str, gpu: FakeGPU, model_folder: Path) -> None:
    """Trainer and engines hold what the plan says, moment by moment; whatever exceeds the GPU would raise."""
    (name, memory, host, changes), expected = CASES[case]
    plan = planner(name, memory, *changes, host=host)
    play, training = online(plan)
    engine = engines_of(plan)["reinforce"].model_copy(update={"max_length": 512})
    assert not play.problems and not training.problems and play.sharing
    assert (play.sharing.engines, engine.sleep) == expected
    resident, peak = play.memory.total - play.memory.engines, training.memory.total - training.memory.engines
    (gpu.folder / "total").write_text(str(int(memory * GIB)))
    gpu.hold("driver", 0.02 * memory * GIB)
    gpu.hold("trainer", training.memory.weights)
    with ExitStack() as stack:
        engines = [opened(engine, model_folder, stack)]
        for step in range(3):
            if engine.sleep:  # empty_cache
                gpu.hold("trainer", resident if step else training.memory.weights)
            if step == 1 and expected[0] > 1:
                engines.append(opened(engine, model_folder, stack))  # the start, when it is first met
            for one in engines:
                ask(one)
            for one in engines:
                one.rest()
            gpu.hold("trainer", peak)
    assert len(gpu.events("sleeps at level")) == (0 if not engine.sleep else 3 + 2 * (expected[0] - 1))
    assert set(gpu.events("sleeps")) <= set(gpu.events(f"level {engine.sleep}"))
    assert len(gpu.events("loads")) == (len(gpu.events("sleeps")) - expected[0] if engine.sleep == 2 else 0)


@pytest.mark.slow
def test_the_stand_in_refuses_what_vllm_would(gpu: FakeGPU, model_folder: Path) -> None:
    (gpu.folder / "total").write_text(str(24 * GIB))
    with ExitStack() as stack:
        gpu.hold("trainer", 7 * GIB)
        with pytest.raises(EngineError, match=r"Free memory on device cuda:0 .* on startup is less than desired GPU"):
            opened(PlannedEngine(max_length=512), model_folder, stack)  # 0.9, as vLLM takes by itself
        opened(PlannedEngine(max_length=512, memory=0.6), model_folder, stack)
        with pytest.raises(EngineError, match="Free memory on device"):  # a second engine of that share
            opened(PlannedEngine(max_length=512, memory=0.6), model_folder, stack)
        with pytest.raises(EngineError, match="No available memory for the cache blocks"):
            opened(PlannedEngine(max_length=512, memory=0.1), model_folder, stack)
        with pytest.raises(RuntimeError, match="CUDA out of memory"):
            gpu.hold("trainer", 20 * GIB)


@pytest.mark.slow
def test_what_does_not_fit_is_refused_with_numbers_and_remedies() -> None:
    plan = planner("taboo-qwen3-1.7b", 24)
    play, training = online(plan)
    assert play.problems and training.problems
    with pytest.raises(ConfigError) as refused:
        engines_of(plan)
    text = str(refused.value)
    assert "reinforce play: trainer and vLLM do not fit together: while playing 26.8 GiB and 2 x " in text
    assert "of 22.1 GiB" in text
    assert any(line.startswith("--set reinforce.lora={}: ") for line in play.advice)
    trusted = engines_of(planner("taboo-qwen3-1.7b", 24, "engine.memory=0.4"))["reinforce"]
    assert (trusted.memory, trusted.sleep) == (0.2, 0)  # the user knows better


@pytest.mark.slow
@pytest.mark.parametrize("memory", [44, 46, 48])
def test_remedies_do_help(memory: int) -> None:
    changes = ("reinforce.overlap=1",)
    play, _ = online(planner("taboo-qwen3-1.7b", memory, *changes))
    assert play.problems and play.advice
    for advice in play.advice:
        if advice.startswith("no start"):
            assert not online(planner("taboo-qwen3-1.7b", memory, *changes, "reinforce.evaluate_every=null"))[
                0
            ].problems
        else:
            assert not online(planner("taboo-qwen3-1.7b", memory, *changes, option_of(advice)))[0].problems


def option_of(advice: str) -> str:
    """Return the option that a line of advice begins with, ready to be pasted."""
    flag, option = advice.partition(":")[0].split(" ")
    assert flag == "--set"
    return option


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let plans of this machine see one GPU of 56 GiB."""
    gpu = replace(find_gpu("A100-80"), memory=56.0 * GIB)
    monkeypatch.setattr(specs, "gpus_at_hand", lambda model: (gpu, 1))
    monkeypatch.setattr(here, "gpus_at_hand", specs.gpus_at_hand)
    monkeypatch.setattr(here, "installed_vllm", lambda: ("0.32.0", False))
    monkeypatch.setattr(here, "memory_bytes", lambda: 512 * GIB)
    yield


@pytest.mark.slow
def test_dry_run_plan_and_run_agree(pretended: None, tmp_path: Path) -> None:
    config = load_config("taboo-qwen3-1.7b")
    plan = here.plan_here(config)
    play, training = online(plan)
    engine = here.planned_engines(config)["reinforce"]
    assert play.sharing is not None and (engine.memory, engine.sleep) == (play.sharing.each, 1)
    assert engine.concurrency == config.engine.concurrency
    assert play.sharing.describe() in play.notes
    assert play.memory.total <= play.room == USABLE * 56 * GIB
    assert training.memory.engines == 2 * ASLEEP


def tiny(model: Path, lora: dict[str, int] | None = None) -> RunConfig:
    options = {
        "model.name": str(model), "model.dtype": "float32", "model.prompt_style": "plain", "engine.max_length": 2048,
        "reinforce.steps": 2, "reinforce.games": 2, "reinforce.kl_coef": 0, "reinforce.evaluate_every": 2,
        "reinforce.evaluation_tasks": 1, "reinforce.sampling.thinking.enabled": False,
        "reinforce.sampling.max_new_tokens": 8, "reinforce.entropy_coef": 0.01, "reinforce.lora": lora,
        "game": {"name": "kuhn_poker"}, "arena.tasks": 1, "arena.sampling.thinking.enabled": False,
        "arena.entrants": ["bot:random", "bot:constant"],
    }  # fmt: skip
    return load_config("taboo-qwen3-1.7b", [f"{name}={json.dumps(value)}" for name, value in options.items()])


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [0, 2])
def test_copies_take_turns_only_where_the_trainer_rests(overlap: int) -> None:
    plan = planner("taboo-qwen3-1.7b", 44, ALL, f"reinforce.overlap={overlap}")
    play, _ = online(plan)
    if overlap:  # its weights change while they play
        assert play.sharing and play.sharing.shortage and play.sharing.engines == 3
    else:
        engine = engines_of(plan)["reinforce"]
        assert (engine.in_turn, engine.memory, engine.sleep) == (True, play.sharing and play.sharing.each, 1)
        assert "1 x 0.310 of each GPU for vLLM, start and snapshots in turn with the policy, asleep" in play.notes[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("level", "lora", "in_turn"), [(1, None, False), (2, None, True), (1, {"rank": 4}, False)])
def test_a_run_sleeps_while_it_trains(
    level: int,
    lora: dict[str, int] | None,
    in_turn: bool,
    gpu: FakeGPU,
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two online steps and an evaluation with the real trainer, workers and files; the GPU's memory is pretended.

    Adapters of the policy and of its start are in one vLLM, whole models in two, or in turn in one. At level 2
    every utterance ends with a token that the tokenizer does not know, which the rows count.
    """
    if level == 2:
        monkeypatch.setenv("FAKE_UNKNOWN", "1")
    (gpu.folder / "total").write_text(str(24 * GIB))
    monkeypatch.setattr("spag.engines.opening.backend_of", lambda model, engine: Backend.VLLM)
    apply = loop.apply_gradients

    def trains(policy: TrainedPolicy) -> object:
        gpu.hold("trainer", 20 * GIB)  # fails unless both engines sleep
        norm = apply(policy)
        gpu.hold("trainer", 5 * GIB)
        return norm

    monkeypatch.setattr(loop, "apply_gradients", trains)
    config = tiny(model_folder, lora)
    engine = PlannedEngine(**config.engine.model_dump() | {"memory": 0.35, "sleep": level, "in_turn": in_turn})
    run(config, tmp_path / "run", SilentReporter(), plan_engines=lambda config: {"reinforce": engine})
    order = [event.split()[-1] if "trainer" in event else event.split()[1] for event in gpu.events(
        "plays", "sleeps", "takes", "trainer holds 20")]  # fmt: skip
    squeezed = [one for at, one in enumerate(order) if at == 0 or order[at - 1] != one]
    trained = squeezed.index("20.00")
    assert squeezed[:trained] == ["takes", "plays", "sleeps"]
    assert squeezed.count("20.00") == 2 and squeezed.count("sleeps") >= 3  # two steps, and after the evaluation
    rows = [json.loads(row) for row in (tmp_path / "run" / "1-reinforce" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert all((row["unknown_tokens"] > 0) == (level == 2) for row in rows)
    assert (tmp_path / "run" / "1-reinforce" / "evaluations.jsonl").is_file()
    assert len({event.split()[0] for event in gpu.events("plays")}) == (1 if lora or in_turn else 2)
    played = {event.split()[-1] for event in gpu.events("plays")}
    assert played == ({"adapter-1", "adapter-2"} if lora else {"plays"})
    if lora:
        assert {event.split()[-1] for event in gpu.events("takes")} == {"adapter-1"}  # the start stays


def test_a_cpu_has_no_share_and_no_sleep() -> None:
    cpu = Device("CPU", 64.0 * GIB, 1e12, 200e9, 32e9, is_cpu=True)
    config = load_config("taboo-qwen3-1.7b", ["engine.backend=vllm"])
    assert engines_of(Planner(config, read_shape(config.model.name), cpu)) == {}


def test_who_plays_with_transformers_has_no_plan(pretended: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert here.planned_engines(load_config("taboo-qwen3-1.7b", ["engine.backend=transformers"])) == {}
    monkeypatch.setattr(here, "installed_vllm", lambda: None)
    config = load_config("taboo-qwen3-1.7b")
    assert here.planned_engines(config) == {}
    play, _ = online(here.plan_here(config))
    assert play.sharing is None  # as in the run: a plan does not assume vLLM where there is none


def test_a_run_without_online_phases_has_no_plan(pretended: None) -> None:
    assert here.planned_engines(load_config("qwen3")) == {}


def test_a_model_of_unknown_shape_needs_a_share_that_is_set(pretended: None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    changes = [f"model.name={tmp_path}"]
    with pytest.raises(ConfigError, match=r"share a GPU, and .* a gpt2 model .* set engine.memory to the share"):
        here.planned_engines(load_config("taboo-qwen3-1.7b", changes))
    assert _parts([*changes, "engine.memory=0.4"]) == {"reinforce": 0.2}  # the policy and its start
    assert _parts([*changes, "cluster.address=local", "cluster.online_workers=2"]) == {"reinforce": 0.45}


def test_what_only_other_nodes_plan_is_an_equal_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "gpus_at_hand", lambda model: None)
    changes = ["cluster.address=10.0.0.1:6379", "engine.memory=0.6"]
    assert _parts(changes) == {"reinforce": 0.3}
    assert _parts([*changes, "reinforce.evaluate_every=null"]) == {"reinforce": 0.6}
    assert _parts([*changes, "reinforce.lora={rank: 4}"]) == {"reinforce": 0.6}  # adapters share one vLLM
    assert _parts(["engine.memory=0.6"]) == {}  # a machine without GPUs
    for gpus, parts in ((4, {"reinforce": 0.45}), (0, {})):  # actors share their GPUs with no trainer
        monkeypatch.setattr(here, "cluster_gpus", lambda address, gpus=gpus: gpus)
        assert _parts([changes[0], "cluster.online_workers=2"]) == parts


def _parts(changes: list[str]) -> dict[str, float | None]:
    return {name: one.memory for name, one in here.planned_engines(load_config("taboo-qwen3-1.7b", changes)).items()}


def test_actors_share_their_own_gpus() -> None:
    changes = ("cluster.address=local", "cluster.online_workers=2", "reinforce.processes=2")
    plan = planner("taboo-qwen3-1.7b", 80, *changes, gpus=4)
    engine = engines_of(plan)["reinforce"]
    assert (engine.memory, engine.sleep) == (0.45, 0)  # two engines in each actor


@pytest.mark.slow
def test_estimates_say_how_the_gpu_is_shared(
    pretended: None, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spag.planning.here.read_shape", lambda name, **_: KNOWN_SHAPES["Qwen/Qwen3-1.7B"])
    changes = [f"model.name={model_folder}", "model.prompt_style=plain", "model.device=cpu"]
    found = estimate_run(load_config("taboo-qwen3-1.7b", changes), tmp_path / "run", SilentReporter())
    assert found.doubts == [] or "free space" in found.doubts[0]  # this machine's disk
    assert found.facts["engines of reinforce"].endswith("of each GPU for vLLM, asleep (level 1) while training")


def test_a_run_on_other_machines_is_not_judged_by_this_one(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spag.planning.here.read_shape", lambda name, **_: KNOWN_SHAPES["meta-llama/Llama-2-7b-hf"])
    monkeypatch.setattr(here, "memory_bytes", lambda: 4 * GIB)
    changes = [f"model.name={model_folder}", "model.prompt_style=plain", "model.device=cpu"]
    here_alone = estimate_run(load_config("taboo-qwen3-1.7b", changes), tmp_path / "run", SilentReporter())
    assert any("see spag plan" in doubt for doubt in here_alone.doubts) and "cluster" not in here_alone.facts
    elsewhere = load_config("taboo-qwen3-1.7b", [*changes, "cluster.address=10.0.0.1:6379"])
    found = estimate_run(elsewhere, tmp_path / "run", SilentReporter())
    assert not any("see spag plan" in doubt for doubt in found.doubts)
    assert "spag plan --gpu KIND --gpus N" in found.facts["cluster"]
