"""What a phase trains, and where."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spag.algorithms.base import Algorithm
from spag.algorithms.settings import UpdateSettings
from spag.config.schema import ModelConfig


@dataclass(frozen=True, slots=True)
class Phase:
    """The inputs and the output folder of a phase. ``roles``: every ``GAME/ROLE`` of online games. ``identity``:
    everything the source's games depend on; state with another identity is not resumed.
    """

    model: ModelConfig
    settings: UpdateSettings
    start_from: str
    output: Path
    seed: int
    credit_seed: int
    algorithm: type[Algorithm]
    identity: Any = None
    roles: Sequence[str] = ()
    report_to: Sequence[str] = ()
