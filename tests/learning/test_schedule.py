"""DeepSpeed's learning rates, by hand, from trainings, and from DeepSpeed."""

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch
from tiny import settings, train_tiny
from transformers import get_scheduler

from spag.learning.metrics import TrainProgress, Unit
from spag.learning.updates import learning_rate_share, warmup_decay

# 12 steps, of which ceil(0.3 * 12) = 4 are warm-up: ln 1, ln 2, ln 3, ln 4 in units of ln 4, then 8/8, 7/8, ..., 1/8.
RATES = [0.0, 0.5, math.log(3) / math.log(4), 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
# DeepSpeed 0.13: the peak, and all but the last of these.
LATE = [1.0, *RATES[:-1]]


class StoppedError(Exception):
    pass


def stop_at_step_5(at: TrainProgress) -> None:
    if at.unit is Unit.UPDATES and at.step == 5:
        raise StoppedError


def rates(output: Path) -> list[float]:
    return [json.loads(line)["learning_rate"] for line in (output / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), [("warmup_decay", RATES), ("warmup_decay_0.13", LATE)])
def test_trainings_step_with_the_rates_of_the_formula_also_when_resumed(
    model_folder: Path, tmp_path: Path, name: str, expected: list[float]
) -> None:
    chosen = settings(lr_scheduler=name, max_steps=12, warmup_ratio=0.3, learning_rate=2e-3, save_steps=3)
    with pytest.raises(StoppedError):
        train_tiny(model_folder, tmp_path, chosen, progress=stop_at_step_5)
    train_tiny(model_folder, tmp_path, chosen)
    assert rates(tmp_path) == pytest.approx([2e-3 * share for share in expected])


@pytest.mark.slow
def test_the_late_start_learns_from_the_first_step_and_a_single_step_has_the_peak(
    model_folder: Path, tmp_path: Path
) -> None:
    for name in ("warmup_decay", "warmup_decay_0.13"):
        train_tiny(
            model_folder,
            tmp_path / name,
            settings(lr_scheduler=name, max_steps=1, warmup_ratio=0.03, learning_rate=2e-3),
        )
        assert rates(tmp_path / name) == [2e-3]


def test_the_papers_warm_up_is_half_way_after_6_of_36_steps() -> None:
    # 99,740 + 52,002 samples in batches of 128: 1,186 steps; 3 % of them: 36. ln 6 / ln 36 = 1/2, at step 5 as steps
    # count from 0.
    rates = [learning_rate_share("warmup_decay", step, warmup=36, total=1186) for step in (0, 5, 35, 36, 611, 1186)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 1.0, 0.5, 0.0])


@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
def test_the_other_shapes_are_transformers_own(name: str) -> None:
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = get_scheduler(
        {"constant": "constant_with_warmup"}.get(name, name), optimizer, num_warmup_steps=4, num_training_steps=12
    )
    for update in range(12):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(
            learning_rate_share(name, update, warmup=4, total=12), abs=1e-12
        )
        optimizer.step()
        theirs.step()


def test_no_online_step_has_a_learning_rate_of_0() -> None:
    # its games would be played for nothing: a warm-up of 3 begins at a quarter
    rates = [learning_rate_share("constant", update, warmup=3, total=9, online=True) for update in range(5)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_no_warm_up_starts_at_the_peak_and_one_of_a_single_step_is_stretched_to_two() -> None:
    assert [warmup_decay(step, warmup=0, total=4) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]
    assert [warmup_decay(step, warmup=1, total=4) for step in range(4)] == [0.0, 1.0, 1.0, 0.5]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
@pytest.mark.parametrize(("warmup", "total"), [(4, 12), (1, 3), (36, 1186)])
def test_deepspeeds_own_scheduler_has_the_same_rates(warmup: int, total: int) -> None:
    from deepspeed.runtime.lr_schedules import WarmupDecayLR

    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = WarmupDecayLR(
        optimizer, total_num_steps=total, warmup_min_lr=0.0, warmup_max_lr=1.0, warmup_num_steps=warmup
    )
    for step in range(total):
        theirs.step()  # DeepSpeed does so after each step of the optimiser
        [group] = optimizer.param_groups
        assert (
            group["lr"]
            == pytest.approx(warmup_decay(step, warmup=warmup, total=total))
            == pytest.approx(learning_rate_share("warmup_decay_0.13", step + 1, warmup=warmup, total=total))
        )
