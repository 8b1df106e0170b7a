"""A run's stages before it starts: work, hours and memory, and what to change where a stage does not fit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any

from spag.algorithms import get
from spag.algorithms.settings import (
    SELF,
    SNAPSHOT,
    START,
    IterationSettings,
    LoraConfig,
    OfflineSettings,
    OnlineSettings,
    UpdateSettings,
)
from spag.config.schema import PhaseConfig, RunConfig
from spag.core.types import Split
from spag.games.base import Game
from spag.games.registry import DEFAULT
from spag.planning.hours import START_S, Assumptions, play_hours, training_hours
from spag.planning.memory import PROGRAM, Memory, play_memory, training_memory
from spag.planning.samples import Work, iteration_work, online_work, play_work, teacher_work
from spag.planning.specs import GIB, Device, ModelShape
from spag.runs.plan import PlannedModel, arena_entrants, planned_models

_USABLE = 0.92
"""Share of a GPU's memory that training can fill; the rest is the driver's, CUDA's context, fragments: a guess."""
_LACKS = "it needs more memory than there is"


def label_of(model: PlannedModel) -> str:
    """Return what a run calls the phase of a model: its algorithm, numbered where several phases have it."""
    return model.name if model.iteration is None else model.name.rpartition("-")[0]


def labels(config: RunConfig) -> list[str]:
    """Return what a run calls its phases, in order; their stages are named by that."""
    return list(dict.fromkeys(map(label_of, planned_models(config))))


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage, ``times`` times over: ``count`` samples or games (``unit``), updates, the games that are learned from,
    tokens and hours of one time.

    ``memory`` is what it takes of a GPU or process, ``room`` what it may fill, in bytes. ``problems`` say why it cannot
    run as configured (none: it fits), ``advice`` names the nearest settings with which it could.
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
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Planner:
    """Plans the run that ``config`` describes, with a model of ``shape``, on ``devices`` GPUs or one CPU."""

    config: RunConfig
    shape: ModelShape
    device: Device
    devices: int = 1
    assumed: Assumptions = field(default_factory=Assumptions)

    @cached_property
    def stages(self) -> list[StagePlan]:
        """The stages in their order: those of each phase, then the arena."""
        found: list[StagePlan] = []
        for label, phase in zip(labels(self.config), self.config.phases, strict=True):
            settings, game = phase.settings, self.config.game_of(phase).build()
            if isinstance(settings, OnlineSettings):
                found += self._online(label, phase, settings)
            elif isinstance(settings, IterationSettings):
                found += self._iterations(label, phase, settings, game)
            else:
                found.append(self._training(label, phase, settings, 1, teacher_work(phase, settings, game)))
        entrants, arena = len(arena_entrants(self.config)), self.config.arena
        plays = {self.config.game.build(): entrants * (entrants - 1) * arena.tasks}  # each pair, in both assignments
        return [*found, self._play("arena", 1, plays, arena.sampling.max_new_tokens, 1 if self._lora else 2)]

    def _iterations(
        self, label: str, phase: PhaseConfig, settings: IterationSettings, game: Game
    ) -> Iterator[StagePlan]:
        """Yield play and training of a phase with iterations."""
        games = (settings.tasks or len(game.tasks(Split.TRAIN, None, 0))) * settings.repeats
        models = 1 if self._lora or set(settings.opponents) <= {SELF} else 2
        longest = max(one.max_new_tokens for one in (settings.sampling, *settings.sampling_by_role.values()))
        yield self._play(f"{label} self-play", settings.iterations, {game: games}, longest, models)
        own = settings.opponents.get(SELF, 0.0) / sum(settings.opponents.values())
        learned = games * (1 + own) / 2 * (self.assumed.decided if game.name == DEFAULT else 1.0)
        work = iteration_work(phase, game, learned, self._tokens(longest))
        yield self._training(label, phase, settings, settings.iterations, work, self._growth([game], longest))

    def _online(self, label: str, phase: PhaseConfig, online: OnlineSettings) -> Iterator[StagePlan]:
        """Yield play and training of all online steps. Engines and trainer stay loaded, and alternate."""
        mix, longest = phase.mix(self.config.game_of(phase)), online.sampling.max_new_tokens
        tests = online.evaluation_opponents if online.evaluate_every else []
        tested = 2 * len(tests) * online.evaluation_tasks * (online.steps // (online.evaluate_every or 1))
        share = online.steps * online.games / sum(weight for _, weight in mix)
        plays = {game: round(weight * share) + tested for game, weight in mix}
        engine, cluster, processes = self.config.engine, self.config.cluster, online.processes or self.devices
        actors = (cluster.online_workers or 0) if cluster.address else 0
        play = self._play(f"{label} play", 1, plays, longest, 1, actors or processes)
        needs = get(phase.algorithm)(online, seed=0).needs
        trained = self.shape.adapter(online.lora or self._lora) or self.shape.parameters
        beside = Memory(policies=4.0 * trained * (needs.reference + (online.average_decay > 0)))
        if not actors:
            beside += self._engines(plays, longest, 1 + bool({START, SNAPSHOT} & {*online.opponents, *tests}))
        if actors and (needed := processes + actors * engine.tensor_parallel * self._copies(actors)) > self.devices:
            play.problems.append(f"training and the actors that play need {needed} GPUs, but there are {self.devices}")
        work = online_work(online, mix, self._tokens(longest)) * (online.steps * online.epochs)
        growth = self._growth([game for game, _ in mix], longest)
        training = self._training(label, phase, online, 1, work, growth, beside)
        free = 0.95 - (training.memory.total - beside.total) / self.device.memory
        if self._on_vllm and 0.05 < free < (engine.memory or 0.9) and not actors:
            play.notes.append(f"engine and trainer share each GPU: set engine.memory={free:.2f} or less")
        yield from (play, training)

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

    def _tokens(self, longest: int) -> float:
        return min(self.assumed.utterance, longest)

    def _growth(self, games: list[Game], longest: int) -> float:
        """Return how many times longer texts would be if every utterance were as long as it may be."""
        return max(play_work(game, longest).length / play_work(game, self._tokens(longest)).length for game in games)

    def _engines(self, plays: Mapping[Game, int], longest: int, models: int) -> Memory:
        text = max(play_work(game, self._tokens(longest)).largest[0] for game in plays)
        return play_memory(self.shape, self.config.engine, text, self.number, models, self._on_vllm)

    def _training(
        self, label: str, phase: PhaseConfig, settings: UpdateSettings, times: int, work: Work, growth: float = 1.0,
        beside: Memory | None = None,
    ) -> StagePlan:  # fmt: skip
        """Plan training on ``work``, with ``beside`` in memory. ``growth``: how much longer samples may be."""
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
            return found + (beside or Memory()) + self._program

        usual, room = settings.micro_batch_size, device.memory / processes if device.is_cpu else device.memory * _USABLE
        taken, hours = memory(settings, processes), hours + START_S[device.is_cpu] / 3600
        counts = ("samples", work.count, updates, work.games, work.fed)
        stage = StagePlan(label, times, *counts, hours, taken, room)
        if processes > self.devices and not device.is_cpu:
            stage.problems.append(f"processes={processes}, but there are {self.devices} GPUs")
        stage.problems.extend(_refusals(settings, processes, self.config.model.dtype))
        if taken.total > room:
            stage.problems.append(_LACKS)
            stage.advice.extend(self._advice(settings, processes, lambda *one: memory(*one).total, room))
        elif (whole := memory(settings, processes, growth).total) > room:
            stage.notes.append(f"{whole / GIB:.1f} GiB if every utterance were as long as it may be")
        if taken.host:
            stage.notes.append(f"CPU memory for offload: {taken.host * processes / GIB:,.0f} GiB in all")
        return stage

    def _advice(
        self, settings: UpdateSettings, processes: int, memory: Callable[[UpdateSettings, int], float], room: float
    ) -> Iterator[str]:
        """Yield the nearest settings that fit, and the number of GPUs where others are needed."""
        device, dtype = self.device, self.config.model.dtype
        lean: dict[str, Any] = {"micro_batch_size": 1, "gradient_checkpointing": True}
        sharded, lora = lean | {"parallel": "fsdp"}, settings.lora or LoraConfig()
        quantized = {"lora": lora.model_copy(update={"quantize": True}), "parallel": "replicas", "offload": False}
        changes: list[dict[str, Any]] = [{"micro_batch_size": 1}, {"gradient_checkpointing": True}, lean]
        if processes > 1 and not device.is_cpu:
            changes += [{"parallel": "fsdp"}, sharded, sharded | {"offload": True}]
        changes += [lean | {"lora": lora}, *([] if device.is_cpu else [lean | quantized])]
        more = [count for count in (2, 4, 8, 16, 32) if count > processes and not device.is_cpu]
        for count, one in [*((processes, one) for one in changes), *((count, sharded) for count in more)]:
            new = {name: value for name, value in one.items() if getattr(settings, name) != value}
            chosen = settings.model_copy(update=new)
            if (taken := memory(chosen, count)) <= room and not any(_refusals(chosen, count, dtype)):
                said = [f"{count} GPUs"] * (count != processes) + [_setting(*pair) for pair in new.items()]
                yield f"{', '.join(said)}: {taken / GIB:.1f} GiB each"
                if chosen.lora == settings.lora:
                    return  # an adapter is another training: what trains the same weights is named too

    def _play(
        self, name: str, times: int, plays: Mapping[Game, int], longest: int, models: int, engines: int | None = None
    ) -> StagePlan:
        """Plan so many games of each game, by ``models`` models at once. ``engines``: how many online steps have; they
        use what GPUs they find.
        """
        engine, cluster, device, count = self.config.engine, self.config.cluster, self.device, self.devices
        copies = self._copies(engines)
        each = engine.tensor_parallel * copies
        workers = engines or ((cluster.workers or max(count // each, 1)) if cluster.address else 1)
        used, batch = workers * each, max(engine.concurrency / copies / models, 1.0)  # models alternate
        works = [play_work(game, self._tokens(longest)) * games for game, games in plays.items()]
        if self._on_vllm:  # it computes each request by itself
            works = [replace(work, trained=work.drawn) for work in works]
        options = (device, workers * copies, batch, self.number, self.assumed)
        hours = sum(play_hours(self.shape, engine, work, *options) for work in works) + START_S[device.is_cpu] / 3600
        memory = self._engines(plays, longest, models) + self._program
        room = device.memory * ((engine.memory or 0.9) if self._on_vllm else 1.0)
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


def _refusals(settings: UpdateSettings, processes: int, dtype: str) -> Iterator[str]:
    """Yield why training refuses its settings on so many processes, as ``spag.learning.devices`` does; that imports
    torch.
    """
    kind, lora = settings.parallel, settings.lora
    together = settings.micro_batch_size * processes
    if isinstance(settings, OfflineSettings) and settings.global_batch_size % together:
        what = f"is not a multiple of {together} (micro_batch_size x processes)"
        yield f"global_batch_size={settings.global_batch_size} {what}"
    if kind != "replicas" and lora is not None and lora.quantize:
        yield f"parallel={kind} with lora.quantize: a model in 4 bits is not sharded; set parallel=replicas"
    if kind != "replicas" and settings.per_role:
        yield f"parallel={kind} with lora.per_role: adapters take turns in whole models; set parallel=replicas"
    if kind == "fsdp" and dtype == "float16":
        yield "parallel=fsdp with model.dtype=float16: set model.dtype to bfloat16 or float32"


def _setting(name: str, value: Any) -> str:
    if isinstance(value, LoraConfig):
        return "lora={quantize: true}" if value.quantize else "lora={}"
    return f"{name}={str(value).lower()}"
