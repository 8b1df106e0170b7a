"""The source of a phase's samples: existing files, or games played by the current policy.

Both look the same to the loop (``loop.py``): it asks for the games of step 1, 2, ... and reports when a step is done.
Files have one step, trained for many updates.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from spag.algorithms.credit import drawn_games, without_held_out
from spag.algorithms.settings import OfflineSettings
from spag.core.episodes import Episode, SampleType, TrainingSample
from spag.core.seeds import derive_seed
from spag.games.base import Game
from spag.learning.job import TrainingJob
from spag.learning.metrics import Row
from spag.learning.policy import TrainedPolicy
from spag.storage.episodes import is_file_of_samples, read_episodes, read_samples, read_sft


@dataclass(frozen=True, slots=True)
class Material:
    """The training data of a step: episodes by game, and samples that need no credit."""

    games: Sequence[tuple[Game, Sequence[Episode]]] = ()
    samples: Sequence[TrainingSample] = ()


def sample_counts(samples: Sequence[TrainingSample]) -> dict[str, Any]:
    """Return how many samples each role has, and the SFT mix if there is one, for the phase's record."""
    roles = Counter(sample.role or "other" for sample in samples if sample.type is not SampleType.SFT)
    sft = len(samples) - roles.total()
    return {"samples": dict(roles), **({"sft": sft} if sft else {})}


class Source(AbstractContextManager["Source"]):
    """The base of ``FileSource`` and ``spag.learning.selfplay.SelfplaySource``. Every process has one."""

    steps: int
    """The number of steps."""
    learner: str | None = None
    """The player whose utterances are trained; ``None``: every player's."""

    def __exit__(self, *error: object) -> None:
        """Release what play used."""

    def next(self, step: int, policy: TrainedPolicy) -> Material:
        """Return the training data of ``step``, the same on every process. Sources that play do so with ``policy``."""
        raise NotImplementedError

    def finish(self, step: int, row: Row, samples: Sequence[TrainingSample], policy: TrainedPolicy) -> bool:
        """Add the metrics of a step's games to its row; return whether to go on, the same on every process.

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
    """Files of games or samples, and mixed-in instruction data.

    A limit draws games by seed. Of teacher play, games on held-out tasks are left out before the draw, unless
    ``keep_held_out``; ``notes`` says how many. Samples do not name their tasks, so these cannot be checked.
    """

    steps = 1

    def __init__(self, job: TrainingJob) -> None:
        self.job, self.learner = job, job.learner
        self.notes: list[str] = []
        self.tasks_unknown = False

    def next(self, step: int, policy: TrainedPolicy) -> Material:
        job, settings, game = self.job, self.job.settings, self.job.game.build()
        assert isinstance(settings, OfflineSettings)
        games: list[Episode] = []
        samples: list[TrainingSample] = []
        for path in job.files:
            if is_file_of_samples(path):
                samples += read_samples(path)
            else:
                games += read_episodes(path)
        if job.teacher and not settings.keep_held_out:
            games = without_held_out(games, game, ", ".join(map(str, job.files)), self.notes)
        games = drawn_games(games, job.limit, job.credit_seed)
        self.tasks_unknown = any(sample.type is not SampleType.SFT for sample in samples)
        if settings.sft_data is not None:
            samples += read_sft(settings.sft_data, settings.sft_samples, derive_seed(job.credit_seed, "sft"))
        return Material([(game, games)] if games else [], samples)

    def results(self) -> dict[str, Any]:
        notes: dict[str, Any] = {"notes": self.notes} if self.notes else {}
        return notes | ({"held_out": None} if self.tasks_unknown else {})
