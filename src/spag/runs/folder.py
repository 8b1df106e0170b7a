"""The names in a run folder, and which of its models are trained."""

import re
from pathlib import Path

from spag.core.manifest import Manifest

BASE = "base"
IMITATION = "imitation"
EPISODES = "episodes.jsonl"
HEALTH = "health.json"
_ITERATION = re.compile(r"iteration-[1-9][0-9]*")
_MODEL_FILES = ("config.json", "adapter_config.json")


def iteration_name(number: int) -> str:
    return f"iteration-{number}"


def iterations(folder: Path) -> list[str]:
    """Return the iterations that ``folder`` has, in order."""
    numbers = sorted(int(path.name.partition("-")[2]) for path in folder.glob("iteration-*") if _ITERATION.fullmatch(path.name))
    return [iteration_name(number) for number in numbers]


def planned_stages(count: int) -> list[str]:
    """Return the stages of a run of ``count`` iterations, in order."""
    played = [f"{iteration_name(number)}/{part}" for number in range(1, count + 1) for part in ("play", "samples", "train")]
    return [f"{IMITATION}/samples", f"{IMITATION}/train", *played, "arena"]


def trained_models(folder: Path) -> dict[str, str]:
    """Return the checkpoints of the run in ``folder`` whose training is done, by name, in order."""
    done = [stage.removesuffix("/train") for stage, entry in Manifest.open(folder).stages.items() if entry["status"] == "done"]
    places = {name: folder / name / "checkpoint" for name in done}
    return {name: str(place) for name, place in places.items() if any((place / file).is_file() for file in _MODEL_FILES)}
