"""``spag play`` and ``spag arena``: games between any two models."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spag.cli.options import (
    ANY_PATH,
    asks_for_game,
    config_options,
    entrants,
    game_option,
    json_option,
    open_reporter,
    print_json,
    prompts_option,
    ray_option,
    read_config,
    words_option,
)

if TYPE_CHECKING:
    from spag.algorithms.online_settings import OnlineSettings
    from spag.algorithms.settings import IterationSettings
    from spag.config.schema import RunConfig
    from spag.core.types import Task
    from spag.games.base import Game

force_option = click.option("--force", is_flag=True, help="Replace games of other models or settings.")


@click.command("play")
@click.argument("first", required=False)
@click.argument("second", required=False)
@game_option
@config_options
@ray_option
@words_option
@click.option("--count", type=click.IntRange(min=1), help="Number of tasks, drawn by seed. [default: the config's]")
@click.option("--testing", is_flag=True, help="Greedy play, the paper's testing mode.")
@prompts_option
@json_option
@click.option("--output", type=ANY_PATH, required=True, help="Episodes file; games already in it are kept.")
@force_option
def play_command(
    first: str | None,
    second: str | None,
    config_name: str | None,
    count: int | None,
    testing: bool,
    as_json: bool,
    output: Path,
    force: bool,
) -> None:
    """Play games between two models into a file.

    FIRST and SECOND play the game's roles in order (spag games lists them). Each is a model: a hub id, a folder, a
    GGUF file, smollm2-135m, openai:MODEL for an OpenAI-compatible endpoint (OPENAI_BASE_URL and OPENAI_API_KEY in the
    environment), or bot:NAME, a scripted player of the game. SECOND defaults to FIRST, and FIRST to the config's
    model. Sampling, tasks and game (of a mix, the first) are those of the config's first phase that plays; --game or
    another option about the game selects the config's game instead. The same command resumes; a file with games of
    other players or settings is refused without --force.
    """
    from spag.cli.tables import print_play
    from spag.core.seeds import derive_seed
    from spag.core.visible import counted
    from spag.engines.players import PlayerConfig, is_local
    from spag.rollout.matches import PlaySetup, play_matches
    from spag.rollout.matchmaking import Match
    from spag.rollout.provenance import played_dtype
    from spag.rollout.runner import game_specs
    from spag.runs.execute import resolve_dtype
    from spag.runs.machine_checks import check_players

    config = read_config(config_name)
    game, settings = _playing(config)
    first = first or config.model.name
    second = second or first
    bots = not any(map(is_local, (first, second)))
    config = resolve_dtype(config, lambda: played_dtype(output), here=bots)
    setup = replace(PlaySetup.of(config, open_reporter()), game=game)
    tasks = _tasks(setup.game, settings, count, derive_seed(config.seed, "words"))
    greedy = {"temperature": 0.0} if testing else {}
    players = {
        role: PlayerConfig(
            name, config.model.model_copy(update={"name": name}), settings.sampling.model_copy(update=greedy)
        )
        for role, name in zip(setup.game.roles, (first, second), strict=True)
    }
    specs = game_specs(tasks, settings.repeats, config.seed)
    check_players(config, {name: [game] for name in (first, second)})
    if count is None:
        setup.reporter.note(f"{counted(len(specs), 'game')} to play; --count plays fewer")
    summary = play_matches(output, [Match("play", specs, players)], setup, force=force)
    if as_json:
        counts = {"games": summary.games, "played_now": summary.played_now, "outcomes": dict(summary.outcomes)}
        stats = summary.stats
        print_json({**counts, "prompt_tokens": stats.prompt_tokens, "completion_tokens": stats.completion_tokens})
    else:
        print_play(summary, setup.game)


def _playing(config: "RunConfig") -> "tuple[Game, IterationSettings | OnlineSettings]":
    """Return the game, of a mix the first, and the options of the first phase that plays; without one, the config's
    game and SPAG's defaults.
    """
    from spag.algorithms.online_settings import OnlineSettings
    from spag.algorithms.settings import IterationSettings
    from spag.algorithms.spag import SpagSettings

    for phase in config.phases:
        if isinstance(settings := phase.settings, IterationSettings | OnlineSettings):
            return config.game.build() if asks_for_game() else phase.mix(config.game_of(phase))[0][0], settings
    return config.game.build(), SpagSettings()


def _tasks(
    game: "Game", settings: "IterationSettings | OnlineSettings", count: int | None, seed: int
) -> "Sequence[Task]":
    """Return tasks of the training split, or of both splits if the phase keeps held-out ones too."""
    from spag.algorithms.online_settings import OnlineSettings
    from spag.core.types import Split
    from spag.games.base import tasks_of

    if isinstance(settings, OnlineSettings):
        return game.tasks(Split.TRAIN, count, seed)
    return tasks_of(game, settings.splits, count or settings.tasks, seed)


@click.command("arena")
@click.argument("models", nargs=-1, required=True)
@game_option
@config_options
@ray_option
@words_option
@prompts_option
@json_option
@click.option("--output", type=ANY_PATH, required=True, help="Folder for episodes.jsonl and results.json.")
@click.option("--constant/--no-constant", default=True, help="Add bot:constant as a baseline if the game has it.")
@force_option
def arena_command(
    models: tuple[str, ...], config_name: str | None, as_json: bool, output: Path, constant: bool, force: bool
) -> None:
    """Let models play each other on held-out tasks, and rank them.

    A MODEL is anything that spag play takes, a LoRA adapter folder, or mixture:FOLDER, which draws a model per game.
    Every pair plays every task in both role assignments. NAME=MODEL gives a model a short name. Ratings are relative to
    the first model. The same command resumes; with more models it plays only their games. If a model has been
    retrained since its games were played, the command stops unless --force is given.
    """
    from spag.cli.tables import print_arena
    from spag.engines.players import CONSTANT, bot_names
    from spag.rollout.matches import PlaySetup
    from spag.rollout.provenance import played_dtype
    from spag.runs.arena import play_arena
    from spag.runs.execute import resolve_dtype
    from spag.runs.layout import EPISODES
    from spag.runs.machine_checks import check_players

    config = resolve_dtype(read_config(config_name), lambda: played_dtype(output / EPISODES))
    named = entrants(models)
    if constant and CONSTANT in bot_names(config.game.build()) and CONSTANT not in named.values():
        named[CONSTANT] = CONSTANT
    if len(named) < 2:
        raise click.UsageError("give at least two models of different names, as MODEL or NAME=MODEL")
    players = {name: config.model.model_copy(update={"name": model}) for name, model in named.items()}
    check_players(config, {model: [config.game.build()] for model in named.values()})
    results = play_arena(output, players, config, PlaySetup.of(config, open_reporter()), force=force)
    if as_json:
        print_json(results)
    else:
        print_arena(output / "results.json")
