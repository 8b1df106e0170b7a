"""Plans of whole runs: what fits, what is named when it does not, hours by hand, and the command."""

import json
import shlex
import string
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spag.algorithms.credit import result_of
from spag.algorithms.imitation import Imitation, ImitationSettings
from spag.algorithms.settings import LoraConfig
from spag.algorithms.spag import Spag, SpagSettings
from spag.cli import main
from spag.config.files import load_config
from spag.config.schema import EngineConfig, PhaseConfig, RunConfig
from spag.core.episodes import Episode, TrainingSample
from spag.core.errors import ConfigError
from spag.core.progress import SilentReporter
from spag.core.types import Split
from spag.engines.transformers import slots
from spag.engines.vllm import transfer
from spag.games.base import Game
from spag.games.registry import get
from spag.models import forward
from spag.models.loading import load_tokenizer
from spag.planning import memory, samples
from spag.planning.estimate import estimate_run, run_notes
from spag.planning.hours import START_S, Assumptions, play_hours, training_hours
from spag.planning.memory import play_memory, training_memory
from spag.planning.plan import Planner, StagePlan
from spag.planning.samples import Work, play_work, teacher_work
from spag.planning.specs import GIB, GPUS, KNOWN_SHAPES, Device, find_gpu, gpu_of
from spag.runs.machine_checks import SLOT_TOKENS
from spag.runs.teachers import bot_games, teacher_path
from spag.storage.episodes import read_episodes
from spag.storage.store import write_rows

LLAMA = KNOWN_SHAPES["meta-llama/Llama-2-7b-hf"]
MATRICES = LLAMA.layers * LLAMA.layer
A100 = find_gpu("A100-80")
SMOLLM = KNOWN_SHAPES["smollm2-135m"]
ZERO_3 = ("imitation.parallel=deepspeed", "spag.parallel=deepspeed")
REPLICAS = ("imitation.parallel=replicas", "spag.parallel=replicas")
ADAPTER = (*REPLICAS, "imitation.lora.quantize=true", "spag.lora.quantize=true")


@cache
def planner(kind: str, gpus: int, *changes: str) -> Planner:
    return Planner(load_config("llama2-7b", changes), LLAMA, find_gpu(kind), gpus)


def planned(kind: str, gpus: int, *changes: str) -> list[StagePlan]:
    return planner(kind, gpus, *changes).stages


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [8, 32])
def test_the_papers_setting_fits(gpus: int) -> None:
    stages = planned("A100-80", gpus, *ZERO_3)
    assert not any(stage.problems for stage in stages)
    imitation = stages[0]
    # bfloat16 weights and their float32 masters, float32 gradients and two moments: 6 + 4 + 8 bytes a parameter, shared
    # out
    static = imitation.memory.weights + imitation.memory.gradients + imitation.memory.optimizer
    assert static == pytest.approx(18 * 6_738_415_616 / gpus)


@pytest.mark.slow
def test_one_small_gpu_cannot_train_all_weights_and_an_adapter_is_named() -> None:
    imitation = planned("RTX-4090", 1, *REPLICAS)[0]
    assert imitation.problems
    assert imitation.memory.total > 16 * 6.7e9 > imitation.room
    adapter, sharded = imitation.advice
    assert adapter.startswith("--set imitation.lora={}: ")
    assert sharded.startswith("--gpus 8 --set imitation.parallel=fsdp: ")
    for advice in (adapter, sharded):  # can be pasted behind the command
        changed = command(
            "llama2-7b", "--gpu", "rtx 4090", "--set", REPLICAS[0], *shlex.split(advice.rpartition(":")[0])
        ).output
        assert "imitation fits: " in changed
    with_adapter = planned("RTX-4090", 1, *ADAPTER)
    assert not any(one.problems for one in with_adapter)  # and in the arena adapters share one copy of the weights
    sharded = ("imitation.parallel=fsdp", "imitation.micro_batch_size=1")
    assert not planned("RTX-4090", 8, *sharded)[0].problems


@pytest.mark.slow
def test_on_several_gpus_sharding_is_the_nearest_change_and_it_does_fit() -> None:
    assert planned("A100-80", 8, *REPLICAS)[0].memory.total > 20 * LLAMA.parameters  # with DDP's buckets
    [advice] = planned("A100-80", 8, *REPLICAS)[0].advice
    assert advice.startswith("--set imitation.parallel=fsdp: ")
    assert not planned("A100-80", 8, *REPLICAS, "imitation.parallel=fsdp")[0].problems


@pytest.mark.slow
def test_a_phase_trains_all_weights_until_one_makes_an_adapter() -> None:
    small = {"algorithm": "imitation", "episodes": ["bot:random"], "max_episodes": 10, "global_batch_size": 2}
    adapters = ({"lora": {"rank": 4, "quantize": True}}, {}, {"lora": {"rank": 8}})
    phases = [small, *({**small, **one} for one in adapters)]
    config = RunConfig.model_validate({"game": {"name": "nim"}, "phases": phases})
    *trainings, arena = Planner(config, SMOLLM, A100).stages
    adapter = SMOLLM.adapter(LoraConfig(rank=4))
    assert [one.memory.gradients for one in trainings] == [4 * SMOLLM.parameters, *[4 * adapter] * 3]
    base = 4 * SMOLLM.parameters - 2 * SMOLLM.layers * SMOLLM.layer  # its maps in half precision
    assert trainings[1].memory.weights < 2 * SMOLLM.parameters  # in 4 bits, as it alone asks
    assert [one.memory.weights for one in trainings[2:]] == [base + 4 * adapter] * 2
    assert arena.memory.policies == 2 * 2 * SMOLLM.parameters  # the base, and the first phase's for the adapters


