"""The whole loop as one resumable run: imitation -> (play -> rewards -> train) x iterations -> online steps -> arena.

``run.algorithm`` says which of iterations and online steps there are. Each stage reads files and writes files of the run folder, so it can
be stopped anywhere and looked at afterwards. ``manifest.py`` decides what is left to do.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from spag.config.files import dump_config
from spag.config.schema import RunConfig
from spag.core.errors import ConfigError
from spag.core.manifest import Manifest
from spag.core.progress import Reporter
from spag.core.store import FolderLock, write_atomically
from spag.core.types import Split
from spag.engines.bot import BOT_PREFIX, bot_of
from spag.games.base import Game
from spag.rollout.play import PlaySetup
from spag.runs.folder import BASE, IMITATION, ONLINE, imitates, iteration_name, learns_online, offline_iterations
from spag.runs.offline import imitate, iterate
from spag.runs.online import games_of
from spag.runs.online_job import learn_online
from spag.runs.run import Results, Run
from spag.runs.sft import mix_warning
from spag.runs.stages import play_arena, resolve_dtype, selfplay_tasks

_ARENA_FILES = ("arena/episodes.jsonl", "arena/results.json")


def run(config: RunConfig, folder: Path, reporter: Reporter, *, force: bool = False) -> None:
    """Run or resume everything. Raises ``RunError`` when another process works in ``folder`` or a stage's settings changed."""
    with FolderLock(folder):
        setup = PlaySetup.of(config, reporter)
        manifest = Manifest.open(folder, force=force)
        if not manifest.stages:
            _check_early(config, setup.game)
            for training in (config.imitation.training, *([config.offline_rl] if offline_iterations(config) else [])):
                if warning := mix_warning(training):
                    reporter.note(warning)
        config = resolve_dtype(config, lambda measure: manifest.remember("dtype", measure))
        state = Run(config, folder, manifest, setup)
        if imitates(config):
            imitate(state)
        else:
            write_atomically(folder / "config.yaml", dump_config(config))
        renew_arena(state)
        for number in range(1, offline_iterations(config) + 1):
            iterate(state, number)
        if learns_online(config):
            learn_online(state)
        compete(state)


def _check_early(config: RunConfig, game: Game) -> None:
    """Raise ``ConfigError`` now for what a late stage would find wrong after hours of work."""
    wanted: dict[str, Callable[[], object]] = {
        "selfplay.tasks": lambda: selfplay_tasks(game, config.selfplay, config.selfplay.tasks, 0),
        "arena.tasks": lambda: game.tasks(Split.HELD_OUT, config.arena.tasks, 0),
    }
    if learns_online(config):
        online = [part.game for part in games_of(config)]
        for played in online if config.online.evaluate_every else ():
            wanted[f"online.evaluation_tasks ({played.name})"] = partial(played.tasks, Split.HELD_OUT, config.online.evaluation_tasks, 0)
        for name in (*config.online.opponents, *config.online.evaluation_opponents):
            for played in online if name.startswith(BOT_PREFIX) else ():
                bot_of(played, name)
    for option, draw in wanted.items():
        try:
            draw()
        except ConfigError as error:
            raise ConfigError(f"{option}: {error}") from error
    for opponent in config.selfplay.opponents:
        if opponent.startswith(BOT_PREFIX):
            bot_of(game, opponent)


def compete(run: Run) -> None:
    """The arena: every pair of base, imitation, the last iteration and the online policy, on held-out tasks."""

    def play() -> Results:
        entrants = {name: run.model(name) for name in _entrants(run)}
        results = play_arena(run.folder / "arena", entrants, run.config, run.setup, force=True)  # an earlier last iteration's games go
        return {"games": sum(pair["games"] for pair in results["pairs"])}

    run.stage("arena", _arena_settings(run), run.trained(*_entrants(run)), ["arena"], play, kept=_ARENA_FILES)


def renew_arena(run: Run) -> None:
    """Make a finished arena due again when the run has become longer or shorter, and refuse now what it would refuse at the end."""
    run.manifest.renew("arena", _arena_settings(run), free="names")


def _entrants(run: Run) -> list[str]:
    count = offline_iterations(run.config)
    imitation = [IMITATION] if imitates(run.config) else []
    return [BASE, *imitation, *([iteration_name(count)] if count else []), *([ONLINE] if learns_online(run.config) else [])]


def _arena_settings(run: Run) -> dict[str, Any]:
    return run.settings("seed", "game", "arena", names=_entrants(run))
