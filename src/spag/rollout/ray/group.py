"""New weights for the engines of Ray actors by NCCL: one group of this process and all vLLM processes.

A broadcast needs all its members. If one dies or is late, the others wait for it for ever: they are lost with it, since
only the end of a process ends a call of NCCL in vLLM. The next update forms a new group with their replacements.
"""

import logging
import socket
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from spag.core.errors import EngineError, SpagError, first_line
from spag.engines.base import GroupPlace, RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from spag.engines.vllm.broadcast import WeightBroadcast

logger = logging.getLogger(__name__)

_BEAT_S = 0.2
_GRACE_S = 5.0
"""How long members may take once one has failed: those that have all weights still answer."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The workers' answers to a call and why others are lost, by number; and what failed here."""

    given: dict[int, Any] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    error: str = ""

    @property
    def refusal(self) -> str:
        """Why not all have done what they were asked for, if they have not."""
        reasons = [*self.given.values(), *self.lost.values(), self.error]
        return "; ".join(dict.fromkeys(reason for reason in reasons if isinstance(reason, str) and reason))


@dataclass(slots=True)
class EngineGroup:
    """Broadcasts from ``end`` to the engines of ``player``. ``limit``: seconds to form a group, or for an update.

    ``refused``: there will be no group, for a reason that was logged.
    """

    end: "WeightBroadcast"
    player: str
    limit: float
    refused: bool = False
    _members: frozenset[int] = frozenset()
    _failed: bool = False  # the last update

    def send(self, weights: "Mapping[str, Tensor]", actors: Mapping[int, Any]) -> Answers:
        """Give weights to all ``actors``, by number, which must have nothing else to do; those that answer have them.

        Raises ``EngineError`` for weights that do not fit.
        """
        if self.refused or not actors:
            return Answers()
        named, update = self.end.described(weights)
        alive = self._call({number: actor.group_size.remote(self.player) for number, actor in actors.items()})
        actors = {number: actors[number] for number in sorted(alive.given)}
        lost = alive.lost if self._members == actors.keys() else alive.lost | self._form(actors, alive.given)
        if not self._members:
            return Answers(lost=lost)
        calls = {number: actor.receive_weights.remote(self.player, update) for number, actor in actors.items()}
        sent = self._call(calls, self.end.send(named))
        if sent.refusal:
            self.close()
            if self._failed:
                self._refuse(f"two updates in a row failed, the last one by {sent.refusal}")
        self._failed = bool(sent.refusal)
        return Answers(sent.given, lost | sent.lost)

    def close(self) -> None:
        """Leave the group."""
        self._members = frozenset()
        self.end.close()

    def _form(self, actors: Mapping[int, Any], sizes: Mapping[int, Any]) -> dict[int, str]:
        """Form a group with ``actors``, whose engines have ``sizes``; return who was lost over it, and why."""
        self.close()
        if not actors:
            return {}
        if reason := Answers({**sizes}).refusal or _difference(self.end.version, sizes):
            self._refuse(reason)
            return {}
        *ranks, size = accumulate((sizes[number][1] for number in actors), initial=1)
        place = GroupPlace(*_free_address(), size)
        calls = {
            number: actor.join_group.remote(self.player, replace(place, rank=rank))
            for rank, (number, actor) in zip(ranks, actors.items(), strict=True)
        }
        joined = self._call(calls, self.end.open(place))
        if joined.refusal:
            self.close()
            self._refuse(joined.refusal)
            return joined.lost
        self._members = frozenset(actors)
        return {}

    def _call(self, calls: Mapping[int, Any], here: "Future[None] | None" = None) -> Answers:
        """Wait for the answers to ``calls`` and for this process's part. After a failure little time is left."""
        waiting = {call: number for number, call in calls.items()}
        here = here or _nothing()
        found, until, ready = Answers(), time.monotonic() + self.limit, [*waiting]
        while (waiting or not here.done()) and (ready or time.monotonic() < until):  # what has come counts, if late
            ready = ray.wait(list(waiting), num_returns=1, timeout=_BEAT_S)[0] if waiting else []
            if not waiting:
                wait([here], timeout=_BEAT_S)
            for call in ready:
                number = waiting.pop(call)
                try:
                    found.given[number] = ray.get(call)
                except RayError as lost:
                    found.lost[number] = reason_of_loss(lost)
            if found.refusal or (here.done() and here.exception()):
                until = min(until, time.monotonic() + _GRACE_S)
        found.lost.update(dict.fromkeys(waiting.values(), "no answer in time to new weights"))
        if not here.done():
            return replace(found, error="NCCL did not return in time")
        failure = here.exception()
        return replace(found, error=first_line(failure) if failure else "")

    def _refuse(self, reason: str) -> None:
        self.refused = True
        log_refusal(reason)


def _nothing() -> "Future[None]":
    done: Future[None] = Future()
    done.set_result(None)
    return done


def log_refusal(reason: str) -> None:
    """Say why engines on other devices get new weights in the slow way."""
    logger.warning("new weights go through Ray's object store, not NCCL: %s", reason)


def _difference(version: str, sizes: Mapping[int, tuple[str, int]]) -> str:
    """Say which versions of vLLM would form a group, if there are several: they may pack weights differently."""
    versions = sorted({version, *(theirs for theirs, _ in sizes.values())})
    return f"vLLM differs: {', '.join(versions)}" if len(versions) > 1 else ""


def _free_address() -> tuple[str, int]:
    """Return an address at which other nodes find this process, and a port that is free now."""
    address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    with socket.create_server((address, 0)) as server:
        return address, int(server.getsockname()[1])


def reason_of_loss(error: RayError) -> str:
    """Return why an actor is lost: its process or its engine has ended. Raises any other error: a model or a prompt
    that fails on one node fails on all.
    """
    if not isinstance(error, RayTaskError):
        return f"{type(error).__name__}: {first_line(error, 150)}"
    if isinstance(error.cause, EngineError) and not isinstance(error.cause, RequestError):
        return first_line(error.cause)
    raise (error.cause if isinstance(error.cause, SpagError) else error) from None