@pytest.mark.slow
def test_held_out_tasks_are_played_too_where_a_phase_keeps_them() -> None:
    def games(keep: bool) -> int:
        phase = {"algorithm": "spag", "template": "play", "keep_held_out": keep}
        config = RunConfig.model_validate({"game": {"name": "tic_tac_toe"}, "phases": [phase]})
        return Planner(config, SMOLLM, A100).stages[0].count

    train, held_out = (len(get("tic_tac_toe").tasks(split, None, 0)) for split in (Split.TRAIN, Split.HELD_OUT))
    assert held_out and [games(False), games(True)] == [train, train + held_out]


def test_a_game_without_bots_and_teacher_games_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    game = get("nim", take=7)
    monkeypatch.setattr(type(game), "bots", {})
    with pytest.raises(ConfigError, match="nim: a plan needs a bot or teacher games to stand in for play"):
        play_work(game, 23.0)


REFUSED = [
    (("imitation.processes=64",), "processes=64, but only 12 GPUs"),
    ((*ADAPTER, "imitation.parallel=fsdp"), "a model in 4 bits is not sharded"),
    (("model.dtype=float16",), "parallel=fsdp with model.dtype=float16"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "problem"), REFUSED)
def test_what_training_would_refuse_does_not_fit(changes: tuple[str, ...], problem: str) -> None:
    assert any(problem in found for found in planned("A100-80", 12, *changes)[0].problems)


@pytest.mark.slow
def test_adapters_for_each_role_are_not_sharded() -> None:
    stages = planned("A100-80", 8, "phases=[{algorithm: reinforce, parallel: fsdp, lora: {per_role: true}}]")
    assert any("lora.per_role: adapters take turns in whole models" in found for found in stages[1].problems)


@pytest.mark.slow
def test_each_role_has_an_adapter_with_its_moments() -> None:
    def memory(per_role: str) -> float:
        return planned("A100-80", 1, f"phases=[{{algorithm: reinforce, lora: {{rank: 64, per_role: {per_role}}}}}]")[
            1
        ].memory.total

    adapter = LLAMA.adapter(LoraConfig(rank=64))  # 4 bytes each of weights, gradients, two moments, and the average's
    assert memory("true") - memory("false") in (16 * adapter, 20 * adapter)


@pytest.mark.slow
def test_endpoints_and_bots_load_no_weights() -> None:
    def selfplay(opponents: str) -> float:
        return planned("A10G", 1, f"spag.opponents={opponents}")[1].memory.policies

    alone = selfplay("{self: 1}")
    assert selfplay("{openai:gpt-4o: 1, bot:constant: 1}") == alone
    assert selfplay("{openai:gpt-4o: 1, base: 1}") == 2 * alone
    arena = planned("A10G", 1, "arena.entrants=[base, bot:constant, openai:gpt-4o]")[-1]
    assert arena.memory.policies == alone and not arena.problems


def test_float32_takes_a_gpus_own_speed_in_it() -> None:
    hours = [planned("A100-80", 8, f"model.dtype={dtype}")[0].hours for dtype in ("bfloat16", "float32")]
    assert hours[1] > 3 * hours[0]  # 19.5 instead of 312 TFLOP/s, beside what moves between GPUs


@pytest.mark.slow
def test_what_training_would_refuse_is_not_advised() -> None:
    [advice] = planned("A100-80", 12, *REPLICAS)[0].advice  # a batch of 128 is shared by any number of GPUs
    assert advice.startswith("--set imitation.parallel=fsdp: ")
    assert not planned("A100-80", 16, "imitation.micro_batch_size=1")[0].problems
    half = planned("RTX-4090", 8, *REPLICAS, "model.dtype=float16")[0]
    assert half.advice and not any("fsdp" in advice for advice in half.advice)
    deep = replace(LLAMA, layers=400)  # in 4 bits 40 GiB
    in_4_bits = Planner(load_config("llama2-7b", ADAPTER), deep, find_gpu("RTX-4090")).stages[0]
    assert in_4_bits.problems and not in_4_bits.advice


def test_offload_leaves_nothing_but_gathered_weights_on_the_gpu() -> None:
    training = SpagSettings(parallel="fsdp", offload=True)
    found = training_memory(LLAMA, training, 4096, 514, number=2, processes=4, on_gpu=True)
    assert (found.weights, found.gradients, found.optimizer) == (0, 0, 0)
    assert found.host == 16 * LLAMA.parameters / 4
    kept = training_memory(
        LLAMA, training.model_copy(update={"offload": False}), 4096, 514, number=2, processes=4, on_gpu=True
    )
    assert kept.total - found.total == found.host
    on_cpu = training_memory(LLAMA, training, 4096, 514, number=2, processes=4, on_gpu=False)
    assert on_cpu.host == 0 and on_cpu.weights == kept.weights  # everything is there already


