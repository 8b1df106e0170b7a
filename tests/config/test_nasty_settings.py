"""Nasty values in every option of the config, through ``spag plan`` and ``spag run --dry-run``: an answer, or one clear
line.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spag.algorithms import get
from spag.cli import main
from spag.config.files import option_names, parse_config
from spag.core.errors import SpagError
from spag.games.registry import SHIPPED, setting_names
from spag.rollout.matchmaking import training_specs
from spag.rollout.runner import GameSpec
from spag.runs import teachers

CONFIG = """
model: {dtype: float32, device: cpu}
game: {name: kuhn_poker, hands: 12}
phases:
  - {algorithm: imitation, episodes: ["bot:random"], max_episodes: 8, global_batch_size: 4, micro_batch_size: 4}
  - {algorithm: spag, iterations: 2, tasks: 6, sft_coef: 0, global_batch_size: 4, micro_batch_size: 4}
  - {algorithm: reinforce, steps: 2, games: 4, evaluation_tasks: 2}
arena: {tasks: 2}
"""
ALWAYS = ("", "null", "-1", "0", "7", "1000000000", ".inf", "banana", "[]", "{a: b}")
IN_TURN = (
    "true", "1", "0.5", "1000000001", "9" * 30, "9" * 5000, "1e308", "1e-308", "1e999", "-1e308", ".nan", "-.inf",
    "x" * 5000, "../" * 2000, "/nope", "/", ".", "/dev/null", "a\x07b", "a\nb", "\udc80", "2020-99-99", "[[]]",
    "[1, x]", "{}", "{self: 1e308, start: 1e308}", "{bot:random: 1}", "[" * 200, "[nope]", "['']", "bot:nope", "*alias",
    "!!python/name:os.system", "cuda:99", "%s{0}", "local:99999", "spag", "group",
)  # fmt: skip
"""Two of them for each option; every one in every option takes six minutes."""
STATUSES = {"plan": {0, 2, 3}, "run": {0, 2, 3}}
"""Status 3: it does not fit."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    path = tmp_path_factory.mktemp("nasty") / "config.yaml"
    path.write_text(CONFIG.replace("model: {", f"model: {{name: {json.dumps(str(model_folder))}, "))
    return path


def options() -> Iterator[str]:
    phases: dict[str, int] = {}  # the first phase that has an option: phases share most of them
    for at, algorithm in enumerate(("reinforce", "spag", "imitation")):
        phases |= {name: 2 - at for name, _ in option_names(get(algorithm).Settings)}
    names_ = [*(name for name, _ in option_names()), *(f"phases.{at}.{name}" for name, at in phases.items())]
    for name in names_:
        yield name
        if "." in name and not name.startswith("game."):  # the default game's list of words takes seconds to make
            yield name.rpartition(".")[0]
    yield from (f"game.{setting}" for setting in setting_names("kuhn_poker"))
    yield from ("phases", "phases.2.algorithm", "phases.2.game", "reinforce.game.name", "spag.game.hands")
    yield from ("reinforce.rewards.kuhn_poker.tie", "spag.opponents.base")


def invoke(command: str, config: Path, *settings: str) -> Result:
    arguments = [part for setting in settings for part in ("--set", setting)]
    more = ["--dry-run", "--output", str(config.parent / "run")] if command == "run" else []
    return CliRunner().invoke(main, [command, str(config), *arguments, *more])


def fault(command: str, result: Result) -> str | None:
    """Return what is wrong with how a command ended; ``None`` for an answer or a clear line."""
    if not isinstance(result.exception, SystemExit | None):
        return f"raised {result.exception!r}"
    if result.exit_code not in STATUSES[command]:
        return f"ended with {result.exit_code}"
    if len(result.stderr.splitlines()) > 3 or len(result.stderr) > 1500:
        return f"said {result.stderr!r}"
    refused = result.exit_code == 2 or (command, result.exit_code) == ("run", 3)
    said = "error: " in result.stderr.lower()
    return None if refused == said else f"ended with {result.exit_code}: {result.stderr!r}"


@pytest.mark.slow
def test_the_config_itself_is_fine(config: Path) -> None:
    for command in STATUSES:
        result = invoke(command, config)
        assert result.exit_code == 0, result.output


@pytest.mark.long
def test_every_option_takes_a_value_or_refuses_it_in_a_line(config: Path) -> None:
    faults, accepted = [], 0
    for number, option in enumerate(dict.fromkeys(options())):
        turn = 2 * number % len(IN_TURN)
        for place, value in enumerate((*ALWAYS, *IN_TURN[turn : turn + 2])):
            setting = f"{option}={value}"
            try:
                parse_config(CONFIG, "test", [setting])
            except SpagError as error:
                faults += (
                    [f"{setting[:80]!r}: {error}"] if len(str(error).splitlines()) > 1 or len(str(error)) > 1000 else []
                )
                if place != number % len(ALWAYS):
                    continue  # both commands refuse it with this line; now and then that is tried
            accepted += 1
            command = list(STATUSES)[accepted % 2]
            if found := fault(command, invoke(command, config, setting)):
                faults.append(f"{command} {setting[:80]!r}: {found}")
    assert not faults, "\n".join(faults)
    assert accepted > 200
    assert not (config.parent / "run").exists()  # a dry run writes nothing


@pytest.mark.parametrize("command", STATUSES)
def test_a_huge_count_of_a_bots_games_is_not_played(
    config: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def few(*arguments: Any) -> list[GameSpec]:
        specs = list(training_specs(*arguments))
        counts.append(len(specs))
        assert counts[-1] < 2000
        return specs

    monkeypatch.setattr(teachers, "training_specs", few)
    result = invoke(command, config, "imitation.max_episodes=1000000000")
    assert result.exit_code == 0, result.output
    assert counts


@pytest.mark.slow
@pytest.mark.parametrize("game", SHIPPED)
def test_the_settings_of_every_game(config: Path, game: str) -> None:
    for setting in setting_names(game):
        for value in (*ALWAYS, *IN_TURN)[::3]:
            try:
                parse_config("", "test", [f"game.name={game}", f"game.{setting}={value}"])
            except SpagError as error:
                assert "\n" not in str(error)
                assert len(str(error)) < 1000
