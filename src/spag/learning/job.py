"""A training phase as data: a JSON file that any process can run (``worker.py``)."""

from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from spag.algorithms import get
from spag.algorithms.base import Algorithm
from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import OfflineSettings, UpdateSettings
from spag.config.schema import ClusterConfig, GameConfig, ModelConfig, PhaseConfig, PlannedEngine
from spag.games.base import Game
from spag.rollout.provenance import game_record
from spag.storage.home import expanded
from spag.storage.store import file_digest


class TrainingJob(BaseModel, frozen=True):
    """A phase, or an iteration of one. ``files``: games or samples to train on; none online.

    ``seed`` determines the order of training, ``credit_seed`` (by default the same) draws from the games. ``learner``:
    the player whose utterances are trained.
    """

    model: ModelConfig
    phase: PhaseConfig
    game: GameConfig
    start_from: str
    output: Path
    seed: int
    credit_seed: int = Field(default_factory=lambda given: given["seed"])
    files: list[Path] = []
    learner: str | None = None
    engine: PlannedEngine = PlannedEngine()
    cluster: ClusterConfig = ClusterConfig()
    report_to: list[str] = []

    @property
    def settings(self) -> UpdateSettings:
        settings: UpdateSettings = self.phase.settings
        return settings

    @property
    def algorithm(self) -> type[Algorithm]:
        return get(self.phase.algorithm)

    @cached_property
    def mix(self) -> list[tuple[Game, float]]:
        """The games of online steps, with their weights."""
        return self.phase.mix(self.game) if isinstance(self.settings, OnlineSettings) else []

    @property
    def roles(self) -> list[str]:
        """Every ``GAME/ROLE`` of online games."""
        return [f"{game.name}/{role}" for game, _ in self.mix for role in game.roles]

    @property
    def identity(self) -> Any:
        """Everything that the samples depend on besides the phase's options; another job's state is not resumed."""
        if not isinstance(settings := self.settings, OfflineSettings):
            return [[game.name, weight, game_record(game)] for game, weight in self.mix]
        files = [*self.files, *([settings.sft_data] if settings.sft_data else [])]
        digests = [file_digest(path) for path in files]
        return [self.game.name, game_record(self.game.build()), digests, self.credit_seed, self.learner]

    @property
    def folder(self) -> Path:
        """The folder in which the processes and their launcher exchange files."""
        return self.output / "processes"

    @property
    def progress_file(self) -> Path:
        return self.folder / "progress.json"

    def to_json(self) -> str:
        """Return the job with absolute paths, for processes with other working folders."""
        start = expanded(self.start_from)
        absolute = {
            "output": self.output.absolute(),
            "files": [path.absolute() for path in self.files],
            "start_from": str(start.absolute()) if start.exists() else self.start_from,
        }
        return self.model_copy(update=absolute).model_dump_json(indent=2)
