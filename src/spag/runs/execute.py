"""The whole run, resumable: its phases in order, then the arena.

Each stage reads and writes files of the run folder, so a run can be stopped anywhere and inspected.
``storage/manifest.py`` decides what is left to do.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

from spag.algorithms.settings import OfflineSettings, TeacherSettings
from spag.config.files import dump_config
from spag.config.schema import PlannedEngine, RunConfig
from spag.core.progress import Reporter
from spag.engines.opening import OpenModels, open_models
from spag.models.finding import described_model
from spag.rollout.matches import PlaySetup
from spag.runs.arena import play_arena
from spag.runs.checks import check_run
from spag.runs.layout import arena_entrants, describe_phases, planned_stages
from spag.runs.machine_checks import check_dtype
from spag.runs.phases import carry_out
from spag.runs.stage import Results, Run
from spag.storage.disk import lock_folder
from spag.storage.manifest import Manifest
from spag.storage.store import write_atomically

_ARENA_FILES = ("arena/episodes.jsonl", "arena/results.json")
NO_MIX = (
    "warning: {0}.sft_data is not set, so no instruction data is mixed in, which the paper does against forgetting "
    "(Alpaca 52K); name a file of it, or set {0}.sft_coef=0 to train without"
)
NO_WEIGHT = "warning: {0}.sft_coef=0, so the rows of {0}.sft_data train nothing; set sft_coef above 0 (the paper: 0.5)"


PlanEngines = Callable[[RunConfig], Mapping[str, PlannedEngine]]
"""Returns the engines of online phases according to a memory plan, by the name of the trained model."""


def run(
    config: RunConfig,
    folder: Path,
    reporter: Reporter,
    *,
    force: bool = False,
    open_models: OpenModels = open_models,
    plan_engines: PlanEngines = lambda config: {},
) -> None:
    """Run or resume everything. ``open_models`` opens the models that play (tests pass their own); ``plan_engines``:
    ``spag.planning.here.planned_engines``, without which vLLM uses ``engine.memory``.

    Raises ``RunError`` if another process works in ``folder`` or a stage's settings or results changed, and the errors
    of ``check_run`` and ``plan_engines``.
    """
    engines: Mapping[str, PlannedEngine] = {}
    with lock_folder(folder):
        setup = PlaySetup.of(config, reporter, open_models)
        manifest = Manifest.open(folder, force=force)
        finished = all(map(manifest.is_done, planned_stages(config)))
        if not finished:
            check_run(config, setup.game)
            engines = plan_engines(config)
        if not manifest.stages:
            model = f"model: {described_model(config.model.name)}"
            for line in [model, *describe_phases(config), *mix_warnings(config)]:
                reporter.note(line)
        if config.model.dtype == "auto":
            config = resolve_dtype(config, lambda: manifest.measured.get("dtype"))
            manifest.remember("dtype", config.model.dtype)
        before = Run(config, folder, Manifest.open(folder, force=force, dry=True), setup)
        _carry_out(before)  # refuses before any work
        if finished and any(decision.is_due for decision in before.decisions.values()):
            check_run(config, setup.game)
            engines = plan_engines(config)
        manifest.give_up(before.decisions)
        _carry_out(Run(config, folder, manifest, setup, engines=engines))


def preview_run(config: RunConfig, folder: Path, reporter: Reporter, *, force: bool = False) -> list[tuple[str, str]]:
    """Run the checks of ``run``, with its errors. Return every stage and what would happen to it; write nothing."""
    with lock_folder(folder) if (folder / ".lock").exists() else nullcontext():
        setup = PlaySetup.of(config, reporter)
        manifest = Manifest.open(folder, force=force, dry=True)
        check_run(config, setup.game)
        config = resolve_dtype(config, lambda: manifest.measured.get("dtype", "float32"))
        state = Run(config, folder, manifest, setup)
        _carry_out(state)
        return [(name, decision.state) for name, decision in state.decisions.items()]


def mix_warnings(config: RunConfig) -> list[str]:
    """Return warnings about the SFT mixes: a weight without data (not for a teacher), or data without a weight."""
    found = []
    for phase in config.phases:
        settings = phase.settings
        if not isinstance(settings, OfflineSettings):
            continue
        has_data = settings.sft_data is not None and settings.sft_samples != 0
        if settings.sft_coef and not has_data and not isinstance(settings, TeacherSettings):
            found.append(NO_MIX.format(phase.algorithm))
        if settings.sft_data and not settings.sft_coef:
            found.append(NO_WEIGHT.format(phase.algorithm))
    return list(dict.fromkeys(found))


def resolve_dtype(
    config: RunConfig, known: Callable[[], str | None] = lambda: None, *, here: bool = False
) -> RunConfig:
    """Replace dtype ``auto`` by an earlier measurement, if ``known`` returns one, else by the fastest one here.

    Raises ``ConfigError`` if this machine cannot measure it for the cluster, unless models are used ``here`` only.
    """
    if config.model.dtype != "auto":
        return config
    if (dtype := known()) is None:
        from spag.models.loading import fastest_dtype  # noqa: PLC0415 - imports torch

        if not here:
            check_dtype(config)
        dtype = fastest_dtype(config.model.device)
    return config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})


def _carry_out(state: Run) -> None:
    if not state.manifest.dry:
        write_atomically(state.folder / "config.yaml", dump_config(state.config))
    for model in state.models.values():
        carry_out(state, model)
    names = arena_entrants(state.config)  # a longer run has other entrants; the games of those that left stay
    settings = state.settings("seed", "game", "arena")
    del settings["arena"]["entrants"]

    def compete() -> Results:
        entrants = {name: state.model(name) for name in names}
        results = play_arena(
            state.folder / "arena", entrants, state.config, state.setup,
            trained=state.models, force=True, keep_others=True,
        )  # fmt: skip
        games = sum(pair["games"] for pair in results["pairs"])
        return {"games": games, "completion_tokens": results["completion_tokens"]}

    inputs = state.trained(*names)
    state.stage("arena", settings, inputs, ["arena"], compete, kept=_ARENA_FILES, free=names, players=names)
