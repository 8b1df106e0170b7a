"""Online steps of samples written by hand: what the loop divides by, counts, moves, averages and resumes."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import MODEL, settings, train_tiny
from torch import Tensor

from spag.algorithms.base import Algorithm
from spag.config.schema import GameConfig, ModelConfig, PhaseConfig
from spag.core.episodes import TrainingSample
from spag.core.errors import RunError
from spag.learning import loop, policy
from spag.learning.job import TrainingJob
from spag.learning.loop import Loop
from spag.learning.metrics import Row
from spag.learning.policy import TrainedPolicy

pytestmark = pytest.mark.slow
Weights = dict[str, Tensor]
LEAST_LIKELY = -50.0
"""A log-probability of sampling with which every importance weight is truncated: to 1, where that is the limit."""


class Written(AbstractContextManager["Written"]):
    """The same samples in every step; ``after`` is called when one is done."""

    def __init__(self, samples: Sequence[TrainingSample], after: Callable[[int, TrainedPolicy], None]) -> None:
        self.samples, self.after = samples, after

    def __exit__(self, *_: object) -> None:
        pass

    def next(self, step: int, policy: TrainedPolicy, algorithm: Algorithm) -> list[TrainingSample]:
        return [*self.samples]

    def finish(self, step: int, row: Row, samples: Sequence[TrainingSample], policy: TrainedPolicy) -> bool:
        self.after(step, policy)
        return True

    def settle(self) -> None:
        pass

    def results(self) -> dict[str, Any]:
        return {}

    def describe(self) -> str:
        return ""


class OneRole(TrainingJob):
    """Of a game that is not played."""

    roles = property(lambda self: ["g/r"])
    identity = property(lambda self: None)


def sample(reward: float, *ids: int) -> TrainingSample:
    drawn = {"completion_ids": ids, "logprobs": (LEAST_LIKELY,) * len(ids)}
    return TrainingSample(prompt="q", completion="", role="g/r", reward=reward, **drawn)  # type: ignore[arg-type]


def learn(
    model: Path,
    output: Path,
    samples: Sequence[TrainingSample] = (sample(1.0, 5, 6), sample(-1.0, 7)),
    after: Callable[[int, TrainedPolicy], None] = lambda step, policy: None,
    steps: int = 4,
    **options: Any,
) -> Loop:
    """Train, and return the loop."""
    defaults = {"learning_rate": 1e-3, "correction_limit": 1.0, "sampling": {"max_new_tokens": 4}, "save_steps": 1}
    chosen = PhaseConfig.model_validate({"algorithm": "reinforce", **defaults, "steps": steps, **options})
    output.mkdir(exist_ok=True)
    job = OneRole(model=MODEL, phase=chosen, game=GameConfig(), start_from=str(model), output=output, seed=0)
    made = Loop(job, lambda *_: Written(samples, after), None)
    made.run()
    return made


def rows(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def saved(output: Path) -> Weights:
    return load_file(output / "checkpoint" / "model.safetensors")


def copied(policy: TrainedPolicy) -> Weights:
    return {name: weight.clone() for name, weight in policy.weights().items()}


def test_samples_without_advantage_count_in_the_divisor(model_folder: Path, tmp_path: Path) -> None:
    """One of 256 samples has an advantage of 1: the loss is -1 / (256 x 4), not -1 / 4."""
    idle = [sample(0.0, 9)] * 255
    learn(model_folder, tmp_path / "one", [sample(1.0, 5), *idle], steps=1)
    learn(model_folder, tmp_path / "many", [sample(1.0, 5), *idle], steps=1, epochs=2, minibatches=2)
    assert rows(tmp_path / "one")[0]["loss"] == pytest.approx(-1 / 1024)
    # In two passes of two mini-batches, one of each has the sample and divides by 128 x 4: half of that on average. In
    # the second pass its ratio is clipped at 1.2.
    assert rows(tmp_path / "many")[0]["loss"] == pytest.approx(-(1 + 1.2) / 2 / 1024)
    assert (rows(tmp_path / "one")[0]["tokens"], rows(tmp_path / "one")[0]["samples"]) == (1.0, 256)


def test_a_row_counts_what_was_truncated(model_folder: Path, tmp_path: Path) -> None:
    learn(model_folder, tmp_path, [sample(1.0, 5)], steps=1)
    [row] = rows(tmp_path)
    assert (row["samples"], row["truncated"]) == (1, 1.0)
    assert row["mismatch_max"] == pytest.approx(row["mismatch"]) and row["mismatch"] > 30  # a single token
    assert row["loss"] == pytest.approx(-1 / 4)


def test_the_largest_mismatch_of_a_step_is_recorded(model_folder: Path, tmp_path: Path) -> None:
    far, near = (replace(sample(1.0, 5 + n), logprobs=(logprob,)) for n, logprob in enumerate((-50.0, -6.0)))
    learn(model_folder, tmp_path, [near, far, near], steps=1, micro_batch_size=1)
    [row] = rows(tmp_path)
    assert row["mismatch_max"] > 30 > row["mismatch"]  # the mean of one far and two near tokens


def test_a_step_that_trains_nothing_is_measured_once(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in every pass over its samples: the policy stays the same."""
    plain, sizes = loop.token_scores, list[int]()

    def counted(model: Any, batch: Any, *others: Any, **options: Any) -> Tensor:
        sizes.append(len(batch["weight"]))
        return plain(model, batch, *others, **options)

    monkeypatch.setattr(loop, "token_scores", counted)
    learn(model_folder, tmp_path, [sample(0.0, 5, 6), sample(0.0, 7)], steps=1, epochs=3, minibatches=2)
    [row] = rows(tmp_path)
    assert sizes == [2] and row["entropy"] > 0 and row["learning_rate"] is None


