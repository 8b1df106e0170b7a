"""What a plan advises: with it the same stage has no problem left, and takes what the advice says."""

import re
import shlex
from typing import NamedTuple

import pytest

from spag.config.files import load_config
from spag.config.schema import RunConfig
from spag.core.errors import ConfigError
from spag.planning.advice import advice
from spag.planning.here import engines_of
from spag.planning.plan import Planner, StagePlan
from spag.planning.specs import GIB, KNOWN_SHAPES, Device, find_gpu

CPU = Device("CPU", 24.0 * GIB, 8e10, 205e9, 32e9, is_cpu=True, full_flops=8e10)
A10G = find_gpu("A10G")
LLAMA, QWEN = "model.name=meta-llama/Llama-2-7b-hf", "model.name=Qwen/Qwen3-1.7B"
ON_RAY = ("cluster.address=auto", "reinforce.processes=2")
OFFLINE = ("phases=[{algorithm: imitation, episodes: ['bot:random']}]", "arena.entrants=[base, imitation]")
SAID = re.compile(r"(?P<words>(?:--\S+ \S+ ?)+): (?:(?P<size>[\d.]+) GiB each|\D*)")


class Case(NamedTuple):
    """A run in which ``stage`` lacks memory, and how its first advice begins; without: there is none."""

    changes: tuple[str, ...]
    gpus: int
    device: Device
    stage: str
    first: str


CASES = {
    "the trainer's weights are the engine's, until an adapter is trained": Case(
        (QWEN, "model.dtype=float32"), 1, CPU, "reinforce play",
        "--set reinforce.lora={}: ",
    ),
    "an engine of its own, beside which an adapter does not fit": Case(
        (LLAMA, "engine.backend=transformers"), 1, find_gpu("RTX-4090"), "reinforce play", ""
    ),
    "each of two engines on more GPUs": Case(
        (LLAMA, "cluster.address=auto", "cluster.workers=2", *OFFLINE), 2, A10G, "arena",
        "--gpus 8 --set engine.tensor_parallel=4",
    ),
    "an engine beside which each process of an online phase would need several GPUs": Case(
        (LLAMA,), 1, A10G, "arena", ""
    ),
    "training beside engines, with weights in CPU memory": Case(
        (LLAMA, "cluster.address=auto", "cluster.online_workers=2", "reinforce.processes=8"), 10, find_gpu("A100-40"),
        "reinforce", "--set reinforce.parallel=fsdp --set reinforce.offload=true: ",
    ),
    "engines beside training": Case(
        (LLAMA, *ON_RAY, "cluster.online_workers=2"), 4, A10G, "reinforce play",
        "--gpus 10 --set engine.tensor_parallel=4",
    ),
    "training beside engines": Case(
        (LLAMA, *ON_RAY, "cluster.online_workers=2"), 4, A10G, "reinforce",
        "--set reinforce.lora.quantize=true: ",
    ),
    "vLLM in the way of training": Case((LLAMA,), 1, A10G, "reinforce play", ""),
    "as many processes as GPUs": Case(
        (LLAMA, "imitation.processes=1"), 1, A10G, "imitation",
        "--set imitation.lora.quantize=true: ",
    ),
    "an adapter that is there stays, in 4 bits": Case(
        (LLAMA, "imitation.lora={rank: 256}"), 1, A10G, "imitation",
        "--set imitation.lora.quantize=true: ",
    ),
    "more processes than GPUs": Case(
        (LLAMA, "imitation.processes=4"), 2, A10G, "imitation",
        "--set imitation.processes=2 --set imitation.parallel=fsdp --set imitation.offload=true: ",
    ),
}  # fmt: skip


def plan(changes: tuple[str, ...], gpus: int, device: Device) -> Planner:
    config = load_config("kuhn", changes)
    return Planner(config, KNOWN_SHAPES[config.model.name], device, gpus, host=512.0 * GIB)


