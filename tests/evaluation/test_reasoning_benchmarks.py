"""The suites: their tasks are lm-eval's, our task files ask what lm-eval's own ask, and data come from the hub or from
a folder.
"""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from spag.config.schema import ModelConfig
from spag.core.errors import DataError
from spag.core.progress import SilentReporter
from spag.evaluation.reasoning import evaluate as reasoning
from spag.evaluation.reasoning.evaluate import evaluate_reasoning
from spag.evaluation.reasoning.harness import SHIPPED, open_manager
from spag.evaluation.reasoning.suites import SUITES
from spag.evaluation.reasoning.tasks import LoadedTask, ReasoningSettings, load_tasks
from tiny_model import make_model

REAL = next(
    filter(Path.is_dir, (folder / "shared/data/benchmarks" for folder in Path(__file__).parents)), Path("absent")
)
pytestmark = pytest.mark.slow  # lm_eval alone takes six seconds to import

# Two made-up items of each benchmark, in its own columns and with a known answer. White space is where lm-eval's
# loaders or prompts cut it.
PAPER_ROWS: dict[str, list[dict[str, Any]]] = {
    "bbh": [{"input": "not True is", "target": "False"}, {"input": "not False is", "target": "True"}],
    "mmlu": [
        {"question": "1 + 1? ", "choices": ["1", "2", "3", "4"], "answer": 1, "subject": "sums"},
        {"question": "2 + 2?", "choices": ["1", "2", "3", "4"], "answer": 3, "subject": "sums"},
    ],
    "arc": [
        {"question": "Ice is", "choices": {"text": ["cold", "hot"], "label": ["A", "B"]}, "answerKey": "A"},
        {"question": "Fire is", "choices": {"text": ["cold", "hot"], "label": ["1", "2"]}, "answerKey": "2"},
    ],
    "logiqa2": [
        {
            "text": " All cats purr. ",
            "question": "Tom is a cat. Does he? ",
            "options": ["yes ", "no", "may", "x"],
            "answer": 0,
        },
        {
            "text": "No dog purrs.",
            "question": "Rex is a dog.\nDoes he?",
            "options": ["yes", " no", "it's", 'a "b"'],
            "answer": 1,
        },
    ],
    "piqa": [
        {"goal": "cut paper", "sol1": "use scissors", "sol2": "use soup", "label": 0},
        {"goal": "eat soup", "sol1": "use scissors", "sol2": "use a 'spoon'", "label": 1},
    ],
    "mutual": [
        {
            "article": "m : are n't you cold ?",
            "options": ["f : yes .", "a", "`` b ''", "c"],
            "answers": "A",
            "id": "dev_1",
        },
        {
            "article": "f : it 's late !",
            "options": ["m : no , it is n't .", "a", "b", "c"],
            "answers": "D",
            "id": "dev_2",
        },
    ],
    "winogrande": [
        {"sentence": "The cup fell; the _ broke .", "option1": "cup", "option2": "sky", "answer": "1"},
        {"sentence": "_'s car broke, so Ann, not Bob_, was late.", "option1": "Ann", "option2": "Bob", "answer": "2"},
    ],
}


def names_of(folder: str) -> list[str]:
    """Return lm-eval's names of the parts of MMLU and BBH, from the files it installs."""
    import lm_eval.tasks

    files = sorted((Path(lm_eval.tasks.__file__).parent / folder).glob("[a-z]*.yaml"))
    return [file.stem.removeprefix("mmlu_") for file in files]


def data_files() -> dict[str, str]:
    """Return every file of a folder for ``--data``, with the benchmark whose rows it holds."""
    files = {f"mmlu/{name}_{split}.jsonl": "mmlu" for name in names_of("mmlu/default") for split in ("test", "dev")}
    files |= {f"bbh/{name}.jsonl": "bbh" for name in names_of("bbh/cot_fewshot")}
    files |= {f"{name}_test.jsonl": name.partition("_")[0] for name in ("arc_easy", "arc_challenge", "logiqa2")}
    return files | {f"{name}_validation.jsonl": name for name in ("piqa", "mutual", "winogrande")}


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for file, benchmark in data_files().items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in PAPER_ROWS[benchmark] * 3))
    return folder


@pytest.fixture(scope="module", autouse=True)
def _own_data_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
        yield


def load(*names: str, **settings: Any) -> dict[str, LoadedTask]:
    tasks, left_out = load_tasks(ReasoningSettings(names, **settings), SilentReporter())
    assert left_out == {}
    return {task.name: task for task in tasks}


