"""The whole loop as one resumable run: imitation -> (play -> rewards -> train) x iterations -> online steps -> arena.

``run.algorithm`` says which of iterations and online steps there are. Each stage reads files and writes files of the run folder, so it can
be stopped anywhere and looked at afterwards. ``manifest.py`` decides what is left to do.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from spag.config.schema import RunConfig
from spag.core.disk import FolderLock
from spag.core.manifest import Manifest
from spag.core.progress import Reporter
from spag.rollout.play import PlaySetup
from spag.runs.checks import check_run
from spag.runs.folder import arena_entrants, imitates, learns_online, offline_iterations, planned_stages
from spag.runs.offline import imitate, iterate
from spag.runs.online_job import learn_online
from spag.runs.run import Results, Run
from spag.runs.sft import mix_warning
from spag.runs.stages import play_arena, resolve_dtype

_ARENA_FILES = ("arena/episodes.jsonl", "arena/results.json")


def run(config: RunConfig, folder: Path, reporter: Reporter, *, force: bool = False) -> None:
    """Run or resume everything.

    Raises ``RunError`` when another process works in ``folder`` or a stage's settings or results changed, and what ``check_run`` raises.
    """
    with FolderLock(folder):
        setup = PlaySetup.of(config, reporter)
        manifest = Manifest.open(folder, force=force)
        if not all(map(manifest.is_done, planned_stages(config))):
            check_run(config, setup.game)
        if not manifest.stages:
            for training in (config.imitation.training, *([config.offline_rl] if offline_iterations(config) else [])):
                if warning := mix_warning(training):
                    reporter.note(warning)
        config = resolve_dtype(config, lambda measure: manifest.remember("dtype", measure))
        _go_through(Run(config, folder, manifest, setup))


def foresee(config: RunConfig, folder: Path, reporter: Reporter, *, force: bool = False) -> list[tuple[str, str]]:
    """Check what ``run`` checks; return every stage and what would become of it. Nothing is done, and nothing is written.

    Raises what ``run`` raises before its first minute of work.
    """
    with FolderLock(folder) if (folder / ".lock").exists() else nullcontext():
        setup = PlaySetup.of(config, reporter)
        manifest = Manifest.open(folder, force=force)
        manifest.keep = False
        check_run(config, setup.game)
        config = resolve_dtype(config, lambda measure: str(manifest.measured.get("dtype", "float32")))
        stages: list[tuple[str, str]] = []
        _go_through(Run(config, folder, manifest, setup, stages))
        return stages


def _go_through(state: Run) -> None:
    if imitates(state.config):
        imitate(state)
    else:
        state.keep_settings()
    renew_arena(state)
    for number in range(1, offline_iterations(state.config) + 1):
        iterate(state, number)
    if learns_online(state.config):
        learn_online(state)
    compete(state)


def compete(run: Run) -> None:
    """The arena: every pair of ``arena.entrants`` on held-out tasks."""

    def play() -> Results:
        entrants = {name: run.model(name) for name in arena_entrants(run.config)}
        results = play_arena(run.folder / "arena", entrants, run.config, run.setup, force=True)  # an earlier last iteration's games go
        return {"games": sum(pair["games"] for pair in results["pairs"])}

    run.stage("arena", _arena_settings(run), run.trained(*arena_entrants(run.config)), ["arena"], play, kept=_ARENA_FILES)


def renew_arena(run: Run) -> None:
    """Make a finished arena due again when the run has become longer or shorter, and refuse now what it would refuse at the end."""
    run.manifest.renew("arena", _arena_settings(run), free="names")


def _arena_settings(run: Run) -> dict[str, Any]:
    settings = run.settings("seed", "game", "arena", names=arena_entrants(run.config))
    del settings["arena"]["entrants"]  # said by names, which may change
    return settings