def stage_of(planner: Planner, name: str) -> StagePlan:
    return next(one for one in planner.stages if one.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_is_advised_fits_as_it_says(name: str) -> None:
    changes, gpus, device, stage, first = CASES[name]
    short = stage_of(plan(changes, gpus, device), stage)
    assert short.problems and bool(short.advice) == bool(first)
    assert not first or short.advice[0].startswith(first)
    for said in short.advice:
        found = SAID.fullmatch(said)
        assert found, said
        words = shlex.split(found["words"])
        given = dict(zip(words[::2], words[1::2], strict=True))
        changed = (*changes, *(value for flag, value in zip(words[::2], words[1::2], strict=True) if flag == "--set"))
        planner = plan(changed, int(given.get("--gpus", gpus)), device)
        then = stage_of(planner, stage)
        assert not then.problems, said
        assert "training and the actors" not in str([one.problems for one in planner.stages])  # they fit together
        if stage == "reinforce play" and "online_workers" not in str(changes):  # nor has the trainer beside it
            assert not stage_of(planner, "reinforce").problems
        assert found["size"] is None or float(found["size"]) == pytest.approx(then.memory.total / GIB, abs=0.1)


def test_more_gpus_come_with_as_many_processes() -> None:
    changes = (LLAMA, "imitation.processes=1")
    *_, sharded = stage_of(plan(changes, 1, A10G), "imitation").advice
    assert sharded.startswith("--gpus 8 --set imitation.processes=8 --set imitation.parallel=fsdp: ")


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("engine.max_length=8192",), ("cluster.address=auto", "cluster.workers=2")])
def test_a_run_is_not_told_to_take_more_gpus(more: tuple[str, ...]) -> None:
    """An engine alone would fit on two GPUs; beside a trainer, each process would need two of its own."""
    planner = plan((LLAMA, *more), 1, A10G)
    play = stage_of(planner, "reinforce play")
    assert [one.partition(":")[0] for one in play.problems] == ["trainer and vLLM do not fit together"]
    with pytest.raises(ConfigError) as refused:
        engines_of(planner)
    assert "--gpus" not in str(refused.value) and "tensor_parallel" not in str(refused.value)


def tried(planner: Planner) -> list[tuple[int, int]]:
    """Return the processes and GPUs of each change that is tried for training, in order, if none fits."""
    found: list[tuple[int, int]] = []

    def fits(config: RunConfig, gpus: int) -> None:
        found.append((config.phases[-1].settings.processes, gpus))

    advice(planner, "reinforce", fits)
    return found


def test_each_process_is_given_all_the_gpus_that_it_plays_on() -> None:
    planner = plan((LLAMA, "reinforce.parallel=fsdp", "engine.tensor_parallel=2", "reinforce.processes=1"), 2, A10G)
    assert {one for one in tried(planner) if one[0] > 1} == {(n, 2 * n) for n in (2, 4, 8, 16, 32)}
    planner = plan((LLAMA, "engine.tensor_parallel=2"), 8, A10G)  # the GPUs at hand come first
    assert tried(planner)[:2] == [(4, 8), (4, 8)]
    actors = ("cluster.address=local", "cluster.online_workers=2", "reinforce.processes=8", "engine.tensor_parallel=2")
    planner = plan((LLAMA, "engine.backend=transformers", *actors), 8, A10G)
    assert (4, 8) in tried(planner)  # four GPUs are the actors'


def test_engines_on_several_gpus_each_are_still_counted() -> None:
    problems = stage_of(plan((QWEN, "engine.tensor_parallel=2"), 2, A10G), "reinforce play").problems
    assert "the engines need 4 GPUs, but only 2 available" in problems


def test_what_an_algorithm_refuses_is_not_advised() -> None:
    def refused(config: RunConfig, gpus: int) -> float:
        raise ConfigError("these are no whole groups")

    assert advice(plan((LLAMA,), 1, A10G), "reinforce", refused) == []
