"""Whole trainings of the tiny model: what they compute, write and refuse."""

import errno
import gc
import importlib.util
import io
import itertools
import json
import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from traceback import StackSummary
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny import job, make_samples, sample_logprobs, settings, train_tiny
from torch.distributed.checkpoint.api import CheckpointException
from transformers import PreTrainedModel

from spag.algorithms.base import SFT
from spag.cli import Terminated
from spag.cli.console import ConsoleReporter
from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError, DataError, RunError, StorageError
from spag.learning.launch import _progress_bars
from spag.learning.metrics import TrainProgress, Unit
from spag.learning.worker import run_job, training_errors
from spag.models.forward import Capabilities
from spag.models.loading import load_model, load_tokenizer
from spag.models.samples import collate, encode_samples
from spag.models.tokens import PromptStyle
from spag.report.run_tables import _work
from spag.storage.store import write_rows
from spag.training.losses import imitation_loss, offline_rl_loss
from taboo_games import TABOO, episode_of

pytestmark = pytest.mark.slow
Weights = dict[str, torch.Tensor]
ROUNDING = 1e-5
"""Twenty units in the last place of a log-probability of -6: a sum of them in another order is nearer than this on any
processor.
"""


def weights(output: Path) -> Weights:
    return load_file(output / "checkpoint" / "model.safetensors")


def distance(left: Weights, right: Weights) -> float:
    return max((left[name] - right[name]).abs().max().item() for name in left)


def rows(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def usual(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training with the usual settings."""
    train_tiny(model_folder, output := tmp_path_factory.mktemp("usual") / "run")
    return output


@pytest.fixture(scope="module")
def micro_2(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training in micro-batches of 2."""
    train_tiny(model_folder, output := tmp_path_factory.mktemp("micro") / "2", settings(learning_rate=1e-3))
    return output


def test_a_finished_training_returns_the_memory_of_its_gpu(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM, a process of its own, plays next, and refuses to start without its share."""

    def models() -> int:
        return sum(isinstance(one, PreTrainedModel) for one in gc.get_objects())

    gc.collect()  # models that earlier tests left in cycles, which the training's collection would take along
    before, left = models(), list[int]()
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: left.append(models()))
    train_tiny(model_folder, tmp_path / "run")
    assert left[-1] == before


def test_the_record_counts_the_samples_of_each_role_and_the_instruction_data(usual: Path) -> None:
    """Of 41, every fifth is instruction data; even ones are the attacker's."""
    result = json.loads((usual / "training.json").read_text())["result"]
    assert (result["samples"], result["sft"]) == ({"attacker": 17, "defender": 16}, 8)
    assert _work({"status": "done"}, result)[0] == "6 steps on 41 samples"


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """What a row says, less what the clock says and what does not exist (an SFT loss without SFT rows)."""
    return {key: value for key, value in row.items() if key != "samples_per_second" and value is not None}


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("imitation", {"kl_coef": 0.2}), ("spag", {}), ("spag", {"objective": "sft"})],
)
def test_one_step_is_the_gradient_of_the_loss_of_the_whole_global_batch(
    model_folder: Path, tmp_path: Path, algorithm: str, options: dict[str, Any]
) -> None:
    """AdamW first moves each weight by lr * g / (|g| + eps): compare with that done by hand on the 7 samples at once,
    in plain torch.
    """
    chosen = settings(algorithm, learning_rate=1e-3, max_grad_norm=0.0, **options)
    # 7 samples: less than a global batch, 4 uneven micro-batches
    result = train_tiny(model_folder, tmp_path / "run", chosen, count=7)

    model = load_model(str(model_folder), dtype="float32", device="cpu").train()
    encoded = encode_samples(make_samples(7), load_tokenizer(str(model_folder)), PromptStyle.PLAIN, 2048)
    batch = collate(encoded, packed=False)
    logprob = sample_logprobs(model, batch, Capabilities())
    reference = logprob.detach()
    is_sft, weight = batch["group"] == SFT, batch["weight"]
    assert is_sft.tolist() == [False] * 4 + [True] + [False] * 2
    if algorithm == "imitation":
        loss = (
            imitation_loss(logprob[~is_sft], reference[~is_sft], weight[~is_sft], kl_coef=0.2)
            - 0.5 * weight[4] * logprob[4]
        )
    elif options:
        loss = -(weight * logprob)[~is_sft].sum() / 6 - 0.5 * weight[4] * logprob[4]
    else:
        loss = offline_rl_loss(
            logprob, reference, batch["advantage"], batch["weight"], is_sft, kl_coef=0.2, sft_coef=0.5, clip_range=0.2
        )
    loss.backward()
    trained = weights(tmp_path / "run")
    for name, parameter in model.named_parameters():
        if name in trained:
            expected = parameter.detach() - 1e-3 * parameter.grad / (parameter.grad.abs() + 1e-8)
            clear = (
                parameter.grad.abs() > 1e-4 * parameter.grad.abs().max()
            )  # where it is next to nothing, its sign is rounding
            assert (trained[name] - expected)[clear].abs().max() < 0.01 * 1e-3  # of a step as long as the learning rate
    assert (result.steps, result.samples) == (1, 7)
    assert result.metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("micro", [1, 3, 4, 8, 16])
def test_the_result_does_not_depend_on_the_micro_batch_size(
    model_folder: Path, micro_2: Path, tmp_path: Path, micro: int
) -> None:
    train_tiny(model_folder, tmp_path / "other", settings(learning_rate=1e-3, micro_batch_size=micro))
    assert distance(weights(micro_2), weights(tmp_path / "other")) < 1e-5
    for left, right in zip(rows(micro_2), rows(tmp_path / "other"), strict=True):
        assert numbers(left) == pytest.approx(numbers(right), abs=1e-4, rel=1e-4)


def test_ratios_start_at_one_and_the_rows_tell_what_happened(model_folder: Path, tmp_path: Path) -> None:
    result = train_tiny(model_folder, tmp_path, settings(warmup_ratio=0.0))
    first, *_, last = rows(tmp_path)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5, 6]  # ceil(41 / 8)
    assert first["importance_ratio"] == pytest.approx(1.0, abs=ROUNDING)
    assert first["kl"] == pytest.approx(0.0, abs=ROUNDING)
    assert first["clip_fraction"] == 0.0 < last["clip_fraction"]
    assert first["learning_rate"] == 1e-2 > last["learning_rate"]
    assert result.metrics == last
    assert (
        set(first)
        == set(last)
        >= {"loss", "loss_attacker", "loss_defender", "loss_sft", "grad_norm", "samples_per_second"}
    )
    by_group = ("loss_attacker", "loss_defender", "loss_sft")
    assert [first[name] is None for name in by_group] == [False, False, False]
    assert sorted(last[name] is None for name in by_group) == [
        False,
        True,
        True,
    ]  # the last global batch is a single sample


