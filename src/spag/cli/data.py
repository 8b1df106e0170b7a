"""Commands on data files: games, words, judging, rewards, import."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spag.cli.options import ANY_PATH, EXISTING, config_options, open_reporter, read_config, refuse_input
from spag.core.visible import visible_text

if TYPE_CHECKING:
    from spag.core.episodes import EpisodeFile


@click.command("games")
@click.argument("name", required=False)
def games_command(name: str | None) -> None:
    """List the games that are installed, or show roles, outcomes, settings and bots of one."""
    from spag.cli.tables import print_game_details, print_games
    from spag.games.registry import get, names

    if name is None:
        print_games([get(known) for known in names()])
    else:
        print_game_details(get(name))


@click.command("words")
@click.option("--source", default="frequency", show_default=True, metavar="shipped|frequency|FILE", help="Where the words come from.")
@click.option("--top", type=click.IntRange(min=1), default=50_000, show_default=True, help="How many, most frequent first.")
@click.option("--split", type=click.Choice(["all", "train", "held_out"]), default="all", show_default=True, help="Which part.")
@click.option("--output", type=ANY_PATH, help="File to write, one word a line. [default: standard output]")
def words_command(source: str, top: int, split: str, output: Path | None) -> None:
    """List target words: common words without stop words, names, inflected duplicates and offensive words."""
    from spag.core.store import write_atomically
    from spag.games.taboo.words import load_words, split_of

    refuse_input(output, source)
    words = [word for word in load_words(source, top) if split in ("all", str(split_of(word)))]
    text = "".join(f"{word}\n" for word in words)
    if output is None:
        click.echo(text, nl=False)
        return
    write_atomically(output, text)
    click.echo(f"{len(words):,} words -> {output}", err=True)


@click.command("judge")
@click.argument("episodes", type=EXISTING)
@click.option("--mode", type=click.Choice(["strict", "paper"]), help="Rules of judging taboo. [default: strict]")
@click.option("--show", type=click.IntRange(min=0), default=0, help="Print so many games with the judge's reason.")
@click.option("--output", type=ANY_PATH, help="Write the episodes with their new outcome and reason, cut at the judged end.")
def judge_command(episodes: Path, mode: str | None, show: int, output: Path | None) -> None:
    """Judge the games of a file, ours or upstream's; count outcomes, and the samples and role weights that they give."""
    from collections.abc import Iterator
    from dataclasses import replace
    from itertools import islice

    from spag.algorithms.spag import RewardSettings, RewardStats, Template, iterate_rewards
    from spag.cli.tables import print_game, print_outcomes
    from spag.core.episodes import SCHEMA_VERSION, Episode, read_episodes
    from spag.core.store import write_rows
    from spag.core.types import Result
    from spag.games.registry import game_of_file
    from spag.games.replay import replay

    refuse_input(output, episodes)
    game = game_of_file(episodes, **({"judge": mode} if mode else {}))

    def judged() -> Iterator[tuple[Episode, Result]]:
        for episode in read_episodes(episodes):
            yield episode, replay(game, episode)

    for episode, result in islice(judged(), show):
        print_game(game, episode, result)
    stats = RewardStats()
    for _ in iterate_rewards(read_episodes(episodes), game, RewardSettings(template=Template.PLAY), stats=stats):
        pass  # only counted: the samples are for spag rewards to write
    print_outcomes(game, stats)
    if output is not None:
        rows = (
            replace(e, outcome=r.outcome, rewards=r.rewards, reason=r.reason, history=e.history[: r.length], schema_version=SCHEMA_VERSION)
            for e, r in judged()
        )
        write_rows(output, rows)


