"""How every speed is measured: in one process group, interleaved A/B/A/B, as a ratio of pairs.

A machine's speed drifts with its neighbours; two runs that follow each other share most of that drift, so the ratio of
a pair says more than either time. A contest gives the median of its pairs' ratios, and the smallest and largest of
them.
"""

import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Reading:
    """One run of one contestant: ``value`` in the contest's unit (more is better), and whatever else is worth
    keeping.
    """

    value: float
    more: Mapping[str, float] = field(default_factory=dict)


Contestant = Callable[[], Reading]


def arguments_of(name: str, work: Any) -> list[str]:
    """Return the command line of a contestant ``name``; the fields of ``work``, a dataclass, are its options."""
    return [name, *(f"--{key.replace('_', '-')}={value}" for key, value in asdict(work).items())]


def print_reading(reading: Reading) -> None:
    """Print a reading for the process that asked for it."""
    print(json.dumps({"value": reading.value, "more": dict(reading.more)}))


def printed_reading(output: str) -> Reading:
    """Return the reading that a process printed last."""
    row = json.loads(output.splitlines()[-1])
    return Reading(row["value"], row["more"])


def alone(module: str, name: str, work: Any) -> Reading:
    """Return the reading of a contestant that runs in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments_of(name, work)]
    return printed_reading(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


@dataclass(frozen=True, slots=True)
class Contest:
    """``ours`` against ``baseline``, doing the same work. ``target`` is the ratio that we want to reach, where there is
    one.
    """

    name: str
    unit: str
    baseline: Contestant
    ours: Contestant
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a contest showed. ``baseline`` and ``ours`` hold one reading a pair, in order."""

    name: str
    unit: str
    target: float | None
    baseline: list[Reading]
    ours: list[Reading]

    def median(self, side: str) -> float:
        """Return the median of ``baseline`` or ``ours``."""
        readings: list[Reading] = getattr(self, side)
        return statistics.median(reading.value for reading in readings)

    @property
    def ratios(self) -> list[float]:
        return [ours.value / baseline.value for baseline, ours in zip(self.baseline, self.ours, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of the table. ``beside``: what it is compared with (``label``). ``goal``: a bound of ``value``, or with
    ``of_ratio`` of value over beside. ``note``: why there is no value.
    """

    shape: str
    name: str
    unit: str
    value: float | None = None
    beside: float | None = None
    label: str = ""
    goal: str = ""
    note: str = ""


def peak_mib() -> float:
    """Return the most memory that this process has held so far. A child's ``ru_maxrss`` would begin with its parent's
    peak.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM:")) / 1024


def compete(contest: Contest, pairs: int, on_reading: Callable[[str, Reading], None] | None = None) -> Result:
    """Run ``pairs`` pairs; which of the two goes first changes from pair to pair."""
    result = Result(contest.name, contest.unit, contest.target, [], [])
    for number in range(pairs):
        sides = [("baseline", contest.baseline, result.baseline), ("ours", contest.ours, result.ours)]
        for name, contestant, readings in sides if number % 2 == 0 else reversed(sides):
            readings.append(contestant())
            if on_reading is not None:
                on_reading(name, readings[-1])
    return result


@dataclass(frozen=True, slots=True)
class Curve:
    """``y`` over ``x``, with what they are."""

    name: str
    x_label: str
    y_label: str
    x: list[float]
    y: list[float]