def test_bfloat16_autocast_keeps_float32_weights_and_ratios_near_one(model_folder: Path, tmp_path: Path) -> None:
    train_tiny(model_folder, tmp_path, model=ModelConfig(dtype="bfloat16", device="cpu"))
    assert {tensor.dtype for tensor in weights(tmp_path).values()} == {torch.float32}
    assert rows(tmp_path)[0]["importance_ratio"] == pytest.approx(1.0, abs=2e-3)
    config = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    assert config["dtype"] == "float32"
    assert config["use_cache"] is True


def test_gradient_checkpointing_changes_nothing(model_folder: Path, usual: Path, tmp_path: Path) -> None:
    train_tiny(model_folder, tmp_path / "on", settings(gradient_checkpointing=True))
    assert distance(weights(usual), weights(tmp_path / "on")) == 0.0


def test_imitation_learns_its_targets(model_folder: Path, tmp_path: Path) -> None:
    chosen = settings("imitation", micro_batch_size=4, epochs=6)
    result = train_tiny(model_folder, tmp_path, chosen, count=16)
    assert (result.steps, result.samples) == (12, 96)
    assert result.metrics["loss_attacker"] < 3.0 < math.log(258)
    assert "importance_ratio" not in result.metrics
    load_model(str(result.checkpoint), device="cpu")
    load_tokenizer(str(result.checkpoint))


def test_max_steps_cuts_or_repeats_the_passes(model_folder: Path, tmp_path: Path) -> None:
    steady = {"lr_scheduler": "constant", "warmup_ratio": 0.0}
    train_tiny(model_folder, tmp_path / "whole", settings(**steady))  # 41 samples: 6 steps
    cut = train_tiny(model_folder, tmp_path / "cut", settings(max_steps=3, epochs=7, **steady))
    assert (cut.steps, cut.samples) == (3, 24)
    assert [numbers(row) for row in rows(tmp_path / "cut")] == [numbers(row) for row in rows(tmp_path / "whole")[:3]]
    twice = train_tiny(model_folder, tmp_path / "twice", settings(epochs=2), count=16)  # 32 samples: 4 steps
    repeated = train_tiny(model_folder, tmp_path / "repeated", settings(max_steps=4), count=16)
    assert (twice.steps, twice.samples) == (repeated.steps, repeated.samples) == (4, 32)
    assert distance(weights(tmp_path / "twice"), weights(tmp_path / "repeated")) == 0.0
    assert (
        train_tiny(model_folder, tmp_path / "few", settings(max_steps=2), count=3).samples == 16
    )  # the last batch is full, too


