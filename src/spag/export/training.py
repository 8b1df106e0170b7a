"""How one of a run's models was made: its phases, in order, and the settings that affect learning."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import IterationSettings
from spag.config.schema import PhaseConfig, WeightedGame
from spag.games.base import Game
from spag.runs.layout import PlannedModel
from spag.runs.parts import games_of
from spag.runs.reading import RunFolder
from spag.runs.teachers import TEACHER

SETTINGS = (
    "learning_rate", "lr_scheduler", "warmup_ratio", "weight_decay", "max_grad_norm", "epochs", "max_steps",
    "global_batch_size", "minibatches", "max_length", "objective", "clip_range", "correction", "correction_limit",
    "kl_coef", "kl_coef_end", "reference", "entropy_coef", "entropy_coef_end", "anneal_steps", "roles", "discount",
    "tie_reward", "loser_reward", "baseline_decay", "group_size", "normalize_advantages", "average_decay", "sft_coef",
    "temperature", "max_new_tokens", "lora_rank",
)  # fmt: skip
"""Settings shown in the card, by their names in a config, in the order of the table."""
_METHODS = {
    "spag": "offline RL, the method of SPAG (Cheng et al., arXiv 2404.10642)",
    "reinforce": "REINFORCE with a baseline for each role, the advantage of SPIRAL (Liu et al., arXiv 2506.24119)",
    "group": "advantages relative to the games on the same task, as in GRPO (arXiv 2402.03300)",
    "turnwise": "credit for each turn, after MARSHAL (arXiv 2510.15414)",
}


Quote = Callable[[str], str]
"""Formats foreign names and text inside a sentence."""


@dataclass(frozen=True, slots=True)
class Learned:
    """A phase that led to a model. ``what``: its method, in a sentence; ``data``: its training data."""

    name: str
    what: str
    data: str
    values: dict[str, Any]


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
    return list({game.name: game for model in filter(has_games, models) for game in games_of(model)}.values())


def names_games(phase: PhaseConfig) -> bool:
    """Whether a phase names its games; other phases play the run's."""
    return phase.game is not None or bool(getattr(phase.settings, "mix", ()))


def phases_of(models: list[PlannedModel], run: RunFolder, quote: Quote = str) -> list[Learned]:
    """Return the phases that produced ``models``, with the iterations of a phase as one.

    ``quote`` formats all foreign text; the rest of ``what`` and ``data`` is our own prose.
    """
    phases = groupby(models, key=lambda model: model.folder.partition("/")[0])
    return [_learned(list(own), run, quote) for _, own in phases]


def _learned(models: list[PlannedModel], run: RunFolder, quote: Quote) -> Learned:
    phase = models[0].phase
    if isinstance(phase.settings, OnlineSettings):
        what, data = _online(phase, run.results(f"{models[0].folder}/train"), quote)
    elif isinstance(phase.settings, IterationSettings):
        what, data = _iterations(models, run, quote)
    else:
        what, data = _taught(phase, _counts(models[0], run), quote)
    name = models[0].name if models[0].iteration is None else models[0].name.rpartition("-")[0]
    return Learned(name, what, data, _values(phase.settings))


def _method(algorithm: str, quote: Quote) -> str:
    return _METHODS.get(algorithm) or f"the algorithm {quote(algorithm)}"


def _iterations(models: list[PlannedModel], run: RunFolder, quote: Quote) -> tuple[str, str]:
    phase, settings = models[0].phase, models[0].phase.settings
    method = _method(phase.algorithm, quote)
    if getattr(settings, "objective", "") == "sft":
        method = "likelihood of the games that were won, an ablation of SPAG (Cheng et al., arXiv 2404.10642)"
    counts = "; ".join(f"{quote(model.name)}: {_counts(model, run)}" for model in models)
    tasks = "all" if settings.tasks is None else f"{settings.tasks:,} drawn"
    played = f"Tasks: {tasks} an iteration, {_number(settings.repeats, 'game')} a task"
    what = f"{_number(len(models), 'iteration')} of self-play, rewards and {method}"
    return what, f"Self-play: {counts}. {played}. {_opponents(settings, quote)}{_games(phase, quote)}"


