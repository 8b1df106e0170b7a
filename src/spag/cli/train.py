"""``spag train`` and ``spag rewards``: offline training on files of games or samples, and samples from games."""

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spag.cli.options import (
    ANY_PATH,
    EXISTING,
    config_options,
    json_option,
    open_reporter,
    print_json,
    prompts_option,
    quoted,
    read_config,
    refuse_input,
)
from spag.core.errors import ConfigError, DataError
from spag.core.progress import SilentReporter
from spag.core.visible import counted

if TYPE_CHECKING:
    from spag.config.schema import GameConfig, PhaseConfig, RunConfig
    from spag.core.episodes import Episode
    from spag.core.progress import Reporter
    from spag.games.base import Game


@click.command("train")
@click.argument("algorithm", shell_complete=lambda _, __, start: [one for one in _offline() if one.startswith(start)])
@click.argument("files", nargs=-1, required=True, type=EXISTING, metavar="FILE...")
@click.option("--model", metavar="MODEL", help="Model to start from. [default: the config's model]")
@click.option("--learner", metavar="NAME", help="Player whose utterances are trained. [default: every player]")
@config_options
@prompts_option
@json_option
@click.option("--output", type=ANY_PATH, required=True, help="Folder for checkpoint/ and metrics.jsonl.")
def train_command(
    algorithm: str,
    files: tuple[Path, ...],
    model: str | None,
    learner: str | None,
    config_name: str | None,
    as_json: bool,
    output: Path,
) -> None:
    """Train a model on files of games or samples.

    The files are ours or upstream's. ALGORITHM is imitation (learn from a teacher's winners), spag (learn from rewarded
    self-play; --model is the one that played), or another offline algorithm that is installed. Its options are those of
    the config's first phase with that algorithm: --set spag.learning_rate=1e-6. The same command resumes.
    """
    from spag.learning.job import TrainingJob
    from spag.learning.launch import train_on
    from spag.runs.execute import resolve_dtype
    from spag.runs.layout import check_free
    from spag.runs.machine_checks import check_machine
    from spag.storage.disk import lock_folder
    from spag.storage.episodes import is_file_of_samples, read_episodes

    config, phase, game = _offline_phase(algorithm, files, config_name)
    read = model or config.model.name, phase.settings.sft_data, *files
    for name in ("checkpoint", "state", "metrics.jsonl", "reference.jsonl", "samples.jsonl", "training.json"):
        refuse_input(output / name, *read)
    if learner is not None:
        if chosen := next(filter(is_file_of_samples, files), None):
            raise ConfigError(f"--learner: {chosen} holds samples, which do not name their players; omit it")
        _check_learner(learner, (game for path in files for game in read_episodes(path)), ", ".join(map(str, files)))
    config = resolve_dtype(config)
    check_machine(config)
    first = os.environ.get("RANK", "0") == "0"  # under torchrun every process trains, and the first one writes
    reporter = open_reporter() if first else SilentReporter()
    check_free(output)
    with lock_folder(output) if first else nullcontext():
        phase = _without_second_mix(config, phase, files, reporter)
        job = TrainingJob(
            model=config.model,
            phase=phase,
            game=game,
            start_from=model or config.model.name,
            output=output,
            seed=config.seed,
            files=list(files),
            learner=learner,
            cluster=config.cluster,
            report_to=list(config.report_to),
        )
        result = train_on(job, reporter, "training")
    if first:
        _show(result, output, reporter, as_json)


def _show(result: dict[str, Any], output: Path, reporter: "Reporter", as_json: bool) -> None:
    for note in result.get("notes", ()):
        reporter.note(note)
    if as_json:
        print_json(result)
        return
    trained = f"{counted(result['steps'], 'step')} on {counted(result['trained_samples'], 'sample')}"
    click.echo(f"{trained} in {result['seconds']:,.0f} s -> {output / 'checkpoint'}")