def test_winners_sft_knows_no_rewards_ratios_and_kl_and_refuses_losers(model_folder: Path, tmp_path: Path) -> None:
    chosen = settings(objective="sft")
    train_tiny(model_folder, tmp_path / "one", chosen)
    other = [replace(sample, reward=3 * sample.reward) for sample in make_samples(41)]
    result = train_tiny(
        model_folder, tmp_path / "other", settings(objective="sft", kl_coef=9.0, clip_range=0.01), samples=other
    )
    assert distance(weights(tmp_path / "one"), weights(tmp_path / "other")) == 0.0
    assert not {"kl", "importance_ratio"} & set(result.metrics)
    assert not (tmp_path / "one" / "reference.jsonl").exists()


class StoppedError(Exception):
    pass


def stop_at_step_4(at: TrainProgress) -> None:
    if at.unit is Unit.UPDATES and at.step == 4:
        raise StoppedError


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_holds_every_row_once_also_after_an_interruption(model_folder: Path, tmp_path: Path) -> None:
    chosen = {"chosen": settings(), "report_to": ["tensorboard"]}  # a checkpoint every 2 updates
    with pytest.raises(StoppedError):
        train_tiny(model_folder, tmp_path / "one", **chosen, progress=stop_at_step_4)
    train_tiny(model_folder, tmp_path / "one", **chosen)
    shown, described = scalars(tmp_path / "one" / "tensorboard"), rows(tmp_path / "one")
    assert [step for step, _ in shown["train/loss"]] == [1, 2, 3, 4, 5, 6]
    for name in {name for row in described for name in numbers(row)} - {"step"}:
        expected = {row["step"]: row[name] for row in described if row[name] is not None}
        assert len(shown[f"train/{name}"]) == len(expected)
        assert dict(shown[f"train/{name}"]) == pytest.approx(expected, rel=1e-6)

    with pytest.raises(StoppedError):
        train_tiny(model_folder, tmp_path / "other", progress=stop_at_step_4)
    train_tiny(model_folder, tmp_path / "other", **chosen)  # reports may be asked for in between, and change no result
    assert distance(weights(tmp_path / "one"), weights(tmp_path / "other")) == 0.0
    assert [step for step, _ in scalars(tmp_path / "other" / "tensorboard")["train/loss"]] == [3, 4, 5, 6]


def test_a_missing_package_for_reports_is_one_line(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"report_to=trackio: trackio is not installed; pip install trackio"):
        train_tiny(model_folder, tmp_path, report_to=["trackio"])


FAKE_WANDB = """
from types import SimpleNamespace
calls = []

def init(**options):
    calls.append(("init", options))
    return SimpleNamespace(
        log=lambda row, step: calls.append(("log", row)), finish=lambda: calls.append(("finish", {}))
    )
"""