def lm_evals_own(part: str, ours: Any) -> Any:
    """Return the task ``part`` as lm-eval defines it, on the same rows."""
    import lm_eval.tasks

    folder = Path(lm_eval.tasks.__file__).parent / part
    manager = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
    files = ours.config.dataset_kwargs["data_files"]
    splits = {
        f"{kind}_split": None
        for kind, split in (("training", "train"), ("validation",) * 2, ("test",) * 2)
        if split not in files
    }
    stripped = {"process_docs": lambda rows: rows.map(strip)} if part == "logiqa2" else {}  # its loading script did
    source = {"task": part, "dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": dict(files)}}
    return manager.load([{"group": "theirs", "task": [source | splits | stripped]}])["tasks"][part]


def strip(row: dict[str, Any]) -> dict[str, Any]:
    return (
        row
        | {key: row[key].strip() for key in ("text", "question")}
        | {"options": [option.strip() for option in row["options"]]}
    )


def test_every_task_of_a_suite_is_one_of_lm_evals_or_shipped() -> None:
    for suite in SUITES.values():
        open_manager([one.task for one in suite.tasks], None)
    assert [one.label for one in SUITES["paper"].tasks] == [
        "BBH", "MMLU", "ARC-e", "ARC-c", "LogiQA2", "PIQA", "MuTual", "WinoGrande",
    ]  # fmt: skip


@pytest.mark.parametrize("data", ["made-up", "real"])
def test_our_task_files_ask_what_lm_evals_own_ask(data: str, made_up: Path) -> None:
    if data == "real" and not REAL.is_dir():
        pytest.skip("no real benchmark data beside the repository")
    for name, task in load("logiqa2", "mutual", data=REAL if data == "real" else made_up).items():
        [ours] = task.parts.values()
        theirs = lm_evals_own(name, ours)
        theirs.set_config("num_fewshot", 0)
        assert len(ours.eval_docs) == len(theirs.eval_docs)
        for our_row, their_row in list(zip(ours.eval_docs, theirs.eval_docs, strict=True))[
            :: 50 if data == "real" else 1
        ]:
            assert ours.fewshot_context(our_row, 0) == theirs.fewshot_context(their_row, 0)
            assert ours.doc_to_target(our_row) == theirs.doc_to_target(their_row)
            assert ours.doc_to_choice(our_row) == theirs.doc_to_choice(their_row)
        for setting in ("output_type", "target_delimiter", "fewshot_delimiter", "metric_list", "filter_list"):
            assert getattr(ours.config, setting) == getattr(theirs.config, setting), (name, setting)
        assert ours.aggregation().keys() == theirs.aggregation().keys()


@pytest.mark.skipif(not REAL.is_dir(), reason="no real benchmark data beside the repository")
def test_real_rows_fit_every_task_of_the_paper() -> None:
    tasks = load(*ReasoningSettings().tasks, data=REAL)
    assert {name: len(task.parts) for name, task in tasks.items() if len(task.parts) > 1} == {"bbh": 27, "mmlu": 57}
    assert {name: task.shots for name, task in tasks.items() if task.shots} == {"bbh": 3, "mmlu": 5}