@click.command("rewards")
@click.argument("episodes", type=EXISTING)
@config_options
@click.option("--imitation", is_flag=True, help="Make imitation samples (teacher games) instead of offline RL samples.")
@click.option("--sft", type=EXISTING, metavar="FILE", help="Instruction data to mix in (short for the stage's option sft_data).")
@click.option("--learner", metavar="NAME", help="Player whose utterances to keep, in games against frozen opponents. [default: both]")
@click.option("--output", type=ANY_PATH, required=True, help="Samples file to write.")
def rewards_command(episodes: Path, config_name: str | None, imitation: bool, sft: Path | None, learner: str | None, output: Path) -> None:
    """Turn the games of a file into weighted training samples.

    With --imitation, games on held-out tasks are left out, unless imitation.keep_held_out is set. Otherwise they are kept, and counted.
    """
    from spag.cli.tables import print_rewards
    from spag.core.episodes import SampleType, read_episodes
    from spag.core.sft import read_sft
    from spag.games.registry import game_of_file
    from spag.runs.stages import without_held_out, write_samples

    refuse_input(output, episodes, sft)
    mixed_in = [f"{'imitation.training' if imitation else 'offline_rl'}.sft_data={sft}"] if sft else []
    config = read_config(config_name, (f"game.name={game_of_file(episodes).name}", *mixed_in))
    mix, game = config.imitation.training if imitation else config.offline_rl, config.game.build()
    refuse_input(output, mix.sft_data)
    rows = read_sft(mix.sft_data, mix.sft_samples, config.seed) if mix.sft_data else []
    kind, games = SampleType.IMITATION if imitation else SampleType.RL, read_episodes(episodes)
    if learner is not None:
        _check_learner(learner, games)
    kept = games if not imitation or config.imitation.keep_held_out else without_held_out(list(games), game, str(episodes), _note)
    stats = write_samples(output, kept, config.rewards, game=game, seed=config.seed, sample_type=kind, sft=rows, learner=learner)
    print_rewards(game, stats, len(rows))
    if stats.held_out:
        _note(f"{stats.held_out:,} of these games are on held-out tasks, which are not held out from a model that trains on them")


def _check_learner(learner: str, games: "EpisodeFile") -> None:
    """Raise ``ConfigError`` when ``learner`` plays in no game of a file."""
    from spag.core.errors import ConfigError

    names = sorted({info.model for game in games for info in game.players.values()})
    if learner not in names:
        known = ", ".join(names[:5]) or "not named"
        raise ConfigError(f"--learner: {learner!r} plays no game of {games.path}; its players are {known}{', ...' * (len(names) > 5)}")


def _note(line: str) -> None:
    click.echo(visible_text(line), err=True)


@click.group("import")
def import_group() -> None:
    """Bring in files of the paper's published code, and Baichuan2-13B."""


@import_group.command("prompts")
@click.argument("source", type=EXISTING)
@click.option("--output", type=ANY_PATH, required=True, help="Prompt file to write, for --prompts.")
def import_prompts(source: Path, output: Path) -> None:
    """Read the prompt templates from SOURCE, upstream's utils.py, by parsing it; the file is never run."""
    from spag.games.taboo.promptfile import import_upstream_prompts, save_prompts

    refuse_input(output, source)
    prompts = import_upstream_prompts(source)
    save_prompts(prompts, output)
    click.echo(f"{len(prompts.rules)} paraphrases of the rules, instructions for play and for training -> {output}", err=True)


@import_group.command("episodes")
@click.argument("source", type=EXISTING)
@click.option("--output", type=ANY_PATH, required=True, help="Episodes file to write.")
def import_episodes(source: Path, output: Path) -> None:
    """Turn upstream's JSON list of games into an episodes file; nothing is judged here."""
    from dataclasses import replace

    from spag.core.episodes import read_episodes
    from spag.core.store import write_rows

    refuse_input(output, source)
    named = (replace(e, id=e.id or f"{e.task.id}-{number}") for number, e in enumerate(read_episodes(source)))
    write_rows(output, named)
    click.echo(f"games of {source} -> {output}", err=True)


@import_group.command("model")
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="FOLDER")
@click.option("--output", type=ANY_PATH, required=True, metavar="NEW", help="New folder to write, for model.name.")
def import_model(source: Path, output: Path) -> None:
    """Convert Baichuan2-13B, as downloaded into FOLDER, into a model that loads: safetensors, a fast tokenizer, no code.

    The published weights are pickles. This command is the only one that reads such files, with torch's weights_only: a pickle that holds
    anything but tensors is refused. Code in FOLDER is never run.
    """
    from spag.models.convert import convert_model

    convert_model(source, output, open_reporter().note)
    click.echo(output)
