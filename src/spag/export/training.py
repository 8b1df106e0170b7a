"""How one of a run's models was made: its phases, in order."""

from itertools import groupby

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import IterationSettings
from spag.config.schema import PhaseConfig
from spag.core.visible import counted
from spag.export.markdown import Markdown, code
from spag.games.base import Game
from spag.report.html import capital
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


def trained_games(models: list[PlannedModel]) -> list[Game]:
    """Return the games that models were trained on, in order; instruction data alone has none."""
    taught = (model for model in models if getattr(model.phase.settings, "episodes", True))
    return list({game.name: game for model in taught for game in model.games}.values())


def phases_of(models: list[PlannedModel], run: RunFolder) -> list[Markdown]:
    """Return a sentence for each phase that led to ``models``: its method, and what it was trained on."""
    phases = (list(own) for _, own in groupby(models, key=lambda model: model.label))
    return [Markdown(capital(_described(own, run))) for own in phases]


def _described(models: list[PlannedModel], run: RunFolder) -> str:
    settings, method = models[0].phase.settings, _method(models[0].phase)
    opponents = ", ".join(map(code, getattr(settings, "opponents", ())))
    if isinstance(settings, OnlineSettings):
        results = run.results(f"{models[0].folder}/train")
        steps, stopped = results.get("steps", settings.steps), results.get("stopped")
        played = f"{counted(steps, 'online step')} of {counted(settings.games, 'game')} against {opponents}"
        end = f". It ended early, at a collapse warning: {code(stopped)}" if stopped else ""
        return f"{played}, {counted(steps * settings.games, 'game')} in all: {method}{end}"
    if isinstance(settings, IterationSettings):
        counts = "; ".join(f"{_counts(model, run)} for {code(model.name)}" for model in models)
        return f"{counted(len(models), 'iteration')} of play against {opponents}, rewards and {method}: {counts}"
    if not settings.episodes:
        return "fine-tuning on instruction data"
    names = ("games shipped with spag" if name == TEACHER else code(name) for name in settings.episodes)
    return f"{method}, from {', '.join(names)}: {_counts(models[0], run)}"


def _method(phase: PhaseConfig) -> str:
    if getattr(phase.settings, "objective", "") == "sft":
        return "likelihood of the games that were won, an ablation of SPAG (Cheng et al., arXiv 2404.10642)"
    if getattr(phase.settings, "baseline_decay", 0) == 1:
        return "REINFORCE without baselines, an ablation of SPIRAL (Liu et al., arXiv 2506.24119)"
    return _METHODS.get(phase.algorithm) or f"the algorithm {code(phase.algorithm)}"


def _counts(model: PlannedModel, run: RunFolder) -> str:
    """Return how many games and samples were trained on, in words; without a count, the games that were played."""
    results, played = (run.results(f"{model.folder}/{stage}") for stage in ("train", "play"))
    games = sum((results.get("outcomes") or {}).values()) or played.get("games", 0)
    samples = results.get("samples", 0)
    trained = sum(samples.values()) if isinstance(samples, dict) else samples
    described = counted(games, "game") if games else "an unknown number of games"
    return f"{described}, {counted(trained, 'training sample')} of them" if trained else described
