"""Where the samples of a phase come from: files that are all there, or games that the current policy plays.

Both are the same to the loop (``loop.py``): it asks for the games of step 1, 2, ... and tells when a step is done.
Files have one step, whose samples are trained for many updates.
"""

import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spag.algorithms.credit import without_held_out
from spag.algorithms.settings import OfflineSettings
from spag.core.episodes import Episode, SampleType, TrainingSample
from spag.core.errors import ConfigError
from spag.core.seeds import derive_seed
from spag.games.base import Game
from spag.learning.metrics import Row
from spag.storage.episodes import is_file_of_samples, read_episodes, read_samples
from spag.storage.sft import read_sft


class Policy(Protocol):
    """What a source may see of the policy in training. Every process must call ``wait``, ``weights``
    and ``save``.
    """

    def wait(self) -> None:
        """Wait until all processes are here."""

    def weights(self) -> Mapping[str, Tensor]:
        """Return the trained weights by name, whole."""

    def save(self, folder: Path) -> None:
        """Save the policy as a model of its own, which the first process writes."""

    def policy(self) -> PreTrainedModel | None:
        """Return the model, where this process has all of it."""

    def final(self) -> AbstractContextManager[None]:
        """Compute as the policy that training would end with now: the average of the weights, where one is kept."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a source may need to open: the policy as engines load it, the tokenizer, this process, the steps done."""

    policy: str
    tokenizer: PreTrainedTokenizerBase
    rank: int
    world_size: int
    step: int


@dataclass(frozen=True, slots=True)
class Material:
    """What a step is trained on: games by game, and samples that need no credit."""

    games: Sequence[tuple[Game, Sequence[Episode]]] = ()
    samples: Sequence[TrainingSample] = ()


class Source(AbstractContextManager["Source"], Protocol):
    """Satisfied by ``FileSource`` and ``spag.learning.selfplay.SelfplaySource``. Every process has one."""

    steps: int
    """How many steps there are."""
    learner: str | None
    """The player whose utterances are trained; ``None``: every player's."""

    def next(self, step: int, policy: Policy | None) -> Material:
        """Return what ``step`` trains on, the same on every process. Sources that do not play need no policy."""

    def finish(self, step: int, row: Row, samples: Sequence[TrainingSample], policy: Policy) -> bool:
        """Take the row of a finished step and add the figures of its games; return whether to go on.

        ``samples``: those of the step, before equal ones were merged.
        """

    def settle(self) -> None:
        """Put what is under way on disk, before a checkpoint: a run that resumes from it could not repeat that."""

    def results(self) -> dict[str, Any]:
        """Return what the record of the phase says besides steps and seconds."""

    def describe(self) -> str:
        """Return the figures that matter of the last step, for a line of progress."""


@dataclass
class FileSource(AbstractContextManager["FileSource"]):
    """Files of games or of samples, and instruction data mixed in.

    ``limit``: use this many games, drawn by seed. Games on held-out tasks are left out before the draw, unless
    ``keep_held_out``; ``notes`` says how many. Samples name no task, so nobody knows whether theirs are held out.
    """

    files: Sequence[Path]
    game: Game
    settings: OfflineSettings
    seed: int
    learner: str | None = None
    limit: int | None = None
    leaves_out_held_out: bool = False
    steps: int = 1
    notes: list[str] = field(default_factory=list)
    tasks_unknown: bool = False

    def __exit__(self, *_: object) -> None:
        pass

    def next(self, step: int, policy: Policy | None) -> Material:
        games: list[Episode] = []
        samples: list[TrainingSample] = []
        for path in self.files:
            if not path.is_file():
                raise ConfigError(f"{path}: not found; every node must see the games and the run folder")
            if is_file_of_samples(path):
                samples += read_samples(path)
            else:
                games += read_episodes(path)
        if self.leaves_out_held_out and not self.settings.keep_held_out:
            games = without_held_out(games, self.game, ", ".join(map(str, self.files)), self.notes)
        if self.limit is not None and self.limit < len(games):
            kept = sorted(random.Random(derive_seed(self.seed, "teacher")).sample(range(len(games)), self.limit))
            games = [games[at] for at in kept]
        settings = self.settings
        self.tasks_unknown = any(sample.type is not SampleType.SFT for sample in samples)
        if settings.sft_data is not None:
            samples += read_sft(settings.sft_data, settings.sft_samples, derive_seed(self.seed, "sft"))
        return Material([(self.game, games)] if games else [], samples)

    def finish(self, step: int, row: Row, samples: Sequence[TrainingSample], policy: Policy) -> bool:
        return True

    def settle(self) -> None:
        pass

    def results(self) -> dict[str, Any]:
        notes: dict[str, Any] = {"notes": self.notes} if self.notes else {}
        return notes | ({"held_out": None} if self.tasks_unknown else {})

    def describe(self) -> str:
        return ""
