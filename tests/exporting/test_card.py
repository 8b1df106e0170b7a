"""The model card: figures from the run's files with their intervals, and no foreign text that means anything in Markdown or YAML."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, ModelCardData
from markdown_it import MarkdownIt
from run_fixtures import HOSTILE, record_held_out, stage, write_manifest, write_reasoning, write_run

from spag.config.files import dump_config
from spag.config.schema import RunConfig
from spag.core.episodes import Episode, PlayerInfo
from spag.core.store import write_json
from spag.core.types import Split, Utterance
from spag.evaluation.arena.games import arena_report
from spag.export import Source, find_source
from spag.export.card import Weights, card, code, figure, shareable_config, table
from spag.export.metadata import card_data, license_of
from spag.games.registry import get
from spag.runs.reading import RunFolder
from tiny_model import make_model

WEIGHTS = Weights("bfloat16", 135_000_000, merged=False)


def card_of(source: Source, title: str = "mine") -> str:
    return card(title, source, WEIGHTS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("card") / "run")
    write_reasoning(folder, ["arc", "mmlu"])
    make_model(folder / "imitation" / "checkpoint")
    make_model(folder / "iteration-1" / "checkpoint")
    return folder


def test_metadata_holds_the_figures_of_this_model(run: Path) -> None:
    data = ModelCard(card_of(find_source(str(run), "imitation"))).data
    assert (data.license, data.library_name, data.pipeline_tag, data.model_name) == ("unknown", "transformers", "text-generation", "mine")
    figures = {(one.dataset_config, one.metric_type): (one.metric_value, one.metric_name) for one in data.eval_results}
    assert figures["attacker", "win_rate"] == (0.4167, "games won, 95 % interval 0.245 to 0.612")  # 20 of 48, which are 10 of 24 words
    assert figures["both", "elo"][0] == pytest.approx(75.9, abs=0.5)
    last = ModelCard(card_of(find_source(str(run)))).data.eval_results
    assert {one.dataset_type: one.metric_value for one in last if one.metric_type == "acc"} == {"arc": 0.7, "mmlu": 0.7}


def test_the_text_holds_results_with_intervals_data_and_commands(run: Path) -> None:
    text = card_of(find_source(str(run)))
    for line in (
        "`iteration-1` is better than `base` and `imitation`.",
        "| `imitation` | 42 [24, 61] | 58 [39, 76] | 0 [0, 14] | 0 [0, 14] |",
        "| `iteration-1` | 182 [181, 183] |",
        "- Teacher games: games shipped with spag; an unknown number of games.",
        "- Game: `name` `adversarial_taboo`, `max_turns` `5`, `judge` `strict`, `words` `frequency`, `top_words` `50000`.",
        "- Self-play of `iteration-1`: 7 games.",
        "spag export model RUN --name iteration-1 --dtype bfloat16 --output FOLDER",
        "| parameters | 135,000,000 |",
        "The run recorded `lm_eval` `0.4.13`, `torch` `2.13.0`.",
        "With so few tasks only large differences can show.",
    ):
        assert line in text
    assert "Self-play" not in card_of(find_source(str(run), "imitation"))  # no game of a later iteration made it
    assert "`imitation`" in card_of(find_source(str(run), "imitation"))
    assert "## Data" not in card_of(Source("base", "x", "x", RunFolder.open(run)))


def test_games_and_samples_are_counted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    manifest = json.loads((folder / "manifest.json").read_text())
    outcomes, samples = {"tie": 10, "defender_wins": 1_070}, {"attacker": 40, "defender": 900}
    manifest["stages"]["imitation/samples"] = stage(1.0, outcomes=outcomes, samples=samples)
    write_manifest(folder, manifest["stages"])
    assert "games shipped with spag; 1,080 games, 940 training samples of them." in card_of(
        Source("imitation", "x", "x", RunFolder.open(folder))
    )


@pytest.mark.parametrize(("stage", "count"), [("imitation/samples", 59), ("iteration-1/samples", 1), ("imitation/samples", None)])
def test_held_out_is_claimed_only_where_every_stage_recorded_it(tmp_path: Path, stage: str, count: int | None) -> None:
    folder = write_run(tmp_path / "run")
    source = Source("imitation", "x", "x", RunFolder.open(folder))
    assert "Games on 24 held-out tasks. With so few" in card_of(source)
    assert "the arena's are held out from all training of the run" in card_of(source)
    assert {(one.dataset_split, one.dataset_name) for one in card_data("mine", source).eval_results} == {
        ("held_out", f"Adversarial Taboo{role}, 24 held-out tasks") for role in (" as attacker", " as defender", ", both roles")
    }
    record_held_out(folder, stage, count)
    source = Source("imitation", "x", "x", RunFolder.open(folder))
    text, doubt = card_of(source), source.run.held_out_doubt if source.run else ""
    assert f"Games on 24 tasks. {doubt} With so few" in text
    assert "held-out tasks" not in text and "are held out" not in text
    assert doubt == (
        "The run does not record whether games on these tasks were trained on."
        if count is None
        else f"Games on tasks of the held-out split were trained on, {count} of them, so some tasks may not be new."
    )
    assert {one.dataset_split for one in card_data("mine", source).eval_results} == {None}


def test_a_run_that_measured_nothing_claims_nothing(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"imitation/train": stage(1.0)})
    make_model(tmp_path / "imitation" / "checkpoint")
    text = card_of(find_source(str(tmp_path)))
    assert "The run holds no results." in text
    assert "model-index" not in text and "| base model | unknown |" in text


def test_players_who_win_together_have_no_ratings(tmp_path: Path) -> None:
    game = get("twenty_questions")
    (tmp_path / "config.yaml").write_text(dump_config(RunConfig.model_validate({"game": {"name": game.name}})))
    write_manifest(tmp_path, {"imitation/train": stage(1.0)})
    make_model(tmp_path / "imitation" / "checkpoint")
    history = (Utterance("questioner", "Is it alive?"), Utterance("answerer", "Yes."))
    episodes = [
        Episode(task=task, history=history, game=game.name, players={role: PlayerInfo("imitation") for role in game.roles})
        for task in game.tasks(Split.HELD_OUT, 3, 0)
    ]
    write_json(tmp_path / "arena" / "results.json", arena_report(episodes, game))
    text = card_of(find_source(str(tmp_path)))
    assert "self-play of 20 Questions" in text and "As answerer, % of games:" in text
    assert "Elo" not in text.partition("Games that neither")[0]
    assert {one.metric_type for one in ModelCard(text).data.eval_results} == {"win_rate"}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "run")
    config = {"model": {"name": f"| {HOSTILE} ``` [x](javascript:1)"}, "game": {"words": "</td>\n# Heading\n---"}}
    (folder / "config.yaml").write_text(dump_config(RunConfig.model_validate(config)))
    results = folder / "arena" / "results.json"
    text = results.read_text().replace('"imitation"', json.dumps(f"`|{HOSTILE}\n# Free ![](http://evil.example) @all"))
    results.write_text(text.replace('"strict"', json.dumps("`</details><b>")))
    write_reasoning(folder, [f"a|{HOSTILE}`", "b"])
    reasoning = folder / "reasoning" / "results.json"
    reasoning.write_text(reasoning.read_text().replace('"base"', json.dumps(f"<b>|{HOSTILE}")))
    make_model(folder / "iteration-1" / "checkpoint")
    return folder


def test_foreign_texts_mean_nothing(hostile: Path) -> None:
    text = card_of(find_source(str(hostile)), title="--- `<script>`\n# x")
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(ModelCard(text).text)
    assert "&lt;script" in page  # the texts are there
    for alive in ("<script", "<img", "<a ", "</bdi>", "<b>", "\u202e"):
        assert alive not in page
    assert page.count("<h1>") == 1 and "<h1>Free" not in page
    tables = [block.partition("</table>")[0] for block in page.split("<table>")[1:]]
    for shown in tables:
        rows = shown.split("<tr>")[1:]
        assert len({row.count("<td") + row.count("<th") for row in rows}) == 1  # no bar of theirs began a cell
    assert ModelCard(text).data.eval_results  # the metadata is still YAML


def test_code_spans() -> None:
    assert code("a") == "`a`"
    assert code("a `b` ``c") == "```a `b` ``c```"
    assert code("`a") == "`` `a ``"
    assert code("one\n# two\u202e") == "`one # twoU+202E`"
    assert code("  ") == "(empty)"
    assert code("x" * 300) == f"`{'x' * 200}…`"
    assert table((code("a|b"),), [(code("c"),)]) == "| `a\\|b` |\n| --- |\n| `c` |"
    assert (figure("+3 [-1, 7]"), figure("p < 0.001"), figure("<b>1")) == ("+3 [-1, 7]", "p < 0.001", "`<b>1`")


def test_folders_stay_at_home() -> None:
    config: dict[str, Any] = {"model": {"name": "/home/me/llama"}, "imitation": {"episodes": ["~/games.jsonl", "teacher"]}}
    config["selfplay"] = {"opponents": {"/home/me/other": 1.0, "self": 2.0}}
    shared = shareable_config(RunConfig.model_validate(config))
    assert shared.model.name == "./llama"
    assert shared.imitation.episodes == ["./games.jsonl", "teacher"]
    assert shared.selfplay.opponents == {"./other": 1.0, "self": 2.0}


def test_licence_and_base_of_the_hub(tmp_path: Path) -> None:
    assert license_of("smollm2-135m") == license_of("HuggingFaceTB/SmolLM2-135M-Instruct") == "apache-2.0"
    assert (license_of("meta-llama/Llama-2-7b-hf"), license_of("somebody/unheard-of"), license_of(None)) == ("llama2", "unknown", "unknown")
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# Model\n")
    assert license_of(str(tmp_path)) == "mit"
    known = card_data("mine", Source("iteration-1", "x", "smollm2-135m", None))
    assert isinstance(known, ModelCardData)
    assert (known.base_model, known.to_dict()["base_model_relation"]) == ("HuggingFaceTB/SmolLM2-135M-Instruct", "finetune")
    assert card_data("mine", Source("iteration-1", "x", str(tmp_path), None)).base_model is None
    untrained = card_data("mine", find_source("HuggingFaceTB/SmolLM2-135M-Instruct"))
    assert (untrained.license, "base_model_relation" in untrained.to_dict()) == ("apache-2.0", False)
    assert card_data("mine", find_source(str(tmp_path))).license == "mit"