def test_wandb_gets_a_run_a_phase_and_no_key(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "packages"
    package.mkdir()
    (package / "wandb.py").write_text(FAKE_WANDB)
    monkeypatch.syspath_prepend(package)
    monkeypatch.setenv("WANDB_API_KEY", "a-secret")
    try:
        for name in ("1-imitation", "2-spag"):
            train_tiny(model_folder, tmp_path / "run" / name, count=16, report_to=["wandb"])
        calls = sys.modules["wandb"].calls
        assert [kind for kind, _ in calls] == ["init", "log", "log", "finish"] * 2
        assert [values["name"] for kind, values in calls if kind == "init"] == ["1-imitation", "2-spag"]
        losses = [values["train/loss"] for kind, values in calls if kind == "log"]
        assert losses == [row["loss"] for name in ("1-imitation", "2-spag") for row in rows(tmp_path / "run" / name)]
        assert "a-secret" not in str(calls)
    finally:
        sys.modules.pop("wandb", None)


def test_lora_trains_an_adapter_and_a_later_stage_goes_on_with_it(model_folder: Path, tmp_path: Path) -> None:
    chosen = settings(lora={"rank": 2, "alpha": 4})
    first = train_tiny(model_folder, tmp_path / "one", chosen)
    adapter = load_file(first.checkpoint / "adapter_model.safetensors")
    assert not (first.checkpoint / "model.safetensors").exists()
    assert all("lora_" in name for name in adapter)
    assert max(adapter[name].abs().max().item() for name in adapter if "lora_B" in name) > 0.0
    second = train_tiny(first.checkpoint, tmp_path / "two", chosen)
    assert rows(tmp_path / "two")[0]["importance_ratio"] == pytest.approx(
        1.0, abs=ROUNDING
    )  # the reference is base and first adapter
    moved = load_file(second.checkpoint / "adapter_model.safetensors")
    assert set(moved) == set(adapter)
    assert distance(moved, adapter) > 0.0
    load_model(str(second.checkpoint), device="cpu")
    with pytest.raises(ConfigError, match=r"^lora\.rank=3: the adapter of .* its rank is 2; set lora\.rank=2$"):
        train_tiny(first.checkpoint, tmp_path / "three", settings(lora={"rank": 3, "alpha": 4}))


def test_progress_counts_reference_samples_and_then_steps(model_folder: Path, tmp_path: Path) -> None:
    seen: list[TrainProgress] = []
    train_tiny(model_folder, tmp_path, count=20, progress=seen.append)
    reference = [at for at in seen if at.unit is Unit.REFERENCE]
    steps = [at for at in seen if at.unit is Unit.UPDATES]
    assert [(at.step, at.total_steps, at.loss) for at in reference] == [
        (8, 16, None),
        (16, 16, None),
    ]  # 4 of 20 are SFT rows, which need none
    assert [(at.step, at.total_steps) for at in steps] == [(1, 3), (2, 3), (3, 3)]
    assert [at.loss for at in steps] == [row["loss"] for row in rows(tmp_path)]


def test_a_resumed_training_shows_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    reporter, now = ConsoleReporter(Console(file=io.StringIO())), itertools.count(0.0, 30.0)
    with pytest.MonkeyPatch.context() as patch, caplog.at_level("INFO", "spag"):
        patch.setattr("spag.cli.console.time", SimpleNamespace(monotonic=lambda: next(now)))
        with _progress_bars(reporter, "spag") as show:
            for step in (501, 502):
                show(TrainProgress(Unit.UPDATES, step, 1000, 1.0, None))
    assert "502/1000, 4:09:00 left" in caplog.messages[-1]  # two updates in a minute, and 498 to go


def test_the_output_folder_holds_what_the_page_says(usual: Path) -> None:
    assert {path.name for path in usual.iterdir()} == {
        "checkpoint",
        "metrics.jsonl",
        "reference.jsonl",
        "samples.jsonl",
        "training.json",
    }


def test_a_finished_training_is_not_repeated_but_one_with_other_samples_is(
    model_folder: Path, usual: Path, tmp_path: Path
) -> None:
    shutil.copytree(usual, tmp_path, dirs_exist_ok=True)
    first = train_tiny(model_folder, tmp_path)
    made = (tmp_path / "checkpoint" / "model.safetensors").stat().st_mtime_ns
    assert train_tiny(model_folder, tmp_path) == first
    assert (tmp_path / "checkpoint" / "model.safetensors").stat().st_mtime_ns == made
    other = train_tiny(model_folder, tmp_path, count=20)
    assert (other.steps, len(rows(tmp_path))) == (3, 3)
    assert len((tmp_path / "reference.jsonl").read_text().splitlines()) == 1 + 16


def test_a_stale_reference_file_is_not_used(model_folder: Path, usual: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model_folder, tmp_path / "other")
    model = load_model(str(other), dtype="float32", device="cpu")
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.5)
    model.save_pretrained(other)
    (tmp_path / "b").mkdir()
    shutil.copy(usual / "reference.jsonl", tmp_path / "b")
    train_tiny(other, tmp_path / "b")
    assert rows(tmp_path / "b")[0]["importance_ratio"] == pytest.approx(1.0, abs=ROUNDING)


def test_other_prompt_tokens_and_another_base_model_under_an_adapter_train_anew(
    model_folder: Path, tmp_path: Path
) -> None:
    tokenizer, [sample] = load_tokenizer(str(model_folder)), make_samples(1)
    completion = tuple(tokenizer.encode(sample.completion, add_special_tokens=False))
    references = set()
    for prompt in ("one", "two"):  # the text stays
        tokens = tuple(tokenizer.encode(prompt, add_special_tokens=False))
        drawn = replace(sample, prompt_ids=tokens, completion_ids=completion)
        train_tiny(model_folder, tmp_path / "tokens", samples=[drawn])
        references.add((tmp_path / "tokens" / "reference.jsonl").read_text().splitlines()[1])
    assert len(references) == 2

    base, chosen = shutil.copytree(model_folder, tmp_path / "base"), settings(lora={"rank": 2, "alpha": 4}, max_steps=1)
    adapter = train_tiny(base, tmp_path / "adapter", chosen).checkpoint
    for factor in (1.0, 1.5):
        model = load_model(str(base), dtype="float32", device="cpu")
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(factor)
        model.save_pretrained(base)
        train_tiny(adapter, tmp_path / "on", chosen)
        references.add((tmp_path / "on" / "reference.jsonl").read_text().splitlines()[1])
    assert len(references) == 4


