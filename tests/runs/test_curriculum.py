"""A curriculum: phases with games of their own, from the run to the tables, the report and the web pages of it."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from scripted_run import LINES, WORDS
from spag.cli.tables import print_run
from spag.config.files import parse_config
from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import ConfigError
from spag.core.progress import SilentReporter
from spag.engines.base import Request
from spag.engines.scripted import ScriptedEngine
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.games.nim.nim import Nim
from spag.report.page import write_report
from spag.rollout.matches import PlaySetup
from spag.runs.checks import check_run
from spag.runs.execute import run
from spag.runs.phases import seed_of
from spag.runs.stage import Run
from spag.storage.manifest import Manifest
from spag.web.app import create_app
from spag.web.security import Access
from taboo_games import TABOO

pytestmark = pytest.mark.slow
TRAINING = "learning_rate: 1.0e-3, micro_batch_size: 8, gradient_checkpointing: false"
OFFLINE = f"max_length: 512, max_steps: 1, global_batch_size: 8, {TRAINING}"
CONFIG = f"""
phases:
  - {{algorithm: spag, game: {{name: kuhn_poker}}, iterations: 1, tasks: 8, {OFFLINE}}}
  - {{algorithm: spag, iterations: 1, tasks: 4, {OFFLINE}}}
  - algorithm: reinforce
    game: {{name: nim}}
    steps: 1
    games: 4
    evaluate_every: 1
    evaluation_tasks: 1
    entropy_coef: 0.01
    sampling: {{max_new_tokens: 4, min_new_tokens: 0}}
    {TRAINING.replace(", ", chr(10) + "    ")}