def test_the_papers_tasks_run_whole(made_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All eight from a folder of data to figures; only BBH's answers are cut short, which a random model would never
    end.
    """

    def load_short(*arguments: Any) -> Any:
        tasks, left_out = load_tasks(*arguments)
        for part in tasks[0].parts.values():
            part.set_config("generation_kwargs", {"until": ["Q"], "max_gen_toks": 1})
        return tasks, left_out

    monkeypatch.setattr(reasoning, "load_tasks", load_short)
    short = make_model(
        tmp_path / "model", max_position_embeddings=512
    )  # BBH's examples are thousands of tokens for a tiny tokenizer
    models = {"tiny": ModelConfig(name=str(short), dtype="float32")}
    results = evaluate_reasoning(models, ReasoningSettings(limit=2, data=made_up), tmp_path, SilentReporter())
    assert results["left_out"] == {}
    shown = {task["label"]: (task["metric"], task["shots"]) for task in results["tasks"].values()}
    assert shown == {one.label: (one.metric, {"BBH": 3, "MMLU": 5}.get(one.label, 0)) for one in SUITES["paper"].tasks}
    figures = results["models"]["tiny"]["tasks"]
    assert {name: figure["items"] for name, figure in figures.items() if figure["items"] > 2} == {"bbh": 27, "mmlu": 57}
    assert figures["mutual"]["metrics"].keys() == {"r@1", "r@2", "mrr"}
    item, _ = rows(tmp_path / "tiny" / "winogrande.jsonl")
    assert item["metrics"]["acc"] == float(item["answers"][0][0] > item["answers"][1][0])
    item, _ = rows(tmp_path / "tiny" / "piqa.jsonl")
    per_letter = [
        answer[0] / len(text) for answer, text in zip(item["answers"], ("use scissors", "use soup"), strict=True)
    ]
    assert item["metrics"] == {
        "acc": float(item["answers"][0][0] > item["answers"][1][0]),
        "acc_norm": float(per_letter[0] > per_letter[1]),
    }


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_by_default_data_come_from_parquet_and_never_from_a_loading_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub as folders, which datasets reads like repositories: where the hub has a script, the folder has one
    too.
    """
    import datasets

    # the card that lists MMLU's 57 parts is read for each of them, which takes seconds without the parser in C
    monkeypatch.setattr("yaml.safe_load", partial(yaml.load, Loader=yaml.CSafeLoader))
    tables = {made: tmp_path / "tables" / f"{made}.parquet" for made in PAPER_ROWS}
    (tmp_path / "tables").mkdir()
    for made, table in tables.items():
        datasets.Dataset.from_list(PAPER_ROWS[made]).to_parquet(table)

    def publish(repository: str, configuration: str, splits: tuple[str, ...], made: str) -> None:
        card = [
            {
                "config_name": configuration,
                "data_files": [{"split": name, "path": f"{configuration}/{name}.parquet"} for name in splits],
            }
        ]
        (tmp_path / repository / configuration).mkdir(parents=True)
        for name in splits:
            shutil.copy(tables[made], tmp_path / repository / configuration / f"{name}.parquet")
        known = tmp_path / repository / "README.md"
        listed = json.loads(known.read_text().split("---")[1])["configs"] if known.exists() else []
        known.write_text(f"---\n{json.dumps({'configs': listed + card})}\n---\n")

    for name in names_of("mmlu/default"):
        publish("cais/mmlu", name, ("test", "dev"), "mmlu")
    for name in names_of("bbh/cot_fewshot"):
        publish("SaylorTwift/bbh", name, ("test",), "bbh")
    publish("allenai/ai2_arc", "ARC-Easy", ("train", "validation", "test"), "arc")
    publish("allenai/ai2_arc", "ARC-Challenge", ("train", "validation", "test"), "arc")
    publish("allenai/winogrande", "winogrande_xl", ("train", "validation"), "winogrande")
    publish("baber/piqa", "default", ("train", "validation"), "piqa")
    publish("jeggers/logiqa2_formatted", "default", ("train", "test"), "logiqa2")
    for repository in ("baber/logiqa2", "EleutherAI/mutual"):
        (tmp_path / repository).mkdir(parents=True)
        (tmp_path / repository / f"{Path(repository).name}.py").write_text("raise SystemExit('code ran')\n")
    monkeypatch.chdir(tmp_path)
    tasks, left_out = load_tasks(ReasoningSettings(), SilentReporter())
    assert [task.name for task in tasks] == [
        "bbh",
        "mmlu",
        "arc_easy",
        "arc_challenge",
        "logiqa2",
        "piqa",
        "winogrande",
    ]
    assert left_out.keys() == {
        "mutual"
    }  # not a repository's tables but its text files, which are not to be had offline
    assert left_out["mutual"].startswith(
        "OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/datasets/lighteval/mutual"
    )


def test_mutual_reads_the_authors_files_which_hold_one_object_each(made_up: Path, tmp_path: Path) -> None:
    for row in PAPER_ROWS["mutual"] * 3:
        for number in range(3):
            (tmp_path / f"{row['id']}{number}.txt").write_text(json.dumps(row))  # without a line's end
    (tmp_path / "mutual.yaml").write_text(
        f"include: {SHIPPED}/mutual.yaml\ndataset_kwargs: {{data_files: {{validation: 'dev_*.txt'}}}}\n"
    )
    (part,) = load("mutual", task_path=tmp_path)["mutual"].parts.values()
    assert [row["article"] for row in part.eval_docs] == ["m: aren't you cold?"] * 3 + ["f: it's late!"] * 3


def test_a_folders_data_are_the_same_task_wherever_it_lies(made_up: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(made_up, tmp_path / "moved"))
    before, after = (load("piqa", "bbh", data=folder, limit=2) for folder in (made_up, moved))
    assert [task.digest for task in before.values()] == [task.digest for task in after.values()]
    (moved / "piqa_validation.jsonl").write_text(json.dumps(PAPER_ROWS["piqa"][1]) + "\n")
    changed = load("piqa", "bbh", data=moved, limit=2)
    assert changed["piqa"].digest != before["piqa"].digest
    assert changed["bbh"].digest == before["bbh"].digest


def test_solved_examples_come_from_the_training_file(made_up: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made_up, tmp_path / "data"))
    settings = ReasoningSettings(("arc_easy", "piqa"), data=folder, shots=1)
    (folder / "piqa_train.jsonl").write_text((json.dumps(PAPER_ROWS["piqa"][1] | {"goal": "drink tea"}) + "\n") * 2)
    (task,), left_out = load_tasks(settings, SilentReporter())
    (part,) = task.parts.values()
    part.set_fewshot_seed(0)
    assert part.fewshot_context(part.eval_docs[0], 1).startswith(
        "Question: drink tea\nAnswer: use a 'spoon'\n\nQuestion: cut paper\n"
    )
    assert left_out.keys() == {"arc_easy"}
    assert "arc_easy_train.jsonl" in left_out["arc_easy"]


