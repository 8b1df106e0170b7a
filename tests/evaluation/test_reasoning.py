"""lm-eval for real, offline: local tasks on the tiny model, resuming, refusals, and the embedded model above chance."""

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spag.config.files import dump_config
from spag.config.schema import ModelConfig, RunConfig
from spag.core.errors import ConfigError, DataError, RunError
from spag.core.progress import SilentReporter
from spag.evaluation.reasoning import evaluate as reasoning
from spag.evaluation.reasoning.evaluate import evaluate_reasoning
from spag.evaluation.reasoning.tasks import ReasoningSettings
from spag.storage.manifest import Manifest
from tiny_model import make_model

TASKS = Path(__file__).parent / "tasks"
pytestmark = pytest.mark.slow  # lm_eval alone takes six seconds to import
BOTH = ReasoningSettings(("spag_common_sense", "spag_counting"), task_path=TASKS, limit=8)


@pytest.fixture(autouse=True)
def _own_data_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


@pytest.fixture
def tiny(model_folder: Path) -> ModelConfig:
    return ModelConfig(name=str(model_folder), dtype="float32")


@pytest.fixture
def other(tmp_path: Path) -> ModelConfig:
    return ModelConfig(name=str(make_model(tmp_path / "other", hidden_size=48)), dtype="float32")


