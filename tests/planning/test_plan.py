"""Plans of whole runs: what fits, what is named when it does not, hours by hand, and the command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spag.cli import SpagGroup
from spag.cli.plan import plan_command
from spag.config.files import load_config
from spag.config.schema import EngineConfig, OfflineRLConfig, RunConfig
from spag.core.errors import ConfigError
from spag.planning import GIB, GPUS, Assumptions, Planner, StagePlan, find_gpu, memory
from spag.planning.hours import Load, play_hours, training_flops, training_hours
from spag.planning.memory import training_memory
from spag.planning.specs import KNOWN_SHAPES
from spag.training import policy

LLAMA = KNOWN_SHAPES["meta-llama/Llama-2-7b-hf"]
ZERO_3 = ("imitation.training.parallel=deepspeed", "offline_rl.parallel=deepspeed")
REPLICAS = ("imitation.training.parallel=replicas", "offline_rl.parallel=replicas")
ADAPTER = (*REPLICAS, "imitation.training.lora.quantize=true", "offline_rl.lora.quantize=true")


def planned(kind: str, gpus: int, *changes: str) -> list[StagePlan]:
    return list(Planner(load_config("llama2-7b", changes), LLAMA, gpus, find_gpu(kind)).stages())


@pytest.mark.parametrize("gpus", [8, 32])
def test_the_papers_setting_fits(gpus: int) -> None:
    stages = planned("A100-80", gpus, *ZERO_3)
    assert not any(stage.problems for stage in stages)
    imitation = stages[0]
    # bfloat16 weights and their float32 masters, float32 gradients and two moments: 6 + 4 + 8 bytes a parameter, shared out
    static = imitation.memory.weights + imitation.memory.gradients + imitation.memory.optimizer
    assert static == pytest.approx(18 * 6_738_415_616 / gpus)


def test_one_small_gpu_cannot_train_all_weights_and_qlora_is_named() -> None:
    imitation = planned("RTX-4090", 1, *REPLICAS)[0]
    assert imitation.problems
    assert imitation.memory.total > 16 * 6.7e9 > imitation.room
    assert imitation.advice[0].startswith("lora={quantize: true} (QLoRA)")
    assert imitation.advice[1].startswith("8 GPUs, parallel=fsdp")
    with_adapter = planned("RTX-4090", 1, *ADAPTER)
    assert not any(one.problems for one in with_adapter)  # and in the arena adapters share one copy of the weights


def test_on_several_gpus_sharding_is_the_nearest_change_and_it_does_fit() -> None:
    assert planned("A100-80", 8, *REPLICAS)[0].memory.total > 20 * LLAMA.parameters  # with DDP's buckets
    [advice] = planned("A100-80", 8, *REPLICAS)[0].advice
    assert advice.startswith("parallel=fsdp:")
    assert not planned("A100-80", 8, *REPLICAS, "imitation.training.parallel=fsdp")[0].problems


@pytest.mark.parametrize(("changes", "problem"), [
    (("imitation.training.parallel=fsdp",), "global_batch_size=128 is not a multiple of 24"),
    (("imitation.training.processes=64",), "processes=64, but there are 12 GPUs"),
    ((*ADAPTER, "imitation.training.parallel=fsdp"), "a model in 4 bits is not sharded"),
])  # fmt: skip
def test_what_training_would_refuse_does_not_fit(changes: tuple[str, ...], problem: str) -> None:
    assert any(problem in found for found in planned("A100-80", 12, *changes)[0].problems)


def test_offload_leaves_nothing_but_gathered_weights_on_the_gpu() -> None:
    training = OfflineRLConfig(parallel="fsdp", offload=True)
    found = training_memory(LLAMA, training, 4096, 514, dtype="bfloat16", processes=4)
    assert (found.weights, found.gradients, found.optimizer) == (0, 0, 0)
    assert found.host == 16 * LLAMA.parameters / 4
    kept = training_memory(LLAMA, training.model_copy(update={"offload": False}), 4096, 514, dtype="bfloat16", processes=4)
    assert kept.total - found.total == found.host


def test_replicas_hold_everything_and_buckets_of_gradients() -> None:
    alone, two = (training_memory(LLAMA, OfflineRLConfig(), 4096, 514, dtype="bfloat16", processes=count) for count in (1, 2))
    assert alone.weights + alone.gradients + alone.optimizer == 16 * LLAMA.parameters
    assert two.total - alone.total == 4 * LLAMA.parameters


def test_two_models_on_one_gpu_need_room_for_both() -> None:
    _, selfplay, _, arena = planned("A10G", 1)  # 24 GiB: 21.6 for vLLM, and bfloat16 weights of 12.6 GiB
    assert not selfplay.problems
    assert "2 models share a GPU" in arena.problems[0]
    assert any(advice.startswith("engine.tensor_parallel=2") for advice in arena.advice)
    assert not planned("A10G", 2, "engine.tensor_parallel=2")[3].problems
    # what vLLM leaves for the cache: 0.9 x 24 - 2 GiB less the weights, in tokens of half a MiB
    tokens = int((0.9 * 24 * GIB - 2 * GIB - 2 * LLAMA.parameters) / LLAMA.kv_bytes(2))
    assert f"{tokens:,} tokens" in selfplay.notes[0]


def test_idle_gpus_are_named_and_copies_use_them() -> None:
    one = planned("A100-80", 8)[1]
    assert "7 of 8 GPUs play no games; set engine.data_parallel=8 and engine.concurrency=256" in one.notes
    eight = planned("A100-80", 8, "engine.data_parallel=8", "engine.concurrency=256")[1]
    assert not any("play no games" in note for note in eight.notes)
    start = Assumptions().stage_minutes / 60
    assert (one.hours - start) / (eight.hours - start) == pytest.approx(8)


def test_online_steps_are_played_by_every_training_process_or_by_actors_beside_them() -> None:
    online = (*ZERO_3, "algorithm=reinforce", "online.parallel=fsdp", "online.games=64")
    on_ray = (*online, "cluster.address=auto", "online.processes=4")

    def play(gpus: int, *changes: str) -> tuple[float, list[str]]:
        [stage] = [stage for stage in planned("A100-80", gpus, *changes) if stage.name == "online play"]
        return stage.hours - Assumptions().stage_minutes / 60, stage.problems

    assert play(8, *online) == (pytest.approx(play(4, *online)[0] / 2), [])
    assert play(16, *on_ray, "cluster.online_workers=12") == (pytest.approx(play(12, *online)[0]), [])
    _, problems = play(8, *on_ray, "cluster.online_workers=5")
    assert problems == ["training and the actors that play need 9 GPUs, but there are 8"]


def test_operations_by_hand() -> None:
    load = Load(count=100, read=1000.0, written=50.0, length=10.0, unique=100)
    forward = 2 * LLAMA.matrices + 2 * 32 * 4096 * 10  # a token, with its attention to half of 10 others
    head = 2 * 32_000 * 4096
    full = training_flops(LLAMA, OfflineRLConfig(gradient_checkpointing=False), load)
    assert full == 1000 * forward * (3 + 1) + 50 * head * (4 + 1)  # forward, backward twice that, the reference; the head again
    assert training_flops(LLAMA, OfflineRLConfig(), load) == 1000 * forward * 5 + 50 * head * 5
    adapter = OfflineRLConfig.model_validate({"gradient_checkpointing": False, "lora": {}})
    assert training_flops(LLAMA, adapter, load) == 1000 * forward * 3 + 50 * head * 4
    # 6.5e9 parameters x 8 (and 2) x 1e6 tokens at 35 % of 312 TFLOP/s: 592 s, and a little attention
    big = replace(load, count=2000, unique=2000, read=1e6, written=0.0)
    hours = training_hours(LLAMA, OfflineRLConfig(), big, find_gpu("A100-80"), 1, Assumptions())
    assert 3600 * hours == pytest.approx(10 * 6.476e9 * 1e6 / (0.35 * 312e12), rel=1e-3)


def test_sharded_training_of_short_samples_waits_for_weights() -> None:
    """A micro-batch of 700 tokens moves 8 bytes a parameter: on 32 GPUs of machines with 50 GB/s between them that takes longer."""
    load = Load(count=6400, read=6400 * 350.0, written=0.0, length=350.0, unique=6400)
    hours = training_hours(LLAMA, OfflineRLConfig(parallel="fsdp"), load, find_gpu("A100-80"), 32, Assumptions())
    moved = 100 * 8 * LLAMA.parameters * 31 / 32  # 100 rounds of 2 x 32 samples
    assert hours == pytest.approx(moved / (50e9 * 0.6) / 3600)


def test_a_decoding_step_reads_weights_and_cache() -> None:
    taken = Assumptions(bandwidth_share=1.0, step_overhead_ms=1.0)
    read = 2 * (LLAMA.matrices + LLAMA.embedding) + 32 * 300 * 524_288
    load = Load(count=10, read=0.0, written=3200.0, length=300)
    hours = play_hours(LLAMA, EngineConfig(), load, find_gpu("H100"), 1, 32.0, "bfloat16", taken)
    assert hours == pytest.approx(100 * (read / 3.35e12 + 0.001) / 3600)


def test_counts_follow_config_files_and_assumptions(tmp_path: Path) -> None:
    rows = tmp_path / "sft.json"
    rows.write_text(json.dumps([{"instruction": "Say hello.", "input": "", "output": "Hello!"}] * 500))
    sections = {"selfplay": {"tasks": 1000, "repeats": 3}, "arena": {"tasks": 50}, "imitation": {"max_episodes": 100}}
    config = RunConfig.model_validate({"iterations": 2, "offline_rl": {"sft_data": rows}, **sections})
    assert [(one.name, one.times, one.count) for one in Planner(config, LLAMA, 8, find_gpu("A100-80")).stages()] == [
        ("imitation", 1, 294),  # 100 games x 2.94 utterances of the winner
        ("self-play", 2, 3000),
        ("offline RL", 2, round(3000 * 0.68 * 2.94) + 500),
        ("arena", 1, 6 * 50),  # three players: three pairs, both ways
    ]


def test_a_plan_says_that_no_instruction_data_is_mixed_in(tmp_path: Path) -> None:
    rows = tmp_path / "sft.json"
    rows.write_text(json.dumps([{"instruction": "Say hello.", "input": "", "output": "Hello!"}]))
    for overrides, warned in (([], True), ([f"offline_rl.sft_data={rows}"], False), (["offline_rl.sft_coef=0"], False)):
        stages = Planner(load_config("llama2-7b", overrides), LLAMA, 8, find_gpu("A100-80")).stages()
        notes = {one.name: [note for note in one.notes if "offline_rl.sft_data is not set" in note] for one in stages}
        assert {name: len(found) for name, found in notes.items()} == {"imitation": 0, "self-play": 0, "offline RL": warned, "arena": 0}


def test_another_game_has_its_own_limits_and_taboos_assumptions() -> None:
    bots = {"episodes": ["bot:systematic"], "max_episodes": 5}
    config = RunConfig.model_validate({"game": {"name": "twenty_questions"}, "selfplay": {"tasks": 100}, "imitation": bots})
    planner = Planner(config, LLAMA, 8, find_gpu("A100-80"))
    assert planner.longest_text == 160 + 45 + 20 * 2 * (256 + 5)  # rules, instruction, and twenty questions and answers at their limit
    _, play, trained, _ = planner.stages()
    assert trained.count == round(100 * 0.68 * 2.94)
    assert any("assumed as in Adversarial Taboo" in note for note in play.notes)


def test_the_chunk_of_logits_is_still_the_policys() -> None:
    assert policy.CHUNK == memory.CHUNK


def command(*arguments: str) -> Result:
    group = SpagGroup()
    group.add_command(plan_command)
    return CliRunner().invoke(group, ["plan", *arguments], env={"COLUMNS": "200"})


def test_the_command_prints_the_plan_and_tells_by_its_status_whether_it_fits() -> None:
    fits = command("llama2-7b", "--gpus", "8", "--set", ZERO_3[0], "--set", ZERO_3[1])
    assert fits.exit_code == 0
    assert "37,601 games" in fits.output and "imitation fits:" in fits.output and "training_mfu" in fits.output
    small = command("llama2-7b", "--gpu", "rtx 4090", "--set", REPLICAS[0], "--set", REPLICAS[1])
    assert small.exit_code == 1
    assert "imitation does not fit" in small.output and "QLoRA" in small.output


def test_json_holds_the_same_figures_and_assumptions_can_be_changed() -> None:
    slow, fast = (json.loads(command("demo", "--json", "--assume", f"stage_minutes={minutes}").output) for minutes in (10, 4))
    assert slow["total"]["hours"] - fast["total"]["hours"] == pytest.approx(6 * 6 / 60)  # six stages
    assert slow["assumptions"]["stage_minutes"] == 10
    assert slow["parameters"] == 134_515_008
    assert [one["problems"] for one in slow["stages"]] == [[]] * 6 and slow["total"]["fits"]


@pytest.mark.parametrize(("arguments", "message"), [
    (("demo", "--gpu", "V100"), "error: --gpu V100: no such kind of GPU is known (known: A100-40, A100-80, H100, H200, L40S, A10G"),
    (("demo", "--set", "model.name=org/unknown"), "error: org/unknown: its config cannot be read"),
    (("demo", "--assume", "mfu=1"), "error: --assume mfu=1: there is no assumption mfu"),
    (("demo", "--assume", "training_mfu=2"), "error: --assume training_mfu=2: input should be less than or equal to 1"),
    (("demo", "--assume", "turns=-1"), "error: --assume turns=-1: input should be greater than 0"),
    (("demo", "--assume", "turns"), "error: --assume turns=: input should be a valid number"),
    (("demo", "--assume", "turns=nan"), "error: --assume turns=nan: input should be a finite number"),
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
