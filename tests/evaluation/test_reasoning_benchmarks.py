"""The paper's benchmarks: our task files ask what lm-eval's own ask, and read plain data from the hub or from a folder."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spag.config.schema import ModelConfig
from spag.core.progress import SilentReporter
from spag.evaluation.reasoning import run as reasoning
from spag.evaluation.reasoning.run import evaluate_reasoning
from spag.evaluation.reasoning.tasks import PAPER_TASKS, LoadedTask, ReasoningSettings, load_tasks
from tiny_model import make_model

REAL = Path(__file__).parents[3] / "shared" / "data" / "benchmarks"
pytestmark = pytest.mark.slow  # lm_eval alone takes six seconds to import

# Two made-up items of each benchmark, in its own columns and with a known answer. White space is where lm-eval's loaders or prompts cut it.
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
        {"text": " All cats purr. ", "question": "Tom is a cat. Does he? ", "options": ["yes ", "no", "may", "x"], "answer": 0},
        {"text": "No dog purrs.", "question": "Rex is a dog.\nDoes he?", "options": ["yes", " no", "it's", 'a "b"'], "answer": 1},
    ],
    "piqa": [
        {"goal": "cut paper", "sol1": "use scissors", "sol2": "use soup", "label": 0},
        {"goal": "eat soup", "sol1": "use scissors", "sol2": "use a 'spoon'", "label": 1},
    ],
    "mutual": [
        {"article": "m : are n't you cold ?", "options": ["f : yes .", "a", "`` b ''", "c"], "answers": "A", "id": "dev_1"},
        {"article": "f : it 's late !", "options": ["m : no , it is n't .", "a", "b", "c"], "answers": "D", "id": "dev_2"},
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
    tasks, left_out = load_tasks(ReasoningSettings(names or ("paper",), **settings), SilentReporter())
    assert left_out == {}
    return {task.name: task for task in tasks}


def lm_evals_own(part: str, ours: Any) -> Any:
    """Return the task ``part`` as lm-eval defines it, on the same rows."""
    import lm_eval.tasks

    folder = Path(lm_eval.tasks.__file__).parent
    places = ("arc", "piqa", "winogrande", "mutual", "logiqa2", "mmlu/default", "bbh/cot_fewshot")
    manager = lm_eval.tasks.TaskManager(include_path=[str(folder / place) for place in places], include_defaults=False)
    files = ours.config.dataset_kwargs["data_files"]
    splits = {f"{kind}_split": None for kind, split in (("training", "train"), ("validation",) * 2, ("test",) * 2) if split not in files}
    stripped = {"process_docs": lambda rows: rows.map(strip)} if part == "logiqa2" else {}  # its loading script did
    source = {"task": part, "dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": dict(files)}}
    return manager.load([{"group": "theirs", "task": [source | splits | stripped]}])["tasks"][part]


def strip(row: dict[str, Any]) -> dict[str, Any]:
    return row | {key: row[key].strip() for key in ("text", "question")} | {"options": [option.strip() for option in row["options"]]}


@pytest.mark.parametrize("real", [False, True], ids=["made-up", "real"])
def test_our_task_files_ask_what_lm_evals_own_ask(real: bool, made_up: Path) -> None:
    if real and not REAL.is_dir():
        pytest.skip("no real benchmark data beside the repository")
    some = ("mmlu", "bbh") if not real else ()
    tasks = load(*some, "arc_easy", "arc_challenge", "logiqa2", "piqa", "mutual", "winogrande", data=REAL if real else made_up)
    for task in tasks.values():
        parts = [*task.parts.items()]
        for name, ours in parts[:: max(1, len(parts) // 3)]:
            theirs = lm_evals_own(name, ours)
            for part in (ours, theirs):
                part.set_config("num_fewshot", task.shots)
                part.set_fewshot_seed(0)
            assert len(ours.eval_docs) == len(theirs.eval_docs)
            for our_row, their_row in list(zip(ours.eval_docs, theirs.eval_docs, strict=True))[:: 50 if real else 1]:
                assert ours.fewshot_context(our_row, task.shots) == theirs.fewshot_context(their_row, task.shots)
                assert ours.doc_to_target(our_row) == theirs.doc_to_target(their_row)
                if ours.config.doc_to_choice:
                    assert ours.doc_to_choice(our_row) == theirs.doc_to_choice(their_row)
            for setting in ("output_type", "generation_kwargs", "target_delimiter", "fewshot_delimiter", "metric_list", "filter_list"):
                assert getattr(ours.config, setting) == getattr(theirs.config, setting), (name, setting)
            assert ours.aggregation().keys() == theirs.aggregation().keys()


def test_the_papers_tasks_run_whole(made_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All eight from a folder of data to figures; only BBH's answers are cut short, which a random model would never end."""

    def load_short(*arguments: Any) -> Any:
        tasks, left_out = load_tasks(*arguments)
        for part in tasks[0].parts.values():
            part.set_config("generation_kwargs", {"until": ["Q"], "max_gen_toks": 1})
        return tasks, left_out

    monkeypatch.setattr(reasoning, "load_tasks", load_short)
    short = make_model(tmp_path / "model", max_position_embeddings=512)  # BBH's examples are thousands of tokens for a tiny tokenizer
    models = {"tiny": ModelConfig(name=str(short), dtype="float32")}
    results = evaluate_reasoning(models, ReasoningSettings(limit=2, data=made_up), tmp_path, SilentReporter())
    assert results["left_out"] == {}
    shown = {task["label"]: (task["metric"], task["shots"]) for task in results["tasks"].values()}
    assert shown == {label: (paper.metric, paper.shots) for label, paper in PAPER_TASKS.items()}
    figures = results["models"]["tiny"]["tasks"]
    assert {name: figure["items"] for name, figure in figures.items() if figure["items"] > 2} == {"bbh": 27, "mmlu": 57}
    assert figures["mutual"]["metrics"].keys() == {"r@1", "r@2", "mrr"}
    item, _ = rows(tmp_path / "tiny" / "winogrande.jsonl")
    assert item["metrics"]["acc"] == float(item["answers"][0][0] > item["answers"][1][0])
    item, _ = rows(tmp_path / "tiny" / "piqa.jsonl")
    per_letter = [answer[0] / len(text) for answer, text in zip(item["answers"], ("use scissors", "use soup"), strict=True)]
    assert item["metrics"] == {
        "acc": float(item["answers"][0][0] > item["answers"][1][0]),
        "acc_norm": float(per_letter[0] > per_letter[1]),
    }


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_by_default_data_come_from_parquet_and_never_from_a_loading_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub as folders, which datasets reads like repositories: where the hub has a script, the folder has one too."""
    import datasets

    def publish(repository: str, configuration: str, splits: tuple[str, ...], made: str) -> None:
        card = [
            {"config_name": configuration, "data_files": [{"split": name, "path": f"{configuration}/{name}.parquet"} for name in splits]}
        ]
        (tmp_path / repository / configuration).mkdir(parents=True)
        for name in splits:
            datasets.Dataset.from_list(PAPER_ROWS[made]).to_parquet(tmp_path / repository / configuration / f"{name}.parquet")
        known = tmp_path / repository / "README.md"
        listed = json.loads(known.read_text().split("---")[1])["configs"] if known.exists() else []
        known.write_text(f"---\n{json.dumps({'configs': listed + card})}\n---\n")

    for name in names_of("mmlu/default"):
        publish("cais/mmlu", name, ("test", "dev"), "mmlu")
    for name in names_of("bbh/cot_fewshot"):
        publish("SaylorTwift/bbh", name, ("test",), "bbh")
    publish("allenai/ai2_arc", "ARC-Easy", ("train", "test"), "arc")
    publish("allenai/ai2_arc", "ARC-Challenge", ("train", "test"), "arc")
    publish("allenai/winogrande", "winogrande_xl", ("train", "validation"), "winogrande")
    publish("baber/piqa", "default", ("train", "validation"), "piqa")
    publish("jeggers/logiqa2_formatted", "default", ("train", "test"), "logiqa2")
    for repository in ("baber/logiqa2", "EleutherAI/mutual"):
        (tmp_path / repository).mkdir(parents=True)
        (tmp_path / repository / f"{Path(repository).name}.py").write_text("raise SystemExit('code ran')\n")
    monkeypatch.chdir(tmp_path)
    tasks, left_out = load_tasks(ReasoningSettings(), SilentReporter())
    assert [task.name for task in tasks] == ["bbh", "mmlu", "arc_easy", "arc_challenge", "logiqa2", "piqa", "winogrande"]
    assert left_out.keys() == {"mutual"}  # not a repository's tables but its text files, which are not to be had offline
    assert left_out["mutual"].startswith("OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/datasets/lighteval/mutual")


def test_mutual_reads_the_authors_files_which_hold_one_object_each(made_up: Path, tmp_path: Path) -> None:
    from spag.evaluation.reasoning.sources import SHIPPED

    for row in PAPER_ROWS["mutual"] * 3:
        for number in range(3):
            (tmp_path / f"{row['id']}{number}.txt").write_text(json.dumps(row))  # without a line's end
    (tmp_path / "mutual.yaml").write_text(f"include: {SHIPPED}/mutual.yaml\ndataset_kwargs: {{data_files: {{validation: 'dev_*.txt'}}}}\n")
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
    assert part.fewshot_context(part.eval_docs[0], 1).startswith("Question: drink tea\nAnswer: use a 'spoon'\n\nQuestion: cut paper\n")
    assert left_out.keys() == {"arc_easy"}
    assert "arc_easy_train.jsonl" in left_out["arc_easy"]


def test_a_task_file_of_ones_own_may_name_its_data(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    counting = (Path(__file__).parent / "tasks" / "counting.yaml").read_text()
    (tmp_path / "tasks" / "counting.yaml").write_text(f"{counting}  files: {{validation: mine.jsonl}}\n")
    (tmp_path / "mine.jsonl").write_text('{"start": "a, b", "next": "c"}\n')
    (part,) = load("spag_counting", task_path=tmp_path / "tasks", data=tmp_path)["spag_counting"].parts.values()
    assert list(part.eval_docs) == [{"start": "a, b", "next": "c"}]
    (tmp_path / "tasks" / "broken.yaml").write_text(f"{counting}  files: [mine.jsonl]\n".replace("spag_counting", "broken"))
    settings = ReasoningSettings(("broken", "spag_counting"), task_path=tmp_path / "tasks", data=tmp_path)
    (_,), left_out = load_tasks(settings, SilentReporter())
    assert left_out.keys() == {"broken"}
