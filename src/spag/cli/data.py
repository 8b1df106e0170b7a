"""Commands on games and data files: games, words, judging, import."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spag.cli.options import ANY_PATH, EXISTING, json_option, open_reporter, print_json, refuse_input
from spag.core.errors import SpagError, first_line
from spag.core.visible import counted

if TYPE_CHECKING:
    from spag.algorithms.winners import RewardStats
    from spag.core.episodes import Episode
    from spag.games.base import Game


@click.command("games")
@click.argument("name", required=False)
@json_option
def games_command(name: str | None, as_json: bool) -> None:
    """List the installed games, or show roles, outcomes, settings, bots and a prompt of one."""
    from spag.cli.tables import opening_prompt, print_game_details
    from spag.games.registry import get

    if not name:
        _list_games(as_json=as_json)
    elif as_json:
        print_json({**_described(name), "prompt": opening_prompt(get(name))[1]})
    else:
        print_game_details(get(name))


def _list_games(*, as_json: bool) -> None:
    """Print every installed game. One that cannot be made has a row with the reason, and hides no other."""
    from spag.cli.tables import print_table
    from spag.core.plugins import PLUGIN_FAULTS
    from spag.games.registry import names
    from spag.report.cells import Table

    found, faults = list[dict[str, Any]](), dict[str, str]()
    for name in names():
        try:
            found.append(_described(name))
        except SpagError as error:
            faults[name] = str(error)
        except PLUGIN_FAULTS as error:  # no Game at all, or one that fails when it is made
            faults[name] = f"{type(error).__name__}: {first_line(error)}"
    if as_json:
        print_json([*found, *({"name": name, "error": fault} for name, fault in faults.items())])
        return
    rows = tuple((game["name"], ", ".join(game["roles"]), game["summary"]) for game in found)
    print_table(Table("Games", ("name", "roles", "summary"), rows, texts=3))
    print_table(Table("Games that fail to load", ("name", "reason"), tuple(faults.items()), texts=2))


def _described(name: str) -> dict[str, Any]:
    """Return a game as ``--json`` prints it."""
    from spag.games.registry import get, setting_hints

    game = get(name)
    return {
        "name": game.name,
        "summary": game.summary,
        "roles": list(game.roles),
        "outcomes": {outcome.name: outcome.label for outcome in game.outcomes.values()},
        "settings": {option: hint.get("default") for option, hint in setting_hints(name).items()},
        "bots": list(game.bots),
    }


@click.command("words")
@click.option("--source", default="frequency", metavar="shipped|frequency|FILE", help="Source of the words.")
@click.option("--top", type=click.IntRange(min=1), default=50_000, help="Take only the N most frequent words.")
@click.option("--split", type=click.Choice(["all", "train", "held_out"]), default="all", help="Split to list.")
@click.option("--language", metavar="CODE", default="en", help="Language of the words: en, de, fr or es.")
@click.option("--output", type=ANY_PATH, help="File to write, one word per line. [default: standard output]")
def words_command(source: str, top: int, split: str, language: str, output: Path | None) -> None:
    """List the target words of Taboo.

    The English frequency list leaves out stop words, names, inflected duplicates and offensive words.
    """
    from spag.games.registry import get
    from spag.games.taboo.words import load_words
    from spag.storage.store import write_atomically
    from spag.text.words import split_of

    refuse_input(output, source)
    get("adversarial_taboo", language=language, words=source)  # refuses an unknown language
    words = [word for word in load_words(source, top, language) if split in ("all", str(split_of(word, language)))]
    text = "".join(f"{word}\n" for word in words)
    if output is None:
        click.echo(text, nl=False)
        return
    write_atomically(output, text)
    click.echo(f"{counted(len(words), 'word')} -> {output}", err=True)


@click.command("judge")
@click.argument("episodes", type=EXISTING, metavar="FILE")
@click.option("--mode", type=click.Choice(["strict", "paper"]), help="Taboo's judge. [default: the file's, or strict]")
@click.option("--language", metavar="CODE", help="Taboo's language: en, de, fr or es. [default: the file's, or en]")
@click.option("--show", type=click.IntRange(min=0), default=0, help="Print the first N games, with the judge's reason.")
@json_option
@click.option("--output", type=ANY_PATH, help="Write the re-judged episodes, truncated at the judged end.")
def judge_command(
    episodes: Path, mode: str | None, language: str | None, show: int, as_json: bool, output: Path | None
) -> None:
    """Judge the games of FILE, ours or upstream's, and count them.

    Prints the outcomes, and the samples and role weights that follow from them; of games of several kinds, as the mix
    of a phase has them, for each kind (with --json by its name).
    """
    from spag.cli.tables import print_game, print_outcomes
    from spag.games.registry import game_by_rules, game_of, game_of_file, setting_names
    from spag.storage.episodes import read_episodes
    from spag.storage.store import write_rows

    if show and as_json:
        raise click.UsageError("--show prints text; it cannot be combined with --json")
    refuse_input(output, episodes)
    asked = {name: value for name, value in (("judge", mode), ("language", language)) if value is not None}
    games, judged = dict[str, "Game"](), list["Episode"]()
    for episode in read_episodes(episodes):
        rules = {name: value for name, value in asked.items() if name in setting_names(episode.game)}
        if episode.game not in games:
            games[episode.game] = game_of(episode, **rules)
        own = game_by_rules(episode, games[episode.game], **rules)
        judged.append(_judged(own, episode, rules))
        if len(judged) <= show:
            print_game(own, judged[-1])
    if not games or asked.keys() - {option for name in games for option in setting_names(name)}:
        game_of_file(episodes, **asked)  # refuses a file without games, and an option that none of them has
    found = {name: _counted(game, [one for one in judged if one.game == name]) for name, game in games.items()}
    if as_json:
        counts = {name: _counts(stats) for name, stats in found.items()}
        print_json(counts if len(counts) > 1 else next(iter(counts.values())))
    else:
        for name, stats in found.items():
            if len(found) > 1:
                click.echo(name)
            print_outcomes(games[name], stats)
    if output is not None:
        write_rows(output, judged)


def _counted(game: "Game", judged: "Sequence[Episode]") -> "RewardStats":
    """Return the counts of games of one kind."""
    from spag.algorithms.winners import RewardSettings, RewardStats, assign_rewards

    stats = RewardStats()
    assign_rewards(judged, settings=RewardSettings(template="play"), game=game, stats=stats)
    return stats


def _counts(stats: "RewardStats") -> dict[str, Any]:
    """Return them as ``--json`` prints them."""
    games, empty = stats.outcomes.total(), stats.empty_completions
    return {"games": games, "utterances": stats.utterances, "empty_utterances": empty, **stats.summary()}


def _judged(game: "Game", episode: "Episode", asked: Mapping[str, str]) -> "Episode":
    """Return ``episode`` as judged now, cut at the judged end, with the rules ``asked`` for in its record."""
    from dataclasses import replace

    from spag.games.replay import replay

    result = replay(game, episode)
    return replace(
        episode,
        outcome=result.outcome,
        rewards=result.rewards,
        reason=result.reason,
        history=episode.history[: result.length],
        length=result.length,
        settings={**(episode.settings or {}), **asked} or None,
    )


@click.group("import")
def import_group() -> None:
    """Convert files of the paper's published code, and Baichuan2-13B."""


