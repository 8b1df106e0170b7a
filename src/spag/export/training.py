"""How one of a run's models was made: its phases, in order."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import IterationSettings
from spag.config.schema import PhaseConfig, WeightedGame
from spag.core.visible import counted
from spag.export.markdown import code
from spag.games.base import Game
from spag.runs.layout import PlannedModel
from spag.runs.reading import RunFolder
from spag.runs.teachers import TEACHER

_METHODS = {
    "imitation": "imitation of teacher games, the first stage of SPAG (Cheng et al., arXiv 2404.10642)",
    "spag": "offline RL, the method of SPAG (Cheng et al., arXiv 2404.10642)",
    "reinforce": "REINFORCE with a baseline for each role, the advantage of SPIRAL (Liu et al., arXiv 2506.24119)",
    "group": "advantages relative to the games on the same task, as in GRPO (arXiv 2402.03300)",
    "turnwise": "credit for each turn, after MARSHAL (arXiv 2510.15414)",
}


def ancestry(name: str, run: RunFolder) -> list[PlannedModel]:
    """Return the models that led to ``name``, including itself, in order."""
    models = {model.name: model for model in run.models}
    found: list[PlannedModel] = []
    while name in models:
        found.insert(0, models[name])
        name = models[name].start
    return found


def has_games(model: PlannedModel) -> bool:
    """Whether a model learned from games, and not only from instruction data."""
    return bool(getattr(model.phase.settings, "episodes", True))


def trained_games(models: list[PlannedModel]) -> list[Game]:
    """Return the games that models were trained on, in order."""
    return list({game.name: game for model in filter(has_games, models) for game in model.games}.values())


def names_games(phase: PhaseConfig) -> bool:
    """Whether a phase names its games; other phases play the run's."""
    return phase.game is not None or bool(getattr(phase.settings, "mix", ()))


def phases_of(models: list[PlannedModel], run: RunFolder) -> list[tuple[str, str]]:
    """Return method and data, in Markdown, of each phase that led to ``models``; the iterations of a phase are one."""
    return [_learned(list(own), run) for _, own in groupby(models, key=lambda model: model.label)]


def _learned(models: list[PlannedModel], run: RunFolder) -> tuple[str, str]:
    phase = models[0].phase
    if isinstance(phase.settings, OnlineSettings):
        return _online(phase, run.results(f"{models[0].folder}/train"))
    if isinstance(phase.settings, IterationSettings):
        return _iterations(models, run)
    return _taught(phase, _counts(models[0], run))


def _method(algorithm: str) -> str:
    return _METHODS.get(algorithm) or f"the algorithm {code(algorithm)}"


def _iterations(models: list[PlannedModel], run: RunFolder) -> tuple[str, str]:
    phase, settings = models[0].phase, models[0].phase.settings
    method = _method(phase.algorithm)
    if getattr(settings, "objective", "") == "sft":
        method = "likelihood of the games that were won, an ablation of SPAG (Cheng et al., arXiv 2404.10642)"
    counts = "; ".join(f"{code(model.name)}: {_counts(model, run)}" for model in models)
    tasks = "all" if settings.tasks is None else f"{settings.tasks:,} drawn"
    played = f"Tasks: {tasks} an iteration, {counted(settings.repeats, 'game')} a task"
    what = f"{counted(len(models), 'iteration')} of self-play, rewards and {method}"
    return what, f"Self-play: {counts}. {played}. {_opponents(settings)}{_games(phase)}"


def _online(phase: PhaseConfig, results: dict[str, Any]) -> tuple[str, str]:
    settings, method = phase.settings, _method(phase.algorithm)
    steps = results.get("steps", settings.steps)
    if getattr(settings, "baseline_decay", 0) == 1:
        method = "REINFORCE without baselines, an ablation of SPIRAL (Liu et al., arXiv 2506.24119)"
    shared = f", {settings.repeats:,} games a task" if settings.repeats > 1 else ""
    data = (
        f"{counted(steps, 'online step')} of {counted(settings.games, 'game')} each, "
        f"{counted(steps * settings.games, 'game')} in all, on tasks drawn again for each step{shared}. "
        f"{_opponents(settings)}{_games(phase)}{_rewards(settings)}"
    )
    if results.get("stopped"):
        data += f". It ended early, at a warning of a collapse: {code(results['stopped'])}"
    return f"{counted(steps, 'online step')} of self-play and policy gradient: {method}", data


def _opponents(settings: Any) -> str:
    return f"Opponents, by weight: {listed(settings.opponents)}"


def _rewards(settings: OnlineSettings) -> str:
    """Return a sentence for each game with replaced rewards."""
    replaced = [(game, own.model_dump(exclude_defaults=True)) for game, own in settings.rewards.items()]
    return "".join(f". Rewards that replace those of {code(game)}: {listed(own)}" for game, own in replaced if own)


def _games(phase: PhaseConfig) -> str:
    """Return a sentence listing the games that a phase names, each with its settings."""
    mix = [WeightedGame.model_validate(part) for part in getattr(phase.settings, "mix", ())]
    games = [{**dict(part.game), "weight": part.weight} for part in mix] or [dict(phase.game or {})]
    return f". Game{'s' if len(games) > 1 else ''}: {'; '.join(map(listed, games))}" if games[0] else ""


def _taught(phase: PhaseConfig, counts: str) -> tuple[str, str]:
    episodes = phase.settings.episodes
    if not episodes:
        return "fine-tuning on instruction data", "No teacher games"
    names = ", ".join("games shipped with spag" if name == TEACHER else code(name) for name in episodes)
    return _method(phase.algorithm), f"Teacher games: {names}; {counts}{_games(phase)}"


def _counts(model: PlannedModel, run: RunFolder) -> str:
    """Return how many games and samples were trained on, in words; without a count, the games that were played."""
    results, played = (run.results(f"{model.folder}/{stage}") for stage in ("train", "play"))
    games = sum((results.get("outcomes") or {}).values()) or played.get("games", 0)
    samples = results.get("samples", 0)
    trained = sum(samples.values()) if isinstance(samples, dict) else samples
    described = counted(games, "game") if games else "an unknown number of games"
    return f"{described}, {counted(trained, 'training sample')} of them" if trained else described


def listed(values: Mapping[str, Any]) -> str:
    """Return the settings that have a value as a list: whole numbers without a decimal point, text as code."""
    return ", ".join(f"{code(name)} {_value(value)}" for name, value in values.items() if value is not None)


def _value(value: Any) -> str:
    return str(value).removesuffix(".0") if type(value) in (int, float) else code(value)
