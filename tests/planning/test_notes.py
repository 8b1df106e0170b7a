"""What a plan says of a whole run, by hand: the disk, a prompt file, offload."""

import json
from pathlib import Path

import pytest

from spag.algorithms.spag import SpagSettings
from spag.config.files import load_config
from spag.config.schema import RunConfig
from spag.games.registry import get
from spag.planning.estimate import disk_bytes
from spag.planning.hours import Assumptions, training_hours
from spag.planning.plan import Planner
from spag.planning.samples import Work, play_work
from spag.planning.specs import GIB, HOST, KNOWN_SHAPES, PCIE, Device, find_gpu

LLAMA, SMOLLM = KNOWN_SHAPES["meta-llama/Llama-2-7b-hf"], KNOWN_SHAPES["smollm2-135m"]
A100 = find_gpu("A100-80")


@pytest.mark.slow
def test_a_prompt_file_changes_what_is_read(tmp_path: Path) -> None:
    def work(name: str, rules: str) -> Work:
        path = tmp_path / name
        instructions = {"attacker": "Your word is {target_word}.", "defender": "Find the word."}
        path.write_text(json.dumps({"rules": [rules], "instructions": instructions}))
        return play_work(get("adversarial_taboo", prompts=str(path)), 23.0)

    short = work("short.json", "Play {max_turns} turns.")
    long = work("long.json", "Play {max_turns} turns." + " These rules are told at length." * 30)
    added = 30 * 7  # six words and a point, in every prompt; engines read the beginning once
    assert long.length - short.length == pytest.approx(added)
    assert 0 < long.fed - short.fed < added


def test_offload_moves_shards_over_pcie_and_updates_on_the_cpu() -> None:
    work = Work(count=128, fed=0.0, trained=0.0, length=10.0, largest=0.0, parts=64)

    def seconds(**options: object) -> float:
        settings = SpagSettings.model_validate({"parallel": "fsdp", **options})
        arguments = (settings, work, 5.0, A100, 8, Assumptions(bandwidth=0.5))
        return 3600 * training_hours(LLAMA, *arguments, reference=False, number=2)

    # 64 micro-batches in 5 updates on 8 GPUs are 2 rounds an update, each of which moves 8 bytes a parameter, an eighth
    # of it over each GPU's link; AdamW moves 28 bytes a parameter in each of 5 updates through the machine's memory
    moved, adam = 10 * 8 * LLAMA.parameters / 8 / (PCIE * 0.5), 5 * 28 * LLAMA.parameters / (HOST * 0.5)
    assert seconds(offload=True) - seconds() == pytest.approx(moved + adam)


def test_a_process_without_a_micro_batch_waits_for_the_others() -> None:
    def hours(processes: int) -> float:
        work = Work(count=128, fed=1e10, trained=0.0, length=10.0, largest=0.0, parts=80)
        arguments = (SpagSettings(), work, 5.0, A100, processes, Assumptions())
        return training_hours(LLAMA, *arguments, reference=False, number=2)

    # 16 micro-batches an update: 1 round on 16 GPUs and on more, 2 on 8 to 15
    assert hours(24) == pytest.approx(hours(16), rel=1e-3) == pytest.approx(hours(12) / 2, rel=1e-3)
    assert hours(8) == pytest.approx(hours(12), rel=1e-3)


ONE_CORE = Device("CPU, 1 core", 24 * GIB, 490e9, HOST, PCIE, is_cpu=True, full_flops=110e9)
"""A core of an AMD EPYC with AVX512-BF16, its speeds in products as ``core_speeds`` has them there."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "changes", "stages", "took"),  # seconds of whole stages that had 95 % of one core
    [
        ("demo", ["imitation.lora=null", "imitation.gradient_checkpointing=true"], ["imitation"], 300),  # bfloat16
        ("kuhn", ["imitation.kl_coef=0"], ["imitation"], 83),  # float32
        ("kuhn", [], ["reinforce play", "reinforce"], 415),
        ("kuhn", ["imitation.kl_coef=0"], ["imitation", "reinforce play", "reinforce", "arena"], 528),
    ],
)
def test_shipped_presets_take_what_was_measured_on_a_core(
    preset: str, changes: list[str], stages: list[str], took: float
) -> None:
    found = {one.name: 3600 * one.hours for one in Planner(load_config(preset, changes), SMOLLM, ONE_CORE).stages}
    assert took / 1.5 < sum(found[name] for name in stages) < took * 1.5


def test_disk_is_that_of_models_and_of_two_states_to_resume_from() -> None:
    def of(*phases: dict[str, object], due: list[str] | None = None) -> float:
        return disk_bytes(RunConfig.model_validate({"phases": list(phases)}), SMOLLM, due) / SMOLLM.parameters

    imitation, spag = {"algorithm": "imitation"}, {"algorithm": "spag", "iterations": 3}
    assert of(imitation) == 4 + 2 * 12  # weights, and twice weights with both moments, as the old state stays
    assert of(imitation, spag) == 4 * 4 + 24
    assert of({**imitation, "save_dtype": "bfloat16"}) == 2 + 24
    online = {"algorithm": "reinforce", "steps": 100, "snapshot_every": 20}
    assert of(online) == 4 + 5 * 4 + 24  # five snapshots
    assert of({**online, "snapshot_every": None}) == 4 + 24  # nobody asks for one
    moving = {**online, "average_decay": 0.9, "reference": {"ema": 0.03}, "kl_coef": 0.1}
    assert of(moving) == 4 + 5 * 4 + 2 * (12 + 8)
    assert of(imitation, spag, due=["2-spag/iteration-3/train"]) == 4 + 24
    adapter = {**imitation, "lora": {"rank": 8}, "save_dtype": "bfloat16"}
    trained = 8 * 30 * sum(map(sum, SMOLLM.maps.values()))
    assert of(adapter) * SMOLLM.parameters == trained * (4 + 24)
    whole = of({"algorithm": "spag", "iterations": 1}, adapter, imitation)  # the last trains the adapter further
    assert whole * SMOLLM.parameters == pytest.approx(SMOLLM.parameters * (4 + 24) + 2 * trained * 4)
