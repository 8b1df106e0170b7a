"""Loading tasks: local ones, those that cannot be loaded, and everything that is refused before any work is done."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from spag.core.errors import ConfigError, DataError
from spag.core.progress import SilentReporter
from spag.evaluation.reasoning import harness
from spag.evaluation.reasoning.tasks import LoadedTask, ReasoningSettings, load_tasks

TASKS = Path(__file__).parent / "tasks"
pytestmark = pytest.mark.slow  # lm_eval alone takes six seconds to import


@pytest.fixture(autouse=True)
def _own_data_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


def load(*names: str, task_path: Path | None) -> tuple[list[LoadedTask], dict[str, str]]:
    return load_tasks(ReasoningSettings(names, task_path=task_path), SilentReporter())


PLAIN = """task: t
dataset_path: json
dataset_kwargs: {data_files: {test: counting.jsonl}}
test_split: test
output_type: generate_until
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "doc_to_text: !function utils.text\n",
            r"would run Python code \(!function utils\.text\); review it, then pass --trust",
        ),
        ("metric_list: [{metric: some/metric}]\n", r"some/metric: no metric of lm-eval's own, .*--trust-task-code"),
        ("metric_list: [{metric: acc, hf_evaluate: true}]\n", "acc: no metric of lm-eval's own"),
        ("include: deeper/base\n", r"deeper: a task file would run Python code"),
    ],
)
def test_task_files_that_would_run_code_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "base").write_text("doc_to_text: !function utils.text\n")
    for folder in (tmp_path, tmp_path / "deeper"):
        (folder / "utils.py").write_text("raise SystemExit('code ran')\n")
    (tmp_path / "t.yaml").write_text(PLAIN + text)
    with pytest.raises(ConfigError, match=message):
        load("t", task_path=tmp_path)


def test_trusted_task_files_run_their_code(tmp_path: Path) -> None:
    shutil.copy(TASKS / "counting.jsonl", tmp_path)
    (tmp_path / "utils.py").write_text("def text(row):\n    return row['start'] + '?'\n")
    text = "doc_to_text: !function utils.text\ndoc_to_target: '{{next}}'\nmetric_list: [{metric: exact_match}]\n"
    (tmp_path / "t.yaml").write_text(PLAIN + text)
    settings = ReasoningSettings(("t",), task_path=tmp_path, trust_task_code=True)
    [[task], _] = load_tasks(settings, SilentReporter())
    assert task.parts["t"].doc_to_text(task.parts["t"].eval_docs[0]).endswith("?")


def test_templates_cannot_reach_python(tmp_path: Path) -> None:
    task = (TASKS / "counting.yaml").read_text().replace("{{start}},", "{{ start.__class__.__mro__ }}")
    (tmp_path / "counting.yaml").write_text(task)
    shutil.copy(TASKS / "counting.jsonl", tmp_path)
    with pytest.raises(DataError, match=r"spag_counting \(SecurityError: access to attribute '__class__'"):
        load("spag_counting", task_path=tmp_path)


def test_task_folders_and_names_that_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no task files \(\*\.yaml\)"):
        load("x", task_path=tmp_path)
    (tmp_path / "broken.yaml").write_text("task: [")
    with pytest.raises(DataError, match=r"broken\.yaml: not a task file: while parsing"):
        load("x", task_path=tmp_path)
    monkeypatch.setattr(harness, "_all_of_lm_eval", dict)
    with pytest.raises(ConfigError, match="spag_countin: lm-eval has no such task; did you mean spag_counting"):
        load("spag_countin", task_path=TASKS)


def test_local_files_may_stand_in_for_the_papers_tasks(tmp_path: Path) -> None:
    (tmp_path / "arc.yaml").write_text(
        (TASKS / "common_sense.yaml").read_text().replace("spag_common_sense", "arc_easy")
    )
    shutil.copy(TASKS / "common_sense.jsonl", tmp_path)
    (task,), _ = load("arc_easy", task_path=tmp_path)
    assert (task.label, task.metric, task.shots) == ("ARC-e", "acc_norm", 0)


