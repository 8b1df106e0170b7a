"""The output of ``spag run --dry-run``, and what is said of a whole run: its disk space and its data.

A run has no estimates if its model's shape is not known (``specs.py``), or if the model must be converted first, or if
nothing can stand in for the play of a game (``samples.py``): it shows its stages alone.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

from spag.algorithms.online_settings import OnlineSettings
from spag.config.schema import RunConfig
from spag.core.errors import ModelError
from spag.core.progress import Reporter
from spag.core.visible import counted
from spag.models.finding import described_model
from spag.planning.here import plan_here, planned_engines
from spag.planning.plan import Planner
from spag.planning.samples import NoExamplesError
from spag.planning.specs import GIB, ModelShape
from spag.planning.stage import adapter_count, phases_of
from spag.runs.execute import mix_warnings, preview_run
from spag.runs.layout import planned_models
from spag.runs.machine_checks import is_elsewhere
from spag.runs.teachers import few_games
from spag.storage.machine import free_bytes

_NOT_HERE = "not asked: memory below is that of this machine; spag plan --gpu KIND --gpus N plans for the nodes"


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """A stage: ``state`` as in ``preview_run``, ``work`` in words."""

    name: str
    state: str
    work: str


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """What a run would do. ``facts``: lines by topic. ``doubts``: why it does not fit; empty if it does."""

    stages: list[StageEstimate]
    facts: dict[str, str]
    doubts: list[str] = field(default_factory=list)


def estimate_run(config: RunConfig, folder: Path, reporter: Reporter, *, force: bool = False) -> RunEstimate:
    """Check a run and report what it would do. Raises the errors of ``run`` before its first minute of work."""
    states = dict(preview_run(config, folder, reporter, force=force))
    model = described_model(config.model.name)
    try:
        planner = plan_here(config)
        works = _works(planner)
    except (ModelError, NoExamplesError) as error:
        planned_engines(config)  # refused as by the run, if vLLM would need a plan
        stages = [StageEstimate(name, state, "") for name, state in states.items()]
        return RunEstimate(stages, {"model": model, "plan": f"none: {error}"})
    count = f"{planner.devices} x " if planner.on_gpu else ""
    facts = {
        "machine": f"{count}{planner.device.name}, {planner.device.memory / GIB:.1f} GiB",
        "model": f"{model}, {planner.shape.parameters:,} parameters",
    }
    found = RunEstimate([StageEstimate(name, state, works.get(name, "")) for name, state in states.items()], facts)
    if is_elsewhere(config):
        facts["cluster"] = _NOT_HERE
    for plan in planner.stages:
        taken = facts[f"memory of {plan.name}"] = f"{plan.memory.total / GIB:.1f} GiB of {plan.room / GIB:.1f}"
        if plan.sharing and not plan.sharing.shortage:
            facts[f"engines of {plan.name.removesuffix(' play')}"] = plan.sharing.describe()
        if not is_elsewhere(config):
            found.doubts.extend(f"{plan.name}: {what} ({taken}); see spag plan" for what in plan.problems)
    needed = disk_bytes(config, planner.shape, [name for name, state in states.items() if state != "done before"])
    free = free_bytes(folder)
    facts["disk"] = f"{needed / GIB:.1f} GiB for models and checkpoints, {free / GIB:.1f} free"
    if needed > free:
        found.doubts.append(f"{folder}: {facts['disk']}; free space, or choose another --output")
    facts.update(run_notes(config))
    return found


def _works(planner: Planner) -> dict[str, str]:
    """Return the work of each stage of the run folder in words."""
    plans = {plan.name: plan for plan in planner.stages}
    found = {"arena": counted(plans["arena"].count, "game")}
    for model in planned_models(planner.config):
        settings, plan = model.phase.settings, plans[model.label]
        played = plans.get(f"{model.label} self-play")
        found[f"{model.folder}/play"] = counted(played.count, "game") if played else "games of bots"
        if isinstance(settings, OnlineSettings):
            work = f"{counted(settings.steps, 'step')} of {counted(settings.games, 'game')}"
        else:
            work = f"about {counted(plan.count, 'sample')}, {counted(plan.updates, 'update')}"
        found[f"{model.folder}/train"] = work
    return found


def run_notes(config: RunConfig) -> dict[str, str]:
    """Return what the data of a run lack, by topic."""
    mix = "; ".join(line.removeprefix("warning: ") for line in mix_warnings(config))
    return {topic: said for topic, said in (("instruction data", mix), ("imitation data", few_games(config))) if said}


def disk_bytes(config: RunConfig, shape: ModelShape, due: Container[str] | None = None) -> float:
    """Return the disk space of a run's models, and of the largest checkpoint to resume from: an old one stays until the
    new one is complete. ``due``: the remaining stages.
    """
    saved, largest, phases = 0.0, 0.0, phases_of(config)
    for model in planned_models(config):
        if due is not None and f"{model.folder}/train" not in due:
            continue
        phase, copies, kept = phases[model.label], 0, 1
        settings = phase.settings
        trained = adapter_count(phase, model.game) * shape.adapter(settings.lora) or shape.parameters
        if isinstance(settings, OnlineSettings):
            kept += settings.steps // every if (every := settings.keeps_snapshots_every) else 0
            copies = (settings.average_decay > 0) + (settings.reference != "fixed")
        saved += kept * trained * (2.0 if settings.save_dtype == "bfloat16" and not settings.lora else 4.0)
        largest = max(largest, 2 * trained * (12.0 + 4.0 * copies))  # float32 weights, Adam's moments, copies
    return saved + largest