def test_what_cannot_work_is_refused_in_one_line(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no game yielded a sample"):
        train_tiny(model_folder, tmp_path / "none", count=0)
    with pytest.raises(ConfigError, match=r"dtype=float16.*CPU"):
        train_tiny(model_folder, tmp_path, model=ModelConfig(dtype="float16", device="cpu"))


def test_games_that_gave_no_sample_are_refused_beside_instruction_data(model_folder: Path, tmp_path: Path) -> None:
    ties, mix = tmp_path / "ties.jsonl", tmp_path / "mix.json"
    write_rows(ties, [episode_of("river", "A long one.", "Hm.", max_turns=1, id="a", game=TABOO.name)])
    mix.write_text('[{"instruction": "Say a.", "input": "", "output": "a"}]')
    chosen = job(model_folder, tmp_path / "out", settings(sft_data=str(mix), max_steps=1))
    with pytest.raises(DataError, match="no game yielded a sample"):
        run_job(chosen.model_copy(update={"files": [ties]}))
    result = run_job(chosen.model_copy(update={"files": [*chosen.files, ties]}))  # others' samples are enough
    assert (result["samples"], result["sft"]) == ({"attacker": 17, "defender": 16}, 9)


def test_seeds_may_have_63_bits(model_folder: Path, tmp_path: Path) -> None:
    """As those of a run's second phase with the same algorithm."""
    train_tiny(model_folder, tmp_path, settings(max_steps=1, lora={"rank": 2}), seed=2**63 - 1)


def test_a_loss_that_is_no_number_stops_the_training_and_names_the_step(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"update [2-6]: the (loss|gradient's norm) is"):
        train_tiny(model_folder, tmp_path, settings(learning_rate=1e9, warmup_ratio=0.0))
    assert not (tmp_path / "checkpoint").exists()


def test_a_full_disk_is_a_storage_error(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        Path("/dev/full").write_text("row")

    monkeypatch.setattr("spag.learning.metrics.MetricsLog.append", full)
    with pytest.raises(StorageError, match=r"cannot be written .*No space left.*training resumes"):
        train_tiny(model_folder, tmp_path)
    with pytest.raises(StorageError, match="cannot be written"), training_errors(tmp_path):
        torch.save(torch.zeros(100_000), "/dev/full")


@pytest.mark.parametrize("fault", [errno.EFBIG, errno.EIO, errno.EROFS, errno.EDQUOT, errno.ESTALE])
def test_a_disk_that_fails_under_safetensors_is_a_storage_error(tmp_path: Path, fault: int) -> None:
    with pytest.raises(StorageError, match="cannot be written"), training_errors(tmp_path):
        raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(fault)} (os error {fault})")
    with pytest.raises(SafetensorError), training_errors(tmp_path):
        raise SafetensorError("Error while serializing: I/O error: No such file or directory (os error 2)")


def test_a_disk_that_is_full_when_the_optimizer_is_saved_is_a_storage_error(tmp_path: Path) -> None:
    """torch's checkpoint raises what is no Exception, with the cause of each process in it."""
    full = OSError(errno.ENOSPC, "No space left on device")
    for cause, kind, message in (
        (full, StorageError, "cannot be written .*No space left.*training resumes"),
        (EOFError(), RunError, f"^{tmp_path}: its state cannot be read or written: EOFError; remove {tmp_path}/state"),
    ):
        with pytest.raises(kind, match=message), training_errors(tmp_path):
            raise CheckpointException("save", {0: (cause, StackSummary())})


def test_a_stop_while_the_optimizer_is_saved_is_a_stop(tmp_path: Path) -> None:
    with pytest.raises(Terminated), training_errors(tmp_path):
        raise CheckpointException("save", {0: (Terminated(), StackSummary())})


def test_memory_that_runs_out_is_a_run_error_with_the_remedy(tmp_path: Path) -> None:
    for error in (
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ):
        with pytest.raises(RunError, match=r"out of memory.*micro_batch_size"), training_errors(tmp_path):
            raise error
    with pytest.raises(RuntimeError, match="something else"), training_errors(tmp_path):
        raise RuntimeError("something else")
