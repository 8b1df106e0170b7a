"""The output of ``spag run --dry-run``, and notes on a whole run: its disk space, and too few games to imitate.

A model whose shape is not known (``specs.py``), or that must be converted first, has no estimates, and a run of a game
that nothing can stand in for (``samples.py``) shows its stages without work.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spag.algorithms.online_settings import OnlineSettings
from spag.config.schema import RunConfig
from spag.core.errors import ModelError
from spag.core.progress import Reporter
from spag.core.visible import counted
from spag.models.finding import described_model
from spag.planning.here import plan_here, planned_engines
from spag.planning.plan import Planner
from spag.planning.samples import NoExamplesError, play_work
from spag.planning.specs import GIB, KNOWN_SHAPES, ModelShape, read_shape
from spag.planning.stage import StagePlan, adapter_count, labels, with_adapters
from spag.runs.execute import mix_warnings, preview_run
from spag.runs.layout import planned_models
from spag.runs.machine_checks import is_elsewhere
from spag.runs.teachers import TEACHER

_PAPERS, _ENOUGH = 23_354, 5_000
"""GPT-4's games that the paper imitates, 20,067 and 3,287 wins, and how many suffice (upstream issue 5)."""
_FEW = (
    "only the {games:,} shipped games: {samples:,} samples, {updates:,} updates (the paper: {papers:,} games of "
    "GPT-4). Self-play of {plays:,} games then gives little to learn from. Download gpt4_game_top30k_results.json, or "
    "the samples train_imitation_gpt4.json, by the links in data/README.md of github.com/Linear95/SPAG, and add "
    "{option}=[gpt4_game_top30k_results.json]. Or let a model of your choice play about {enough:,} games ({asked}): "
    "spag play openai:MODEL openai:MODEL --count {enough} --output games.jsonl, then add {option}=[games.jsonl]"
)
_NOT_HERE = "not asked: memory below is that of this machine; spag plan --gpu KIND --gpus N plans for the nodes"
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
    planner, plans = plan_here(config, shape or _STAND_IN), list[StagePlan]()
    count = "" if planner.device.is_cpu else f"{planner.devices} x "
    model = described_model(config.model.name) + (f", {shape.parameters:,} parameters" if shape else "")
    facts = {"machine": f"{count}{planner.device.name}, {planner.device.memory / GIB:.1f} GiB", "model": model}
    try:
        plans = planner.stages
    except NoExamplesError as error:
        planned_engines(config)  # refused as by the run, if vLLM would need a plan
        facts["plan"] = f"none: {error}"
    works = _works({plan.name: plan for plan in plans}, config) if plans else {}
    found = RunEstimate([StageEstimate(name, state, works.get(name, "")) for name, state in states], facts, [])
    if shape is None:
        return found
    if is_elsewhere(config):
        facts["cluster"] = _NOT_HERE
    for plan in plans:
        taken = facts[f"memory of {plan.name}"] = f"{plan.memory.total / GIB:.1f} GiB of {plan.room / GIB:.1f}"
        if plan.sharing:
            facts[f"engines of {plan.name.removesuffix(' play')}"] = plan.sharing.describe()
        if not is_elsewhere(config):
            found.doubts.extend(f"{plan.name}: {what} ({taken}); see spag plan" for what in plan.problems)
    needed = disk_bytes(config, shape, [name for name, state in states if state != "done before"])
    place = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(place).free
    facts["disk"] = f"{needed / GIB:.1f} GiB for models and checkpoints, {free / GIB:.1f} free in {place}"
    if needed > free:
        found.doubts.append(f"{folder}: {facts['disk']}; free space, or choose another --output")
    facts.update(run_notes(planner) if plans else {})
    return found


def _works(plans: dict[str, StagePlan], config: RunConfig) -> dict[str, str]:
    found = {"arena": counted(plans["arena"].count, "game")}
    for model in planned_models(config):
        settings, plan = model.phase.settings, plans[model.label]
        played = plans.get(f"{model.label} self-play")
        found[f"{model.folder}/play"] = counted(played.count, "game") if played else "games of bots"
        if isinstance(settings, OnlineSettings):
            work = f"{counted(settings.steps, 'step')} of {counted(settings.games, 'game')}"
        else:
            work = f"about {counted(plan.count, 'sample')}, {counted(plan.updates, 'update')}"
        found[f"{model.folder}/train"] = work
    return found


def run_notes(planner: Planner) -> dict[str, str]:
    """Return lines about the run, by topic."""
    config, stages = planner.config, {stage.name: stage for stage in planner.stages}
    warned = [line.removeprefix("warning: ") for line in mix_warnings(config)]
    found = {"instruction data": "; ".join(warned)} if warned else {}
    plays = max((stage.count for name, stage in stages.items() if name.endswith(" self-play")), default=0)
    for label, phase in zip(labels(config), config.phases, strict=True):
        stage = stages[label]
        if getattr(phase.settings, "episodes", None) == [TEACHER] and plays > 10 * stage.games:
            asked = play_work(config.game_of(phase).build(), planner.assumed.utterance) * _ENOUGH
            said = f"{asked.prompts / 1e6:.0f} M prompt and {asked.drawn / 1e6:.1f} M completion tokens"
            found["imitation data"] = _FEW.format(
                games=stage.games, samples=stage.count, updates=stage.updates, papers=_PAPERS, plays=plays,
                option=f"--set {planner.place_of(label)}.episodes", enough=_ENOUGH, asked=said,
            )  # fmt: skip
    return found


def disk_bytes(config: RunConfig, shape: ModelShape, due: Sequence[str] | None = None) -> float:
    """Return the disk space of a run's models, and of the largest checkpoint to resume from: an old one stays until the
    new one is complete. ``due``: the remaining stages.
    """
    saved, largest = 0.0, 0.0
    for model in planned_models(with_adapters(config)):
        if due is None or f"{model.folder}/train" in due:
            settings, copies, kept = model.phase.settings, 0, 1
            trained = adapter_count(model.phase, model.game) * shape.adapter(settings.lora) or shape.parameters
            if isinstance(settings, OnlineSettings):
                kept += settings.steps // every if (every := settings.keeps_snapshots_every) else 0
                copies = (settings.average_decay > 0) + (settings.reference != "fixed")
            saved += kept * trained * (2.0 if settings.save_dtype == "bfloat16" and not settings.lora else 4.0)
            largest = max(largest, 2 * trained * (12.0 + 4.0 * copies))  # float32 weights, Adam's moments, copies
    return saved + largest
