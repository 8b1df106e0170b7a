"""The whole loop over games other than taboo: a bot to imitate, self-play, training, arena, health, report."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from scripted_run import moving
from spag.algorithms.winners import RewardSettings, assign_rewards
from spag.cli import main
from spag.config.files import parse_config
from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import ConfigError, DataError
from spag.core.progress import SilentReporter
from spag.engines.players import gpus_of
from spag.games.registry import get
from spag.rollout.matches import PlaySetup
from spag.runs import phases
from spag.runs.execute import run
from spag.runs.layout import EPISODES
from spag.runs.reading import RunFolder
from spag.runs.stage import Run
from spag.runs.teachers import bot_games
from spag.storage.episodes import read_episodes, read_samples
from spag.storage.manifest import Manifest
from spag.storage.store import write_rows
from taboo_games import episode_of

TRAINING = (
    "learning_rate: 1.0e-3, global_batch_size: 8, micro_batch_size: 8, max_length: 2048, gradient_checkpointing: false"
)
CONFIG = f"""
phases:
  - {{algorithm: imitation, episodes: ["bot:random"], max_episodes: 12, template: play, {TRAINING}}}
  - {{algorithm: spag, iterations: 1, tasks: 6, repeats: 2, template: play, {TRAINING}}}
engine: {{concurrency: 3}}
arena: {{tasks: 3, entrants: [base, imitation, spag-1]}}
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_run_of_another_game_goes_to_its_end(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from spag.cli.tables import print_run
    from spag.report.page import write_report

    name = "leduc_poker"  # which may end in a draw; runs of Kuhn poker: storm.py, test_tutorials.py
    fixed = [f"game.name={name}", f"model.name={model_folder}", "model.dtype=float32", "model.device=cpu"]
    game, config = get(name), parse_config(CONFIG, "test", fixed)
    run(config, tmp_path, SilentReporter(), open_models=moving)
    taught = list(read_samples(tmp_path / "1-imitation" / "samples.jsonl"))
    assert {sample.role for sample in taught} == set(game.roles)
    assert all(re.fullmatch(r"\[\w+\]", sample.completion) for sample in taught)  # a bot's moves
    episodes = list(read_episodes(tmp_path / "2-spag" / "iteration-1" / "episodes.jsonl"))
    assert {episode.game for episode in episodes} == {name}
    assert len(episodes) == 12
    assert all(set(episode.rewards) == set(game.roles) and episode.outcome in game.outcomes for episode in episodes)
    won = {episode.id for episode in episodes if game.outcomes[str(episode.outcome)].winners}
    assert {sample.episode_id for sample in read_samples(tmp_path / "2-spag" / "iteration-1" / "samples.jsonl")} == won
    results = json.loads((tmp_path / "arena" / "results.json").read_text())
    assert sum(pair["games"] for pair in results["pairs"]) == 3 * 2 * 3  # pairs, role assignments, tasks
    print_run(tmp_path)
    printed = capsys.readouterr().out
    assert "This run is complete" in printed and game.roles[1] in printed
    page = write_report(tmp_path).read_text()
    assert all(outcome.label in page for outcome in game.outcomes.values() if outcome.winners)
    assert not re.search(r"\b(attacker|defender)\b", page)


def test_a_game_without_teacher_games_names_its_bots(tmp_path: Path) -> None:
    config = parse_config("game: {name: kuhn_poker}\nmodel: {dtype: float32}", "test")
    with pytest.raises(
        ConfigError,
        match=r"kuhn_poker ships no teacher games; .* its bots: bot:random, bot:constant, bot:equilibrium",
    ):
        run(config, tmp_path, SilentReporter())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("arena.tasks=22", "arena.tasks: 22 tasks asked for, but guess_my_city has 21"),
        ("spag.tasks=1000", "phases.1.tasks: 1,000 tasks asked for, but"),
        ("spag.opponents={bot:best: 1}", "bot:best: guess_my_city has no such bot"),
    ],
)
def test_what_a_late_stage_would_refuse_is_refused_at_once(tmp_path: Path, option: str, message: str) -> None:
    config = parse_config(CONFIG, "test", ["game.name=guess_my_city", "model.dtype=float32", option])
    with pytest.raises(ConfigError) as caught:
        run(config, tmp_path, SilentReporter())
    assert message in str(caught.value)
    assert not (tmp_path / "manifest.json").exists()


