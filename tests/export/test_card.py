"""The model card: figures from the run's files with their intervals, and no foreign text that means anything in
Markdown or YAML.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, ModelCardData
from markdown_it import MarkdownIt
from run_fixtures import HOSTILE, record_held_out, stage, write_manifest, write_reasoning, write_run

from spag import algorithms
from spag.config.files import dump_config
from spag.config.schema import RunConfig
from spag.core.episodes import Episode, PlayerInfo
from spag.core.types import Split, Utterance
from spag.evaluation.arena.standings import arena_report
from spag.evaluation.intervals import Rate
from spag.export import ExportSource, find_source
from spag.export.card import Weights, card, shareable_config
from spag.export.markdown import code, figure, table
from spag.export.metadata import card_data, license_of
from spag.games.registry import get
from spag.report.cells import DetailedCell, Table
from spag.runs.layout import planned_models
from spag.runs.reading import RunFolder
from spag.storage.store import write_json
from tiny_model import make_model

WEIGHTS = Weights("bfloat16", 135_000_000, merged=False)


def card_of(source: ExportSource, title: str = "mine") -> str:
    return card(title, source, WEIGHTS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("card") / "run")
    write_reasoning(folder, ["arc", "mmlu"])
    make_model(folder / "1-imitation" / "checkpoint")
    make_model(folder / "2-spag" / "iteration-1" / "checkpoint")
    return folder


@pytest.mark.slow
def test_metadata_says_what_the_hub_searches(run: Path) -> None:
    data = ModelCard(card_of(find_source(str(run), "imitation"))).data
    assert (data.license, data.library_name, data.pipeline_tag) == ("unknown", "transformers", "text-generation")
    assert data.language == "en" and data.tags == ["spag", "self-play", "adversarial-taboo"]


@pytest.mark.slow
def test_the_text_holds_results_with_intervals_data_and_commands(run: Path) -> None:
    text = card_of(find_source(str(run)))
    for line in (
        "`spag-1` is better than `base` (24:0) and `imitation` (24:10); 90 % of its utterances repeat",
        "| `imitation` | +0.42 | 42 [24, 61] | 58 [39, 76] | 0 [0, 14] | 0 [0, 14] |",
        "| `spag-1` | +182 [+129, +201] |",
        ", from games shipped with spag: an unknown number of games, 40 training samples of them.\n",
        "1. 1 iteration of play against `self`, rewards and offline RL, the method of SPAG (Cheng et al., "
        "arXiv 2404.10642): 7 games, 11 training samples of them for `spag-1`.\n",
        "Games of Adversarial Taboo on 24 held-out tasks.",
        "spag export model RUN --name spag-1 --dtype bfloat16 --output FOLDER",
        "| parameters | 135,000,000 |",
        "The run recorded `lm_eval` `0.4.13`, `torch` `2.13.0`.",
        "With so few tasks only large differences can show.",
    ):
        assert line in text
    imitation = card_of(find_source(str(run), "imitation"))
    assert "1 iteration" not in imitation  # no game of a later one made it
    assert "`imitation` is better than `base` (" in imitation and "but is worse than `spag-1` (10:24)" in imitation
    assert "`spag-1` is better" not in imitation  # which is another model's claim
    assert "## Training" not in card_of(ExportSource("base", "x", "x", RunFolder.open(run)))


def test_games_and_samples_are_counted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    manifest = json.loads((folder / "manifest.json").read_text())
    outcomes, samples = {"tie": 10, "defender_wins": 1_070}, {"attacker": 40, "defender": 900}
    manifest["stages"]["1-imitation/train"] = stage(1.0, outcomes=outcomes, samples=samples)
    write_manifest(folder, manifest["stages"])
    assert "games shipped with spag: 1,080 games, 940 training samples of them." in card_of(
        ExportSource("imitation", "x", "x", RunFolder.open(folder))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "count"), [("1-imitation/train", 59), ("2-spag/iteration-1/train", 1), ("1-imitation/train", None)]
)
def test_held_out_is_claimed_only_where_every_stage_recorded_it(tmp_path: Path, stage: str, count: int | None) -> None:
    folder = write_run(tmp_path / "run")
    source = ExportSource("imitation", "x", "x", RunFolder.open(folder))
    assert "Games of Adversarial Taboo on 24 held-out tasks. With so few" in card_of(source)
    assert "The arena's tasks are held out from all training of the run" in card_of(source)
    record_held_out(folder, stage, count)
    source = ExportSource("imitation", "x", "x", RunFolder.open(folder))
    text, doubt = card_of(source), source.run.held_out_doubt if source.run else ""
    games, verb = ("1 game", "was") if count == 1 else (f"{count} games", "were")
    assert f"Games of Adversarial Taboo on 24 tasks. {doubt} With so few" in text
    assert "held-out tasks" not in text and "are held out" not in text
    assert doubt == (
        "The run does not record whether games on these tasks were trained on."
        if count is None
        else f"{games} on tasks of the held-out split {verb} trained on, so some tasks may not be new."
    )


SPAG, SPIRAL = "arXiv 2404.10642", "arXiv 2506.24119"
MIX = {"mix": [{"name": "kuhn_poker", "weight": 2}, {"name": "tic_tac_toe"}]}
STEPPED = (
    "1. 7 online steps of 12 games against `self`, `./rival`, 84 games in all: {}. "
    "It ended early, at a collapse warning: `step 7: <b>one role wins</b>`."
)
ITERATED = (
    "1. {} of play against `self`, rewards and offline RL, the method of SPAG (Cheng et al., arXiv 2404.10642): {}."
)
FACTS = {
    "imitation": "1. Imitation of teacher games, the first stage of SPAG (Cheng et al., arXiv 2404.10642), "
    "from games shipped with spag, `./more.jsonl`: an unknown number of games.",
    "spag": ITERATED.format(
        "2 iterations", "an unknown number of games for `spag-1`; an unknown number of games for `spag-2`"
    ),
    "first": ITERATED.format("1 iteration", "an unknown number of games for `spag-1`"),
    "reinforce": STEPPED.format(
        "REINFORCE with a baseline for each role, the advantage of SPIRAL (Liu et al., arXiv 2506.24119)"
    ),
    "group": STEPPED.format("advantages relative to the games on the same task, as in GRPO (arXiv 2402.03300)"),
    "turnwise": STEPPED.format("credit for each turn, after MARSHAL (arXiv 2510.15414)"),
}
RUNS: dict[str, tuple[list[str], str, set[str]]] = {
    "reinforce": (["reinforce"], "reinforce", {"reinforce"}),
    "reinforce after imitation": (["imitation", "reinforce"], "reinforce", {"imitation", "reinforce"}),
    "imitation of reinforce": (["imitation", "reinforce"], "imitation", {"imitation"}),
    "both": (["spag", "reinforce"], "reinforce", {"spag", "reinforce"}),
    "iterations of both": (["imitation", "spag", "reinforce"], "spag-2", {"imitation", "spag"}),
    "first iteration": (["imitation", "spag"], "spag-1", {"imitation", "first"}),
    "group": (["group"], "group", {"group"}),
    "turnwise": (["imitation", "turnwise"], "turnwise", {"imitation", "turnwise"}),
}
STEPS: dict[str, Any] = {
    "steps": 8,
    "games": 12,
    "learning_rate": 3e-4,
    "opponents": {"self": 1, "/home/me/rival": 0.5},
    "rewards": {"kuhn_poker": {"illegal": -3}},
}
PHASES: dict[str, dict[str, Any]] = {
    "imitation": {"episodes": ["teacher", "/home/me/more.jsonl"]},
    "spag": {"iterations": 2, "tasks": 1000, "repeats": 2},
    "reinforce": STEPS,
    "group": {**STEPS, "group_size": 4},
    "turnwise": STEPS,
}


def run_of(folder: Path, *names: str, **changes: dict[str, Any]) -> RunFolder:
    """Write a run with every stage of its plan done, whose online steps stopped after the seventh of eight.

    ``changes``: other settings of a phase, by its algorithm.
    """
    phases = [{"algorithm": one, **PHASES[one], **changes.get(one, {})} for one in names]
    config = RunConfig.model_validate({"game": {"name": "kuhn_poker"}, "phases": phases})
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(config))
    stopped = {"steps": 7, "stopped": "step 7: <b>one role wins</b>"}
    stages = {f"{one.folder}/train": stage(1.0, **(stopped if one.is_online else {})) for one in planned_models(config)}
    write_manifest(folder, stages)
    return RunFolder.open(folder)


@pytest.mark.parametrize(("phases", "name", "facts"), RUNS.values(), ids=RUNS)
def test_what_made_a_model_is_said_for_each_algorithm(
    tmp_path: Path, phases: list[str], name: str, facts: set[str]
) -> None:
    text = card_of(ExportSource(name, "x", "x", run_of(tmp_path / "run", *phases)))
    lines = text.splitlines()
    training = lines[lines.index("## Training") : lines.index("All settings are in `spag_config.yaml`.")]
    assert [line for line in training if line.startswith("1. ")] == [FACTS[fact] for fact in FACTS if fact in facts]
    assert "No instruction data was mixed in." in training
    assert (SPAG in text, SPIRAL in text) == (bool(facts & {"imitation", "spag", "first"}), "reinforce" in facts)
    assert "/home/me" not in text


def test_a_mix_of_games_and_ablations_are_named(tmp_path: Path) -> None:
    ablation = {**MIX, "baseline_decay": 1}
    run = run_of(tmp_path / "run", "reinforce", reinforce=ablation)
    text = card_of(ExportSource("reinforce", "x", "x", run))
    assert "trained by self-play of Kuhn poker (" in " ".join(text.split()) and ") and Tic-tac-toe (" in text
    assert "84 games in all: REINFORCE without baselines, an ablation of SPIRAL" in text
    assert {"kuhn-poker", "tic-tac-toe"} <= set(ModelCard(text).data.tags)
    assert "tic-tac-toe" not in ModelCard(card_of(ExportSource("base", "x", "x", run))).data.tags


def test_a_phase_may_have_a_game_of_its_own(tmp_path: Path) -> None:
    taboo = {"game": {"name": "adversarial_taboo"}}
    run = run_of(tmp_path / "run", "imitation", "spag", imitation=taboo, spag={"game": {"name": "nim"}})
    text = card_of(ExportSource("spag-1", "x", "x", run))
    assert "of Adversarial Taboo (" in " ".join(text.split()) and ") and Nim (" in text and "Kuhn" not in text


def test_the_language_is_that_of_the_games(tmp_path: Path) -> None:
    german = {"game": {"name": "adversarial_taboo", "language": "de"}}
    run = run_of(tmp_path / "run", "imitation", "spag", imitation={"game": {"name": "nim"}}, spag=german)
    said = [ModelCard(card_of(ExportSource(name, "x", "x", run))).data.language for name in ("imitation", "spag-1")]
    assert said == ["en", ["en", "de"]]
    only = run_of(tmp_path / "only", "spag", spag=german)
    assert ModelCard(card_of(ExportSource("spag-1", "x", "x", only))).data.language == "de"


def test_an_algorithm_of_another_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = "a_<b>_of_mine"
    monkeypatch.setitem(algorithms.SHIPPED, mine, "spag.algorithms.reinforce:Reinforce")
    monkeypatch.setitem(PHASES, mine, {**STEPS, "steps": 1})
    text = card_of(ExportSource(mine, "x", "x", run_of(tmp_path / "run", mine)))
    assert "84 games in all: the algorithm `a_<b>_of_mine`. It ended early" in text


def test_instruction_data_is_that_of_the_phases_that_made_the_model(tmp_path: Path) -> None:
    run = run_of(
        tmp_path / "run",
        "imitation",
        "spag",
        "reinforce",
        imitation={"episodes": [], "sft_data": "/home/me/alpaca.json"},
        spag={"sft_data": "/home/me/more.json", "objective": "sft"},
    )
    first, last = (card_of(ExportSource(name, "x", "x", run)) for name in ("imitation", "reinforce"))
    assert "a language model trained on instruction data alone." in " ".join(first.split())
    assert "Kuhn poker" not in first and "Kuhn poker" in last
    for text, files in ((first, "`alpaca.json`"), (last, "`alpaca.json`, `more.json`")):
        assert f"\nInstruction data mixed in: {files}.\n" in text and "1. Fine-tuning on instruction data.\n" in text
    assert "against `self`, rewards and likelihood of the games that were won, an ablation of SPAG" in last


def test_a_baichuan_says_what_loads_it(tmp_path: Path) -> None:
    for kind, says in (("baichuan", True), ("llama", False)):
        write_json(tmp_path / kind / "config.json", {"model_type": kind})
        text = card_of(find_source(str(tmp_path / kind)))
        assert ("```python\nimport spag.models.baichuan" in text) == says


def test_a_run_that_measured_nothing_claims_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "imitation")
    place = make_model(run.folder / "1-imitation" / "checkpoint")
    text = card_of(find_source(str(run.folder)))
    assert "The run holds no results." in text and "| base model | `meta-llama/Llama-2-7b-hf` |" in text
    assert "are held out" not in text
    (run.folder / "config.yaml").unlink()  # without which a checkpoint is a model like any other
    text = card_of(find_source(str(place)))
    assert "No run folder came with it" in text and "| base model | unknown |" in text and "## Training" not in text


def test_players_who_win_together_have_no_ratings(tmp_path: Path) -> None:
    game = get("twenty_questions")
    (tmp_path / "config.yaml").write_text(dump_config(RunConfig.model_validate({"game": {"name": game.name}})))
    write_manifest(tmp_path, {"1-imitation/train": stage(1.0)})
    make_model(tmp_path / "1-imitation" / "checkpoint")
    history = (Utterance("questioner", "Is it alive?"), Utterance("answerer", "Yes."))
    episodes = [
        Episode(
            task=task, history=history, game=game.name, players={role: PlayerInfo("imitation") for role in game.roles}
        )
        for task in game.tasks(Split.HELD_OUT, 3, 0)
    ]
    write_json(tmp_path / "arena" / "results.json", arena_report(episodes, game))
    text = card_of(find_source(str(tmp_path)))
    assert "trained on games of 20 Questions" in text and "As answerer: mean reward" in text
    assert "Elo" not in text.partition("Scores and ratings")[0]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "run")
    evil = f"./|{HOSTILE}` ``` [x](javascript:1)\n# Free\n- [y](http://evil.example)"
    phases = [
        {"algorithm": "imitation", "episodes": [evil], "game": {"name": "adversarial_taboo", "words": evil}},
        {"algorithm": "spag", "iterations": 1, "opponents": {evil: 1.0}},
    ]
    game = {"words": "</td>\n# Heading\n---"}
    config = {"model": {"name": f"| {HOSTILE} ``` [x](javascript:1)"}, "game": game, "phases": phases}
    (folder / "config.yaml").write_text(dump_config(RunConfig.model_validate(config)))
    results = folder / "arena" / "results.json"
    text = results.read_text().replace('"imitation"', json.dumps(f"`|{HOSTILE}\n# Free ![](http://evil.example) @all"))
    results.write_text(text.replace('"strict"', json.dumps("`</details><b>")))
    write_reasoning(folder, [f"a|{HOSTILE}`", "b"])
    reasoning = folder / "reasoning" / "results.json"
    reasoning.write_text(reasoning.read_text().replace('"base"', json.dumps(f"<b>|{HOSTILE}")))
    make_model(folder / "2-spag" / "iteration-1" / "checkpoint")
    return folder


@pytest.mark.slow
def test_foreign_texts_mean_nothing(hostile: Path) -> None:
    text = card_of(find_source(str(hostile)), title="--- `<script>`\n# x")
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(ModelCard(text).text)
    assert "&lt;script" in page  # the texts are there
    for alive in ("<script", "<img", "<a ", "</bdi>", "<b>", "\u202e"):
        assert alive not in page
    assert page.count("<h1>") == 1 and "<h1>Free" not in page
    training = page.partition("Training</h2>")[2].partition("<h2>")[0]
    assert training.count("<li>") == 2 and training.count("<code>./|&lt;/bdi&gt;") == 2  # teacher games and opponents
    tables = [block.partition("</table>")[0] for block in page.split("<table>")[1:]]
    for shown in tables:
        rows = shown.split("<tr>")[1:]
        assert len({row.count("<td") + row.count("<th") for row in rows}) == 1  # no bar of theirs began a cell
    assert ModelCard(text).data.library_name == "transformers"  # the metadata is still YAML


def test_code_spans() -> None:
    assert code("a") == "`a`"
    assert code("a `b` ``c") == "```a `b` ``c```"
    assert code("`a") == "`` `a ``"
    assert code("one\n# two\u202e") == "`one # twoU+202E`"
    assert code("  ") == "(empty)"
    assert code("x" * 300) == f"`{'x' * 200}…`"
    shown = Table("", ("a|b", "n"), (("c", None), (DetailedCell("+1", ("x|y",)), Rate(1, 2, 0.5, 0.1, 0.9))))
    assert table(shown) == "| `a\\|b` | n |\n| --- | ---: |\n| `c` | – |\n| +1<br>`x\\|y` | 50 [10, 90] |"
    assert (figure("+3 [-1, 7]"), figure("p < 0.001"), figure("<b>1")) == ("+3 [-1, 7]", "p < 0.001", "`<b>1`")


def test_folders_stay_at_home() -> None:
    phases = [
        {"algorithm": "imitation", "episodes": ["~/games.jsonl", "teacher"], "sft_data": "/home/me/alpaca.json"},
        {"algorithm": "spag", "opponents": {"/home/me/other": 1.0, "self": 2.0}},
    ]
    arena = {"entrants": ["base", "mixture:/home/me/snapshots"]}
    config = {"model": {"name": "/home/me/llama"}, "phases": phases, "arena": arena}
    shared = shareable_config(RunConfig.model_validate(config))
    assert shared.arena.entrants == ["base", "mixture:./snapshots"]
    assert shared.model.name == "./llama"
    imitation, spag = (phase.settings for phase in shared.phases)
    assert (imitation.episodes, str(imitation.sft_data)) == (["./games.jsonl", "teacher"], "alpaca.json")
    assert spag.opponents == {"./other": 1.0, "self": 2.0}
    assert "/home" not in dump_config(shared)


def test_folders_of_one_name_stay_apart() -> None:
    entrants = ["/home/me/runs/a/2-spag/checkpoint", "/home/me/runs/b/2-spag/checkpoint", "bot:constant"]
    shared = shareable_config(RunConfig.model_validate({"model": {"name": "/base"}, "arena": {"entrants": entrants}}))
    assert shared.arena.entrants == ["./a/2-spag/checkpoint", "./b/2-spag/checkpoint", "bot:constant"]
    assert shared.model.name == "./base"


def test_the_embedded_base_is_named_with_its_quantisation() -> None:
    text = card_of(ExportSource("spag-1", "x", "smollm2-135m", None))
    assert "| base model | `smollm2-135m (Q4_1, dequantised)` |" in text


def test_licence_and_base_of_the_hub(tmp_path: Path) -> None:
    assert license_of("smollm2-135m") == license_of("HuggingFaceTB/SmolLM2-135M-Instruct") == "apache-2.0"
    assert (license_of("meta-llama/Llama-2-7b-hf"), license_of("somebody/unheard-of"), license_of(None)) == (
        "llama2",
        "unknown",
        "unknown",
    )
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# Model\n")
    assert license_of(str(tmp_path)) == "mit"
    assert license_of("~nosuchuser/x") == "unknown"  # a run may come from another machine
    for number, broken in enumerate((b"---\nlicense: [\n---\n", b"---\n- mit\n---\n", b"---\nlicense: \xff\n---\n")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "README.md").write_bytes(broken)
        assert license_of(str(folder)) == "unknown"
    known = card_data(ExportSource("spag-1", "x", "smollm2-135m", None))
    assert isinstance(known, ModelCardData)
    assert (known.base_model, known.to_dict()["base_model_relation"]) == (
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "finetune",
    )
    assert card_data(ExportSource("spag-1", "x", str(tmp_path), None)).base_model is None
    untrained = card_data(find_source("HuggingFaceTB/SmolLM2-135M-Instruct"))
    assert (untrained.license, "base_model_relation" in untrained.to_dict()) == ("apache-2.0", False)
    assert card_data(find_source(str(tmp_path))).license == "mit"
