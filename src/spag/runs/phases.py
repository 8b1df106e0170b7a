"""The stages of a phase: play, if it needs a file of games, then training."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import EARLIER, FREE_TO_CHANGE, START, IterationSettings, OfflineSettings, TeacherSettings
from spag.config.schema import PlannedEngine
from spag.core.seeds import derive_seed
from spag.core.visible import counted
from spag.engines.players import Kind, kind_of
from spag.evaluation.health import health
from spag.games.base import tasks_of
from spag.learning.job import TrainingJob
from spag.learning.launch import train_on
from spag.rollout.matches import play_matches
from spag.rollout.matchmaking import draw_opponents, make_matches, spread
from spag.rollout.provenance import named_files
from spag.rollout.runner import game_specs
from spag.runs.layout import BASE, EPISODES, HEALTH, PlannedModel
from spag.runs.stage import Results, Run
from spag.runs.teachers import bot_games, teacher_file
from spag.storage.episodes import read_episodes
from spag.storage.store import file_digest, write_json, write_rows

PLAY_OPTIONS = frozenset({"tasks", "repeats", "keep_held_out", "sampling", "opponents"})
"""Options of an iteration's play; all others belong to its training."""


def carry_out(run: Run, model: PlannedModel) -> None:
    """Run the stages that produce ``model``."""
    if isinstance(model.phase.settings, IterationSettings):
        _play_iteration(run, model)
    elif model.plays:
        _play_bots(run, model)
    _train(run, model)


def seed_of(run: Run, model: PlannedModel) -> int:
    """Return the seed of a model's phase: phases of one algorithm, and all online ones, must play different games."""
    if model.iteration is not None:
        return derive_seed(run.config.seed, f"iteration-{model.iteration}")

    def kind(one: PlannedModel) -> str:
        return "online" if isinstance(one.phase.settings, OnlineSettings) else one.phase.algorithm

    same = [other for other in run.models.values() if kind(other) == kind(model)]
    return run.config.seed if same[0] is model else derive_seed(run.config.seed, model.folder)


def _play_bots(run: Run, model: PlannedModel) -> None:
    settings: TeacherSettings = model.phase.settings
    path = run.folder / model.folder / EPISODES

    def play() -> Results:
        game = model.game.build()
        seed = seed_of(run, model)
        sources = dict.fromkeys(name for name in settings.episodes if kind_of(name) is Kind.BOT)
        games = [episode for name in sources for episode in bot_games(name, settings.max_episodes, seed, game)]
        write_rows(path, games)
        return {"games": len(games), "completion_tokens": 0}

    about = {"episodes": settings.episodes, "max_episodes": settings.max_episodes}
    stage_settings = run.settings("seed", game=model.game.model_dump(mode="json"), **about)
    run.stage(f"{model.folder}/play", stage_settings, (), [f"{model.folder}/{EPISODES}"], play)


def _play_iteration(run: Run, model: PlannedModel) -> None:
    """Play the current policy against itself, or against the phase's opponents."""
    settings: IterationSettings = model.phase.settings
    path, seed, game = run.folder / model.folder / EPISODES, seed_of(run, model), model.game.build()
    names = list(run.models)
    before = names[: names.index(model.start)] if model.start in names else []
    title = f"{model.name} self-play"

    def play() -> Results:
        tasks = tasks_of(game, settings.splits, settings.tasks, derive_seed(seed, "words"))
        specs = game_specs(tasks, settings.repeats, seed)
        weights = spread(settings.opponents, {EARLIER: before, START: [model.first]})
        pairs = draw_opponents(specs, model.start, weights)
        players = {name for pairing in pairs for name in pairing.players}
        models = {name: run.model(name) for name in players}
        matches = make_matches(pairs, models, settings.sampling, game.roles, title)
        summary = play_matches(path, matches, replace(run.setup, game=game), force=run.manifest.force)
        found = health(read_episodes(path), game, model.start)
        write_json(path.with_name(HEALTH), found)
        for warning in found["warnings"]:
            run.setup.reporter.note(f"{title}: {warning}")
        what = f"{counted(summary.games, 'game')}, {summary.describe(game)}, empty utterances: {summary.empty}"
        run.setup.reporter.note(f"{title}: {what}")
        return {
            "games": summary.games,
            "outcomes": dict(summary.outcomes),
            "games_per_hour": round(summary.games_per_hour),
            "completion_tokens": summary.tokens,
            "learner": model.start,
        }

    options = settings.model_dump(mode="json", include=set(PLAY_OPTIONS))
    stage_settings = run.settings(*_sections(model), game=model.game.model_dump(mode="json"), play=options)
    outputs = [f"{model.folder}/{name}" for name in (EPISODES, HEALTH)]
    stage = f"{model.folder}/play"
    run.stage(stage, stage_settings, run.trained(model.start), outputs, play, players=settings.met)