def test_a_bot_plays_each_task_once_before_any_again() -> None:
    game = get("kuhn_poker", hands=12)
    counts = Counter(episode.task.id for episode in bot_games("bot:random", 30, 1, game))
    assert len(counts) == 12
    assert sorted(counts.values()) == [2] * 6 + [3] * 6
    few = bot_games("bot:random", 5, 1, get("tic_tac_toe"))
    assert len({episode.task.id for episode in few}) == 5
    assert [episode.id for episode in few] != [
        episode.id for episode in bot_games("bot:random", 5, 2, get("tic_tac_toe"))
    ]


def test_games_of_two_bots_differ_and_a_second_phase_plays_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = '{algorithm: imitation, episodes: ["bot:random", "bot:equilibrium", "bot:random"], max_episodes: 12}'
    text = f"game: {{name: kuhn_poker}}\nmodel: {{dtype: float32}}\nphases: [{phase}, {phase}]"
    state = Run(
        config := parse_config(text, "test"), tmp_path, Manifest.open(tmp_path), PlaySetup.of(config, SilentReporter())
    )
    monkeypatch.setattr(phases, "_train", lambda *_: None)
    for model in state.models.values():
        phases.carry_out(state, model)
    first, second = (list(read_episodes(tmp_path / model.folder / EPISODES)) for model in state.models.values())
    for games in (first, second):
        assert len(games) == len({game.id for game in games}) == 24  # a bot that is named twice plays once
        assert Counter(game.players["player_0"].model for game in games) == {"bot:random": 12, "bot:equilibrium": 12}
    assert not {game.seed for game in first} & {game.seed for game in second}
    assert RunFolder(tmp_path).results("1-imitation/play")["completion_tokens"] == 0  # or a run would have no total


def test_a_bot_takes_no_gpu() -> None:
    bot = ModelConfig(name="bot:random")
    assert (gpus_of([bot, bot], EngineConfig()), gpus_of([bot, ModelConfig(name="a/b")], EngineConfig())) == (0, 1)


def test_games_of_another_kind_are_named_not_judged(tmp_path: Path) -> None:
    [hand] = bot_games("bot:random", 1, 1, get("kuhn_poker"))
    hint = "not adversarial_taboo; keep only one kind of games in a file"
    message = rf"the game 'bot:random/train-\d+-\w+-0' is kuhn_poker, {hint}"
    for settings in (None, RewardSettings()):  # a judged game is as wrong as one that is judged anew
        with pytest.raises(DataError, match=message):
            assign_rewards([hand], settings=settings)
    write_rows(tmp_path / "games.jsonl", [episode_of("river", "Hi", id="taboo"), hand])
    options = ["rewards", str(tmp_path / "games.jsonl"), "--output", str(tmp_path / "samples.jsonl")]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 2
    assert re.search(message, result.output)
    [(pattern, _)] = re.findall(r"in a file: grep '(.*)' FILE( > NEW)$", result.output.strip())
    rows = (tmp_path / "games.jsonl").read_text().splitlines()
    assert [bool(re.search(pattern, row)) for row in rows] == [True, False]


def test_games_of_several_kinds_are_judged_each_by_its_own_rules(tmp_path: Path) -> None:
    """As the file of a step of a mix holds them."""
    file, judged = tmp_path / "games.jsonl", tmp_path / "judged.jsonl"
    hands = list(bot_games("bot:random", 2, 1, get("kuhn_poker")))
    write_rows(file, [hands[0], episode_of("river", "A river!", id="taboo"), hands[1]])
    printed, counted = (
        CliRunner().invoke(main, ["judge", str(file), *options])
        for options in (["--show", "2", "--output", str(judged)], ["--json"])
    )
    assert printed.exit_code == 0 and counted.exit_code == 0, printed.output + counted.output
    assert re.findall(r"^(kuhn_poker|adversarial_taboo|\d games?)\b", printed.output, re.MULTILINE) == [
        *("kuhn_poker", "2 games", "adversarial_taboo", "1 game")
    ]
    found = json.loads(counted.stdout)
    assert [(name, counts["games"]) for name, counts in found.items()] == [("kuhn_poker", 2), ("adversarial_taboo", 1)]
    assert found["adversarial_taboo"]["outcomes"] == {"attacker_violation": 1}
    file_option = [str(file), "--mode", "paper", "--json"]  # Taboo's alone
    assert json.loads(CliRunner().invoke(main, ["judge", *file_option]).stdout)["kuhn_poker"] == found["kuhn_poker"]
    write_rows(file, hands)
    refused = CliRunner().invoke(main, ["judge", *file_option])
    assert refused.exit_code == 2 and "unknown option game.judge" in refused.output
    assert [(one.game, one.outcome) for one in read_episodes(judged)] == [
        (hands[0].game, hands[0].outcome),
        ("adversarial_taboo", "attacker_violation"),
        (hands[1].game, hands[1].outcome),
    ]