@pytest.mark.slow
def test_offload_needs_cpu_memory_for_all_processes() -> None:
    for host, short in ((128, False), (96, True)):  # 16 bytes a parameter: 100.4 GiB
        config = load_config("llama2-7b", ("imitation.parallel=fsdp", "imitation.offload=true"))
        training = Planner(config, LLAMA, A100, 4, host=host * GIB).stages[0]
        assert training.notes == ["CPU memory for offload: 100 GiB in all"]
        assert training.problems == ["CPU memory for offload: 100 GiB in all, but only 96 available"] * short


def test_replicas_hold_everything_and_buckets_of_gradients() -> None:
    alone, two = (training_memory(LLAMA, SpagSettings(), 4096, 514, 2, count, on_gpu=True) for count in (1, 2))
    assert alone.weights + alone.gradients + alone.optimizer == 16 * LLAMA.parameters
    assert two.total - alone.total == 4 * LLAMA.parameters


@pytest.mark.slow
def test_two_models_on_one_gpu_need_room_for_both() -> None:
    _, selfplay, _, arena = planned("A10G", 1)  # 24 GiB: 21.6 for vLLM, and bfloat16 weights of 12.6 GiB
    assert not selfplay.problems
    assert arena.problems == ["it needs more memory than there is"]
    assert arena.advice == ["--gpus 2 --set engine.tensor_parallel=2: 18.6 GiB each"]
    assert not planned("A10G", 2, "engine.tensor_parallel=2")[3].problems
    # of each model: bfloat16 weights, and a text of 4096 tokens in the cache, half a MiB a token
    assert selfplay.memory.policies == 2 * LLAMA.parameters and selfplay.memory.cache == 2 * GIB
    assert arena.memory.total == 2 * selfplay.memory.total
    assert selfplay.room == 0.9 * 24 * GIB


@pytest.mark.parametrize(
    ("changes", "layers", "advice"),
    [
        ((), 96, ["--gpus 4 --set engine.tensor_parallel=4: 12.7 GiB each"]),  # half of 36.9 GiB of weights is too much
        (("engine.backend=transformers", "engine.concurrency=128"), 32, ["--set engine.concurrency=32: 20.6 GiB each"]),
        (("engine.backend=transformers", "engine.concurrency=8"), 54, ["--set engine.concurrency=4: 22.5 GiB each"]),
        (("engine.backend=transformers",), 96, []),  # the weights alone are too many
    ],
)
def test_what_is_advised_for_play_does_fit(changes: tuple[str, ...], layers: int, advice: list[str]) -> None:
    config = load_config("llama2-7b", changes)
    selfplay = Planner(config, replace(LLAMA, layers=layers), find_gpu("A10G"), 1).stages[1]
    assert selfplay.problems == ["it needs more memory than there is"]
    assert selfplay.advice == advice


def test_gpus_that_cannot_split_the_heads_are_neither_accepted_nor_advised() -> None:
    large = replace(LLAMA, layers=96, heads=28, query_size=3584, kv_size=512)  # 28 heads, 4 of keys and values
    for gpus, fits in ((3, 2), (7, 4), (8, 4)):  # 7 divides 28, and is no multiple of 4
        config = load_config("llama2-7b", (f"engine.tensor_parallel={gpus}",))
        for stage in Planner(config, large, A100, gpus).stages[1::2]:
            assert len(stage.problems) == 1 and stage.problems[0].endswith(f"over as many GPUs; lower it to {fits}")
    for shape, advised in ((large, 1), (replace(large, heads=7, kv_size=3584), 0)):
        selfplay = Planner(load_config("llama2-7b"), shape, find_gpu("A10G"), 1).stages[1]
        assert selfplay.problems and len(selfplay.advice) == advised


def test_the_cache_has_room_for_a_text_as_vllm_splits_it() -> None:
    shape = replace(LLAMA, kv_size=1024, positions=2048)  # 8 heads of keys and values
    for gpus, each in ((1, 8), (2, 4), (8, 1), (16, 1), (32, 1)):
        cache = play_memory(shape, EngineConfig(tensor_parallel=gpus), 100.0, 2, 1, vllm=True).cache
        assert cache == 2048 * 2 * 32 * (each * 128) * 2  # tokens, keys and values, layers, sizes, bytes
    for length, taken in ((1024, 1024), (8192, 2048)):
        cache = play_memory(shape, EngineConfig(max_length=length), 100.0, 2, 1, vllm=True).cache
        assert cache == taken * shape.kv_bytes(2)


@pytest.mark.slow
def test_idle_gpus_are_named_and_copies_use_them() -> None:
    at_once = "32 utterances at once for each copy of the model (engine.concurrency)"
    one = planned("A100-80", 8, "engine.data_parallel=1")[1]
    assert one.notes == [f"1 of 8 GPUs play, {at_once}; 7 are idle: set engine.data_parallel=null"]
    eight = planned("A100-80", 8, "engine.concurrency=256")[1]  # by default every GPU plays
    assert eight.notes == [f"8 of 8 GPUs play, {at_once}"]
    start = START_S[False] / 3600
    assert (one.hours - start) / (eight.hours - start) == pytest.approx(8)
    pairs = planned("A100-80", 8, "engine.tensor_parallel=2", "engine.concurrency=128")[1]
    assert pairs.notes == eight.notes  # four copies of two GPUs
    ray = planned("A100-80", 8, "cluster.address=local")[1]
    assert ray.notes == eight.notes  # an actor holds one copy
    (alone,) = planned("A100-80", 8, "engine.backend=transformers")[1].notes
    assert alone == f"1 of 8 GPUs play, {at_once}; 7 are idle: set cluster.address=local"
    (few,) = planned("A100-80", 8, "cluster.address=local", "cluster.workers=2")[1].notes
    assert few == f"2 of 8 GPUs play, {at_once}; 6 are idle: set cluster.workers=null"
    (rest,) = planned("A100-80", 6, "engine.tensor_parallel=4")[1].notes
    assert rest == f"4 of 6 GPUs play, {at_once}; 2 are idle"  # no number of copies of four GPUs uses them


