"""The names in a run folder, and which of its models are trained."""

import re
from pathlib import Path

from spag.config.schema import RunConfig
from spag.core.errors import ConfigError, RunError
from spag.core.manifest import Manifest
from spag.models.roles import ROLES

BASE = "base"
IMITATION = "imitation"
ONLINE = "online"
EPISODES = "episodes.jsonl"
HEALTH = "health.json"
_ITERATION = re.compile(r"iteration-[1-9][0-9]*")
_MODEL_FILES = ("config.json", "adapter_config.json", ROLES)


def iteration_name(number: int) -> str:
    return f"iteration-{number}"


def iterations(folder: Path) -> list[str]:
    """Return the iterations that ``folder`` has, in order."""
    numbers = sorted(int(path.name.partition("-")[2]) for path in folder.glob("iteration-*") if _ITERATION.fullmatch(path.name))
    return [iteration_name(number) for number in numbers]


def imitates(config: RunConfig) -> bool:
    """Whether a run begins with imitation (or SFT); without games and without SFT data it begins self-play with the base model."""
    return bool(config.imitation.episodes or config.imitation.training.sft_data)


def offline_iterations(config: RunConfig) -> int:
    """Return how many offline iterations a run has."""
    return config.iterations if config.algorithm.startswith("spag") else 0


def learns_online(config: RunConfig) -> bool:
    """Whether a run has online steps."""
    return config.algorithm.endswith("reinforce")


def online_start(config: RunConfig) -> str:
    """Return the model that a run's online steps begin with: the last offline iteration's, imitation's, or the base model."""
    count = offline_iterations(config)
    return iteration_name(count) if count else IMITATION if imitates(config) else BASE


def arena_entrants(config: RunConfig) -> list[str]:
    """Return the models that compete in a run's arena. Raises ``ConfigError`` for a model that the run does not have."""
    numbers = [iteration_name(number) for number in range(1, offline_iterations(config) + 1)]
    imitation, online = [IMITATION] if imitates(config) else [], [ONLINE] if learns_online(config) else []
    has, chosen = [BASE, *imitation, *numbers, *online], config.arena.entrants
    if unknown := [name for name in chosen if name not in has]:
        raise ConfigError(f"arena.entrants: this run has no model {unknown[0]!r}; it has {', '.join(has)}")
    if chosen and len(set(chosen)) < max(2, len(chosen)):
        raise ConfigError(f"arena.entrants: {', '.join(chosen)}: name two or more models, each once")
    return chosen or [BASE, *imitation, *numbers[-1:], *online]


def planned_stages(config: RunConfig) -> list[str]:
    """Return the stages of a run, in order."""
    imitation = [f"{IMITATION}/samples", f"{IMITATION}/train"] if imitates(config) else []
    numbers = range(1, offline_iterations(config) + 1)
    played = [f"{iteration_name(number)}/{part}" for number in numbers for part in ("play", "samples", "train")]
    return [*imitation, *played, *([f"{ONLINE}/train"] if learns_online(config) else []), "arena"]


def progress_of(config: RunConfig, folder: Path) -> str:
    """Return how many stages of a run are done, in words."""
    manifest, planned = Manifest.open(folder), planned_stages(config)
    return f"{folder} has {sum(map(manifest.is_done, planned))} of {len(planned)} stages done"


def check_free(output: Path) -> None:
    """Raise ``RunError`` when ``output`` is the folder of a run's training, which nothing but the run may write into."""
    run = output.resolve().parent
    if (run / "manifest.json").is_file() and f"{output.resolve().name}/train" in Manifest.open(run).stages:
        raise RunError(f"{output}: belongs to the run {run}, whose next stages build on it; choose another --output")


def trained_models(folder: Path) -> dict[str, str]:
    """Return the checkpoints of the run in ``folder`` whose training is done, by name, in order."""
    done = [stage.removesuffix("/train") for stage, entry in Manifest.open(folder).stages.items() if entry["status"] == "done"]
    places = {name: folder / name / "checkpoint" for name in done}
    return {name: str(place) for name, place in places.items() if any((place / file).is_file() for file in _MODEL_FILES)}