def _online(phase: PhaseConfig, results: dict[str, Any], quote: Quote) -> tuple[str, str]:
    settings, method = phase.settings, _method(phase.algorithm, quote)
    steps = results.get("steps", settings.steps)
    if getattr(settings, "baseline_decay", 0) == 1:
        method = "REINFORCE without baselines, an ablation of SPIRAL (Liu et al., arXiv 2506.24119)"
    shared = f", {settings.repeats:,} games a task" if settings.repeats > 1 else ""
    data = (
        f"{_number(steps, 'online step')} of {_number(settings.games, 'game')} each, "
        f"{_number(steps * settings.games, 'game')} in all, on tasks drawn again for each step{shared}. "
        f"{_opponents(settings, quote)}{_games(phase, quote)}{_rewards(settings, quote)}"
    )
    if results.get("stopped"):
        data += f". It ended early, at a warning of a collapse: {quote(results['stopped'])}"
    return f"{_number(steps, 'online step')} of self-play and policy gradient: {method}", data


def _opponents(settings: Any, quote: Quote) -> str:
    return f"Opponents, by weight: {listed(settings.opponents, quote)}"


def _rewards(settings: OnlineSettings, quote: Quote) -> str:
    """Return a sentence for each game with replaced rewards."""
    replaced = {game: own.model_dump(exclude_defaults=True) for game, own in settings.rewards.items()}
    return "".join(
        f". Rewards that replace those of {quote(game)}: {listed(own, quote)}" for game, own in replaced.items() if own
    )


def _games(phase: PhaseConfig, quote: Quote) -> str:
    """Return a sentence listing the games that a phase names, each with its settings."""
    mix = [WeightedGame.model_validate(part) for part in getattr(phase.settings, "mix", ())]
    games = [{**dict(part.game), "weight": part.weight} for part in mix] or [dict(phase.game or {})]
    parts = [listed({name: value for name, value in game.items() if value is not None}, quote) for game in games]
    return f". Game{'s' if len(games) > 1 else ''}: {'; '.join(parts)}" if games[0] else ""


def _taught(phase: PhaseConfig, counts: str, quote: Quote) -> tuple[str, str]:
    episodes = phase.settings.episodes
    if not episodes:
        return "fine-tuning on instruction data", "No teacher games"
    names = ", ".join("games shipped with spag" if name == TEACHER else quote(name) for name in episodes)
    what = "imitation of teacher games, the first stage of SPAG (Cheng et al., arXiv 2404.10642)"
    return what, f"Teacher games: {names}; {counts}{_games(phase, quote)}"


def _counts(model: PlannedModel, run: RunFolder) -> str:
    """Return how many games and samples were trained on, in words; without a count, the games that were played."""
    results, played = (run.results(f"{model.folder}/{stage}") for stage in ("train", "play"))
    games = sum((results.get("outcomes") or {}).values()) or played.get("games", 0)
    samples = results.get("samples", 0)
    trained = sum(samples.values()) if isinstance(samples, dict) else samples
    described = _number(games, "game") if games else "an unknown number of games"
    return f"{described}, {_number(trained, 'training sample')} of them" if trained else described


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def listed(values: Mapping[str, Any], quote: Quote) -> str:
    """Return settings as a list of name and value."""
    return ", ".join(f"{quote(name)} {_value(value, quote)}" for name, value in values.items())


def _value(value: Any, quote: Quote) -> str:
    """Return numbers unquoted, whole ones without a decimal point, and anything else quoted."""
    return str(value).removesuffix(".0") if type(value) in (int, float) else quote(str(value))


def settings_rows(phases: list[Learned]) -> list[tuple[Any, ...]]:
    """Return a row per setting: its name, then its value in every phase, ``None`` if the phase lacks it."""
    rows = [(name, *(phase.values.get(name) for phase in phases)) for name in SETTINGS]
    return [row for row in rows if any(value is not None for value in row[1:])]


def _values(settings: Any) -> dict[str, Any]:
    values: dict[str, Any] = settings.model_dump(mode="json")
    values |= {name: values["sampling"][name] for name in ("temperature", "max_new_tokens") if "sampling" in values}
    if settings.lora:
        values["lora_rank"] = settings.lora.rank
    if not values.get("sft_data"):
        values.pop("sft_coef", None)
    return values