@pytest.mark.slow
def test_online_steps_are_played_by_every_training_process_or_by_actors_beside_them() -> None:
    def play(gpus: int, more: str = "", *changes: str) -> tuple[float, list[str]]:
        # more games in each process than play at once
        phase = f"phases=[{{algorithm: reinforce, parallel: fsdp, games: 768{more}}}]"
        [stage] = [one for one in planned("A100-80", gpus, phase, *changes) if one.name == "reinforce play"]
        return stage.hours - START_S[False] / 3600, stage.problems

    def on_ray(gpus: int, workers: int) -> tuple[float, list[str]]:
        return play(gpus, ", processes: 4", "cluster.address=auto", f"cluster.online_workers={workers}")

    assert play(8) == (pytest.approx(play(4)[0] / 2), [])
    assert on_ray(16, 12) == (pytest.approx(play(12)[0]), [])
    _, problems = on_ray(8, 5)
    assert problems == ["training and the actors that play need 9 GPUs, but only 8 available"]


@pytest.mark.slow
def test_a_step_plays_no_more_utterances_at_once_than_games() -> None:
    def hours(concurrency: int, *changes: str, games: int = 16) -> float:
        phase = f"phases=[{{algorithm: reinforce, parallel: fsdp, games: {games}, evaluate_every: null, processes: 4}}]"
        given = [phase, f"engine.concurrency={concurrency}", "arena.entrants=[]", *changes]
        return Planner(load_config("kuhn", given), LLAMA, A100, 8).stages[0].hours - START_S[False] / 3600

    assert hours(4) == hours(256)  # four games in each process; eight share the reading of the weights
    assert hours(256, games=32) < 1.2 * hours(256)
    on_actors = ("cluster.address=auto", "cluster.online_workers=2")
    assert hours(8, *on_actors) == hours(256, *on_actors) < hours(7, *on_actors)
    alone = ("phases.0.processes=1",)  # whose vLLM has a copy of the model on each of the eight GPUs
    assert hours(16, *alone) == hours(256, *alone) < hours(8, *alone)


def test_actors_without_gpus_need_none() -> None:
    changes = ["cluster.address=auto", "cluster.online_workers=2", "reinforce.processes=2"]
    play = next(
        one for one in Planner(load_config("kuhn", changes), SMOLLM, cpu(2e10, 15e10)).stages if "play" in one.name
    )
    assert play.problems == []


@pytest.mark.slow
def test_the_training_of_a_step_grows_with_its_games() -> None:
    """Beyond the games whose samples are counted too; equal samples are one, so in small games it grows less."""

    def samples_of(game: str, games: int) -> int:
        phase = {"algorithm": "reinforce", "steps": 1, "games": games, "evaluate_every": None}
        config = RunConfig.model_validate({"game": {"name": game}, "phases": [phase]})
        return next(stage.count for stage in Planner(config, SMOLLM, A100).stages if stage.unit == "samples")

    few, more, most = (samples_of("adversarial_taboo", games) for games in (128, samples.COUNTED, 4 * samples.COUNTED))
    assert more == pytest.approx(samples.COUNTED / 128 * few, rel=0.05) and most == 4 * more
    assert samples_of("kuhn_poker", 512) < 1.2 * samples_of("kuhn_poker", 128)


@pytest.mark.slow
def test_evaluations_are_games_too() -> None:
    def games(more: str) -> int:
        phase = f"phases=[{{algorithm: reinforce, steps: 100, games: 64, evaluation_tasks: 16{more}}}]"
        return planned("A100-80", 1, phase)[0].count

    assert games(", evaluate_every: null") == 6400
    assert games(", evaluate_every: 10") == 6400 + 10 * 2 * 16  # each task in both roles
    assert games(", evaluate_every: 30") == 6400 + 4 * 2 * 16  # after steps 30, 60, 90 and 100
    assert games(", evaluate_every: 10, evaluation_opponents: [start, ./other]") == 6400 + 2 * 10 * 2 * 16


WORK = Work(count=100, fed=1000.0, trained=50.0, length=10.0, largest=0.0, parts=50)


