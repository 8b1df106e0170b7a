"""Planned peaks against the peaks of real trainings on the CPU: within 15 %."""

from pathlib import Path

import pytest
from cases import MODELS, TRAININGS, Case
from measured import TRAINED, train_peak
from transformers import AutoConfig

from spag.planning.memory import Memory, training_memory
from spag.planning.specs import ModelShape, shape_of
from tiny_model import make_model

pytestmark = pytest.mark.slow
TOLERANCE = 0.15


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: make_model(root / name, **settings) for name, settings in MODELS.items()}


def shape(folder: Path) -> ModelShape:
    return shape_of(AutoConfig.from_pretrained(folder), folder.name)


def planned_training(case: Case, folder: Path) -> Memory:
    tokens = case.samples * (case.length - 1)  # the last token is never fed
    number = 4 if case.dtype == "float32" else 2
    return training_memory(shape(folder), case.phase.settings, tokens, case.samples * TRAINED, number, processes=1)


@pytest.mark.parametrize("case", TRAININGS, ids=lambda case: case.name)
def test_training_takes_what_was_planned(case: Case, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders[case.model]
    measured = train_peak(folder, case.length, case.dtype, case.phase, tmp_path / "out")
    assert planned_training(case, folder).total == pytest.approx(measured, rel=TOLERANCE)


def test_the_cases_are_led_by_weights_and_by_activations(folders: dict[str, Path]) -> None:
    found = {case.name: planned_training(case, folders[case.model]) for case in TRAININGS}
    for name in ("float32, weights", "bfloat16, weights"):
        assert found[name].activations < 0.2 * found[name].total
    for name in ("float32, activations", "float32, LoRA", "bfloat16, LoRA"):
        assert found[name].activations > 0.5 * found[name].total
