"""``loss_group=2``: the gradients of upstream's averaging by micro-batches of two, however the samples are split."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import make_samples, sample_logprobs, settings, train_tiny

from spag.algorithms.base import SFT
from spag.learning import loop
from spag.learning.policy import TrainedPolicy
from spag.models.forward import Capabilities
from spag.models.loading import load_model, load_tokenizer
from spag.models.samples import collate, encode_samples
from spag.models.tokens import PromptStyle
from spag.training.losses import offline_rl_loss

pytestmark = pytest.mark.slow
Gradients = dict[str, torch.Tensor]
SEED = 3
COUNT = 15  # the samples 4, 9 and 14 are SFT rows


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Gradients:
    """The gradients of the last optimiser step."""
    caught: Gradients = {}
    original = loop.apply_gradients

    def apply_gradients(policy: TrainedPolicy) -> float | None:
        caught.update({name: parameter.grad.clone() for name, parameter in policy.model.named_parameters()})
        return original(policy)

    monkeypatch.setattr(loop, "apply_gradients", apply_gradients)
    return caught


def by_hand(folder: Path, size: int, seed: int) -> tuple[Gradients, float]:
    """Upstream's loss: of each group of ``size`` in drawn order a mean over RL rows plus half a mean over SFT rows;
    their mean.
    """
    model = load_model(str(folder), dtype="float32", device="cpu").train()
    samples = encode_samples(make_samples(COUNT), load_tokenizer(str(folder)), PromptStyle.PLAIN, 2048)
    order = list(range(COUNT))
    random.Random(f"{seed}-0").shuffle(order)
    groups = [order[start : start + size] for start in range(0, COUNT, size)]
    total = torch.tensor(0.0)
    for group in groups:
        batch = collate([samples[index] for index in group], packed=False)
        logprob = sample_logprobs(model, batch, Capabilities())
        columns = (logprob, logprob.detach(), batch["advantage"], batch["weight"], batch["group"] == SFT)
        total = total + offline_rl_loss(*columns, kl_coef=0.2, sft_coef=0.5, clip_range=0.2) / len(groups)
    total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}, total.item()


def distance(left: Gradients, right: Gradients) -> float:
    """The largest difference, in units of the largest value."""
    assert set(left) == set(right)
    scale = max(values.abs().max().item() for values in right.values())
    return max((left[name] - right[name]).abs().max().item() for name in left) / scale


def step(folder: Path, output: Path, **changes: Any) -> float:
    chosen = settings(global_batch_size=16, warmup_ratio=0.0, max_grad_norm=0.0, **changes)
    loss = train_tiny(folder, output, chosen, count=COUNT, seed=SEED).metrics["loss"]
    assert loss is not None
    return loss


@pytest.mark.parametrize("micro", [1, 2, 8, 16])
def test_the_gradient_is_that_of_upstreams_averaging(
    model_folder: Path, tmp_path: Path, seen: Gradients, micro: int
) -> None:
    loss = step(
        model_folder, tmp_path, loss_group=2, micro_batch_size=micro
    )  # packed rows, 15 samples: the last group is a single one
    expected, total = by_hand(model_folder, 2, SEED)
    assert distance(seen, expected) < 1e-4
    assert loss == pytest.approx(total, abs=1e-5)


def test_the_default_is_the_mean_over_the_global_batch_which_differs(
    model_folder: Path, tmp_path: Path, seen: Gradients
) -> None:
    loss = step(model_folder, tmp_path)
    expected, total = by_hand(model_folder, COUNT, SEED)
    assert distance(seen, expected) < 1e-4
    assert loss == pytest.approx(total, abs=1e-5)
    assert distance(by_hand(model_folder, 2, SEED)[0], expected) > 0.05


def test_later_steps_do_not_depend_on_the_split_either(model_folder: Path, tmp_path: Path) -> None:
    for name, micro in (("two", 2), ("four", 4)):
        train_tiny(
            model_folder,
            tmp_path / name,
            settings(learning_rate=1e-3, loss_group=2, micro_batch_size=micro, epochs=2),
            count=19,
        )
    two, four = (load_file(tmp_path / name / "checkpoint" / "model.safetensors") for name in ("two", "four"))
    assert max((two[name] - four[name]).abs().max().item() for name in two) < 1e-5
