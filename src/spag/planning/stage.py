"""A stage of a run before it starts: play or training, with work, hours and memory, and what would make it fit."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf

from spag.algorithms import get
from spag.algorithms.settings import (
    LoraConfig,
    OfflineSettings,
    OnlineSettings,
    UpdateSettings,
)
from spag.config.schema import PhaseConfig, RunConfig
from spag.core.options import SamplingConfig
from spag.engines.vllm.setup import GPU_MEMORY
from spag.games.base import Game
from spag.planning.advice import advice, refusals
from spag.planning.engines import USABLE, Sharing
from spag.planning.hours import START_S, Assumptions, play_hours, training_hours
from spag.planning.memory import PROGRAM, Memory, play_memory, training_memory
from spag.planning.samples import Work, play_work
from spag.planning.specs import GIB, Device, ModelShape

_LACKS = "it needs more memory than there is"


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage, ``times`` times over: ``count`` samples or games (``unit``), updates, the games that are learned from,
    tokens and hours of one time.

    ``memory`` is what it takes of a GPU or process, ``room`` what it may fill, in bytes; ``longest`` what training
    would take if every utterance were as long as it may be. ``problems`` say why it cannot run as configured (none: it
    fits), ``advice`` names the nearest settings with which it could. ``engines``: of online play beside a
    trainer on each GPU, ``sharing``: how they share it.
    """

    name: str
    times: int
    unit: str
    count: int
    updates: int
    games: int
    tokens: float
    hours: float
    memory: Memory
    room: float
    longest: float = 0.0
    engines: int = 0
    sharing: Sharing | None = None
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StagePlanner:
    """Plans single stages of the run of ``config``, with a model of ``shape``, on ``devices`` GPUs or one CPU.

    ``host``: memory of the machine in bytes; where it is not known, it is taken to suffice.
    """

    config: RunConfig
    shape: ModelShape
    device: Device
    devices: int = 1
    assumed: Assumptions = field(default_factory=Assumptions)
    host: float = inf

    @property
    def number(self) -> int:
        """Bytes of a number in computing; ``auto`` is bfloat16 on a GPU, and on a CPU what is faster there."""
        return 4 if self.config.model.dtype in ("float32", "auto" if self.device.prefers_float32 else "") else 2

    @property
    def _lora(self) -> LoraConfig | None:
        """The first adapter that is trained: later phases train it further."""
        return next((phase.settings.lora for phase in self.config.phases if phase.settings.lora), None)

    @property
    def _on_vllm(self) -> bool:
        return self.config.engine.backend in (("vllm",) if self.device.is_cpu else ("vllm", "auto"))

    def _copies(self, engines: int | None = None) -> int:
        """Return how many copies of the model an engine holds. ``engines``: how many online steps have."""
        engine, alone = self.config.engine, self.config.cluster.address is None and (engines or 1) == 1
        shares = self._on_vllm and not self.device.is_cpu and alone
        return engine.data_parallel or (max(self.devices // engine.tensor_parallel, 1) if shares else 1)

    @property
    def _program(self) -> Memory:
        return Memory(program=PROGRAM if self.device.is_cpu else 0.0)

    def _trained(self, settings: UpdateSettings) -> int:
        return self.shape.adapter(settings.lora or self._lora) or self.shape.parameters

    def _usual(self, sampling: SamplingConfig) -> tuple[float, float]:
        """Return the tokens that an utterance is taken to have, and its thought."""
        assumed = self.assumed
        return min(assumed.utterance, sampling.max_new_tokens), min(assumed.thought, sampling.thought_tokens)

    def _play_work(self, game: Game, sampling: SamplingConfig) -> Work:
        """Return what an average game reads and generates."""
        tokens, thought = self._usual(sampling)
        return play_work(game, tokens).with_thoughts(thought)

    def _growth(self, games: list[Game], sampling: SamplingConfig) -> float:
        """Return how many times longer texts would be if every thought and utterance were as long as it may be."""
        most = [play_work(game, sampling.max_new_tokens).with_thoughts(sampling.thought_tokens) for game in games]
        usual = [self._play_work(game, sampling) for game in games]
        return max(long.largest[0] / short.largest[0] for long, short in zip(most, usual, strict=True))

    def _engines(self, plays: Mapping[Game, int], sampling: SamplingConfig, models: int) -> Memory:
        text = max(self._play_work(game, sampling).largest[0] for game in plays)
        return play_memory(self.shape, self.config.engine, text, self.number, models, self._on_vllm)

    def _training(
        self, label: str, phase: PhaseConfig, settings: UpdateSettings, times: int, work: Work, growth: float = 1.0,
        beside: Memory | None = None, copies: int = 0,
    ) -> StagePlan:  # fmt: skip
        """Plan training on ``work``, with ``beside`` and ``copies`` of the trained weights in memory. ``growth``: how
        much longer samples may be.
        """
        settings, device = settings.model_copy(update={"lora": settings.lora or self._lora}), self.device
        processes = settings.processes or self.devices
        if isinstance(settings, OnlineSettings):
            updates = settings.steps * settings.updates
        elif isinstance(settings, OfflineSettings):
            updates = ceil(work.count / settings.global_batch_size)
        reference = get(phase.algorithm)(phase.settings, seed=0).needs.reference
        hours = training_hours(
            self.shape,
            settings,
            work,
            updates,
            device,
            processes,
            self.assumed,
            reference=reference,
            number=self.number,
        )

        def memory(settings: UpdateSettings, processes: int, scale: float = 1.0) -> Memory:
            size = settings.micro_batch_size
            fed = max(work.largest[0] * size / usual, work.length) * scale
            tokens = min(fed, size * getattr(settings, "max_length", fed)), work.largest[1] * size / usual * scale
            found = training_memory(self.shape, settings, *tokens, self.number, processes, resident=device.is_cpu)
            shards = processes if settings.parallel == "fsdp" else 1
            policies = Memory(policies=4.0 * self._trained(settings) * copies / shards)
            return found + policies + (beside or Memory()) + self._program

        usual, room = settings.micro_batch_size, device.memory / processes if device.is_cpu else device.memory * USABLE
        taken, hours = memory(settings, processes), hours + START_S[device.is_cpu] / 3600
        counts = ("samples", work.count, updates, work.games, work.fed)
        longest = memory(settings, processes, growth).total
        stage = StagePlan(label, times, *counts, hours, taken, room, longest=longest)
        if processes > self.devices and not device.is_cpu:
            stage.problems.append(f"processes={processes}, but there are {self.devices} GPUs")
        stage.problems.extend(refusals(settings, processes, self.config.model.dtype))
        if taken.total > room:
            stage.problems.append(_LACKS)
            dtype = self.config.model.dtype
            stage.advice.extend(advice(settings, processes, lambda *one: memory(*one).total, room, device, dtype))
        elif longest > room:
            stage.notes.append(f"{longest / GIB:.1f} GiB if every utterance were as long as it may be")
        if taken.host:
            stage.notes.append(f"CPU memory for offload: {taken.host * processes / GIB:,.0f} GiB in all")
        return stage

    def _play(
        self, name: str, times: int, plays: Mapping[Game, int], sampling: SamplingConfig, models: int,
        engines: int | None = None, loaded: int = 0,
    ) -> StagePlan:  # fmt: skip
        """Plan so many games of each game, by ``models`` models at once, or as many as are ``loaded``. ``engines``: how
        many online steps have; they use what GPUs they find.
        """
        engine, cluster, device, count = self.config.engine, self.config.cluster, self.device, self.devices
        copies = self._copies(engines)
        each = engine.tensor_parallel * copies
        workers = engines or ((cluster.workers or max(count // each, 1)) if cluster.address else 1)
        used, batch = workers * each, max(engine.concurrency / copies / models, 1.0)  # models alternate
        works = [self._play_work(game, sampling) * games for game, games in plays.items()]
        if self._on_vllm:  # it computes each request by itself
            works = [replace(work, trained=work.drawn) for work in works]
        options = (device, workers * copies, batch, self.number, self.assumed)
        hours = sum(play_hours(self.shape, engine, work, *options) for work in works) + START_S[device.is_cpu] / 3600
        memory = self._engines(plays, sampling, loaded or models) + self._program
        room = device.memory * ((engine.memory or GPU_MEMORY) if self._on_vllm else 1.0)
        tokens = sum(work.fed + work.drawn for work in works)
        stage = StagePlan(name, times, "games", sum(plays.values()), 0, 0, tokens, hours, memory, room)
        if memory.total > room:
            stage.problems.append(_LACKS)
            more = f"engine.tensor_parallel={2 * engine.tensor_parallel} halves the weights on each GPU"
            stage.advice.append(
                more if self._on_vllm else f"engine.concurrency={ceil(engine.concurrency / 2)}: half the cache"
            )
        if used > count and not device.is_cpu:
            stage.problems.append(f"the engines need {used} GPUs, but there are {count}")
        elif engines is None and count > 1:
            fix = "engine.data_parallel=null" if self._on_vllm else "cluster.address=local"  # one transformers engine
            idle = f"; {count - used} are idle: set {fix}" if used < count else ""
            each_has = f"{batch:.0f} utterances at once for each copy of the model (engine.concurrency)"
            stage.notes.append(f"{used} of {count} GPUs play, {each_has}{idle}")
        return stage