@pytest.mark.parametrize(
    ("reference", "shares"),
    [
        ({"ema": 0.25}, {1: 0.25, 2: 0.25}),  # after each step a quarter of the way
        ({"every": 2}, {1: 0.0, 2: 1.0}),  # after each second step all of it
    ],
    ids=["ema", "every"],
)
def test_a_moving_reference_follows_the_policy(
    model_folder: Path, tmp_path: Path, reference: dict[str, Any], shares: dict[int, float], monkeypatch: Any
) -> None:
    seen: list[tuple[list[Tensor], list[Tensor]]] = []
    plain = policy.Reference.after_step

    def spy(self: policy.Reference, step: int) -> bool:
        before = [value.clone() for value in self.values]
        changed = plain(self, step)
        wanted = [old + shares[step] * (now.detach() - old) for old, now in zip(before, self.weights, strict=True)]
        seen.append((wanted, [value.clone() for value in self.values]))
        assert changed == any(not torch.equal(a, b) for a, b in zip(before, self.values, strict=True))
        return changed

    monkeypatch.setattr(policy.Reference, "after_step", spy)
    learn(model_folder, tmp_path / "run", steps=2, kl_coef=0.5, reference=reference)
    assert len(seen) == 2
    for wanted, found in seen:
        torch.testing.assert_close(found, wanted, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("reference", [{"ema": 0.25}, {"every": 2}], ids=["ema", "every"])
def test_moving_policies_resume_as_if_nothing_had_happened(
    model_folder: Path, tmp_path: Path, reference: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"kl_coef": 0.5, "reference": reference, "average_decay": 0.5, "minibatches": 2}

    def stop(step: int, policy: TrainedPolicy) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(model_folder, tmp_path / "stopped", after=stop, **options)
    assert len(list((tmp_path / "stopped" / "state").glob("checkpoint-6"))) == 1  # 3 steps of 2 updates
    learn(model_folder, tmp_path / "stopped", **options)
    learn(model_folder, tmp_path / "whole", **options)
    one, other = saved(tmp_path / "stopped"), saved(tmp_path / "whole")
    assert all(torch.equal(one[name], other[name]) for name in one)
    kls = [[row["kl"] for row in rows(tmp_path / name)] for name in ("stopped", "whole")]
    assert kls[0] == kls[1] and len(set(kls[0])) == 4


def test_evaluations_describe_the_average_that_is_saved(model_folder: Path, tmp_path: Path) -> None:
    policies: list[Weights] = []
    finals: list[Weights] = []

    def look(step: int, policy: TrainedPolicy) -> None:
        policies.append(copied(policy))
        with policy.final():
            finals.append(copied(policy))
        after = copied(policy)
        assert all(torch.equal(after[name], policies[-1][name]) for name in after)  # training goes on with its own

    learn(model_folder, tmp_path / "run", after=look, steps=2, average_decay=0.75)
    written = saved(tmp_path / "run")
    for name, weight in finals[-1].items():
        expected = 0.75 * policies[0][name] + 0.25 * policies[1][name]
        torch.testing.assert_close(weight, expected, atol=1e-6, rtol=1e-5)
        assert torch.equal(written[name], weight)


def test_float16_goes_on_after_an_update_that_the_scaler_skipped(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient that is not finite ends a run, but in float16 the loss scaler skips that update and lowers its scale.

    float16 trains on GPUs only, so here the step is skipped by hand.
    """
    plain, norms = loop.apply_gradients, iter([float("inf"), None])

    def skipping(policy: TrainedPolicy) -> float | None:
        if (norm := next(norms)) is not None:
            policy.optimizer.zero_grad()
            return norm
        return plain(policy)

    monkeypatch.setattr(loop, "apply_gradients", skipping)
    with pytest.raises(RunError, match=r"step 1: the gradient's norm is inf; lower the learning rate"):
        learn(model_folder, tmp_path / "single")
    norms = iter([float("inf"), None])
    monkeypatch.setattr(loop, "make_accelerator", _as_float32(loop.make_accelerator))
    monkeypatch.setattr("test_steps.MODEL", ModelConfig(dtype="float16", device="cpu"))
    learn(model_folder, tmp_path / "half", steps=2)
    found = rows(tmp_path / "half")
    assert [row["step"] for row in found] == [1, 2]
    assert found[0]["grad_norm"] is None and found[1]["grad_norm"] > 0


def _as_float32(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda model, *others: make(model.model_copy(update={"dtype": "float32"}), *others)


def test_imitation_without_a_kl_term_computes_no_reference(model_folder: Path, tmp_path: Path) -> None:
    train_tiny(model_folder, tmp_path / "with", settings("imitation", kl_coef=0.1))
    train_tiny(model_folder, tmp_path / "without", settings("imitation", kl_coef=0.0))
    assert [(tmp_path / name / "reference.jsonl").exists() for name in ("with", "without")] == [True, False]
    assert "kl" not in rows(tmp_path / "without")[-1] and "kl" in rows(tmp_path / "with")[-1]
