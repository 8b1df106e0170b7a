"""Planned peaks against the peaks of real trainings on the CPU: within 15 %."""

from pathlib import Path

import pytest
import torch
from cases import MODELS, TRAININGS, Case
from measured import TRAINED, train_peak
from torch import nn
from transformers import AutoConfig

from spag.algorithms.settings import LoraConfig, UpdateSettings
from spag.config.schema import ModelConfig
from spag.learning.devices import make_accelerator, make_optimizer
from spag.learning.start import trainable
from spag.planning.memory import Memory, training_memory
from spag.planning.specs import KNOWN_SHAPES, ModelShape, shape_of
from tiny_model import make_model

pytestmark = pytest.mark.slow
TOLERANCE = 0.15
LLAMA = KNOWN_SHAPES["meta-llama/Llama-2-7b-hf"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: make_model(root / name, **settings) for name, settings in MODELS.items()}


def shape(folder: Path) -> ModelShape:
    return shape_of(AutoConfig.from_pretrained(folder), folder.name)


def planned_training(case: Case, folder: Path) -> Memory:
    tokens = case.samples * (case.length - 1)  # the last token is never fed
    number = 4 if case.dtype == "float32" else 2
    trained = case.samples * TRAINED
    return training_memory(shape(folder), case.phase.settings, tokens, trained, number, processes=1, on_gpu=False)


@pytest.mark.parametrize("case", TRAININGS, ids=lambda case: case.name)
def test_training_takes_what_was_planned(case: Case, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders[case.model]
    measured = train_peak(folder, case.length, case.dtype, case.phase, tmp_path / "out")
    assert planned_training(case, folder).total == pytest.approx(measured, rel=TOLERANCE)


@pytest.mark.parametrize("model", ["wide", "deep"])
def test_frozen_maps_are_stored_as_planned(model: str, folders: dict[str, Path]) -> None:
    adapted, half = UpdateSettings(lora=LoraConfig(rank=8)), ModelConfig(name=str(folders[model]), device="cpu")
    stored, _ = trainable(half, adapted.lora, make_accelerator(half, adapted, 0), 0, 64, {}, sharded=False)
    held = sum(weight.nbytes for weight in stored.parameters())
    planned = training_memory(shape(folders[model]), adapted, 1, 1, 2, processes=1, on_gpu=True)
    assert planned.weights == pytest.approx(held, rel=0.01) and planned.copies == 0


def test_the_cases_are_led_by_weights_and_by_activations(folders: dict[str, Path]) -> None:
    found = {case.name: planned_training(case, folders[case.model]) for case in TRAININGS}
    for name in ("float32, weights", "bfloat16, weights"):
        assert found[name].activations < 0.2 * found[name].total
    for name in ("float32, activations", "float32, LoRA", "bfloat16, LoRA"):
        assert found[name].activations > 0.5 * found[name].total


def test_moments_of_8_bits_take_what_was_planned() -> None:
    """Of the optimiser alone: on a CPU its step makes copies in float32, which a GPU's kernels do not."""
    pytest.importorskip("bitsandbytes")
    settings = UpdateSettings(optimizer="adamw_8bit")
    layer = nn.Linear(512, 512, bias=False)
    optimizer = make_optimizer(layer, settings)
    layer(torch.ones(1, 512)).sum().backward()
    optimizer.step()
    state = optimizer.state[layer.weight]
    held = sum(value.nbytes for name, value in state.items() if name.startswith(("state", "absmax")))
    planned = training_memory(LLAMA, settings, 1, 1, 4, processes=1, on_gpu=True)
    assert held / layer.weight.numel() == planned.optimizer / LLAMA.parameters