def test_a_task_file_of_ones_own_reads_its_own_data_unless_the_folder_has_some(tmp_path: Path) -> None:
    own = Path(__file__).parent / "tasks"
    [part] = load("spag_counting", task_path=own, data=tmp_path)["spag_counting"].parts.values()
    assert len(part.eval_docs) == 10
    (tmp_path / "spag_counting_validation.jsonl").write_text('{"start": "a, b", "next": "c"}\n')
    [part] = load("spag_counting", task_path=own, data=tmp_path)["spag_counting"].parts.values()
    assert list(part.eval_docs) == [{"start": "a, b", "next": "c"}]


def test_a_task_whose_file_is_missing_is_left_out_and_the_file_named(made_up: Path, tmp_path: Path) -> None:
    shutil.copy(made_up / "piqa_validation.jsonl", tmp_path)
    [[task], left_out] = load_tasks(ReasoningSettings(("piqa", "mmlu"), data=tmp_path), SilentReporter())
    assert task.name == "piqa"
    assert left_out["mmlu"].startswith(f"FileNotFoundError: {tmp_path}/mmlu_abstract_algebra_test.jsonl")


def test_aime_reads_a_folder_too(tmp_path: Path) -> None:
    row = {"Problem": "What is 1 + 1?", "Answer": 2}
    (tmp_path / "aime24_train.jsonl").write_text(json.dumps(row) + "\n")
    task = load("aime24", data=tmp_path, max_new_tokens=64, temperature=0.6, samples=16)["aime24"]
    assert (task.label, task.metric, task.shots, task.samples) == ("AIME24", "exact_match", 0, 16)
    settings = task.parts["aime24"].config.generation_kwargs
    assert (settings["max_gen_toks"], settings["do_sample"], settings["temperature"]) == (64, True, 0.6)


def test_gpqa_shuffles_its_choices_alike_each_time(tmp_path: Path) -> None:
    answers = {"Correct Answer": "w", "Incorrect Answer 1": "x", "Incorrect Answer 2": "y", "Incorrect Answer 3": "z"}
    rows = "".join(json.dumps({"Question": str(number), **answers}) + "\n" for number in range(9))
    name = "gpqa_diamond_zeroshot"
    digests = set()
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        (folder / f"{name}_train.jsonl").write_text(rows)
        digests.add(load(name, data=folder)[name].digest)
    assert len(digests) == 1


def test_mmlu_pro_finds_its_parts_in_one_file(tmp_path: Path) -> None:
    row = {"question": "1 + 1?", "options": ["1", "2"], "answer": "B", "cot_content": "A: Let's think step by step. 2."}
    names = [name.removeprefix("pro_").replace("_", " ") for name in names_of("mmlu_pro")]
    for split in ("test", "validation"):
        lines = [json.dumps({**row, "category": name}) + "\n" for name in (*names, "math")]
        (tmp_path / f"mmlu_pro_{split}.jsonl").write_text("".join(lines))
    task = load("mmlu_pro", data=tmp_path)["mmlu_pro"]
    sizes = {name: len(part.eval_docs) for name, part in task.parts.items()}
    assert len(sizes) == 14
    assert {name for name, size in sizes.items() if size != 1} == {"mmlu_pro_math"}
    assert (task.label, task.metric, task.shots) == ("MMLU-Pro", "exact_match", 5)


def test_the_command_names_what_lm_eval_lacks(made_up: Path, model_folder: Path, tmp_path: Path) -> None:
    from spag.cli.eval import eval_command

    common = [str(model_folder), "--data", str(made_up), "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(eval_command, [*common, "--suite", "spiral"])
    first, *_ = done.stderr.splitlines()
    assert first == "lm-eval has no AMC23, Minerva, OlympiadBench: skipped in suite spiral."
    assert isinstance(done.exception, DataError)  # the folder has none of the others
    done = CliRunner().invoke(eval_command, [*common, "--samples", "4"])
    assert str(done.exception) == "--samples: greedy answers are all equal; also set --temperature, such as 0.6"
