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
from spag.runs.folder import ONLINE, imitates, offline_iterations
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
    assert "The arena's tasks are held out from all training of the run" in card_of(source)
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


SPAG, SPIRAL = "arXiv 2404.10642", "arXiv 2506.24119"
MIX = {"mix": [{"name": "kuhn_poker", "weight": 2}, {"name": "tic_tac_toe"}]}
FACTS = {
    "teacher games": "1. Imitation of teacher games, the first stage of SPAG (Cheng et al., arXiv 2404.10642).",
    "no teacher games": "- No teacher games: self-play began with the base model.",
    "iterations": "1. 2 iterations of self-play, rewards and offline RL, the method of SPAG (Cheng et al., arXiv 2404.10642).",
    "tasks": "- Tasks: all an iteration, 1 game a task. Opponents, by weight: `self` `1.0`.",
    "online": "1. 7 online steps of self-play and policy gradient (REINFORCE) with a baseline for each role of each game, the advantage of "
    "SPIRAL (Liu et al., arXiv 2506.24119).",
    "steps": "- Online steps: 7 of 12 games each, 84 games in all, on tasks drawn anew for each step. "
    "Opponents, by weight: `self` `1.0`, `./rival` `0.5`.",
    "pay": "- Rewards that replace those of `kuhn_poker`: `illegal_reward` `-3.0`.",
}
RUNS: dict[str, tuple[str, list[str], str, set[str]]] = {
    "reinforce": ("reinforce", [], ONLINE, {"no teacher games", "online", "steps", "pay"}),
    "reinforce after imitation": ("reinforce", ["teacher"], ONLINE, {"teacher games", "online", "steps", "pay"}),
    "imitation of reinforce": ("reinforce", ["teacher"], "imitation", {"teacher games"}),
    "both": ("spag+reinforce", [], ONLINE, {"no teacher games", "iterations", "tasks", "online", "steps", "pay"}),
    "iterations of both": ("spag+reinforce", ["teacher"], "iteration-2", {"teacher games", "iterations", "tasks"}),
    "spag": ("spag", ["teacher"], "iteration-2", {"teacher games", "iterations", "tasks"}),
}


def online_run(folder: Path, algorithm: str, episodes: list[str], **online: Any) -> RunFolder:
    """Write a run with every stage of its plan done, which stopped after the seventh of eight online steps."""
    game = {"name": "kuhn_poker"}
    settings = {"steps": 8, "games": 12, "learning_rate": 3e-4, "opponents": {"self": 1, "/home/me/rival": 0.5}, **online}
    settings.setdefault("pay", {"kuhn_poker": {"illegal_reward": -3}})
    config = {"algorithm": algorithm, "iterations": 2, "game": game, "imitation": {"episodes": episodes}, "online": settings}
    folder.mkdir()
    parsed = RunConfig.model_validate(config)
    (folder / "config.yaml").write_text(dump_config(parsed))
    names = [*(["imitation"] if imitates(parsed) else []), *(f"iteration-{one + 1}" for one in range(offline_iterations(parsed)))]
    stages = {f"{name}/train": stage(1.0) for name in names}
    if algorithm != "spag":
        stages["online/train"] = stage(1.0, steps=7, stopped="step 7: <b>one role wins</b>")
    write_manifest(folder, stages)
    return RunFolder.open(folder)


@pytest.mark.parametrize(("algorithm", "episodes", "name", "facts"), RUNS.values(), ids=RUNS)
def test_what_made_a_model_is_said_for_each_algorithm(
    tmp_path: Path, algorithm: str, episodes: list[str], name: str, facts: set[str]
) -> None:
    text = card_of(Source(name, "x", "x", online_run(tmp_path / "run", algorithm, episodes)))
    assert "\n\n1. " not in text.partition("1. ")[2]  # one list
    assert {fact for fact, line in FACTS.items() if line in text.splitlines()} == facts
    assert (SPAG in text, SPIRAL in text) == (bool(facts & {"teacher games", "iterations"}), "online" in facts)
    stages = {"teacher games": "`imitation`", "iterations": "`iterations`", "online": "`online`"}
    columns = [stages[fact] for fact in stages if fact in facts]
    assert f"| setting | {' | '.join(columns)} |" in text
    rates = {"teacher games": "`5e-06`", "iterations": "`2e-06`", "online": "0.0003"}
    assert f"| `learning_rate` | {' | '.join(rates[fact] for fact in stages if fact in facts)} |" in text
    assert ("| `correction_limit` |" in text, "| `loser_reward` |" in text) == ("online" in facts, "iterations" in facts)
    assert ("at a sign of a collapse: `step 7: <b>one role wins</b>`." in text) == ("online" in facts)
    assert "/home/me" not in text and "; ;" not in text and ": ;" not in text


def test_a_mix_of_games_and_ablations_are_named(tmp_path: Path) -> None:
    run = online_run(tmp_path / "run", "reinforce", [], **MIX, baseline_decay=1)
    text = card_of(Source(ONLINE, "x", "x", run))
    assert "trained by self-play of Kuhn poker (" in text and ") and Tic-tac-toe (" in text
    assert "policy gradient (REINFORCE) without baselines, an ablation of SPIRAL" in text
    assert "- Game of the arena: `name` `kuhn_poker`, `hands` `600`." in text
    taught = card_of(Source(ONLINE, "x", "x", online_run(tmp_path / "taught", "reinforce", ["teacher"], **MIX)))
    assert "- Game of the arena and of all training before online steps: `name` `kuhn_poker`, `hands` `600`." in taught
    for part in ("`name` `kuhn_poker`, `weight` `2.0`", "`name` `tic_tac_toe`, `weight` `1.0`"):
        assert f"- Played in online steps: {part}" in text
    assert {"kuhn-poker", "tic-tac-toe"} <= set(ModelCard(text).data.tags)
    assert "tic-tac-toe" not in ModelCard(card_of(Source("base", "x", "x", run))).data.tags


def test_instruction_data_is_that_of_the_stages_that_made_the_model(tmp_path: Path) -> None:
    run = online_run(tmp_path / "run", "spag+reinforce", [])
    sft = {"imitation": {"episodes": [], "training": {"sft_data": "/home/me/alpaca.json"}}}
    later = {"offline_rl": {"sft_data": "/home/me/more.json", "objective": "sft"}}
    config = RunConfig.model_validate({"algorithm": "spag+reinforce", "iterations": 2, "game": {"name": "kuhn_poker"}, **sft, **later})
    (run.folder / "config.yaml").write_text(dump_config(config))
    first, last = (card_of(Source(name, "x", "x", RunFolder.open(run.folder))) for name in ("imitation", ONLINE))
    assert "a language model trained on instruction data alone." in first and "Kuhn poker" not in first
    for text, files in ((first, "`alpaca.json`"), (last, "`alpaca.json`, `more.json`")):
        assert f"- Instruction data mixed in: {files}.\n" in text
        assert "1. Fine-tuning on instruction data.\n" in text and "- No teacher games.\n" in text
    assert "2 iterations of self-play, rewards and likelihood of the games that were won, an ablation of SPAG" in last


def test_a_baichuan_says_what_loads_it(tmp_path: Path) -> None:
    for kind, says in (("baichuan", True), ("llama", False)):
        write_json(tmp_path / kind / "config.json", {"model_type": kind})
        text = card_of(find_source(str(tmp_path / kind)))
        assert ("```python\nimport spag.models.baichuan" in text) == says


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
    assert "trained on games of 20 Questions" in text and "As answerer, % of games:" in text
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
