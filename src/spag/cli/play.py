"""``spag play`` and ``spag arena``: games between any two models."""

from pathlib import Path

import click

from spag.cli.options import (
    ANY_PATH,
    config_options,
    entrant,
    game_option,
    on_stop,
    open_reporter,
    prompts_option,
    ray_option,
    read_config,
    setting,
)

force_option = click.option(
    "--force", is_flag=True, help="Remove games of other models, sampling, prompts, tasks or settings, and play the missing ones."
)


@click.command("play")
@click.argument("first", required=False)
@click.argument("second", required=False)
@game_option
@config_options
@ray_option
@click.option("--teacher", metavar="openai:MODEL", help="Collect teacher games: this model plays both roles.")
@setting("--words", "game.words={}", "shipped|frequency|FILE", "Target words of taboo (short for --set game.words=...).")
@click.option("--count", type=click.IntRange(min=1), help="How many tasks, drawn by seed. [default: selfplay.tasks of the config]")
@click.option("--testing", is_flag=True, help="Greedy play, the paper's testing mode.")
@prompts_option
@click.option("--price", type=(float, float), metavar="IN OUT", help="USD per million prompt and completion tokens, to show the cost.")
@click.option("--output", type=ANY_PATH, required=True, help="Episodes file; played games in it are kept.")
@force_option
def play_command(
    first: str | None,
    second: str | None,
    config_name: str | None,
    teacher: str | None,
    count: int | None,
    testing: bool,
    price: tuple[float, float] | None,
    output: Path,
    force: bool,
) -> None:
    """Play games and append them to a file. The same command resumes; a file with games of other players or settings is refused.

    FIRST and SECOND play the game's roles in order (spag games lists them). Each is a model: a hub id, a folder, a GGUF file, smollm2-135m,
    openai:MODEL for an OpenAI-compatible endpoint (OPENAI_BASE_URL and OPENAI_API_KEY in the environment), or bot:NAME, a player that the
    game brings. SECOND defaults to FIRST, and FIRST to the config's model.
    """
    from spag.cli.tables import print_play
    from spag.core.seeds import derive_seed
    from spag.engines.pricing import Price
    from spag.rollout.play import Match, PlayerConfig, PlaySetup, play_matches
    from spag.rollout.provenance import played_dtype
    from spag.rollout.runner import game_specs
    from spag.runs.checks import check_players
    from spag.runs.stages import model_of_play, resolve_dtype, selfplay_tasks

    config = resolve_dtype(read_config(config_name), lambda measure: played_dtype(output) or measure())
    first = teacher or first or config.model.name
    setup = PlaySetup.of(config, open_reporter())
    tasks = selfplay_tasks(setup.game, config.selfplay, count or config.selfplay.tasks, derive_seed(config.seed, "words"))
    model, greedy = model_of_play(config.model, config.selfplay), {"temperature": 0.0} if testing else {}
    sampling = {role: config.selfplay.sampling_of(role).model_copy(update=greedy) for role in setup.game.roles}
    named = zip(setup.game.roles, (first, teacher or second or first), strict=True)
    players = {role: PlayerConfig(name, model.model_copy(update={"name": name}), sampling[role]) for role, name in named}
    specs = game_specs(tasks, config.selfplay.repeats, config.seed)
    on_stop(lambda: f"{output} has {_games(output):,} games; the same command plays the others")
    check_players(config, [first, teacher or second or first])
    summary = play_matches(output, [Match("play", specs, players)], setup, force=force)
    print_play(summary, setup.game, Price(*price) if price else None)


def _games(path: Path) -> int:
    """Return how many games a file holds: its lines."""
    if not path.is_file():
        return 0
    with path.open("rb") as stream:
        return sum(line.endswith(b"\n") for line in stream)


@click.command("arena")
@click.argument("models", nargs=-1, required=True)
@game_option
@config_options
@ray_option
@click.option("--output", type=ANY_PATH, required=True, help="Folder for episodes.jsonl and results.json.")
@force_option
def arena_command(models: tuple[str, ...], config_name: str | None, output: Path, force: bool) -> None:
    """Let every pair of MODELS play held-out tasks in both role assignments, and show who wins.

    MODELS are two or more of what ``spag play`` takes, and LoRA adapter folders. A model may be given a short name: NAME=MODEL. The first
    is the zero of the ratings. The same command resumes; with further models it plays only their games. Games of a model that has been
    trained since are refused.
    """
    from spag.cli.tables import print_arena
    from spag.rollout.play import PlaySetup
    from spag.rollout.provenance import played_dtype
    from spag.runs.checks import check_players
    from spag.runs.folder import EPISODES
    from spag.runs.stages import play_arena, resolve_dtype

    config = resolve_dtype(read_config(config_name), lambda measure: played_dtype(output / EPISODES) or measure())
    entrants = dict(entrant(text) for text in models)
    if len(entrants) < 2 or len(entrants) < len(models):
        raise click.UsageError("name at least two different models; NAME=MODEL gives one a name")
    players = {name: config.model.model_copy(update={"name": model}) for name, model in entrants.items()}
    on_stop(lambda: f"{output} has {_games(output / EPISODES):,} games; the same command plays the others")
    check_players(config, entrants.values())
    play_arena(output, players, config, PlaySetup.of(config, open_reporter()), force=force)
    print_arena(output / "results.json")
