"""The output of ``spag run --dry-run``: every stage, what would happen to it, its amount of work, and whether it fits
here. A model whose shape is not known (``specs.py``), or that must be converted first, has no estimates.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from spag.algorithms.online_settings import OnlineSettings
from spag.config.schema import RunConfig
from spag.core.errors import ModelError
from spag.core.progress import Reporter
from spag.models.finding import described_model
from spag.planning.here import plan_here, planned_engines
from spag.planning.notes import disk_bytes, run_notes
from spag.planning.plan import label_of
from spag.planning.specs import GIB, KNOWN_SHAPES, read_shape
from spag.planning.stage import StagePlan
from spag.runs.execute import preview_run
from spag.runs.layout import planned_models

_STAND_IN = KNOWN_SHAPES["smollm2-135m"]  # the work of a stage does not depend on the model's shape


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
    doubts: list[str]


def estimate_run(config: RunConfig, folder: Path, reporter: Reporter, *, force: bool = False) -> RunEstimate:
    """Check a run and report what it would do. Raises the errors of ``run`` before its first minute of work."""
    states = preview_run(config, folder, reporter, force=force)
    try:
        shape = read_shape(config.model.name, trust_remote_code=config.model.trust_remote_code)
    except ModelError:  # of another family, or a GGUF file: its config has been read before
        planned_engines(config)  # refused as by the run, if vLLM would need a plan
        shape = None
    planner, model = plan_here(config, shape or _STAND_IN), described_model(config.model.name)
    works = _works({plan.name: plan for plan in planner.stages}, config)
    count = "" if planner.device.is_cpu else f"{planner.devices} x "
    facts = {"machine": f"{count}{planner.device.name}, {planner.device.memory / GIB:.1f} GiB", "model": model}
    found = RunEstimate([StageEstimate(name, state, works[name]) for name, state in states], facts, [])
    if shape is None:
        return found
    facts["model"] += f", {shape.parameters:,} parameters"
    for plan in planner.stages:
        taken = facts[f"memory of {plan.name}"] = f"{plan.memory.total / GIB:.1f} GiB of {plan.room / GIB:.1f}"
        if plan.sharing:
            facts[f"engines of {plan.name.removesuffix(' play')}"] = plan.sharing.describe()
        found.doubts.extend(f"{plan.name}: {what} ({taken}); see spag plan" for what in plan.problems)
    needed = disk_bytes(config, shape, [name for name, state in states if state != "done before"])
    place = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(place).free
    facts["disk"] = f"{needed / GIB:.1f} GiB for models and checkpoints, {free / GIB:.1f} free in {place}"
    if needed > free:
        found.doubts.append(f"{folder}: {facts['disk']}; free space, or choose another --output")
    facts.update(run_notes(planner))
    return found


def _works(plans: dict[str, StagePlan], config: RunConfig) -> dict[str, str]:
    """Return the work of each stage in words."""
    found = {"arena": f"{plans['arena'].count:,} games"}
    for model in planned_models(config):
        settings, plan = model.phase.settings, plans[label := label_of(model)]
        played = plans.get(f"{label} self-play")
        found[f"{model.folder}/play"] = f"{played.count:,} games" if played else "games of bots"
        if isinstance(settings, OnlineSettings):
            found[f"{model.folder}/train"] = f"{settings.steps:,} steps of {settings.games:,} games"
        else:
            found[f"{model.folder}/train"] = f"about {plan.count:,} samples, {plan.updates:,} updates"
    return found
