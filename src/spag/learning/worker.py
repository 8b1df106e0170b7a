"""A training phase as a job: a JSON file that any process can run, alone or together with others.

    output/processes/  job.json  progress.json (of the first process)  one folder of logs per launch

Each of several processes runs ``python -m spag.learning.worker JOB PARENT`` (started by ``processes.py``, or ``ray.py``
on Ray). The folder is removed when training ends.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field, TypeAdapter
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.elastic.multiprocessing.errors import record

from spag.algorithms import get
from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import OfflineSettings, UpdateSettings
from spag.config.schema import ClusterConfig, GameConfig, ModelConfig, PhaseConfig, PlannedEngine
from spag.core.errors import RunError, SpagError, StorageError, first_line
from spag.learning.loop import Loop
from spag.learning.metrics import OnProgress, TrainProgress
from spag.learning.phase import Phase
from spag.learning.selfplay import SelfplaySource
from spag.learning.sources import FileSource, Source, Start
from spag.models.tokens import PromptStyle
from spag.rollout.matchmaking import MixedGame
from spag.rollout.provenance import game_record
from spag.rollout.steps import StepPlayer
from spag.storage.home import expanded
from spag.storage.machine import exit_with_parent, free_objects, usable_cores
from spag.storage.store import file_digest

PROGRESS = TypeAdapter(TrainProgress)
_DISK_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
_DISK_TEXTS = (
    "no space left on device",
    "disk quota exceeded",
    "file write failed",
    "failed writing file",
    "unexpected pos",
)
_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")


class TrainingJob(BaseModel, frozen=True):
    """A phase, or an iteration of one. ``files``: games or samples to train on; none online.

    ``seed`` determines the order of training, ``credit_seed`` (by default the same) draws from the games. ``learner``:
    the player whose utterances are trained. ``limit``: use this many games of teacher play; ``teacher`` leaves out
    those on held-out tasks.
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
    limit: int | None = None
    teacher: bool = False
    engine: PlannedEngine = PlannedEngine()
    cluster: ClusterConfig = ClusterConfig()
    report_to: list[str] = []

    @property
    def settings(self) -> UpdateSettings:
        settings: UpdateSettings = self.phase.settings
        return settings

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

    def run(self, progress: OnProgress | None = None) -> dict[str, Any]:
        """Run the job in this process, together with its process group if there is one; return the result.

        Raises ``DataError`` without samples, ``ConfigError`` for unsuitable settings, ``ModelError``, ``RunError`` if
        the loss is not finite or memory runs out, and ``StorageError`` if the disk is full.
        """
        with clear_failures(self.output):
            self.output.mkdir(parents=True, exist_ok=True)
            start = expanded(self.start_from)
            is_online = isinstance(self.settings, OnlineSettings)
            games = [MixedGame(game, weight) for game, weight in self.phase.mix(self.game)] if is_online else []
            phase = Phase(
                model=self.model,
                settings=self.settings,
                start_from=str(start.resolve()) if start.is_dir() else self.start_from,
                output=self.output,
                seed=self.seed,
                credit_seed=self.credit_seed,
                algorithm=get(self.phase.algorithm),
                identity=self._identity(games),
                roles=[f"{part.game.name}/{role}" for part in games for role in part.game.roles],
                report_to=self.report_to,
            )
            try:
                return Loop(phase, partial(self._open_source, games), progress).run()
            finally:
                free_objects()  # wrapped models and optimisers refer to each other

    def _identity(self, games: list[MixedGame]) -> Any:
        """Return everything that the samples depend on besides the phase's options."""
        if not isinstance(settings := self.settings, OfflineSettings):
            return [[part.game.name, part.weight, game_record(part.game)] for part in games]
        files = [*self.files, *([settings.sft_data] if settings.sft_data else [])]
        digests = [file_digest(path) for path in files]
        about = [digests, self.credit_seed, self.learner, self.limit, self.teacher]
        return [self.game.name, game_record(self.game.build()), *about]

    def _open_source(self, games: list[MixedGame], start: Start) -> Source:
        if isinstance(settings := self.settings, OfflineSettings):
            return FileSource(
                files=self.files,
                game=self.game.build(),
                settings=settings,
                seed=self.credit_seed,
                learner=self.learner,
                limit=self.limit,
                leaves_out_held_out=self.teacher,
            )
        assert isinstance(settings, OnlineSettings)
        kind: Any = StepPlayer
        if self.cluster.address is not None and self.cluster.online_workers is not None:
            from spag.rollout.ray.steps import RayStepPlayer  # noqa: PLC0415 - ray is optional

            kind = partial(RayStepPlayer, cluster=self.cluster)
        player = kind(
            folder=self.output,
            mix=games,
            policy=self.model.model_copy(update={"name": start.policy}),
            engine=self.engine,
            settings=settings,
            seed=self.seed,
            rank=start.rank,
            world_size=start.world_size,
        )
        return SelfplaySource(player, PromptStyle(self.model.prompt_style), start)


@contextmanager
def clear_failures(output: Path) -> Iterator[None]:
    """Raise ``StorageError`` or ``RunError`` in place of the libraries' errors when disk or memory run out.

    torch and safetensors wrap the system's errors in their own exceptions and name the cause only in the text.
    """
    try:
        yield
    except CheckpointException as error:  # not an Exception: torch's, from the first process that failed
        cause = next((cause for cause, _ in error.failures.values()), error)
        if isinstance(cause, KeyboardInterrupt):  # interrupted while a checkpoint was written
            raise cause from None
        described = _clear(cause, output) if isinstance(cause, Exception) else None
        fix = f"remove {output / 'state'} to begin this training again"
        raise described or RunError(
            f"{output}: its state cannot be read or written: {type(cause).__name__}; {fix}"
        ) from error
    except (MemoryError, OSError, RuntimeError, SafetensorError) as error:
        if described := _clear(error, output):
            raise described from error
        raise


def _clear(error: Exception, output: Path) -> SpagError | None:
    """Return the one-line error for a library's error, ``None`` if neither disk nor memory is the cause."""
    text = str(error).lower()
    known = error.errno in _DISK_ERRNOS if isinstance(error, OSError) else any(one in text for one in _DISK_TEXTS)
    if known:
        path = getattr(error, "filename", None) or output
        fix = "free some space and start again, training resumes"
        return StorageError(f"{path}: cannot be written ({first_line(error, 200)}); {fix}")
    if isinstance(error, MemoryError) or any(one in text for one in _MEMORY_TEXTS):
        fix = "lower micro_batch_size (offline also max_length), set gradient_checkpointing, or train a LoRA adapter"
        return RunError(f"{output}: out of memory while training; {fix}, and start again: training resumes")
    return None


def run_in_group(text: str) -> None:
    """Run the job described by ``text`` as one of several processes, and write progress to a file."""
    job = TrainingJob.model_validate_json(text)

    def report(at: TrainProgress) -> None:
        beside = job.progress_file.with_suffix(".new")
        beside.write_bytes(PROGRESS.dump_json(at))
        beside.replace(job.progress_file)  # a reader sees the old file or the new one

    job.run(report)


@record
def main() -> None:
    """Run as one of several processes. Arguments: the job's file, and the id of the parent process."""
    exit_with_parent(int(sys.argv[2]))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, usable_cores() // int(os.environ["LOCAL_WORLD_SIZE"])))
    run_in_group(Path(sys.argv[1]).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
