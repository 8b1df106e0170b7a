"""A run's stages before it starts: work, hours and memory, and what to change if a stage does not fit."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import ceil, inf

from spag.algorithms import get
from spag.algorithms.online_settings import MovingReference, OnlineSettings
from spag.algorithms.settings import SELF, IterationSettings
from spag.config.schema import PhaseConfig, RunConfig
from spag.core.options import SamplingConfig
from spag.core.visible import counted
from spag.engines.players import Kind, kind_of
from spag.engines.vllm.setup import GPU_MEMORY, split_refusal
from spag.games.base import Game
from spag.games.registry import DEFAULT
from spag.planning.advice import advice
from spag.planning.hours import START_S, Assumptions, play_hours, training_hours
from spag.planning.memory import PROGRAM, Memory, play_memory, resident_memory, training_memory, transfer_memory
from spag.planning.samples import Work, games_work, iteration_work, online_work, teacher_work
from spag.planning.sharing import ASLEEP, USABLE, Sharing, engine_players, share_out, sleep_level
from spag.planning.specs import GIB, Device, ModelShape
from spag.planning.stage import StagePlan, adapter_count, phases_of
from spag.rollout.matchmaking import games_of_iteration
from spag.runs.layout import arena_entrants

Stages = list[StagePlan]


@dataclass(frozen=True)
class Planner:
    """Plans the run of ``config``, with a model of ``shape``, on ``devices`` GPUs or one CPU.

    ``host``: memory of the machine in bytes; if unknown, it is assumed to suffice.
    """

    config: RunConfig
    shape: ModelShape
    device: Device
    devices: int = 1
    assumed: Assumptions = field(default_factory=Assumptions)
    host: float = inf

    @property
    def on_gpu(self) -> bool:
        """Whether it is a plan for GPUs."""
        return not self.device.is_cpu

    @property
    def number(self) -> int:
        """Bytes per number in computation; ``auto`` is bfloat16 on a GPU, and the faster dtype on a CPU, by the rule of
        ``spag.models.loading.fastest_dtype``.
        """
        in_full = self.device.is_cpu and self.device.full_flops >= self.device.flops
        return 4 if self.config.model.dtype in ("float32", "auto" if in_full else "") else 2

    @property
    def on_vllm(self) -> bool:
        """Whether vLLM plays."""
        return self.config.engine.backend in (("vllm",) if self.device.is_cpu else ("vllm", "auto"))

    @property
    def splits(self) -> bool:
        """Whether engines can split a model over several GPUs: those of vLLM."""
        return self.on_vllm and self.on_gpu

    @cached_property
    def phases(self) -> dict[str, PhaseConfig]:
        """The phases by the names of their stages."""
        return phases_of(self.config)

    @cached_property
    def stages(self) -> Stages:
        """The stages in order: those of each phase, then the arena."""
        found: Stages = []
        for label, phase in self.phases.items():
            settings, game = phase.settings, self.config.game_of(phase).build()
            if isinstance(settings, OnlineSettings):
                found += self._online(label, phase, settings)
            elif isinstance(settings, IterationSettings):
                found += self._iterations(label, phase, settings, game)
            else:
                found += self._trained(label, 1, teacher_work(phase, settings, game))
        entrants, arena = arena_entrants(self.config), self.config.arena
        games = {self.config.game.build(): len(entrants) * (len(entrants) - 1) * arena.tasks}  # in both assignments
        return [*found, *self._played("arena", 1, self._games(games, arena.sampling), entrants)]

    def _advised(self, plan: Callable[["Planner"], Stages], label: str = "") -> Stages:
        """Return the stages that ``plan`` returns, of which one trains the phase of ``label``, with advice if they lack
        memory.
        """
        stages = plan(self)
        short = [at for at, one in enumerate(stages) if one.shortage]

        def fits(config: RunConfig, devices: int) -> float | None:
            then = plan(replace(self, config=config, devices=devices))
            return None if any(one.problems for one in then) else then[short[0]].memory.total

        if short:
            stages[short[0]].advice.extend(advice(self, label, fits))
        return stages

    def _trained(self, label: str, times: int, work: Work) -> Stages:
        """Plan training on samples that all exist."""
        return self._advised(lambda planner: [planner._training(label, times, work)], label)

    def _played(self, name: str, times: int, work: Work, players: Iterable[str]) -> Stages:
        """Plan play whose engines have the devices to themselves. Of ``players`` two meet in a game; adapters of one
        base share vLLM.
        """
        most = 1 if self.on_vllm and self.config.phases[0].settings.lora else 2
        models = max(1, min(most, sum(kind_of(one) in (Kind.LOCAL, Kind.MIXTURE) for one in players)))
        return self._advised(lambda planner: [planner._play(name, times, work, models)])

    def _iterations(
        self, label: str, phase: PhaseConfig, settings: IterationSettings, game: Game
    ) -> Iterator[StagePlan]:
        """Yield self-play and training of an iteration."""
        games = games_of_iteration(game, settings)
        play = self._games({game: games}, settings.sampling)
        yield from self._played(f"{label} self-play", settings.iterations, play, {SELF, *settings.opponents})
        own = settings.opponents.get(SELF, 0.0) / sum(settings.opponents.values())
        learned = games * (1 + own) / 2 * (self.assumed.decided if game.name == DEFAULT else 1.0)
        work = replace(iteration_work(phase, game, learned, *self._usual(settings.sampling)), growth=play.growth)
        yield from self._trained(label, settings.iterations, work)

    def _online(self, label: str, phase: PhaseConfig, online: OnlineSettings) -> Stages:
        """Plan play and training of all online steps."""
        mix = phase.mix(self.config.game_of(phase))
        evaluations = ceil(online.steps / (online.evaluate_every or 1))  # the last step has one
        tested = 2 * len(online.tested_against) * online.evaluation_tasks * evaluations
        share = online.steps * online.games / sum(weight for _, weight in mix)
        play = self._games({game: round(weight * share) + tested for game, weight in mix}, online.sampling)
        work = online_work(online, mix, *self._usual(online.sampling)) * (online.steps * online.epochs)
        work = replace(work, growth=play.growth)
        if not self.config.cluster.actors:
            return self._advised(lambda planner: planner._step(label, play, work), label)
        actors = self._advised(lambda planner: planner._step(label, play, work)[:1], label)  # on other GPUs
        return actors + self._advised(lambda planner: planner._step(label, play, work)[1:], label)

    def _step(self, label: str, play_work: Work, work: Work) -> Stages:
        """Plan play and training of all online steps. Engines and trainer stay loaded and alternate."""
        phase, engine, actors = self.phases[label], self.config.engine, self.config.cluster.actors
        online: OnlineSettings = phase.settings
        processes, is_sharded = online.processes or self.devices, online.parallel == "fsdp"
        engines = engine_players(online, together=self.on_vllm and online.lora is not None)
        share = ceil(online.games / (actors or processes))
        play = self._play(f"{label} play", 1, play_work, len(engines), actors or processes, share)
        needed = processes + actors * engine.gpus
        if actors and needed > self.devices and self.on_gpu:
            available = f"but only {self.devices} available"
            play.refusals.append(f"training and the actors that play need {needed} GPUs, {available}")
        in_file = not self.on_gpu and not isinstance(online.reference, MovingReference)  # a fixed reference
        reference = get(phase.algorithm)(online, seed=0).needs.reference and not in_file
        training = self._training(label, 1, work, copies=reference + (online.average_decay > 0))
        playing = resident_memory(training.memory, online, processes)
        if not online.lora and (self.on_vllm or is_sharded):
            playing += transfer_memory(self.shape, self.number, gathered=is_sharded)
        training = training.taking(max(training.memory, playing, key=lambda one: one.total), training.room)
        if actors:
            sharing = Sharing(len(engines), (engine.memory or GPU_MEMORY) / len(engines))
            return [replace(play, sharing=sharing) if self.on_vllm else play, training]
        if self.splits:
            return self._shared(play, training, playing, online, play_work)
        weights = 0.0 if online.lora else 4.0 * self.shape.parameters
        waiting = weights * online.overlap * (online.overlap > 1 and not self.on_gpu)  # for steps played ahead
        if not online.overlap and not self.on_vllm and not is_sharded and self.number == 4:
            waiting = -weights  # the policy's engine has the trainer's (``Engine.share_weights``)
        # an evaluation's transformers engines are closed before the next update
        held = engines if self.on_vllm else engine_players(online.model_copy(update={"evaluate_every": None}))
        beside = [self._engines(play_work, len(few)) + Memory(policies=waiting) for few in (engines, held)]
        room = training.room
        return [play.taking(playing + beside[0], room), training.taking(training.memory + beside[1], room)]

    def _shared(
        self, play: StagePlan, training: StagePlan, playing: Memory, online: OnlineSettings, work: Work
    ) -> Stages:
        """Return play and training, which share each GPU with vLLM; ``playing``: the trainer's memory meanwhile."""
        engine, gpu, processes = self.config.engine, self.device.memory, online.processes or self.devices
        engines, fewest = (len(engine_players(online, together=one)) for one in (online.lora is not None, True))
        least = self._engines(work, 1)
        at_once = min(engine.concurrency, ceil(online.games / processes))
        cache = max(least.cache, at_once * work.largest * self.shape.kv_bytes(self.number, engine.tensor_parallel))
        weights = self.number * self.shape.parameters * engines * processes
        shared = partial(
            share_out, gpu, least=least.total, roomy=least.total - least.cache + cache, resident=playing.total,
            training=training.memory.total, share=engine.memory, sleep=sleep_level(online, weights, self.host),
        )  # fmt: skip
        sharing = shared(engines)
        # copies of the policy may take turns in one engine if the trainer's weights are whole and constant in play
        if sharing.shortage and fewest < engines and not online.overlap and online.parallel == "replicas":
            turns = shared(fewest)
            sharing = sharing if turns.shortage else replace(turns, in_turn=True)
        awake = gpu * sharing.each * sharing.engines
        play = replace(play, sharing=sharing).taking(playing + Memory(engines=awake), training.room)
        if not sharing.shortage:
            play.notes.append(sharing.describe())
        beside = sharing.engines * ASLEEP if sharing.sleep else awake
        return [play, training.taking(training.memory + Memory(engines=beside), training.room)]

    def _at_work(self, processes: int) -> int:
        """Return how many devices ``processes`` use: on one machine without GPUs they share its cores."""
        return 1 if self.device.is_cpu and self.config.cluster.address in (None, "local") else processes

    def _usual(self, sampling: SamplingConfig) -> tuple[float, float]:
        """Return the assumed tokens of an utterance, and of its thought."""
        return min(self.assumed.utterance, sampling.max_new_tokens), min(self.assumed.thought, sampling.thought_tokens)

    def _games(self, plays: dict[Game, int], sampling: SamplingConfig) -> Work:
        """Return the work of playing so many of each game; vLLM computes each request separately."""
        return games_work(plays, sampling, *self._usual(sampling), merged=not self.on_vllm)

    def _engines(self, play: Work, models: int) -> Memory:
        return play_memory(self.shape, self.config.engine, play.largest, self.number, models, self.on_vllm)

    def _training(self, label: str, times: int, work: Work, copies: int = 0) -> StagePlan:
        """Plan training on ``work``, with ``copies`` of the trained weights in memory."""
        phase, shape, on_gpu = self.phases[label], self.shape, self.on_gpu
        settings, processes = phase.settings, phase.settings.processes or self.devices
        online = isinstance(settings, OnlineSettings)
        updates = settings.steps * settings.updates if online else ceil(work.count / settings.global_batch_size)
        hours = START_S[self.device.is_cpu] / 3600 + training_hours(
            shape, settings, work, updates, self.device, self._at_work(processes), self.assumed,
            number=self.number, reference=get(phase.algorithm)(settings, seed=0).needs.reference,
        )  # fmt: skip
        size, adapters = settings.micro_batch_size, adapter_count(phase, self.config.game_of(phase))
        fed = max(work.largest * size, work.length) * work.growth
        fed = min(fed, size * getattr(settings, "max_length", inf))
        trained = fed * work.trained / work.fed
        memory = training_memory(
            shape, settings, fed, trained, self.number, processes, on_gpu=on_gpu, adapters=adapters
        )
        weights = 4.0 * (adapters * shape.adapter(settings.lora) or shape.parameters)
        more = weights * copies / (processes if settings.parallel == "fsdp" else 1)
        memory += Memory(policies=more, program=0.0 if on_gpu else PROGRAM)
        stage = StagePlan(label, times, "samples", work.count, updates, work.games, work.fed, hours)
        if processes > self.devices and on_gpu:
            stage.refusals.append(f"processes={processes}, but only {counted(self.devices, 'GPU')}")
        stage.refusals.extend(settings.refusals(self.config.model.dtype))
        if memory.host:
            offloaded = f"CPU memory for offload: {memory.host * processes / GIB:,.0f} GiB in all"
            stage.notes.append(offloaded)
            if memory.host * processes > self.host:
                stage.refusals.append(f"{offloaded}, but only {self.host / GIB:,.0f} available")
        return stage.taking(memory, self.device.memory * USABLE if on_gpu else self.device.memory / processes)

    def _play(
        self, name: str, times: int, work: Work, models: int, engines: int = 0, at_once: float = inf
    ) -> StagePlan:
        """Plan play by engines with ``models`` models each. ``engines``: the number of engines of online steps, which
        use the GPUs that they find; ``at_once``: the games of each in a step, which are fewer than it may play.
        """
        engine, cluster, device, count = self.config.engine, self.config.cluster, self.device, self.devices
        alone = self.splits and not cluster.address and engines < 2
        copies = engine.data_parallel or (max(count // engine.tensor_parallel, 1) if alone else 1)
        each = engine.tensor_parallel * copies
        workers = engines or ((cluster.workers or max(count // each, 1)) if cluster.address else 1)
        # models alternate, and a game waits for one utterance
        used, batch = workers * each, max(min(engine.concurrency, at_once) / copies / (1 if engines else models), 1.0)
        sizes = device, self._at_work(workers * copies), batch, self.number, self.assumed
        hours = START_S[device.is_cpu] / 3600 + play_hours(self.shape, engine, work, *sizes)
        stage = StagePlan(name, times, "games", work.count, 0, 0, work.fed + work.trained, hours)
        if self.on_vllm and (refusal := split_refusal(self.shape.heads, self.shape.kv_heads, engine.tensor_parallel)):
            stage.refusals.append(refusal)
        if used > count and self.on_gpu:
            stage.refusals.append(f"the engines need {used} GPUs, but only {count} available")
        elif not engines and count > 1:
            idle = f"; {count - used} are idle{self._fix_for_idle()}" if used < count else ""
            at_once_each = f"{batch:.0f} utterances at once for each copy of the model (engine.concurrency)"
            stage.notes.append(f"{used} of {count} GPUs play, {at_once_each}{idle}")
        memory = self._engines(work, models) + Memory(program=0.0 if self.on_gpu else PROGRAM)
        return stage.taking(memory, device.memory * ((engine.memory or GPU_MEMORY) if self.on_vllm else 1.0))

    def _fix_for_idle(self) -> str:
        """Return the setting that lets idle GPUs play, if there is one."""
        engine, cluster = self.config.engine, self.config.cluster
        if cluster.address is None and not self.on_vllm:  # it has one engine
            return ": set cluster.address=local"
        if cluster.address is not None and cluster.workers:
            return ": set cluster.workers=null"
        return ": set engine.data_parallel=null" if engine.data_parallel else ""