def _train(run: Run, model: PlannedModel) -> None:
    settings, config, folder = model.phase.settings, run.config, run.folder / model.folder
    files = _files(run, model)

    def train() -> Results:
        played = run.manifest.stages[f"{model.folder}/play"].get("results", {}) if model.plays else {}
        job = TrainingJob(
            model=config.model,
            phase=model.phase,
            game=model.game,
            start_from=run.checkpoint(model.start),
            output=folder,
            seed=config.seed if model.iteration is not None else seed_of(run, model),
            credit_seed=seed_of(run, model),
            files=list(dict.fromkeys(files.values())),
            learner=played.get("learner", model.start) if isinstance(settings, IterationSettings) else None,
            engine=run.engines.get(model.name) or PlannedEngine(**config.engine.model_dump()),
            cluster=config.cluster,
            report_to=list(config.report_to),
        )
        result = train_on(job, run.setup.reporter, f"{model.name} training")
        for note in result.get("notes", []):
            run.setup.reporter.note(note)
        return result

    run.stage(
        f"{model.folder}/train",
        _train_settings(run, model, files),
        [*run.trained(model.start), *([f"{model.folder}/play"] if model.plays else [])],
        [*(f"{model.folder}/{name}" for name in _OUTPUTS), _SCORES],
        train,
        kept=[f"{model.folder}/checkpoint"],
        players=settings.met if isinstance(settings, OnlineSettings) else (),
    )


_SCORES = "reasoning/results.json"  # of the models before; spag eval writes it again from the items
_OUTPUTS = (
    "checkpoint", "start", "state", "episodes", "evaluations", "snapshots", "tensorboard", "metrics.jsonl",
    "evaluations.jsonl", "opponents.jsonl", "warnings.jsonl", "reference.jsonl", "samples.jsonl", "training.json",
)  # fmt: skip


def _files(run: Run, model: PlannedModel) -> dict[str, Path]:
    """Return the files of games or samples that an offline phase trains on, by their names in the settings: the path of
    ``teacher`` differs between machines.
    """
    settings, played = model.phase.settings, run.folder / model.folder / EPISODES
    if isinstance(settings, IterationSettings):
        return {EPISODES: played}
    if not isinstance(settings, TeacherSettings):
        return {}
    return {source: teacher_file(source, model.game.build()) or played for source in settings.episodes}


def _train_settings(run: Run, model: PlannedModel, files: Mapping[str, Path]) -> dict[str, Any]:
    """Return the settings that training depends on besides its inputs."""
    settings = model.phase.settings
    played = PLAY_OPTIONS | {"iterations"} if isinstance(settings, IterationSettings) else frozenset()
    options = settings.model_dump(mode="json", exclude=set(FREE_TO_CHANGE | played))
    named = {name: path for name, path in files.items() if path != run.folder / model.folder / EPISODES}
    if isinstance(settings, OfflineSettings) and settings.sft_data:
        named[str(settings.sft_data)] = settings.sft_data
    if isinstance(settings, OnlineSettings) and settings.mix:
        mixed = (named_files(game).values() for game, _ in model.phase.mix(model.game))
        named |= {str(path): path for paths in mixed for path in paths}
    digests = {name: file_digest(path) for name, path in named.items()}
    about = {"algorithm": model.phase.algorithm, "options": options, "digests": digests}
    return run.settings(*_sections(model), game=model.game.model_dump(mode="json"), **about)


def _sections(model: PlannedModel) -> tuple[str, ...]:
    """Return the sections of the config that play and training depend on; a trained start is an input instead."""
    return ("seed", "model") if model.start == BASE else ("seed",)
