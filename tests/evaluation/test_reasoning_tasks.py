"""Loading tasks: the paper's, local ones, and everything that is refused before any work is done."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError, DataError
from spag.core.progress import SilentReporter
from spag.evaluation.reasoning import run as reasoning
from spag.evaluation.reasoning import tasks as reasoning_tasks
from spag.evaluation.reasoning.run import evaluate_reasoning
from spag.evaluation.reasoning.tasks import PAPER_TASKS, ReasoningSettings, load_tasks
from tiny_model import make_model

TASKS = Path(__file__).parent / "tasks"
pytestmark = pytest.mark.slow  # lm_eval alone takes six seconds to import


@pytest.fixture(autouse=True)
def _own_data_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


@pytest.fixture
def tiny(model_folder: Path) -> ModelConfig:
    return ModelConfig(name=str(model_folder), dtype="float32")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: t\ndoc_to_text: !function utils.text\n", r"!function \(line 2\) would run Python code; review it, then pass --trust-task"),
        ("task: t\nclass: thing\n", "names a Python class"),
        ("task: t\nmetric_list:\n  - metric: some/metric\n", "is no metric of lm-eval's own"),
        ("task: t\nmetric_list:\n  - metric: acc\n    hf_evaluate: true\n", "fetches a metric's code"),
        ("include: deeper/base\ntask: t\n", r"base: !function \(line 1\)"),
    ],
)
def test_task_files_that_would_run_code_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "base").write_text("doc_to_text: !function utils.text\n")
    (tmp_path / "utils.py").write_text("raise SystemExit('code ran')\n")
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_tasks(ReasoningSettings(("t",), task_path=tmp_path))


def test_templates_cannot_reach_python(tmp_path: Path) -> None:
    task = (TASKS / "counting.yaml").read_text().replace("{{start}},", "{{ start.__class__.__mro__ }}")
    (tmp_path / "counting.yaml").write_text(task)
    shutil.copy(TASKS / "counting.jsonl", tmp_path)
    with pytest.raises(DataError, match=r"spag_counting \(SecurityError: access to attribute '__class__'"):
        load_tasks(ReasoningSettings(("spag_counting",), task_path=tmp_path))


def test_task_folders_and_names_that_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no task files \(\*\.yaml\)"):
        load_tasks(ReasoningSettings(("x",), task_path=tmp_path))
    (tmp_path / "broken.yaml").write_text("task: [")
    with pytest.raises(DataError, match=r"broken\.yaml: not a task file: while parsing"):
        load_tasks(ReasoningSettings(("x",), task_path=tmp_path))
    monkeypatch.setattr(reasoning_tasks, "_shipped", lambda: SimpleNamespace(task_index={}))
    with pytest.raises(ConfigError, match="spag_countin: lm-eval has no such task; do you mean spag_counting"):
        load_tasks(ReasoningSettings(("spag_countin",), task_path=TASKS))


def test_unreachable_data_are_all_named_before_any_work(tiny: ModelConfig, tmp_path: Path) -> None:
    settings = ReasoningSettings(("piqa", "spag_counting", "arc_easy"), task_path=TASKS)
    with pytest.raises(DataError, match=r"cannot be loaded: piqa \(.*; arc_easy \(.*give local task files with --task-path") as caught:
        evaluate_reasoning({"tiny": tiny}, settings, tmp_path / "out", SilentReporter())
    assert "spag_counting" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_local_files_may_stand_in_for_the_papers_tasks(tmp_path: Path) -> None:
    (tmp_path / "arc.yaml").write_text((TASKS / "common_sense.yaml").read_text().replace("spag_common_sense", "arc_easy"))
    shutil.copy(TASKS / "common_sense.jsonl", tmp_path)
    (task,) = load_tasks(ReasoningSettings(("arc_easy",), task_path=tmp_path))
    assert (task.label, task.metric, task.shots) == ("ARC-e", "acc_norm", 0)


def test_the_papers_tasks_exist_with_their_metrics() -> None:
    """Every name is in the installed lm-eval, and every metric in the task's (or a group member's) own list."""
    manager = reasoning_tasks._shipped()
    for paper in PAPER_TASKS.values():
        entry = manager.task_index[paper.task]
        assert entry.cfg is not None
        metrics = entry.cfg.get("metric_list") or entry.cfg.get("aggregate_metric_list") or []
        included = [] if metrics else ["acc_norm"]  # arc_challenge includes arc_easy
        assert paper.metric in [*(metric["metric"] for metric in metrics), *included]
    assert ReasoningSettings(("paper", "piqa", "hellaswag")).names == (*(paper.task for paper in PAPER_TASKS.values()), "hellaswag")


# One made-up item of each data set, in its own columns and with a known answer.
PAPER_ROWS: dict[str, dict[str, Any]] = {
    "SaylorTwift/bbh": {"input": "not True is", "target": "False"},
    "cais/mmlu": {"question": "1 + 1?", "choices": ["1", "2", "3", "4"], "answer": 1, "subject": "sums"},
    "allenai/ai2_arc": {"question": "Ice is", "choices": {"text": ["cold", "hot"], "label": ["A", "B"]}, "answerKey": "A"},
    "baber/logiqa2": {"text": "All cats purr.", "question": "Tom is a cat. Does he?", "options": ["yes", "no", "may", "x"], "answer": 0},
    "baber/piqa": {"goal": "cut paper", "sol1": "use scissors", "sol2": "use soup", "label": 0},
    "EleutherAI/mutual": {"article": "m : are you cold ?", "options": ["yes .", "a", "b", "c"], "answers": "A"},
    "allenai/winogrande": {"sentence": "The cup fell; the _ broke.", "option1": "cup", "option2": "sky", "answer": "1"},
}


def test_the_papers_tasks_run_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the real items: lm-eval's own task files, with made-up rows in the shape of the real ones."""
    import datasets

    made = {path: datasets.Dataset.from_list([row] * 6) for path, row in PAPER_ROWS.items()}

    def made_up(path: str, name: str | None = None, **_: Any) -> datasets.DatasetDict:
        return datasets.DatasetDict(dict.fromkeys(("train", "dev", "validation", "test"), made[path]))

    def load_short(settings: ReasoningSettings) -> list[reasoning_tasks.LoadedTask]:
        tasks = load_tasks(settings)
        for part in tasks[0].parts.values():
            part.set_config("generation_kwargs", {"until": ["Q"], "max_gen_toks": 1})
        return tasks

    monkeypatch.setattr("datasets.load_dataset", made_up)
    monkeypatch.setattr(reasoning, "load_tasks", load_short)
    short = make_model(
        tmp_path / "model", max_position_embeddings=512
    )  # BBH's solved examples are thousands of tokens for a tiny tokenizer
    models = {"tiny": ModelConfig(name=str(short), dtype="float32")}
    results = evaluate_reasoning(models, ReasoningSettings(limit=1), tmp_path, SilentReporter())
    shown = {task["label"]: (task["metric"], task["shots"]) for task in results["tasks"].values()}
    assert shown == {label: (paper.metric, paper.shots) for label, paper in PAPER_TASKS.items()}
    figures = results["models"]["tiny"]["tasks"]
    assert {name: figure["items"] for name, figure in figures.items() if figure["items"] > 1} == {"bbh": 27, "mmlu": 57}
    assert figures["mutual"]["metrics"].keys() == {"r@1", "r@2", "mrr"}
    (item,) = rows(tmp_path / "tiny" / "winogrande.jsonl")
    assert item["metrics"]["acc"] == float(item["answers"][0][0] > item["answers"][1][0])
    (item,) = rows(tmp_path / "tiny" / "piqa.jsonl")
    per_letter = [answer[0] / len(text) for answer, text in zip(item["answers"], ("use scissors", "use soup"), strict=True)]
    assert item["metrics"] == {
        "acc": float(item["answers"][0][0] > item["answers"][1][0]),
        "acc_norm": float(per_letter[0] > per_letter[1]),
    }