def test_operations_by_hand() -> None:
    def operations(work: Work, reference: bool = True, **options: object) -> float:
        settings = SpagSettings.model_validate({"gradient_checkpointing": False, **options})
        taken = Assumptions(mfu=1.0)
        hours = training_hours(LLAMA, settings, work, 1.0, A100, 1, taken, reference=reference, number=2)
        return hours * 3600 * A100.flops

    forward = 2 * MATRICES + 2 * 32 * 4096 * 10  # a token, with its attention to half of 10 others
    head = 2 * 32_000 * 4096
    # forward, backward twice that, the reference; the head again
    assert operations(WORK) == pytest.approx(1000 * forward * (3 + 1) + 50 * head * (4 + 1))
    assert operations(WORK, gradient_checkpointing=True) == pytest.approx(1000 * forward * 5 + 50 * head * 5)
    assert operations(WORK, reference=False) == pytest.approx(1000 * forward * 3 + 50 * head * 4)
    # weights that are not trained need no gradients of their own, and the head is one of them
    assert operations(WORK, lora={}) == pytest.approx(1000 * forward * 3 + 50 * head * 4)
    # two passes over 50 samples: the reference sees each once
    again = replace(WORK, passes=2.0)
    assert operations(again) == pytest.approx(1000 * forward * 3.5 + 50 * head * 4.5)
    # 6.5e9 parameters x 10 x 1e6 tokens at 35 % of 312 TFLOP/s: 593 s, and a little attention
    big = replace(WORK, count=2000, fed=1e6, trained=0.0)
    hours = training_hours(LLAMA, SpagSettings(), big, 1.0, A100, 1, Assumptions(), reference=True, number=2)
    assert 3600 * hours == pytest.approx(10 * 6.476e9 * 1e6 / (0.35 * 312e12), rel=1e-3)


@pytest.mark.slow
def test_a_reference_costs_what_passes_over_the_samples_share() -> None:
    def work(**options: object) -> Work:
        phase = PhaseConfig.model_validate({"algorithm": "imitation", "episodes": ["bot:random"], **options})
        return teacher_work(phase, phase.settings, get("kuhn_poker"))

    once = work()
    assert once.passes == 1
    assert (work(epochs=3).passes, work(epochs=3).count) == (3, 3 * once.count)
    assert work(max_steps=10, global_batch_size=64).passes == 640 / once.count


def test_sharded_training_of_short_samples_waits_for_weights() -> None:
    """A micro-batch moves 8 bytes a parameter: on 32 GPUs of machines with 50 GB/s between them that is what counts."""
    work = replace(WORK, count=6400, fed=0.0, trained=0.0, parts=3200)
    arguments = (A100, 32, Assumptions())
    sharded, replicas = (
        training_hours(LLAMA, SpagSettings(parallel=kind), work, 50.0, *arguments, reference=True, number=2)
        for kind in ("fsdp", "replicas")
    )
    moved = 100 * 8 * LLAMA.parameters * 31 / 32  # 100 rounds of 32 micro-batches
    assert sharded == pytest.approx(moved / (50e9 * 0.6) / 3600)
    assert replicas == pytest.approx(sharded / 2)  # 50 updates, each of which adds up 8 bytes a parameter
    # in one machine weights go over NVLink, six times as fast
    near = training_hours(
        LLAMA, SpagSettings(parallel="fsdp"), work, 50.0, A100, 8, Assumptions(), reference=True, number=2
    )
    assert near == pytest.approx(400 * 8 * LLAMA.parameters * 7 / 8 / (300e9 * 0.6) / 3600)


