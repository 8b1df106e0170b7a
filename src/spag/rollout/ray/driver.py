"""Self-play on Ray: one engine actor per GPU (or group of GPUs), few games per actor at a time, and one writer.

The games and their seeds are the same as on one machine, whichever actor plays them. An actor that dies, or finishes no
game for ``cluster.deadline`` seconds, is replaced and its games are played again elsewhere; a dead driver resumes from
its file. The driver stores finished games before it hands out more, so a slow disk slows the engines instead of filling
memory. Online learning keeps the actors across plays and sends them new weights in between (``RayPlayers``).
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from spag.config.schema import ClusterConfig
from spag.core.episodes import Episode
from spag.core.errors import ConfigError, EngineError, SpagError, first_line
from spag.core.visible import counted
from spag.engines.base import RequestError
from spag.games.base import Game
from spag.rollout.ray.connection import connected, nodes
from spag.rollout.ray.queue import GameQueue
from spag.rollout.ray.weights import pack
from spag.rollout.ray.worker import PlayJob, PlayWorker
from spag.rollout.runner import GameSpec, PlayStats

if TYPE_CHECKING:
    from torch import Tensor

_AHEAD = 2  # calls in flight on each worker
_LOSSES = 3  # lost workers per slot without a finished game in between: play ends


class _Phase(Enum):
    """The state of a worker: its process starts (or waits for resources), its engines open, it plays."""

    STARTING = auto()
    OPENING = auto()
    PLAYING = auto()


@dataclass(slots=True)
class _PlayWorker:
    """A Ray actor and its pending calls, in order: ``ready`` and ``open`` first."""

    number: int
    actor: Any
    calls: deque[Any]
    phase: _Phase = _Phase.STARTING
    last_seen: float = field(default_factory=time.monotonic)


class RayPlayers:
    """Workers, stopped by ``stack``, whose engines stay open between plays. ``most``: the maximum number to start.

    ``cluster.address`` must be set. Raises ``ConfigError`` if there is no cluster or nothing in it can play.
    """

    def __init__(
        self,
        job: PlayJob,
        cluster: ClusterConfig,
        stack: ExitStack,
        note: Callable[[str], None],
        *,
        most: int | None = None,
    ) -> None:
        assert cluster.address is not None
        stack.enter_context(connected(cluster.address))
        self.cluster, self.note, self.stats = cluster, note, PlayStats()
        count, self.resources = _layout(job, cluster)
        count = count if most is None else min(count, most)
        self.needs = ", ".join(f"{amount:g} {name.removeprefix('num_')}" for name, amount in self.resources.items())
        self.most_held = (job.in_flight or cluster.lease) + cluster.lease
        self.queue = GameQueue((), self.most_held)
        self.job = ray.put(job)
        self._current: tuple[Game, Mapping[str, str]] | None = None  # the game, and the player of each role
        self.losses = 0
        self.workers: list[_PlayWorker] = []
        self._updates: dict[str, Any] = {}  # the newest weights of a player, in Ray's object store
        self._numbers = 0
        stack.callback(self.close)
        for _ in range(count):
            self._start_worker()
        note(f"cluster: {counted(count, 'worker')}, {self.needs} each, on {counted(len(nodes()), 'node')}")

    def play(
        self, specs: Sequence[GameSpec], stats: PlayStats, game: Game, players: Mapping[str, str]
    ) -> Iterator[list[Episode]]:
        """Yield every game once, grouped by arrival; ``stats`` gets the totals.

        ``players`` names the opened player of each role. Raises the errors of opening a model, and ``EngineError`` if
        engines are lost repeatedly without finishing a game.
        """
        self.stats, self.losses = stats, 0
        if (game, players) != self._current:
            self._current = game, players
            for worker in self.workers:
                worker.calls.append(worker.actor.assign.remote(game, players))
        self.queue = GameQueue(specs, self.most_held)
        for worker in self.workers:
            worker.last_seen = time.monotonic()  # replies have not been read since the last play
            self._submit(worker)
        while self.queue.left:
            if episodes := [episode for worker in self._ready_workers() for episode in self._receive(worker)]:
                yield episodes
            self._replace_hung()

    def update_weights(self, weights: "Mapping[str, Tensor]", player: str, dtype: str | None = None) -> None:
        """Give new weights, all that change, to the engine of ``player`` in every worker, including later replacements
        of lost ones. They travel in ``dtype``, or as they are. Returns at once.

        See ``Engine.update_weights``; each engine takes them before its next game, and one that cannot counts as lost.
        Values are copied now, and may change afterwards. Raises ``EngineError`` while games of the last play are left.
        """
        if self.queue.left:
            raise EngineError("weights change only between plays")
        self._updates.pop(player, None)  # the older ones leave the object store first
        packed = self._updates[player] = ray.put(pack(weights, dtype))
        for worker in self.workers:
            worker.calls.append(worker.actor.update_weights.remote(packed, player))

    def close(self) -> None:
        """Stop all workers; engines with their own processes get a moment to end them."""
        closing = [worker.actor.close.remote() for worker in self.workers if worker.phase is _Phase.PLAYING]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=5.0)
        for worker in self.workers:
            ray.kill(worker.actor)

    def _start_worker(self) -> None:
        self._numbers += 1
        actor: Any = (
            ray.remote(PlayWorker).options(max_restarts=0, scheduling_strategy="SPREAD", **self.resources).remote()
        )
        calls = deque([actor.ready.remote(), actor.open.remote(self.job)])
        if self._current is not None:
            calls.append(actor.assign.remote(*self._current))
        calls.extend(actor.update_weights.remote(packed, player) for player, packed in self._updates.items())
        self.workers.append(_PlayWorker(self._numbers, actor, calls))

    def _ready_workers(self) -> list[_PlayWorker]:
        """Return the workers whose first call has finished; waits a second at most."""
        first = {worker.calls[0]: worker for worker in self.workers if worker.calls}
        ready, rest = ray.wait(list(first), num_returns=1, timeout=1.0)
        more, _ = ray.wait(rest, num_returns=len(rest), timeout=0.0) if rest else ([], [])
        return [first[ref] for ref in (*ready, *more)]

    def _receive(self, worker: _PlayWorker) -> list[Episode]:
        """Take one result of a worker, submit its next calls, and return the games it finished."""
        try:
            answer = ray.get(worker.calls.popleft())
        except RayError as error:
            self._replace(worker, _reason_of_loss(error))
            return []
        worker.last_seen = time.monotonic()
        episodes = []
        if answer is not None:  # of ``advance``
            played, stats = answer
            self.stats += stats
            episodes = [episode for episode in played if self.queue.finish(worker.number, episode.id)]
        self.losses = 0 if episodes else self.losses
        worker.phase = _Phase.OPENING if worker.phase is _Phase.STARTING else _Phase.PLAYING
        self._submit(worker)
        return episodes

    def _submit(self, worker: _PlayWorker) -> None:
        """Keep ``_AHEAD`` calls in flight while the worker holds games."""
        if worker.phase is not _Phase.PLAYING:
            return
        while len(worker.calls) < _AHEAD:
            specs = self.queue.take(worker.number, len(self.workers))
            if not specs and not self.queue.held(worker.number):
                return
            worker.calls.append(worker.actor.advance.remote(specs))

    def _replace_hung(self) -> None:
        now = time.monotonic()
        limit = self.cluster.deadline
        late = [worker for worker in self.workers if now - worker.last_seen > limit and not _has_answered(worker)]
        if len(late) == len(self.workers) and all(worker.phase is _Phase.STARTING for worker in late):
            fix = f"each needs {self.needs} free on one node"
            raise EngineError(f"cluster: no worker could start within {limit:g} s; {fix}")
        for worker in list(self.workers):
            if worker.calls and worker.phase is not _Phase.STARTING and worker in late:
                self._replace(worker, f"no reply for {limit:g} s")
            elif not worker.calls:
                worker.last_seen = now
                self._submit(worker)  # games have been returned from a lost worker

    def _replace(self, worker: _PlayWorker, why: str) -> None:
        self.losses += 1
        ray.kill(worker.actor)
        self.workers.remove(worker)
        games = self.queue.put_back(worker.number)
        if self.losses > _LOSSES * (len(self.workers) + 1):
            raise EngineError(f"cluster: {self.losses} workers were lost without finishing a game; the last one: {why}")
        self.note(f"cluster: worker {worker.number} was lost ({why}); others get its {counted(games, 'game')}")
        self._start_worker()


def _has_answered(worker: _PlayWorker) -> bool:
    """Whether a reply waits to be read: then this process was late, as with a slow disk, or when it was stopped."""
    return bool(worker.calls and ray.wait([worker.calls[0]], timeout=0.0)[0])


def _reason_of_loss(error: RayError) -> str:
    """Return why an actor is lost: its process or its engine has ended. Raises any other error: a model or a prompt
    that fails on one node fails on all.
    """
    if not isinstance(error, RayTaskError):
        return f"{type(error).__name__}: {first_line(error, 150)}"
    if isinstance(error.cause, EngineError) and not isinstance(error.cause, RequestError):
        return first_line(error.cause)
    raise (error.cause if isinstance(error.cause, SpagError) else error) from None


def _layout(job: PlayJob, cluster: ClusterConfig) -> tuple[int, dict[str, float]]:
    """Return the number of workers and the resources of each. Raises ``ConfigError``."""
    machines = nodes()
    if job.gpus and any("GPU" in machine for machine in machines):
        fitting = sum(int(machine.get("GPU", 0)) // job.gpus for machine in machines)
        if not fitting:
            what = f"an engine needs {job.gpus} GPUs of one node, and no node has that many"
            raise ConfigError(f"cluster: {what}; lower engine.tensor_parallel")
        return cluster.workers or fitting, {"num_gpus": job.gpus, "num_cpus": 1}
    if not machines:
        raise ConfigError("cluster: no node with a free CPU")
    count = cluster.workers or len(machines)
    smallest = min(int(machine["CPU"]) for machine in machines)
    return count, {"num_cpus": max(1, smallest * len(machines) // count if count > len(machines) else smallest)}