@import_group.command("prompts")
@click.argument("source", type=EXISTING)
@click.option("--output", type=ANY_PATH, required=True, help="Prompt file to write, for --prompts.")
def import_prompts(source: Path, output: Path) -> None:
    """Extract the prompt templates from SOURCE, upstream's utils.py, which is parsed and never run."""
    from spag.games.taboo.promptfile import import_upstream_prompts, save_prompts

    refuse_input(output, source)
    prompts = import_upstream_prompts(source)
    save_prompts(prompts, output)
    click.echo(
        f"{len(prompts.rules)} paraphrases of the rules, instructions for play and for training -> {output}", err=True
    )


@import_group.command("episodes")
@click.argument("source", type=EXISTING)
@click.option("--output", type=ANY_PATH, required=True, help="Episodes file to write.")
def import_episodes(source: Path, output: Path) -> None:
    """Convert upstream's JSON list of games to an episodes file, without judging them."""
    from dataclasses import replace

    from spag.storage.episodes import read_episodes
    from spag.storage.store import write_rows

    refuse_input(output, source)
    named = (replace(e, id=e.id or f"{e.task.id}-{number}") for number, e in enumerate(read_episodes(source)))
    write_rows(output, named)
    click.echo(f"games of {source} -> {output}", err=True)


@import_group.command("model")
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="FOLDER")
@click.option("--output", type=ANY_PATH, required=True, metavar="NEW", help="New folder to write, for model.name.")
def import_model(source: Path, output: Path) -> None:
    """Convert Baichuan2-13B, downloaded into FOLDER, to safetensors and a fast tokenizer, without its code.

    The published weights are pickles. Only this command reads such files, with torch's weights_only: a pickle that
    holds anything but tensors is refused. Code in FOLDER is never run.
    """
    from spag.models.convert import convert_model

    convert_model(source, output, open_reporter().note)
    click.echo(output)