def test_a_decoding_step_reads_weights_and_cache() -> None:
    read = 2 * (MATRICES + LLAMA.embedding) + 32 * 300 * 524_288
    work = replace(WORK, count=10, fed=0.0, trained=3200.0, length=300)
    hours = play_hours(LLAMA, EngineConfig(), work, find_gpu("H100"), 1, 32.0, 2, Assumptions(bandwidth=1.0))
    assert hours == pytest.approx(100 * (read / 3.35e12) / 3600)
    halved = EngineConfig(tensor_parallel=2)
    assert play_hours(LLAMA, halved, work, find_gpu("H100"), 1, 32.0, 2, Assumptions(bandwidth=1.0)) == hours / 2
    one_head = replace(LLAMA, kv_size=LLAMA.kv_size // 32)  # each of two GPUs has all keys and values
    read = one_head.layers * one_head.layer + one_head.embedding + 32 * 300 * 524_288 / 32
    hours = play_hours(one_head, halved, work, find_gpu("H100"), 1, 32.0, 2, Assumptions(bandwidth=1.0))
    assert hours == pytest.approx(100 * (read / 3.35e12) / 3600)


def shipped() -> list[Episode]:
    return list(read_episodes(teacher_path(get("adversarial_taboo"))))


def won_utterances(games: list[Episode]) -> int:
    """Count what winners said until their games ended."""
    ends = [(one, result_of(one, get("adversarial_taboo"))) for one in games]
    return sum(end.rewards[said.role] > 0 for one, end in ends for said in one.history[: end.length])


@pytest.mark.slow
def test_counts_follow_config_files_and_assumptions(tmp_path: Path) -> None:
    rows = tmp_path / "sft.json"
    rows.write_text(json.dumps([{"instruction": "Say hello.", "input": "", "output": "Hello!"}] * 500))
    spag = {"algorithm": "spag", "iterations": 2, "tasks": 1000, "repeats": 3, "sft_data": rows}
    phases = [{"algorithm": "imitation", "max_episodes": 100}, spag]
    config = RunConfig.model_validate({"phases": phases, "arena": {"tasks": 50}})
    teacher = shipped()
    used = [one for one in teacher if get("adversarial_taboo").split_of(one.task) is Split.TRAIN]
    taught, said = won_utterances(used) / len(used), won_utterances(teacher[:128]) / 128
    assert 2.5 < said < 3.5  # a replication has 2.94 in a decided game
    found = {decided: Planner(config, LLAMA, A100, 8, Assumptions(decided=decided)).stages for decided in (0.68, 0.5)}
    for decided, stages in found.items():
        assert [(one.name, one.times, one.count, one.games) for one in stages] == [
            ("imitation", 1, round(100 * taught), 100),
            ("spag self-play", 2, 3000, 0),
            ("spag", 2, round(3000 * decided * said) + 500, round(3000 * decided)),
            ("arena", 1, 12 * 50, 0),  # four players, a bot among them: six pairs, both ways
        ]


@pytest.mark.slow
def test_games_of_bots_are_counted_on_a_few_hundred_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def counted(name: str, limit: int | None, seed: int, game: Game) -> Iterator[Episode]:
        for one in bot_games(name, limit, seed, game):
            played.append(1)
            yield one

    monkeypatch.setattr(samples, "bot_games", counted)
    game = get("kuhn_poker")

    def work(sources: list[str], count: int | None) -> Work:
        played.clear()
        settings = {"episodes": sources, "max_episodes": count, "global_batch_size": 4, "micro_batch_size": 4}
        phase = PhaseConfig.model_validate({"algorithm": "imitation", **settings})
        return teacher_work(phase, phase.settings, game)

    default = work(["bot:random"], None)
    assert (default.games, len(played)) == (200, 200)
    few = work(["bot:random"], 300)
    credited = Imitation(ImitationSettings()).credit(list(bot_games("bot:random", 300, 0, game)), game, None)
    assert few.count == len(credited)
    many = work(["bot:random"], 10**9)
    assert (many.games, len(played)) == (10**9, samples.COUNTED)
    for total, one in ((many.count, few.count), (many.fed, few.fed), (many.parts, few.parts)):
        assert total / 10**9 == pytest.approx(one / 300, rel=0.1)
    both = work(["bot:random", "bot:equilibrium"], 10**6)
    assert len(played) == samples.COUNTED and both.games == 10**6  # half of each


def test_the_samples_of_a_game_share_an_update_if_they_share_prefixes(tmp_path: Path) -> None:
    path, said = tmp_path / "samples.jsonl", "I say seven words in every turn"
    texts = [(game, f"{game} game", turn) for game in string.ascii_letters for turn in range(4)]
    write_rows(path, [
        TrainingSample(prompt=f"{text}{f' {said}' * turn}", completion=f" {said}", episode_id=game)
        for game, text, turn in texts
    ])  # fmt: skip

    def fed(template: str) -> float:
        batch = {"global_batch_size": 4, "micro_batch_size": 4, "max_steps": 13}
        settings = {"algorithm": "imitation", "episodes": [str(path)], "template": template, **batch}
        phase = PhaseConfig.model_validate(settings)
        return teacher_work(phase, phase.settings, get("nim")).fed

    assert fed("play") == pytest.approx(13 * (2 + 4 * 7))  # each update is a game, whose last text holds the others
    assert fed("random") > 1.5 * fed("play")


@pytest.mark.slow
def test_bots_and_files_have_their_shares(tmp_path: Path) -> None:
    """Games of a bot outnumber those of a file; what is counted is drawn from both by how many there are."""
    game, path = get("tic_tac_toe"), tmp_path / "games.jsonl"
    write_rows(path, bot_games("bot:perfect", 100, 1, game))

    def work(*sources: str, count: int) -> Work:
        settings = {"episodes": list(sources), "max_episodes": count}
        phase = PhaseConfig.model_validate({"algorithm": "imitation", **settings})
        return teacher_work(phase, phase.settings, game)

    bot, file = "bot:random", str(path)
    assert work(file, count=10**6).games == 100  # a file has no more games than it has
    assert work(file, bot, count=60).games == 60
    each = {source: work(source, count=100).count / 100 for source in (bot, file)}
    many = work(file, bot, count=10**6)
    assert each[bot] > each[file] + 1  # perfect play ends in ties: the mean tells who was counted
    assert many.count / many.games == pytest.approx(each[bot], rel=0.05)
    equal = work(file, bot, count=100)
    assert equal.count / equal.games == pytest.approx((each[bot] + each[file]) / 2, rel=0.05)


@pytest.mark.slow
def test_a_plan_says_that_no_instruction_data_is_mixed_in(tmp_path: Path) -> None:
    rows = tmp_path / "sft.json"
    rows.write_text(json.dumps([{"instruction": "Say hello.", "input": "", "output": "Hello!"}]))
    for overrides, warned in (((), True), ((f"spag.sft_data={rows}",), False), (("spag.sft_coef=0",), False)):
        notes = run_notes(load_config("llama2-7b", overrides))
        assert notes.get("instruction data", "").startswith("spag.sft_data is not set") == warned
        assert "imitation.sft_data" not in str(notes)


@pytest.mark.slow
def test_another_game_is_planned_on_its_own_play() -> None:
    phases = [
        {"algorithm": "imitation", "episodes": ["bot:random"], "max_episodes": 5},
        {"algorithm": "spag", "tasks": 5, "repeats": 20},
    ]
    config = RunConfig.model_validate({"game": {"name": "nim"}, "phases": phases})
    found = Planner(config, KNOWN_SHAPES["smollm2-135m"], A100).stages
    game = config.game.build()
    name = next(name for name in ("random", *game.bots) if name in game.bots)
    games = list(bot_games(f"bot:{name}", samples.EXAMPLES, 0, game))
    said = sum(result_of(one, game).length for one in games)
    assert play_work(game, 23.0).parts == pytest.approx(said / len(games))
    credited = Spag(SpagSettings()).credit(games, game, None)
    assert found[2].count == round(100 * len(credited) / len(games))  # all games count: taboo's share is not theirs
    assert not any(stage.problems for stage in found)


def test_phases_of_one_algorithm_are_told_apart(tmp_path: Path) -> None:
    small = {"global_batch_size": 4, "micro_batch_size": 4, "sft_coef": 0}
    phases = [
        {"algorithm": "imitation", "episodes": ["bot:random"], "max_episodes": 40, **small},
        {"algorithm": "spag", "iterations": 1, "tasks": 6, **small},
        {"algorithm": "imitation", "episodes": ["bot:random"], "max_episodes": 80, **small, "max_steps": 1},
        {"algorithm": "spag", "iterations": 2, "tasks": 12, **small},
    ]
    model = {"name": "smollm2-135m", "dtype": "float32", "device": "cpu"}
    game = {"name": "kuhn_poker", "hands": 12}
    config = RunConfig.model_validate({"model": model, "game": game, "phases": phases, "arena": {"tasks": 2}})
    found = {one.name: one for one in Planner(config, KNOWN_SHAPES["smollm2-135m"], A100).stages}
    names = ["imitation-1", "spag-2 self-play", "spag-2", "imitation-3", "spag-4 self-play", "spag-4", "arena"]
    assert list(found) == names
    assert [found[name].count for name in ("spag-2 self-play", "spag-4 self-play")] == [6, 12]
    assert [found[name].games for name in ("imitation-1", "imitation-3")] == [40, 80]
    works = {one.name: one.work for one in estimate_run(config, tmp_path / "run", SilentReporter()).stages}
    assert works["2-spag/iteration-1/play"] == "6 games" and works["4-spag/iteration-1/play"] == "12 games"
    for folder, name in (("1-imitation", "imitation-1"), ("3-imitation", "imitation-3")):
        assert works[f"{folder}/play"] == "games of bots"
        assert works[f"{folder}/train"].startswith(f"about {found[name].count:,} samples")
    assert works["3-imitation/train"].endswith(", 1 update")


@pytest.mark.slow
def test_too_few_games_to_imitate_are_named_with_the_option_that_names_more() -> None:
    notes = run_notes(load_config("llama2-7b"))
    assert "--set imitation.episodes=[games.jsonl]" in notes["imitation data"]
    twice = "phases=[{algorithm: imitation, lora: {}}, {algorithm: imitation, lora: {}}, {algorithm: spag}]"
    assert "--set phases.1.episodes=[games.jsonl]" in run_notes(load_config("llama2-7b", [twice]))["imitation data"]


def test_constants_are_still_those_of_what_imports_torch() -> None:
    assert (forward.CHUNK, forward.CHUNK_ON_GPU) == (memory.CHUNK, memory.CHUNK_ON_GPU)
    assert slots.GROWTH == SLOT_TOKENS
    assert transfer.BUFFER_BYTES == memory.BUFFER


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments], env={"COLUMNS": "200"})