@click.command("rewards")
@click.argument("episodes", type=EXISTING, metavar="FILE")
@click.option(
    "--algorithm",
    metavar="NAME",
    default="spag",
    help="Algorithm that gives rewards and options: spag or imitation; credit of online ones needs a running policy.",
)
@click.option("--sft", type=EXISTING, metavar="FILE", help="Instruction data; short for --set ALGORITHM.sft_data=FILE.")
@click.option("--learner", metavar="NAME", help="Player whose utterances to keep. [default: every player]")
@config_options
@prompts_option
@json_option
@click.option("--output", type=ANY_PATH, required=True, help="Samples file to write.")
def rewards_command(
    episodes: Path,
    algorithm: str,
    sft: Path | None,
    learner: str | None,
    config_name: str | None,
    as_json: bool,
    output: Path,
) -> None:
    """Turn the games of FILE into weighted training samples.

    Every game is judged again. The options are those of the config's first phase with the algorithm. imitation skips
    games on held-out tasks unless keep_held_out is set; spag keeps and counts them.
    """
    from dataclasses import replace

    from spag.algorithms import get
    from spag.algorithms.credit import taught_games
    from spag.algorithms.settings import TeacherSettings
    from spag.algorithms.winners import OfflineAlgorithm
    from spag.cli.tables import print_rewards
    from spag.core.seeds import derive_seed
    from spag.games.registry import files_of
    from spag.storage.episodes import read_episodes, read_sft
    from spag.storage.store import write_rows

    refuse_input(output, episodes, sft)
    overrides = (f"{algorithm}.sft_data={quoted(sft)}",) if sft else ()
    config, phase, game_config = _offline_phase(algorithm, [episodes], config_name, overrides)
    settings, game, reporter = phase.settings, game_config.build(), open_reporter()
    refuse_input(output, config_name, settings.sft_data, *files_of(game).values())
    draws = derive_seed(config.seed, "sft")  # as in training
    rows = read_sft(settings.sft_data, settings.sft_samples, draws) if settings.sft_data else []
    games = list(read_episodes(episodes))
    if learner is not None:
        _check_learner(learner, games, str(episodes))
    chosen = get(algorithm)(settings, seed=config.seed)
    if not isinstance(chosen, OfflineAlgorithm):
        raise ConfigError(f"{algorithm} does not reward winners: use spag train")
    if isinstance(settings, TeacherSettings):  # as in training
        games, note = taught_games(games, game, settings, config.seed, str(episodes))
        if note:
            reporter.note(note)
    samples = chosen.credit([replace(one, outcome=None) for one in games], game, learner)  # judged again
    stats = chosen.stats
    if not samples and (games or not rows):
        outcomes = ", ".join(f"{name} {count:,}" for name, count in stats.outcomes.items()) or "no games"
        raise DataError(f"{episodes}: no game gave a sample ({outcomes}); play more games, or train the model first")
    write_rows(output, [*samples, *rows])
    if as_json:
        print_json({**chosen.summary(), "sft": len(rows)})
    else:
        print_rewards(game, stats, len(rows))
    if stats.held_out:
        reporter.note(f"{stats.held_out:,} of these games are on held-out tasks, which training would then have seen")


def _check_learner(learner: str, games: "Iterable[Episode]", where: str) -> None:
    """Raise ``ConfigError`` if ``learner`` plays in none of the games."""
    names = set[str]()
    for game in games:
        names |= {info.model for info in game.players.values()}
        if learner in names:
            return
    known = ", ".join(sorted(names)[:5]) or "not named"
    more = ", ..." if len(names) > 5 else ""
    raise ConfigError(f"--learner: {learner!r} plays no game of {where}; its players are {known}{more}")


def _offline() -> list[str]:
    """Return the names of the offline algorithms."""
    from spag.algorithms import get, names
    from spag.algorithms.settings import OfflineSettings

    return [name for name in names() if issubclass(get(name).Settings, OfflineSettings)]


def _offline_phase(
    algorithm: str, files: Sequence[Path], config_name: str | None, overrides: tuple[str, ...] = ()
) -> "tuple[RunConfig, PhaseConfig, GameConfig]":
    """Return the config, its first phase with ``algorithm``, and the game of ``files``.

    Raises ``ConfigError`` for an algorithm that plays online, a config without such a phase, and files of two games.
    """
    from spag.algorithms import get
    from spag.algorithms.settings import OfflineSettings
    from spag.games.registry import game_of_file
    from spag.storage.episodes import is_file_of_samples

    if not issubclass(get(algorithm).Settings, OfflineSettings):
        what = f"{algorithm} trains online: its credit needs the running policy's games and baselines"
        raise ConfigError(f"{what}; use spag run; offline algorithms are {', '.join(_offline())}")
    found = [game_of_file(path) for path in files if not is_file_of_samples(path)]
    played = sorted({game.name for game in found})
    if len(played) > 1:
        raise ConfigError(f"the files hold games of {' and '.join(played)}; train on one game at a time")
    named = (*(f"game.name={name}" for name in played), *_rules(found))
    config = read_config(config_name, (*named, *overrides), defaults=f"phases: [{{algorithm: {algorithm}}}]")
    phases = [phase for phase in config.phases if phase.algorithm == algorithm]
    if not phases:
        has = ", ".join(phase.algorithm for phase in config.phases)
        raise ConfigError(f"{config_name}: no phase with algorithm {algorithm}, only {has}; name another --config")
    own = phases[0].game
    return config, phases[0], own if own is not None and own.name in played else config.game


def _rules(games: "Sequence[Game]") -> list[str]:
    """Return the overrides for the rules that recorded ``games`` were played by, where they are not the defaults."""
    from spag.games.registry import setting_hints, settings_of

    found: dict[str, str] = {}
    for game in games:
        for name in game.judged_by:
            value, usual = settings_of(game)[name], setting_hints(game.name)[name].get("default")
            text = json.dumps(value)
            if value != usual and found.setdefault(name, text) != text:
                raise ConfigError(
                    f"the files hold games with game.{name} {found[name]} and {text}; train on one at a time"
                )
    return [f"game.{name}={text}" for name, text in found.items()]


def _without_second_mix(
    config: "RunConfig", phase: "PhaseConfig", files: Sequence[Path], reporter: "Reporter"
) -> "PhaseConfig":
    """Return the phase, without its SFT mix if the files hold SFT rows; warn about a missing mix."""
    from spag.core.episodes import SampleType
    from spag.runs.execute import mix_warnings
    from spag.storage.episodes import all_samples, is_file_of_samples

    for path in filter(is_file_of_samples, files):
        if any(sample.type is SampleType.SFT for sample in all_samples(path)):
            if phase.settings.sft_data:
                reporter.note(f"{path} holds SFT rows, so sft_data is not mixed in again")
            return phase.model_copy(update={"sft_data": None})
    for line in mix_warnings(config.model_copy(update={"phases": [phase]})):
        reporter.note(line)
    return phase
