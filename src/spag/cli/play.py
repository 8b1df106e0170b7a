"""``spag play`` and ``spag arena``: games between any two models."""

from pathlib import Path

import click

from spag.cli.options import ANY_PATH, config_options, entrant, open_console, ray_option, read_config


@click.command("play")
@click.argument("attacker", required=False)
@click.argument("defender", required=False)
@config_options
@ray_option
@click.option("--teacher", metavar="openai:MODEL", help="Collect teacher games: this model plays both sides.")
@click.option("--words", "words_source", metavar="shipped|frequency|FILE", help="Target words (short for --set words.source=...).")
@click.option("--count", type=click.IntRange(min=1), help="How many words, drawn by seed. [default: selfplay.words of the config]")
@click.option("--testing", is_flag=True, help="Greedy play, the paper's testing mode.")
@click.option("--prompts", type=ANY_PATH, help="Prompt file (short for --set game.prompts=FILE).")
@click.option("--price", type=(float, float), metavar="IN OUT", help="USD per million prompt and completion tokens, to show the cost.")
@click.option("--output", type=ANY_PATH, required=True, help="Episodes file; played games in it are kept.")
def play_command(
    attacker: str | None,
    defender: str | None,
    config_name: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    cluster: str | None,
    teacher: str | None,
    words_source: str | None,
    count: int | None,
    testing: bool,
    prompts: Path | None,
    price: tuple[float, float] | None,
    output: Path,
) -> None:
    """Play games and append them to a file. The same command resumes.

    ATTACKER and DEFENDER are models: a hub id, a folder, a GGUF file, smollm2-135m, or openai:MODEL for an OpenAI-compatible endpoint
    (OPENAI_BASE_URL and OPENAI_API_KEY in the environment). DEFENDER defaults to ATTACKER, and ATTACKER to the config's model.
    """
    from spag.cli.tables import print_play
    from spag.config.schema import SamplingConfig
    from spag.core.seeds import derive_seed
    from spag.engines.pricing import Price
    from spag.games.taboo.types import Role
    from spag.games.taboo.words import Split
    from spag.rollout.runner import game_specs
    from spag.runs.stages import Side, draw_words, play_games, settle_dtype, table_of

    extra = [*overrides]
    extra += [f"words.source={words_source}"] if words_source else []
    extra += [f"game.prompts={prompts}"] if prompts else []
    config = settle_dtype(read_config(config_name, tuple(extra), seed, cluster))
    attacker = teacher or attacker or config.model.name
    defender = teacher or defender or attacker
    words = draw_words(config.words, Split.TRAIN, count or config.selfplay.words, derive_seed(config.seed, "words"))
    samplings = {Role.ATTACKER: config.selfplay.attacker, Role.DEFENDER: config.selfplay.defender}
    if testing:
        samplings = {role: SamplingConfig(**{**sampling.model_dump(), "temperature": 0.0}) for role, sampling in samplings.items()}
    sides = {
        role: Side(name, config.model.model_copy(update={"name": name}), samplings[role])
        for role, name in ((Role.ATTACKER, attacker), (Role.DEFENDER, defender))
    }
    cost = Price(*price) if price else None
    _, reporter = open_console()
    table = table_of(config, reporter)
    summary = play_games(output, game_specs(words, config.selfplay.repeats, config.seed), sides, table, title="play")
    print_play(summary, cost)


@click.command("arena")
@click.argument("models", nargs=-1, required=True)
@config_options
@ray_option
@click.option("--output", type=ANY_PATH, required=True, help="Folder for episodes.jsonl and results.json.")
def arena_command(
    models: tuple[str, ...], config_name: str | None, overrides: tuple[str, ...], seed: int | None, cluster: str | None, output: Path
) -> None:
    """Let every pair of MODELS play held-out words in both role assignments, and show who wins.

    MODELS are two or more of what ``spag play`` takes, and LoRA adapter folders. A model may be given a short name: NAME=MODEL. The first
    is the zero of the ratings. The same command resumes; with further models it plays only their games.
    """
    from spag.cli.tables import print_arena
    from spag.runs.stages import play_arena, settle_dtype, table_of

    config = settle_dtype(read_config(config_name, overrides, seed, cluster))
    entrants = dict(entrant(text) for text in models)
    if len(entrants) < 2 or len(entrants) < len(models):
        raise click.UsageError("name at least two different models; NAME=MODEL gives one a name")
    _, reporter = open_console()
    sides = {name: config.model.model_copy(update={"name": model}) for name, model in entrants.items()}
    play_arena(output, sides, config, table_of(config, reporter))
    print_arena(output / "results.json")
