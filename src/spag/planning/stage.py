"""A stage of a run before it starts: work, hours and memory of play or training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

from spag.algorithms import get
from spag.algorithms import names as algorithm_names
from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import LoraConfig
from spag.config.refusals import training_refusals
from spag.config.schema import GameConfig, PhaseConfig, RunConfig
from spag.core.options import SamplingConfig
from spag.engines.vllm.setup import GPU_MEMORY, split_refusal
from spag.games.base import Game
from spag.planning.engines import USABLE, Sharing
from spag.planning.hours import START_S, Assumptions, play_hours, training_hours
from spag.planning.memory import PROGRAM, Memory, play_memory, training_memory
from spag.planning.samples import Work, longest_text, play_work
from spag.planning.specs import GIB, Device, ModelShape
from spag.runs.layout import planned_models

LACKS = "it needs more memory than there is"
_NOTHING = Memory()


def adapter_count(phase: PhaseConfig, game: GameConfig) -> int:
    """Return how many adapters a phase of ``game`` trains, if it trains adapters: one, or one for each role."""
    return sum(len(one.roles) for one, _ in phase.mix(game)) if phase.settings.per_role else 1


def labels(config: RunConfig) -> list[str]:
    """Return a run's names for its phases, in order; their stages are named after them."""
    return list(dict.fromkeys(model.label for model in planned_models(config)))