@pytest.mark.slow
def test_the_command_prints_the_plan_and_tells_by_its_status_whether_it_fits() -> None:
    fits = command("llama2-7b", "--gpus", "8", "--set", ZERO_3[0], "--set", ZERO_3[1])
    assert fits.exit_code == 0
    assert "37,601 games" in fits.output and "imitation fits:" in fits.output and "mfu=0.35" in fits.output
    small = command("llama2-7b", "--gpu", "rtx 4090", "--set", REPLICAS[0], "--set", REPLICAS[1])
    assert small.exit_code == 3
    assert "imitation does not fit" in small.output and "lora={}" in small.output


@pytest.mark.slow
def test_json_holds_the_same_figures_and_assumptions_can_be_changed() -> None:
    slow, fast = (
        json.loads(command("demo", "--gpus", "1", "--json", "--assume", f"mfu={mfu}").output) for mfu in (0.2, 0.4)
    )
    for before, after in zip(slow["stages"], fast["stages"], strict=True):
        start = START_S[False] / 3600
        if before["unit"] == "samples":
            assert before["hours"] - start == pytest.approx(2 * (after["hours"] - start))
    assert slow["total"]["hours"] > fast["total"]["hours"]
    assert slow["assumptions"]["mfu"] == 0.2
    assert slow["parameters"] == 134_515_008
    assert not any(one["refusals"] or one["shortage"] for one in slow["stages"]) and slow["total"]["fits"]


@pytest.mark.parametrize(("arguments", "message"), [
    (("demo", "--gpu", "V100"),
    "error: --gpu V100: no such kind of GPU is known (known: A100-40, A100-80, H100, H200, L40S, A10G"),
    (("demo", "--set", "model.name=org/unknown"), "error: org/unknown: its config cannot be read"),
    (("demo", "--assume", "turns=1"), "error: --assume turns=1: there is no assumption turns"),
    (("demo", "--assume", "mfu=2"), "error: --assume mfu=2: input should be less than or equal to 1"),
    (("demo", "--assume", "utterance=-1"), "error: --assume utterance=-1: input should be greater than 0"),
    (("demo", "--assume", "utterance"), "error: --assume utterance=: input should be a valid number"),
    (("demo", "--assume", "utterance=nan"), "error: --assume utterance=nan: input should be a finite number"),
])  # fmt: skip
def test_errors_are_one_line_and_exit_status_2(arguments: tuple[str, ...], message: str) -> None:
    result = command(*arguments)
    assert result.exit_code == 2
    assert result.output.startswith(message) and result.output.count("\n") == 1


