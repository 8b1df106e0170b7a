"""The group of a trainer and its actors' engines, without Ray: who is in it, who is lost, and when it is given up."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from spag.core.errors import EngineError
from spag.engines.base import GroupPlace
from spag.rollout.ray import group
from spag.rollout.ray.group import EngineGroup

Call = Callable[..., Any]
HANGS: Future[Any] = Future()


def done(answer: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


def broken(reason: str) -> RayTaskError:
    """What Ray raises for an actor's ``EngineError``."""
    return RayTaskError("receive_weights", reason, EngineError(reason))


class StandIn:
    """An actor, or a trainer's end, that answers as it is told; ``HANGS`` never answers."""

    version = "0.32.0"

    def __init__(self, **answers: Any) -> None:
        self.answers = {"group_size": ("0.32.0", 2), "join_group": None, "receive_weights": None} | answers
        self.asked: list[Any] = []
        self.closed = 0
        for name in ("group_size", "join_group", "receive_weights"):
            setattr(self, name, SimpleNamespace(remote=partial(self._answer, name)))

    def _answer(self, name: str, *arguments: Any) -> "Future[Any]":
        self.asked.append((name, *arguments[1:]))
        answer = self.answers.get(name)
        return answer if isinstance(answer, Future) else done(answer)

    def described(self, weights: Any) -> tuple[Any, Any]:
        return weights, {"names": [*weights]}

    def open(self, place: GroupPlace) -> "Future[Any]":
        return self._answer("open", None, place)

    def send(self, named: Any) -> "Future[Any]":
        return self._answer("send", None, named)

    def close(self) -> None:
        self.closed += 1

    def names(self) -> list[str]:
        return [name for name, *_ in self.asked]


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(calls: Sequence["Future[Any]"], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        ready, rest = wait_for(calls, timeout, FIRST_COMPLETED)
        return list(ready), list(rest)

    util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
    stub = SimpleNamespace(wait=wait, get=lambda call: call.result(), util=util)
    monkeypatch.setattr(group, "ray", stub)
    monkeypatch.setattr(group, "_GRACE_S", 0.1)
    monkeypatch.setattr(group, "_BEAT_S", 0.01)


def group_of(end: StandIn, limit: float = 3600.0) -> EngineGroup:
    return EngineGroup(end, "policy", limit)  # type: ignore[arg-type]


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    start = "new weights go through Ray's object store, not NCCL: "
    assert all(record.getMessage().startswith(start) for record in caplog.records)
    return [record.getMessage().removeprefix(start) for record in caplog.records]


def test_a_group_is_formed_once_and_again_with_others() -> None:
    """Ranks follow the trainer's, engine by engine, each of two processes."""
    end, one, two, three = StandIn(), StandIn(), StandIn(), StandIn()
    formed = group_of(end)
    assert formed.send({}, {}).given == {}  # nobody is there yet
    for _ in range(2):
        assert formed.send({"w": 1}, {1: one, 2: two}).given == {1: None, 2: None}
    assert end.names() == ["open", "send", "send"]
    assert one.names() == ["group_size", "join_group", "receive_weights", "group_size", "receive_weights"]
    assert formed.send({"w": 1}, {1: one, 3: three}).given == {1: None, 3: None}
    places = [asked[1] for actor in (one, two, three) for asked in actor.asked if asked[0] == "join_group"]
    assert [(place.rank, place.size) for place in places] == [(1, 5), (1, 5), (3, 5), (3, 5)]
    assert len({place.port for place in places}) == 2
    assert one.asked[-1] == ("receive_weights", {"names": ["w"]})


@pytest.mark.parametrize(
    ("end", "actor", "reason"),
    [
        ({}, {"group_size": "TransformersEngine can join no group"}, "TransformersEngine can join no group"),
        ({}, {"group_size": ("0.33.0", 2)}, "vLLM differs: 0.32.0, 0.33.0"),
        ({}, {"join_group": "Invalid init_info"}, "Invalid init_info"),
        ({"open": RuntimeError("no NCCL")}, {}, "no NCCL"),
        ({"open": HANGS}, {}, "NCCL did not return in time"),
    ],
)
def test_without_a_group_the_reason_is_logged_once(
    end: dict[str, Any], actor: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused = group_of(trainer := StandIn(**end), limit=0.2)
    for _ in range(2):
        sent = refused.send({"w": 1}, {1: StandIn(), 2: StandIn(**actor)})
        assert (sent.given, sent.lost) == ({}, {})
    assert refusals(caplog) == [reason] and refused.refused
    assert "send" not in trainer.names() and trainer.closed


def test_who_waits_for_one_that_cannot_join_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    formed = group_of(StandIn(open=HANGS))
    began = time.monotonic()
    sent = formed.send({"w": 1}, {1: StandIn(join_group=HANGS), 2: StandIn(join_group=ActorDiedError())})
    assert time.monotonic() - began < 1800  # not the whole limit
    assert sent.given == {} and sent.lost.keys() == {1, 2}
    assert sent.lost[1] == "no answer in time to new weights" and sent.lost[2].startswith("ActorDiedError: ")
    [reason] = refusals(caplog)
    assert "ActorDiedError" in reason and reason.endswith("NCCL did not return in time")


def test_answers_count_that_came_while_this_process_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "time", SimpleNamespace(monotonic=count(0.0, 7200.0).__next__))
    sent = group_of(StandIn()).send({"w": 1}, {1: StandIn(), 2: StandIn()})
    assert (sent.given.keys(), sent.lost) == ({1, 2}, {})


def test_an_actor_found_dead_before_an_update_costs_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    one, two = StandIn(), StandIn()
    formed = group_of(end := StandIn())
    formed.send({"w": 1}, {1: one, 2: two})
    two.answers["group_size"] = ActorDiedError()
    sent = formed.send({"w": 1}, {1: one, 2: two})
    assert sent.given == {1: None} and sent.lost.keys() == {2}
    assert end.names() == ["open", "send", "open", "send"]
    assert not caplog.records


@pytest.mark.slow
def test_an_update_that_fails_ends_the_group_and_a_second_one_in_a_row_all_groups(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Engine 1 has all weights; 2 breaks, and 3 waits for its part, as the trainer does."""
    caplog.set_level(logging.WARNING)
    one, two, three = StandIn(), StandIn(), StandIn()
    actors = {1: one, 2: two, 3: three}
    formed = group_of(end := StandIn())

    def fail() -> None:
        two.answers["receive_weights"], three.answers["receive_weights"] = broken("vLLM ended: x"), HANGS
        end.answers["send"] = HANGS
        sent = formed.send({"w": 1}, actors)
        assert sent.given == {1: None}
        assert sent.lost == {2: "vLLM ended: x", 3: "no answer in time to new weights"}
        for answers in (two.answers, three.answers, end.answers):
            answers.pop("receive_weights", None)
            answers.pop("send", None)

    for _ in range(2):
        fail()
        assert formed.send({"w": 1}, actors).given.keys() == {1, 2, 3}
    failed, formed_anew = ["send"], ["open", "send"]
    assert end.names() == ["open", *failed, *formed_anew, *failed, *formed_anew] and not caplog.records
    fail()
    fail()
    [reason] = refusals(caplog)
    assert reason.startswith("two updates in a row failed, the last one by vLLM ended: x; no answer in time")
    assert formed.send({"w": 1}, actors).given == {}


def test_what_is_not_an_engines_failure_is_raised() -> None:
    formed = group_of(StandIn())
    with pytest.raises(RayTaskError):
        formed.send({}, {1: StandIn(group_size=RayTaskError("group_size", "bug", KeyError("bug")))})