def with_adapters(config: RunConfig) -> RunConfig:
    """Return a run whose phases name the adapter that they train: later phases train the first one further."""
    first: LoraConfig | None = None
    phases: list[PhaseConfig] = []
    for phase in config.phases:
        own: LoraConfig | None = phase.settings.lora
        first = first or own
        loading = {"quantize": own is not None and own.quantize, "per_role": phase.settings.per_role}
        phases.append(phase.model_copy(update={"lora": first and first.model_copy(update=loading)}))
    return config.model_copy(update={"phases": phases})


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage, repeated ``times`` times: ``count`` samples or games (``unit``), updates, games learned from, tokens
    and hours, each per repetition.

    ``memory`` is its use of a GPU or process, in bytes: training's if every utterance has the maximum length, play's if
    they have the usual one; ``room`` is the available memory. ``problems`` say why it cannot run as configured (none:
    it fits), ``advice`` names the nearest settings with which it could. ``engines``: those of online play next to a
    trainer on each GPU; ``sharing``: how they share it.
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
    engines: int = 0
    sharing: Sharing | None = None
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StagePlanner:
    """Plans single stages of the run of ``config``, with a model of ``shape``, on ``devices`` GPUs or one CPU.

    ``host``: memory of the machine in bytes; if unknown, it is assumed to suffice.
    """

    config: RunConfig
    shape: ModelShape
    device: Device
    devices: int = 1
    assumed: Assumptions = field(default_factory=Assumptions)
    host: float = inf

    @property
    def number(self) -> int:
        """Bytes per number in computation; ``auto`` is bfloat16 on a GPU, and the faster dtype on a CPU."""
        return 4 if self.config.model.dtype in ("float32", "auto" if self.device.prefers_float32 else "") else 2

    @property
    def on_vllm(self) -> bool:
        """Whether vLLM plays."""
        return self.config.engine.backend in (("vllm",) if self.device.is_cpu else ("vllm", "auto"))

    @property
    def _program(self) -> Memory:
        return Memory(program=PROGRAM if self.device.is_cpu else 0.0)

    def phase(self, label: str) -> PhaseConfig:
        """Return the phase of a label, with the adapter that it trains."""
        return with_adapters(self.config).phases[labels(self.config).index(label)]

    def place_of(self, label: str) -> str:
        """Return the option that a phase's options are below."""
        return label if label in algorithm_names() else f"phases.{labels(self.config).index(label)}"

    def _copies(self, engines: int | None = None) -> int:
        """Return how many copies of the model an engine holds. ``engines``: the number of engines of online steps."""
        engine, alone = self.config.engine, self.config.cluster.address is None and (engines or 1) == 1
        shares = self.on_vllm and not self.device.is_cpu and alone
        return engine.data_parallel or (max(self.devices // engine.tensor_parallel, 1) if shares else 1)

    def _at_work(self, processes: int) -> int:
        """Return how many devices ``processes`` use: on one machine without GPUs they share its cores."""
        return 1 if self.device.is_cpu and self.config.cluster.address in (None, "local") else processes

    def _usual(self, sampling: SamplingConfig) -> tuple[float, float]:
        """Return the assumed tokens of an utterance, and of its thought."""
        return min(self.assumed.utterance, sampling.max_new_tokens), min(self.assumed.thought, sampling.thought_tokens)

    def _play_work(self, game: Game, sampling: SamplingConfig) -> Work:
        """Return the tokens that an average game reads and generates."""
        tokens, thought = self._usual(sampling)
        return play_work(game, tokens).with_thoughts(thought)

    def _at_most(self, work: Work, games: Sequence[Game], sampling: SamplingConfig) -> Work:
        """Return the training ``work`` with the memory of thoughts and utterances of maximum length."""
        most = [longest_text(game, sampling.max_new_tokens) + sampling.thought_tokens for game in games]
        usual = [self._play_work(game, sampling).largest[0] for game in games]
        return replace(work, growth=max(long / short for long, short in zip(most, usual, strict=True)))

    def _engines(self, plays: Mapping[Game, int], sampling: SamplingConfig, models: int) -> Memory:
        text = max(self._play_work(game, sampling).largest[0] for game in plays)
        return play_memory(self.shape, self.config.engine, text, self.number, models, self.on_vllm)

    def _training(self, label: str, times: int, work: Work, beside: Memory = _NOTHING, copies: int = 0) -> StagePlan:
        """Plan training on ``work``, with ``beside`` and ``copies`` of the trained weights in memory."""
        phase, gpu = self.phase(label), not self.device.is_cpu
        settings = phase.settings
        processes = settings.processes or self.devices
        online = isinstance(settings, OnlineSettings)
        updates = settings.steps * settings.updates if online else ceil(work.count / settings.global_batch_size)
        hours = START_S[self.device.is_cpu] / 3600 + training_hours(
            self.shape, settings, work, updates, self.device, self._at_work(processes), self.assumed,
            number=self.number, reference=get(phase.algorithm)(settings, seed=0).needs.reference,
        )  # fmt: skip
        room = self.device.memory * USABLE if gpu else self.device.memory / processes
        taken = self._training_memory(phase, work, copies) + beside + self._program
        stage = StagePlan(label, times, "samples", work.count, updates, work.games, work.fed, hours, taken, room)
        if processes > self.devices and gpu:
            stage.problems.append(f"processes={processes}, but there are {self.devices} GPUs")
        stage.problems.extend(training_refusals(settings, self.config.model.dtype))
        if taken.total > room:
            stage.problems.append(LACKS)
        if taken.host:
            stage.notes.append(f"CPU memory for offload: {taken.host * processes / GIB:,.0f} GiB in all")
        return stage

    def _training_memory(self, phase: PhaseConfig, work: Work, copies: int) -> Memory:
        """Return the memory of training on ``work``, whose micro-batches may have had another size, and of ``copies``
        of the trained weights.
        """
        settings, size = phase.settings, phase.settings.micro_batch_size
        processes, adapters = settings.processes or self.devices, adapter_count(phase, self.config.game_of(phase))
        fed, trained = (most * size / work.size * work.growth for most in work.largest)
        fed = min(max(fed, work.length * work.growth), size * getattr(settings, "max_length", inf))
        sizes, gpu = (fed, trained, self.number, processes), not self.device.is_cpu
        found = training_memory(self.shape, settings, *sizes, on_gpu=gpu, adapters=adapters)
        weights = 4.0 * (adapters * self.shape.adapter(settings.lora) or self.shape.parameters)
        return found + Memory(policies=weights * copies / (processes if settings.parallel == "fsdp" else 1))

    def _play(
        self, name: str, times: int, plays: Mapping[Game, int], sampling: SamplingConfig, models: int,
        engines: int | None = None, loaded: int = 0, at_once: float = inf,
    ) -> StagePlan:  # fmt: skip
        """Plan this many episodes of each game, by ``models`` models at once, or as many as are ``loaded``.
        ``engines``: the number of engines of online steps, which use the GPUs that they find; ``at_once``: the games
        of each in a step, which are fewer than it may play.
        """
        engine, cluster, device, count = self.config.engine, self.config.cluster, self.device, self.devices
        copies = self._copies(engines)
        each = engine.tensor_parallel * copies
        workers = engines or ((cluster.workers or max(count // each, 1)) if cluster.address else 1)
        # models alternate, and a game waits for one utterance
        used, batch = workers * each, max(min(engine.concurrency, at_once) / copies / models, 1.0)
        works = [self._play_work(game, sampling) * games for game, games in plays.items()]
        if self.on_vllm:  # it computes each request separately
            works = [replace(work, trained=work.drawn) for work in works]
        options = device, self._at_work(workers * copies), batch, self.number, self.assumed
        hours = sum(play_hours(self.shape, engine, work, *options) for work in works) + START_S[device.is_cpu] / 3600
        memory = self._engines(plays, sampling, loaded or models) + self._program
        room = device.memory * ((engine.memory or GPU_MEMORY) if self.on_vllm else 1.0)
        tokens = sum(work.fed + work.drawn for work in works)
        stage = StagePlan(name, times, "games", sum(plays.values()), 0, 0, tokens, hours, memory, room)
        if self.on_vllm and (refusal := split_refusal(self.shape.heads, self.shape.kv_heads, engine.tensor_parallel)):
            stage.problems.append(refusal)
        if memory.total > room:
            stage.problems.append(LACKS)
        if used > count and not device.is_cpu:
            stage.problems.append(f"the engines need {used} GPUs, but there are {count}")
        elif engines is None and count > 1:
            each_has = f"{batch:.0f} utterances at once for each copy of the model (engine.concurrency)"
            stage.notes.append(f"{used} of {count} GPUs play, {each_has}{self._idle(count - used)}")
        return stage

    def _idle(self, gpus: int) -> str:
        """Say how many GPUs are idle, if any, and which setting lets them play, if there is one."""
        engine, cluster, fix = self.config.engine, self.config.cluster, ""
        if cluster.address is None and not self.on_vllm:  # it has one engine
            fix = ": set cluster.address=local"
        elif cluster.address is not None and cluster.workers:
            fix = ": set cluster.workers=null"
        elif engine.data_parallel:
            fix = ": set engine.data_parallel=null"
        return f"; {gpus} are idle{fix}" if gpus else ""