def test_gpus_are_found_however_they_are_written() -> None:
    assert find_gpu("rtx_4090") is find_gpu("RTX 4090") is find_gpu("RTX-4090")
    assert {gpu.name: gpu.memory / GIB for gpu in GPUS}["H200"] == 141
    with pytest.raises(ConfigError, match="RTX-3090"):
        find_gpu("")


def test_a_gpu_that_torch_names_gets_the_speeds_of_its_datasheet() -> None:
    found = gpu_of("NVIDIA A100-SXM4-80GB", 79.3 * GIB)
    assert (found.flops, found.bandwidth, found.memory) == (A100.flops, A100.bandwidth, 79.3 * GIB)
    assert gpu_of("NVIDIA GeForce RTX 4090", 24.0 * GIB).flops == find_gpu("RTX-4090").flops
    other = gpu_of("NVIDIA B200", 180.0 * GIB)
    assert "speeds of H200" in other.name and other.flops == find_gpu("H200").flops


def cpu(half: float, full: float) -> Device:
    return Device("CPU, 2 cores", 24.0 * GIB, half, 200e9, 32e9, is_cpu=True, full_flops=full)


@pytest.mark.parametrize(("half", "full", "number"), [(4e11, 2e11, 2), (2e10, 15e10, 4)])
def test_a_cpu_computes_in_what_is_faster_there(half: float, full: float, number: int) -> None:
    auto = Planner(load_config("demo"), SMOLLM, cpu(half, full))
    fixed = Planner(load_config("kuhn"), SMOLLM, cpu(half, full))
    assert (auto.number, fixed.number) == (number, 4)
    assert Planner(load_config("demo"), SMOLLM, A100).number == 2


@pytest.mark.slow
def test_processes_share_the_cores_of_a_machine() -> None:
    def hours(*changes: str) -> list[float]:
        config = load_config("kuhn", ["imitation.micro_batch_size=4", *changes])
        return [one.hours for one in Planner(config, SMOLLM, cpu(2e10, 15e10)).stages]

    assert hours("imitation.processes=2", "reinforce.processes=2") == pytest.approx(hours(), rel=0.05)
    apart = hours("imitation.processes=2", "cluster.address=auto")
    assert apart[0] < 0.7 * hours()[0]


@pytest.mark.slow
def test_shipped_presets_take_what_was_measured() -> None:
    """Resident memory in float32: `kuhn` 3.55 GiB (11 steps), its imitation 3.24."""
    found = {one.name: one for one in Planner(load_config("kuhn"), SMOLLM, cpu(2e10, 15e10)).stages}
    assert found["imitation"].memory.total / GIB == pytest.approx(3.24, rel=0.1)
    assert found["reinforce"].memory.total / GIB == pytest.approx(3.55, rel=0.1)
    assert not any(one.problems for one in found.values())


@pytest.mark.slow
def test_online_policies_are_those_that_the_process_holds() -> None:
    def copies(device: Device, *changes: str) -> float:
        planner = Planner(
            load_config("kuhn", ["model.dtype=float32", "engine.backend=transformers", *changes]), SMOLLM, device
        )
        [found] = [one for one in planner.stages if one.name == "reinforce"]
        return found.memory.policies / (4 * SMOLLM.parameters)

    here, moving = cpu(2e10, 15e10), "reinforce.reference.ema=0.1"
    assert copies(here) == copies(here, "reinforce.average_decay=0") + 1 == 1  # the average alone
    assert copies(here, moving) == copies(A100) == 2  # and a reference in memory
    assert copies(here, "reinforce.overlap=1") == 2  # and the engine's own
    assert copies(here, "reinforce.overlap=2") == 4  # and two that wait to play
    assert copies(here, "model.dtype=bfloat16") == 1.5
    assert copies(here, "reinforce.opponents={self: 1, start: 1}") == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adversarial_taboo", "kuhn_poker", "tic_tac_toe"])
def test_pieces_are_about_as_many_as_tokens(name: str) -> None:
    tokenizer, game = load_tokenizer("smollm2-135m"), get(name)
    said = [one for game_played in samples.examples(game, 23.0)[:16] for one in samples.utterances(game_played, game)]
    for texts in ([one.prompt for one in said], [one.completion for one in said]):
        tokens = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
        assert sum(len(samples.pieces(text)) for text in texts) == pytest.approx(tokens, rel=0.1)


@pytest.mark.slow
def test_equal_beginnings_are_read_once_and_equal_utterances_generated_once_if_merged() -> None:
    kuhn, taboo = (
        [play_work(get(name), 23.0, merged=merged) for merged in (False, True)]
        for name in ("kuhn_poker", "adversarial_taboo")
    )
    # [bet], [call], ...: two marks, a word and the end; 12 decisions with two moves each stand for all games
    assert kuhn[0].trained == pytest.approx(4 * kuhn[0].parts)
    assert kuhn[1].trained == pytest.approx(4 * 24 / samples.EXAMPLES)
    assert taboo[0].trained == pytest.approx(taboo[1].trained)