engine: {{concurrency: 4}}
arena: {{tasks: 1, entrants: [base, reinforce]}}
"""
PLAYED = (TABOO, KuhnPoker(), Nim())
NOTE = "The arena plays only Adversarial Taboo. Phases also play Kuhn poker, Nim, in which models are not compared."


def test_no_two_phases_play_equal_games(tmp_path: Path) -> None:
    """Online phases draw tasks and seeds alike, whatever their algorithms."""
    names = ("imitation", "reinforce", "turnwise", "imitation", "reinforce")
    config = parse_config(f"phases: [{', '.join(f'{{algorithm: {name}}}' for name in names)}]", "test")
    run = Run(config, tmp_path, Manifest.open(tmp_path), PlaySetup.of(config, SilentReporter()))
    seeds = [seed_of(run, model) for model in run.models.values()]
    assert seeds[:2] == [config.seed] * 2  # a bot's games and the policy's differ anyway
    assert len(set(seeds)) == 4


def test_a_later_phase_trains_the_adapter_that_there_is() -> None:
    phases = "[{algorithm: turnwise, lora: {rank: 8}}, {algorithm: reinforce}, {algorithm: group, lora: {rank: 16}}]"
    config = parse_config(f"{{game: {{name: nim}}, model: {{name: smollm2-135m}}, phases: {phases}}}", "test")
    with pytest.raises(
        ConfigError, match=r"^phases\.2\.lora\.rank=16: this phase trains .* set it to 8, its value there"
    ):
        check_run(config, config.game.build())


def test_a_phase_trains_the_adapter_of_the_start(tmp_path: Path) -> None:
    described = {"peft_type": "LORA", "base_model_name_or_path": "smollm2-135m", "r": 4, "lora_alpha": 32}
    (tmp_path / "adapter_config.json").write_text(json.dumps(described))
    phases = "[{algorithm: turnwise, lora: {rank: 4}}, {algorithm: turnwise, lora: {rank: 16}}]"
    config = parse_config(f"{{game: {{name: nim}}, model: {{name: '{tmp_path}'}}, phases: {phases}}}", "test")
    with pytest.raises(ConfigError, match=r"^phases\.1\.lora\.rank=16: this phase trains the adapter of .* to 4, its"):
        check_run(config, config.game.build())


def talker(request: Request) -> str:
    """Draw one of the moves that the prompt offers, or anything in a game without moves."""
    moves = re.findall(r"\[\w+\]", request.prompt.splitlines()[-1])
    return random.Random(request.seed).choice(moves or LINES)


def scripted(models: Sequence[ModelConfig], engine: EngineConfig, *_: object) -> list[ScriptedEngine]:
    return [ScriptedEngine(talker, concurrency=engine.concurrency)] * len(models)


@pytest.fixture(scope="module")
def folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curriculum") / "run"
    words = folder.parent / "words.txt"
    words.write_text("\n".join(WORDS))
    fixed = [f"game.words={words}", f"model.name={model_folder}", "model.dtype=float32", "model.device=cpu"]
    run(parse_config(CONFIG, "test", fixed), folder, SilentReporter(), open_models=scripted)
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    app = create_app(folder, Access())
    while app.state.site.index.sync():
        pass
    with TestClient(app, base_url="http://localhost") as made:
        yield made


def test_the_run_ends_with_a_table_for_each_game(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_run(folder)
    out = capsys.readouterr().out
    _, kuhn, taboo = out.split("Health of play, ")
    assert kuhn.startswith("Kuhn poker") and taboo.startswith("Adversarial Taboo")
    assert all(outcome.label in kuhn for outcome in PLAYED[1].outcomes.values())
    assert all(outcome.label in taboo for outcome in TABOO.outcomes.values())
    assert not any(outcome.label in kuhn for outcome in TABOO.outcomes.values())
    assert NOTE in out and "This run is complete" in out


def test_the_report_has_each_game_by_itself(folder: Path) -> None:
    said: list[str] = []
    page = write_report(folder, said.append).read_text(encoding="utf-8")
    assert said == []
    assert "Adversarial Taboo, Kuhn poker, Nim" in page and NOTE in page
    assert "Health of play, Kuhn poker" in page and "Health of play, Adversarial Taboo" in page
    assert "How games of Kuhn poker ended." in page and "the first by base." in page
    assert "Games of online-step-00001" in page and "game-nim" in page
    plots = {path.stem for path in (folder / "report" / "plots").glob("*.svg")}
    assert {"outcomes-kuhn_poker", "outcomes-adversarial_taboo", "online-nim", "training-spag-1-1"} <= plots
    assert "outcomes" not in plots


def test_the_web_pages_show_the_games_of_every_phase(client: TestClient) -> None:
    pages = {at: client.get(at) for at in ("/", "/games", "/play", "/games?game=nim&outcome=tie")}
    assert {at: answer.status_code for at, answer in pages.items()} == dict.fromkeys(pages, 200)
    overview = pages["/"].text
    assert "cannot be read" not in overview and "not shown" not in overview and NOTE in overview
    for game in PLAYED:
        assert f"<h3>{game.title}</h3>" in overview and f'<option value="{game.name}">' in pages["/games"].text
    assert "<b>8 games</b>" in client.get("/games?game=kuhn_poker").text
    assert "<b>8 games</b>" in client.get("/games?source=spag-1-1").text
    assert 'class="bar game-nim"' in overview
    for source, game in (("spag-1-1", PLAYED[1]), ("spag-2-1", TABOO), ("online-step-00001", PLAYED[2])):
        shown = client.get(f"/games/{source}/1")
        assert shown.status_code == 200 and f'<div class="game-{game.name}">' in shown.text
    style = client.get("/game.css").text
    wins = KuhnPoker.outcomes["player_0_wins"]
    assert f".game-kuhn_poker .o-{wins.name} {{ --fill: {wins.color};" in style and "\n.o-tie {" in style


def test_a_filter_names_a_game_and_an_outcome_of_the_run(client: TestClient) -> None:
    wins = {
        game: client.get(f"/games?game={game}&outcome=player_0_wins") for game in ("kuhn_poker", "adversarial_taboo")
    }
    assert "No game matches" in wins["adversarial_taboo"].text
    assert not {"attacker wins", "tie"} & set(re.findall(r'class="badge[^>]*>([^<]*)', wins["kuhn_poker"].text))
    assert client.get("/games?outcome=king").status_code == client.get("/games?game=chess").status_code == 422
