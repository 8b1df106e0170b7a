"""The source of a phase's samples: existing files, or games played by the current policy.

Both look the same to the loop (``loop.py``): it asks for the samples of step 1, 2, ... and reports when a step is done.
Files have one step, trained for many updates.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from spag.algorithms.base import Algorithm
from spag.algorithms.credit import taught_games
from spag.algorithms.settings import OfflineSettings, TeacherSettings
from spag.core.episodes import Episode, SampleType, TrainingSample
from spag.core.errors import DataError
from spag.core.seeds import derive_seed
from spag.learning.job import TrainingJob
from spag.learning.metrics import Row
from spag.learning.policy import TrainedPolicy
from spag.storage.episodes import is_file_of_samples, read_episodes, read_samples, read_sft


class Source(AbstractContextManager["Source"]):
    """The base of ``FileSource`` and ``spag.learning.selfplay.SelfplaySource``. Every process has one."""

    def __exit__(self, *error: object) -> None:
        """Release what play used."""

    def next(self, step: int, policy: TrainedPolicy, algorithm: Algorithm) -> list[TrainingSample]:
        """Return the samples of ``step``, those of games with their credit, the same on every process. Sources that
        play do so with ``policy``.
        """
        raise NotImplementedError

    def finish(self, step: int, row: Row, samples: Sequence[TrainingSample], policy: TrainedPolicy) -> bool:
        """Add the metrics of a step's games to its row; return whether to continue, the same on every process.

        ``samples``: those of the step, before merging equal ones.
        """
        return True

    def settle(self) -> None:
        """Finish and write games in progress before a checkpoint: a run that resumes from it could not repeat them."""

    def results(self) -> dict[str, Any]:
        """Return further entries of the phase's record, besides steps and seconds."""
        return {}

    def describe(self) -> str:
        """Return the key metrics of the last step, for the progress line."""
        return ""


class FileSource(Source):
    """Files of games or samples, and mixed-in instruction data."""

    def __init__(self, job: TrainingJob, settings: OfflineSettings) -> None:
        self.job, self.settings, self.game = job, settings, job.game.build()
        self.record: dict[str, Any] = {}

    def next(self, step: int, policy: TrainedPolicy, algorithm: Algorithm) -> list[TrainingSample]:
        job, settings = self.job, self.settings
        games, samples = self.read()
        if any(sample.type is not SampleType.SFT for sample in samples):
            self.record["held_out"] = None  # samples do not name their tasks
        if settings.sft_data is not None:
            samples += read_sft(settings.sft_data, settings.sft_samples, derive_seed(job.credit_seed, "sft"))
        if games:
            samples += algorithm.credit(games, self.game, job.learner)
        roles = Counter(sample.role or "other" for sample in samples if sample.type is not SampleType.SFT)
        if (games and not roles) or not any(sample.completion for sample in samples):
            raise DataError(f"{job.output}: no game yielded a sample to train on; play more games, or train longer")
        sft = len(samples) - roles.total()
        self.record |= {"samples": dict(roles), **({"sft": sft} if sft else {})}
        return samples

    def read(self) -> tuple[list[Episode], list[TrainingSample]]:
        """Return the games to learn from and the samples in the files."""
        job, settings, games, samples = self.job, self.settings, list[Episode](), list[TrainingSample]()
        for path in job.files:
            if is_file_of_samples(path):
                samples += read_samples(path)
            else:
                games += read_episodes(path)
        if isinstance(settings, TeacherSettings):
            source = ", ".join(map(str, job.files))
            games, note = taught_games(games, self.game, settings, job.credit_seed, source)
            self.record |= {"notes": [note]} if note else {}
        return games, samples

    def results(self) -> dict[str, Any]:
        return self.record
