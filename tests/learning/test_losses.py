"""Losses against the golden file, and the properties that training relies on."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spag.algorithms.base import mixed
from spag.algorithms.spag import offline_rl_terms
from spag.training.losses import imitation_loss, mean_logprob, offline_rl_loss

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())


def tensor(values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
@pytest.mark.parametrize("stage", ["imitation", "offline_rl"])
def test_value_and_gradient_are_those_of_the_golden_file(case: dict[str, Any], stage: str) -> None:
    logits = tensor(case["policy_logits"]).requires_grad_()
    labels = torch.tensor(case["labels"])
    logprob = mean_logprob(logits, labels)
    reference = mean_logprob(tensor(case["reference_logits"]), labels)
    weight, reward, is_sft = tensor(case["weights"]), tensor(case["rewards"]), tensor(case["is_sft"])
    kl, sft, clip = (case["coefficients"][name] for name in ("kl", "sft", "clip_range"))
    if stage == "imitation":
        loss = imitation_loss(logprob, reference, weight, kl_coef=kl)
    else:
        loss = offline_rl_loss(logprob, reference, reward, weight, is_sft, kl_coef=kl, sft_coef=sft, clip_range=clip)
    loss.backward()
    expected = case["expected"][stage]
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-6)
    assert logits.grad.norm().item() == pytest.approx(expected["grad_l2_norm"], rel=1e-6)
    # The file's "first trained row" is row 1: the absolute gradient summed over the vocabulary, position by position.
    assert logits.grad[1].abs().sum(dim=1).tolist() == pytest.approx(expected["grad_first_trained_row"], rel=1e-6)


def test_mean_logprob_shifts_and_averages_over_trained_tokens_only() -> None:
    # Logits log(1), log(2), log(1): probabilities 1/4, 1/2, 1/4. Trained are token 1 and token 2: the mean is (log 1/2
    # + log 1/4) / 2.
    logits = tensor([1.0, 2.0, 1.0]).log().expand(1, 4, 3)
    assert mean_logprob(logits, torch.tensor([[0, -100, 1, 2]])).item() == pytest.approx(
        (math.log(0.5) + math.log(0.25)) / 2
    )
    assert (
        mean_logprob(logits, torch.tensor([[0, -100, -100, -100]])).item() == 0.0
    )  # a row without targets is 0, not nan


def test_half_precision_logits_are_reduced_in_float32() -> None:
    logits = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    labels = torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert mean_logprob(logits, labels).dtype == torch.float32
    assert torch.equal(mean_logprob(logits, labels), mean_logprob(logits.float(), labels))


@pytest.mark.parametrize("is_sft", [0.0, 1.0])
def test_a_batch_of_one_kind_gives_zero_for_the_other(is_sft: float) -> None:
    logprob = tensor([-1.0, -3.0]).requires_grad_()
    ones = tensor([1.0, 1.0])
    loss = offline_rl_loss(
        logprob, logprob.detach(), 2 * ones, ones, is_sft * ones, kl_coef=0.2, sft_coef=0.5, clip_range=0.2
    )
    loss.backward()
    # RL: ratio 1, A 2, so -2, and each sample's gradient is -(A - kl_coef) / 2 = -0.9. SFT: 0.5 * mean(1, 3) = 1,
    # gradient -0.5 / 2.
    assert loss.item() == pytest.approx(1.0 if is_sft else -2.0)
    assert logprob.grad.tolist() == pytest.approx([-0.25, -0.25] if is_sft else [-0.9, -0.9])


def test_what_sft_rows_hold_beside_their_logprob_spoils_no_gradient() -> None:
    logprob, ones = tensor([-1.0, -3.0]).requires_grad_(), tensor([1.0, 1.0])
    columns = tensor([-1.0, -math.inf]), 2 * ones, ones, tensor([0.0, 1.0])
    offline_rl_loss(logprob, *columns, kl_coef=0.2, sft_coef=0.5, clip_range=0.2).backward()
    assert logprob.grad.tolist() == pytest.approx([-1.8, -0.5])  # -(A - kl_coef), and -sft_coef


def test_clipping_stops_the_gradient_only_where_the_update_would_go_further() -> None:
    # log-ratio log 1.5 is beyond 1.2: with A > 0 the clipped branch wins; only the advantage's own gradient is left:
    # kl_coef * 1.2. With A < 0 the unclipped branch is smaller: gradient -(A * ratio - kl_coef * ratio).
    logprob = tensor([math.log(1.5), math.log(1.5)]).requires_grad_()
    zero, one = tensor([0.0, 0.0]), tensor([1.0, 1.0])
    reward = tensor([1.0, -1.0])
    offline_rl_loss(logprob, zero, reward, one, zero, kl_coef=0.1, sft_coef=0.5, clip_range=0.2).backward()
    advantage = -1.0 - 0.1 * math.log(1.5)
    assert logprob.grad.tolist() == pytest.approx([0.1 * 1.2 / 2, -(advantage - 0.1) * 1.5 / 2])  # of the mean of two


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    generator = torch.Generator().manual_seed(1)
    logprob, reference, reward, weight = (torch.rand(6, generator=generator, dtype=torch.float64) for _ in range(4))
    is_sft = torch.tensor([0, 1, 0, 0, 1, 0], dtype=torch.bool)
    rl = {"kl_coef": 0.2, "clip_range": 0.2}
    whole = offline_rl_loss(logprob, reference, reward, weight, is_sft, sft_coef=0.5, **rl)
    rows = [[values[i : i + 1] for values in (logprob, reference, reward, weight, is_sft)] for i in range(6)]
    parts = [mixed(offline_rl_terms(*row, **rl), row[4], 0.5, 4, 2) for row in rows]
    assert sum(parts).item() == pytest.approx(whole.item())
    imitation = sum(imitation_loss(row[0], row[1], row[3], kl_coef=0.1) for row in rows) / 6
    assert imitation.item() == pytest.approx(imitation_loss(logprob, reference, weight, kl_coef=0.1).item())