class Watcher(SilentReporter):
    """Keeps the notes, among them the model and task of everything that is computed."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests of each kind and task reached a model."""
    from lm_eval.models.huggingface import HFLM

    counts: list[int] = []

    def counting(original: Any) -> Any:
        def compute(lm: Any, requests: list[Any], *arguments: Any, **options: Any) -> Any:
            counts.append(len(requests))
            return original(lm, requests, *arguments, **options)

        return compute

    for name in ("loglikelihood", "generate_until"):
        monkeypatch.setattr(HFLM, name, counting(getattr(HFLM, name)))
    return counts


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_figures_are_those_of_lm_eval(tiny: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[dict[str, Any]] = []
    evaluate = reasoning.lm_eval.evaluate

    def spy(*args: Any, **kwargs: Any) -> Any:
        kept.append(evaluate(*args, **{**kwargs, "bootstrap_iters": 100}))
        return kept[-1]

    monkeypatch.setattr(reasoning.lm_eval, "evaluate", spy)
    settings = ReasoningSettings(("spag_common_sense",), task_path=TASKS)
    results = evaluate_reasoning({"tiny": tiny}, settings, tmp_path / "out", SilentReporter())
    ours, theirs = results["models"]["tiny"]["tasks"]["spag_common_sense"], kept[0]["results"]["spag_common_sense"]
    assert ours["items"] == 40
    assert ours["value"] == theirs["acc_norm,none"]
    assert ours["se"] == pytest.approx(theirs["acc_norm_stderr,none"])
    assert ours["metrics"]["acc"]["value"] == theirs["acc,none"]
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results
    assert results["tasks"]["spag_common_sense"]["metric"] == "acc_norm"
    assert ours["versions"].keys() == {"torch", "transformers", "spag", "lm_eval", "datasets"}


def test_a_model_equals_itself_and_a_group_weighs_items(tiny: ModelConfig, tmp_path: Path) -> None:
    settings = ReasoningSettings(("spag_local", "spag_counting"), task_path=TASKS, limit=5)
    results = evaluate_reasoning({"one": tiny, "two": tiny}, settings, tmp_path, SilentReporter())
    two = results["models"]["two"]
    for figure in two["tasks"].values():
        assert {key: figure["difference"][key] for key in ("value", "better", "worse", "p")} == {
            "value": 0,
            "better": 0,
            "worse": 0,
            "p": 1,
        }
    assert two["geometric_mean"]["difference"] == {"value": 0, "low": 0, "high": 0}
    group = two["tasks"]["spag_local"]
    assert group["items"] == 6  # a limit of five is three for each of two parts
    assert two["tasks"]["spag_counting"]["items"] == 5
    parts = [group["parts"][name]["acc_norm"]["value"] for name in ("spag_common_sense", "spag_common_sense_cloze")]
    assert group["value"] == pytest.approx(sum(parts) / 2)
    assert [row["doc"] for row in rows(tmp_path / "one" / "spag_local.jsonl")] == [*range(3), *range(3)]


def test_a_stopped_evaluation_goes_on(
    tiny: ModelConfig, other: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    models = {"tiny": tiny, "other": other}
    straight = evaluate_reasoning(models, BOTH, tmp_path / "straight", SilentReporter())
    assert computed == [32, 8, 32, 8]

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lm_eval.models.huggingface.HFLM.generate_until", stop)
        with pytest.raises(KeyboardInterrupt):
            evaluate_reasoning(models, BOTH, tmp_path / "out", SilentReporter())
    before = (tmp_path / "out" / "tiny" / "spag_common_sense.jsonl").stat().st_mtime_ns
    watcher = Watcher()
    computed.clear()
    resumed = evaluate_reasoning(models, BOTH, tmp_path / "out", watcher)
    assert computed == [8, 32, 8]
    assert (tmp_path / "out" / "tiny" / "spag_common_sense.jsonl").stat().st_mtime_ns == before
    assert watcher.notes == [
        "loading the data of 2 tasks",
        "tiny: done before: spag_common_sense",
        "tiny spag_counting",
        "other spag_common_sense",
        "other spag_counting",
    ]
    for name, model in straight["models"].items():
        assert resumed["models"][name]["geometric_mean"] == model["geometric_mean"]
        for task, figure in model["tasks"].items():
            assert resumed["models"][name]["tasks"][task]["metrics"] == figure["metrics"]
            assert resumed["models"][name]["tasks"][task]["difference"] == figure["difference"]
    lost = tmp_path / "out" / "tiny" / "spag_counting.jsonl"
    items = lost.read_bytes()
    lost.unlink()
    with pytest.raises(DataError, match=r"spag_counting.jsonl: cannot be read: No such file"):
        evaluate_reasoning(models, BOTH, tmp_path / "out", SilentReporter())
    computed.clear()
    evaluate_reasoning(models, BOTH, tmp_path / "out", SilentReporter(), force=True)
    assert (lost.read_bytes(), computed) == (items, [])  # its answers are cached


def test_answers_within_a_task_are_kept_as_json(
    tiny: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    from lm_eval.models.huggingface import HFLM

    settings = ReasoningSettings(("spag_common_sense",), task_path=TASKS, limit=8, batch_size=4)
    batches: list[int] = []
    model_call = HFLM._model_call

    def fail_at_the_third(lm: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        batches.append(len(inputs))
        if len(batches) == 3:
            raise KeyboardInterrupt
        return model_call(lm, inputs, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(HFLM, "_model_call", fail_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            evaluate_reasoning({"tiny": tiny}, settings, tmp_path / "out", SilentReporter())
    assert batches == [4, 4, 4]
    answers = cached_answers(tmp_path / "out" / "tiny")
    assert len(answers) == 8
    assert all(value < 0 and greedy is False for value, greedy in answers)
    computed.clear()
    resumed = evaluate_reasoning({"tiny": tiny}, settings, tmp_path / "out", SilentReporter())
    assert computed == [24]
    whole = evaluate_reasoning({"tiny": tiny}, settings, tmp_path / "whole", SilentReporter())
    assert (
        resumed["models"]["tiny"]["tasks"]["spag_common_sense"]["metrics"]
        == whole["models"]["tiny"]["tasks"]["spag_common_sense"]["metrics"]
    )


def cached_answers(folder: Path) -> list[Any]:
    [file] = folder.glob("answers-*.sqlite")
    with closing(sqlite3.connect(file)) as connection:
        return [json.loads(value) for (value,) in connection.execute("SELECT value FROM unnamed")]


def test_sampled_answers_differ_and_their_scores_are_averaged(
    tiny: ModelConfig, tmp_path: Path, computed: list[int]
) -> None:
    settings = ReasoningSettings(BOTH.tasks, task_path=TASKS, limit=6, samples=4, temperature=1.0)
    results = evaluate_reasoning({"m": tiny}, settings, tmp_path, SilentReporter())
    assert computed == [24, 6, 6, 6, 6]  # choices are scored once: nothing is sampled
    assert {name: task["samples"] for name, task in results["tasks"].items()} == {
        "spag_common_sense": 1,
        "spag_counting": 4,
    }
    sampled = rows(tmp_path / "m" / "spag_counting.jsonl")
    assert [len(row["answers"]) for row in sampled] == [4] * 6
    assert any(len(set(row["answers"])) > 1 for row in sampled)
    again = evaluate_reasoning({"m": tiny}, settings, tmp_path / "again", SilentReporter())
    assert (
        again["models"]["m"]["tasks"]["spag_counting"]["metrics"]
        == results["models"]["m"]["tasks"]["spag_counting"]["metrics"]
    )
    assert rows(tmp_path / "again" / "m" / "spag_counting.jsonl") == sampled
    with pytest.raises(RunError, match=r"samples was 4, is 1, temperature was 1\.0, is 0\.0"):
        evaluate_reasoning({"m": tiny}, replace(settings, samples=1, temperature=0.0), tmp_path, SilentReporter())


def test_a_sampled_score_is_the_mean_over_samples() -> None:
    row = {"task": "t", "doc": 0, "metrics": {"exact_match": 1.0}, "answers": ["a"]}
    other = {**row, "metrics": {"exact_match": 0.0}, "answers": ["b"]}
    merged = {**row, "metrics": {"exact_match": 0.75}, "answers": ["a", "b", "a", "a"]}
    assert reasoning._mean_row([row, other, row, row]) == merged


def test_a_changed_model_neither_passes_nor_reuses_answers(
    model_folder: Path, tmp_path: Path, computed: list[int]
) -> None:
    place = Path(shutil.copytree(model_folder, tmp_path / "checkpoint"))
    model = ModelConfig(name=str(place), dtype="float32")
    evaluate_reasoning({"m": model}, BOTH, tmp_path / "out", SilentReporter())
    computed.clear()
    shutil.copytree(model_folder, place, dirs_exist_ok=True)  # other times of change, same contents
    (place / "model.safetensors").touch()
    evaluate_reasoning({"m": model}, BOTH, tmp_path / "out", SilentReporter())
    assert computed == []
    make_model(place, hidden_size=48)
    with pytest.raises(RunError, match=r"m/spag_common_sense was begun with other settings \(model was"):
        evaluate_reasoning({"m": model}, BOTH, tmp_path / "out", SilentReporter())
    evaluate_reasoning({"m": model}, BOTH, tmp_path / "out", SilentReporter(), force=True)
    assert computed == [32, 8]


def test_changed_data_are_refused(tiny: ModelConfig, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TASKS, tmp_path / "tasks"))
    settings = ReasoningSettings(("spag_counting",), task_path=folder, limit=3)
    evaluate_reasoning({"m": tiny}, settings, tmp_path / "out", SilentReporter())
    data = folder / "counting.jsonl"
    lines = data.read_text().splitlines(keepends=True)
    data.write_text("".join([*lines[:4], '{"start": "a, b", "next": "c"}\n']))  # behind the limit: nothing changes
    evaluate_reasoning({"m": tiny}, settings, tmp_path / "out", SilentReporter())
    data.write_text("".join(reversed(lines)))
    with pytest.raises(
        RunError, match="begun before the definition or data of spag_counting changed; use a new run folder"
    ):
        evaluate_reasoning({"m": tiny}, settings, tmp_path / "out", SilentReporter())


@pytest.mark.parametrize("option", ["limit", "shots"])
def test_an_option_that_chooses_other_items_is_named_and_not_the_data(
    option: str, tiny: ModelConfig, tmp_path: Path
) -> None:
    settings = ReasoningSettings(("spag_common_sense",), task_path=TASKS, limit=1)
    evaluate_reasoning({"m": tiny}, settings, tmp_path, SilentReporter())
    changed = replace(settings, **{option: 2})
    with pytest.raises(RunError, match=rf"with other settings \({option} was \d, is 2\); use"):
        evaluate_reasoning({"m": tiny}, changed, tmp_path, SilentReporter())
    results = evaluate_reasoning({"m": tiny}, changed, tmp_path, SilentReporter(), force=True)
    assert results["settings"][option] == 2


def test_shots_come_from_the_same_examples_for_every_model(
    tiny: ModelConfig, other: ModelConfig, tmp_path: Path
) -> None:
    settings = ReasoningSettings(("spag_common_sense",), task_path=TASKS, limit=4, shots=2)
    results = evaluate_reasoning({"tiny": tiny, "other": other}, settings, tmp_path, SilentReporter())
    assert results["tasks"]["spag_common_sense"]["shots"] == 2
    prompts = [
        [row["prompt_hash"] for row in rows(tmp_path / name / "spag_common_sense.jsonl")] for name in ("tiny", "other")
    ]
    assert prompts[0] == prompts[1]
    evaluate_reasoning(
        {"tiny": tiny}, ReasoningSettings(("spag_common_sense",), TASKS, limit=4), tmp_path / "zero", SilentReporter()
    )
    assert prompts[0] != [row["prompt_hash"] for row in rows(tmp_path / "zero" / "tiny" / "spag_common_sense.jsonl")]


def test_generated_answers_may_be_cut_shorter_than_their_task_says(tiny: ModelConfig, tmp_path: Path) -> None:
    """Other answers, so another definition: results of the two are never mixed."""
    settings = ReasoningSettings(("spag_counting",), task_path=TASKS, limit=3)
    evaluate_reasoning({"m": tiny}, settings, tmp_path, SilentReporter())
    with pytest.raises(RunError, match="max_new_tokens was None, is 2"):
        evaluate_reasoning({"m": tiny}, replace(settings, max_new_tokens=2), tmp_path, SilentReporter())
    evaluate_reasoning({"m": tiny}, replace(settings, max_new_tokens=2), tmp_path / "short", SilentReporter())
    whole, short = (max(map(len, cached_answers(folder / "m"))) for folder in (tmp_path, tmp_path / "short"))
    assert short <= 2 < whole  # a token is a byte here


def test_adapters_are_evaluated_and_told_apart_with_their_base(tiny: ModelConfig, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    from spag.models.loading import load_model

    base = Path(shutil.copytree(tiny.name, tmp_path / "base"))
    adapted = get_peft_model(
        load_model(str(base), dtype="float32"), LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    )
    adapted.save_pretrained(tmp_path / "adapter")
    adapter = ModelConfig(name=str(tmp_path / "adapter"), dtype="float32")
    for file in base.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "adapter")
    results = evaluate_reasoning({"base": tiny, "adapter": adapter}, BOTH, tmp_path / "out", SilentReporter())
    answers = [
        [row["answers"] for row in rows(tmp_path / "out" / name / "spag_common_sense.jsonl")]
        for name in ("base", "adapter")
    ]
    assert answers[0] != answers[1]
    make_model(base, initializer_range=0.2)
    with pytest.raises(RunError, match=rf"\(model was '{results['models']['adapter']['identity']}'"):
        evaluate_reasoning({"adapter": adapter}, BOTH, tmp_path / "out", SilentReporter())


def test_a_context_that_is_too_short_is_one_line(tmp_path: Path) -> None:
    short = ModelConfig(name=str(make_model(tmp_path / "short", max_position_embeddings=8)), dtype="float32")
    settings = ReasoningSettings(("spag_counting",), task_path=TASKS, limit=2)
    with pytest.raises(
        RunError, match=r"^m spag_counting: .*max tokens to generate \(8\) must be less than.*; set --max-new-tokens$"
    ):
        evaluate_reasoning({"m": short}, settings, tmp_path / "out", SilentReporter())


def test_endpoints_and_clashing_names_are_refused(tiny: ModelConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an endpoint gives no log-likelihoods"):
        evaluate_reasoning({"gpt": ModelConfig(name="openai:gpt")}, BOTH, tmp_path, SilentReporter())
    with pytest.raises(ConfigError, match="need names that differ"):
        evaluate_reasoning({"a/b": tiny, "a-b": tiny}, BOTH, tmp_path, SilentReporter())


def test_the_command_takes_a_run_folder(tiny: ModelConfig, tmp_path: Path) -> None:
    from spag.cli.eval import eval_command

    run = tmp_path / "run"
    for name in ("1-imitation", "2-spag/iteration-1", "2-spag/iteration-2"):
        shutil.copytree(tiny.name, run / name / "checkpoint")
    phases = [{"algorithm": "imitation"}, {"algorithm": "spag", "iterations": 2}]
    (run / "config.yaml").write_text(
        dump_config(RunConfig.model_validate({"model": tiny.model_dump(), "phases": phases}))
    )
    manifest = Manifest.open(run)
    for name in ("1-imitation", "2-spag/iteration-1"):  # the second iteration is not done
        manifest.begin(f"{name}/train", {})
        with manifest.running(f"{name}/train"):
            pass
    common = [
        "--tasks",
        "spag_counting,spag_common_sense",
        "--task-path",
        str(TASKS),
        "--limit",
        "4",
        "--output",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(eval_command, [str(run), *common], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(results["models"]) == ["base", "imitation", "spag-1"]
    assert "geometric mean" in done.output
    assert "not corrected for the 4 comparisons" in " ".join(done.output.split())
    named = [f"r={run}", f"tiny={tiny.name}", "--set", "model.dtype=float32", "--json"]
    again = CliRunner().invoke(eval_command, [*named, *common])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(json.loads(again.stdout)["models"]) == [
        "r/base",
        "r/imitation",
        "r/spag-1",
        "tiny",
    ]


@pytest.mark.model
def test_the_embedded_model_beats_chance(tiny: ModelConfig, tmp_path: Path) -> None:
    model = ModelConfig(name="smollm2-135m", dtype="float32")
    settings = ReasoningSettings(("spag_common_sense", "spag_counting"), task_path=TASKS, limit=24)
    results = evaluate_reasoning({"random": tiny, "smollm2": model}, settings, tmp_path, SilentReporter())
    smollm2 = results["models"]["smollm2"]["tasks"]
    # chance is 25 %; 15 right of 24 are four standard errors above it. Measured: 87.5 % and 100 %.
    assert smollm2["spag_common_sense"]["value"] >= 0.625
    assert smollm2["spag_common_sense"]["difference"]["low"] > 0.2
    assert smollm2["spag_common_sense"]["difference"]["p"] < 0.001
    assert smollm2["spag_counting"]["value"] >= 0.5
