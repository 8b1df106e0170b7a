"""``make bench``: every contest, interleaved, in one process group; a table, a JSON file and a plot in
``benchmarks/results/``.

python -m benchmarks [--only vllm --only training ...] [--pairs N] [--quick] [--output FOLDER]
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from benchmarks import endpoint, growth, judging, online, play, training
from benchmarks.harness import Contest, Curve, Reading, Result, compete
from benchmarks.machine import hardware, results_name, versions
from benchmarks.shapes import random_model
from benchmarks.show import plot_results, print_results
from benchmarks.steps import GLOBAL_BATCH
from spag.planning.specs import GIB

Contests = Callable[[ExitStack, bool], Iterator[Contest]]
PLAY_GIB, TRAINING_GIB = 75, 135
"""Memory of a GPU that plays and trains a 7B model here: two copies and their caches; weights, gradients and Adam's
state in float32.
"""


def play_contests(backend: str, stack: ExitStack, quick: bool) -> Iterator[Contest]:
    if backend in play.backends():
        in_flight = play.IN_FLIGHT if play.MODEL.device == "cpu" else play.GPU_IN_FLIGHT
        yield from play.contests(backend, stack, play.MODEL, backend, in_flight, quick=quick)


def training_contests(stack: ExitStack, quick: bool) -> Iterator[Contest]:
    yield from training.contests(_samples(quick))


def _samples(quick: bool) -> int:
    return 12 if quick else GLOBAL_BATCH


def online_contests(stack: ExitStack, quick: bool) -> Iterator[Contest]:
    yield from online.contests(online.Work(games=4) if quick else online.Work())


def judging_contests(stack: ExitStack, quick: bool) -> Iterator[Contest]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for kind in ("plain", "dressed"):
        yield judging.contest(kind, folder, 200 if quick else judging.GAMES)


def endpoint_contests(stack: ExitStack, quick: bool) -> Iterator[Contest]:
    url = stack.enter_context(endpoint.stub())
    endpoint.ours(8 if quick else 64)  # imports, dictionaries
    yield endpoint.contest(url, 8 if quick else endpoint.GAMES)


def large_contests(stack: ExitStack, quick: bool) -> Iterator[Contest]:
    """A GPU is hardly warm with 135M parameters: a 7B-shaped model, and with ``quick`` a tiny one, which runs
    anywhere.
    """
    shape = "tiny" if quick else "7b"
    memory = torch.cuda.get_device_properties(0).total_memory / GIB if torch.cuda.is_available() else 0
    if not quick and memory < PLAY_GIB:
        print(
            f"large: left out, it takes a GPU of {PLAY_GIB} GiB for play and {TRAINING_GIB} for training",
            file=sys.stderr,
        )
        return
    folder = random_model(Path(stack.enter_context(tempfile.TemporaryDirectory())) / shape, shape)
    model = play.MODEL.model_copy(update={"name": str(folder)})
    if quick or memory >= TRAINING_GIB:  # before play, whose models would take room from it
        yield from training.large_contests(str(folder), shape, _samples(quick))
    else:
        print(f"large: training left out, it takes a GPU of {TRAINING_GIB} GiB", file=sys.stderr)
    for backend in play.backends():
        with ExitStack() as engines:
            yield from play.contests(backend, engines, model, f"{shape} {backend}", play.IN_FLIGHT, quick=quick)


GROUPS: dict[str, Contests] = {
    "transformers": partial(play_contests, "transformers"),
    "vllm": partial(play_contests, "vllm"),
    "training": training_contests,
    "online": online_contests,
    "judging": judging_contests,
    "endpoint": endpoint_contests,
    "large": large_contests,
}


def read(path: Path) -> tuple[list[Result], list[Curve]]:
    """Return what was measured before, so that ``--only`` replaces a part of it."""
    if not path.exists():
        return [], []
    data = json.loads(path.read_text(encoding="utf-8"))
    sides = ("baseline", "ours")
    rows = [
        {**row, **{side: [Reading(**reading) for reading in row[side]] for side in sides}} for row in data["contests"]
    ]
    fields = ("name", "unit", "target", *sides)
    return [Result(**{field: row[field] for field in fields}) for row in rows], [
        Curve(**curve) for curve in data["curves"]
    ]


def write(folder: Path, name: str, results: list[Result], curves: list[Curve]) -> None:
    """Replace the JSON file and the plot; called after each contest, so that nothing measured is lost."""
    folder.mkdir(parents=True, exist_ok=True)
    contests = [{**asdict(result), "ratio": result.ratio, "ratios": result.ratios} for result in results]
    data = {
        "hardware": hardware(),
        "versions": versions(),
        "contests": contests,
        "curves": [asdict(curve) for curve in curves],
    }
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    plot_results(results, curves, folder / f"{name}.svg")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure every speed against its baseline.")
    parser.add_argument("--only", choices=[*GROUPS, "growth"], action="append", help="measure only these")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="little work, for trying the benchmarks out: figures mean nothing"
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--name", default=results_name())
    chosen = parser.parse_args(given)
    wanted = chosen.only or [*GROUPS, "growth"]
    results, curves = read(chosen.output / f"{chosen.name}.json") if chosen.only else ([], [])

    def tell(side: str, reading: Reading) -> None:
        more = "  ".join(f"{key} {value:.3g}" for key, value in reading.more.items())
        print(f"    {side:<9}{reading.value:>10,.3g}   {more}", file=sys.stderr, flush=True)

    for group in (name for name in GROUPS if name in wanted):
        with ExitStack() as stack:
            for contest in GROUPS[group](stack, chosen.quick):
                print(f"{contest.name}, {contest.unit}", file=sys.stderr, flush=True)
                results = [result for result in results if result.name != contest.name]
                results.append(compete(contest, chosen.pairs, tell))
                write(chosen.output, chosen.name, results, curves)
                del contest  # and with it the models it holds
                torch.cuda.empty_cache()
    if "growth" in wanted and not chosen.quick:
        curves = [*growth.play_curves(), *growth.training_curves()]
        write(chosen.output, chosen.name, results, curves)
    print_results(results)
    print(f"{chosen.output / chosen.name}.json, .svg")


if __name__ == "__main__":
    main()