FAILING = {  # a task file that points at each, and what datasets says
    "scripted": ("dataset_path: made/up", r"RuntimeError: Dataset scripts are no longer supported, but found up\.py"),
    "unreachable": ("dataset_path: made/elsewhere", r"ConnectionError: Couldn't reach 'made/elsewhere' on the Hub"),
    "unlisted": (
        "dataset_path: json\ndataset_kwargs: {data_files: {test: 'hf://datasets/made/up/*.txt'}}",
        "OfflineModeIsEnabled: ",
    ),
    "absent": (
        "dataset_path: json\ndataset_kwargs: {data_files: {test: absent.jsonl}}",
        "FileNotFoundError: .*absent.jsonl",
    ),
    "no_json": ("dataset_path: json\ndataset_kwargs: {data_files: {test: no_json.jsonl}}", "DatasetGenerationError: "),
    "no_zip": (
        "dataset_path: json\ndataset_kwargs: {data_files: {test: 'zip://*.jsonl::no_json.jsonl'}}",
        "BadZipFile: ",
    ),
    "no_split": ("dataset_path: json\ndataset_kwargs: {data_files: {train: counting.jsonl}}", "KeyError: 'test'"),
    "no_column": (
        "dataset_path: json\ndataset_kwargs: {data_files: {test: counting.jsonl}}",
        "UndefinedError: 'missing' is undefined",
    ),
}


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(TASKS, tmp_path / "tasks"))
    for name, (source, _) in FAILING.items():
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\n{source}\ntest_split: test\noutput_type: generate_until\n"
            "doc_to_text: '{{missing}}'\ndoc_to_target: x\nmetric_list: [{metric: exact_match}]\n"
        )
    (folder / "made" / "up").mkdir(parents=True)
    (folder / "made" / "up" / "up.py").write_text("raise SystemExit('code ran')\n")
    (folder / "no_json.jsonl").write_text("{")
    return folder


def test_a_task_that_cannot_be_loaded_is_left_out_with_the_reason_on_one_line(failing: Path) -> None:
    tasks, left_out = load(*FAILING, "spag_counting", task_path=failing)
    assert [task.name for task in tasks] == ["spag_counting"]
    for name, (_, reason) in FAILING.items():
        assert re.match(reason, left_out[name]), left_out[name]
        assert "\n" not in left_out[name]


def test_the_command_goes_on_without_such_a_task_and_fails_at_the_end(
    failing: Path, model_folder: Path, tmp_path: Path
) -> None:
    from spag.cli.eval import eval_command

    common = [
        "--set",
        "model.dtype=float32",
        "--task-path",
        str(failing),
        "--limit",
        "2",
        "--output",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(eval_command, [f"tiny={model_folder}", "--tasks", "scripted,spag_counting", *common])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)  # no traceback
    assert "scripted is skipped: RuntimeError: Dataset scripts are no longer supported, but found up.py" in done.stderr
    assert "To evaluate it too, go online once" in done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(results["tasks"]) == ["spag_counting"]
    assert list(results["left_out"]) == ["scripted"]
    assert (
        CliRunner().invoke(eval_command, [f"tiny={model_folder}", "--tasks", "spag_counting", *common]).exit_code == 0
    )


@pytest.mark.parametrize("disabled", ["1", ""])
def test_the_bar_of_lm_eval_is_off_where_those_of_libraries_are(
    disabled: str, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spag.cli.eval import eval_command

    monkeypatch.setenv("TQDM_DISABLE", disabled)  # "1" by the command line, where there is no terminal
    command = [f"tiny={model_folder}", "--tasks", "spag_common_sense", "--task-path", str(TASKS), "--limit", "2"]
    done = CliRunner().invoke(
        eval_command, [*command, "--set", "model.dtype=float32", "--output", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    assert ("Running loglikelihood" in done.stderr) == (not disabled)


def test_every_reason_is_given_when_no_task_can_be_loaded(failing: Path) -> None:
    with pytest.raises(
        DataError, match=r"scripted \(RuntimeError: .*; absent \(FileNotFoundError: .*with --data or --task-path"
    ) as caught:
        load("scripted", "absent", task_path=failing)
    assert "\n" not in str(caught.value)
