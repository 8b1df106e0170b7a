"""A run's stages before any machine is rented: work, hours, memory of each GPU, and what to change where a stage does not fit."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from spag.config.schema import LoraConfig, RunConfig, TrainingConfig
from spag.games.registry import DEFAULT
from spag.planning.hours import Assumptions, EngineLayout, Inputs, PlayLoad, TrainingLoad, Workload, play_hours, training_hours
from spag.planning.memory import Memory, MicroBatch, quantized, slot_memory, training_memory, vllm_memory
from spag.planning.specs import GIB, GPU, ModelShape

Changes = dict[str, Any]
_LEAN: Changes = {"micro_batch_size": 1, "gradient_checkpointing": True}
_LEANER: tuple[Changes, ...] = ({}, {"micro_batch_size": 1}, {"gradient_checkpointing": True}, _LEAN)
_TOO_LARGE = "it needs more memory than a GPU has"


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage, ``times`` times over: ``count`` samples or games (``unit``), tokens and hours of one time.

    ``memory`` is the fullest moment of one GPU, ``room`` what may be filled, in bytes. ``problems`` say why the stage cannot run as
    configured (none: it fits), ``advice`` names the nearest settings that could, ``notes`` say what else is worth knowing.
    """

    name: str
    times: int
    unit: str
    count: int
    tokens: float
    hours: float
    memory: Memory
    room: float
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run on ``gpus`` GPUs of one kind, its stages one after another."""

    shape: ModelShape
    gpu: GPU
    gpus: int
    stages: tuple[StagePlan, ...]
    assumptions: Assumptions

    @property
    def fits(self) -> bool:
        return all(stage.fits for stage in self.stages)

    @property
    def hours(self) -> float:
        return sum(stage.hours * stage.times for stage in self.stages)

    @property
    def tokens(self) -> float:
        """Tokens read, trained and generated."""
        return sum(stage.tokens * stage.times for stage in self.stages)


def plan_run(
    config: RunConfig, shape: ModelShape, gpus: int, gpu: GPU, *, assumptions: Assumptions | None = None, inputs: Inputs | None = None
) -> Plan:
    """Plan the run that ``config`` describes, with a model of ``shape``, on ``gpus`` GPUs."""
    assumed = assumptions or Assumptions()
    planner = _Planner(config, shape, gpus, gpu, assumed, Workload(config, inputs or Inputs(), assumed))
    return Plan(shape, gpu, gpus, tuple(planner.stages()), assumed)


@dataclass(frozen=True, slots=True)
class _Planner:
    config: RunConfig
    shape: ModelShape
    gpus: int
    gpu: GPU
    assumed: Assumptions
    work: Workload

    def stages(self) -> Iterator[StagePlan]:
        config, work = self.config, self.work
        imitation = config.imitation.training
        # what imitation trained as an adapter is trained on as an adapter
        offline_rl = config.offline_rl.model_copy(update={"lora": config.offline_rl.lora or imitation.lora})
        both = 1 if imitation.lora else 2  # adapters share the weights of their base
        yield self.training("imitation", 1, imitation, work.imitation())
        if config.iterations:
            yield self.play("self-play", config.iterations, work.selfplay(), both if set(config.selfplay.opponents) - {"self"} else 1)
            yield self.training("offline RL", config.iterations, offline_rl, work.offline_rl())
        yield self.play("arena", 1, work.arena(), both)

    def training(self, name: str, times: int, training: TrainingConfig, load: TrainingLoad) -> StagePlan:
        processes = training.processes or self.gpus
        hours = training_hours(self.shape, training, load, self.gpu, processes, self.assumed) + self.assumed.stage_minutes / 60
        memory, room = self.training_memory(training, processes), self.gpu.memory * self.assumed.memory_share
        stage = StagePlan(name, times, "samples", load.samples, load.tokens, hours, memory, room)
        together = training.micro_batch_size * processes
        if processes > self.gpus:
            stage.problems.append(f"processes={processes}, but there are {self.gpus} GPUs")
        if training.parallel != "replicas" and quantized(training):
            what = "a model in 4 bits is not sharded; set parallel=replicas"
            stage.problems.append(f"parallel={training.parallel} with lora.quantize: {what}")
        if training.global_batch_size % together:
            what = f"is not a multiple of {together} (micro_batch_size x GPUs)"
            stage.problems.append(f"global_batch_size={training.global_batch_size} {what}")
        if memory.total > room:
            stage.problems.append(_TOO_LARGE)
            stage.advice.extend(training_advice(training, processes, self.training_memory, room))
        if memory.host:
            stage.notes.append(f"CPU memory for offload: {memory.host * processes / GIB:,.0f} GiB in all")
        if self.shape.custom_code:
            what = "its attention's memory is not counted, its rows are padded and all logits computed"
            stage.notes.append(f"the model brings its own code: {what}")
        return stage

    def training_memory(self, training: TrainingConfig, processes: int) -> Memory:
        size, longest = training.micro_batch_size, min(training.max_length, self.work.longest_text)
        trained = min(max(self.work.utterance_limits) + 1, longest)
        batch = MicroBatch(size * longest, size * trained)
        return training_memory(self.shape, training, batch, dtype=self.config.model.dtype, processes=processes)

    def play(self, name: str, times: int, load: PlayLoad, models: int) -> StagePlan:
        engine, assumed = self.config.engine, self.assumed
        layout = self._layout(models)
        hours = play_hours(self.shape, load, self.gpu, layout, self.config.model.dtype, assumed) + assumed.stage_minutes / 60
        memory, tokens = self._vllm_memory(models, engine.tensor_parallel) if layout.vllm else (self._slot_memory(models), 0)
        room = self.gpu.memory * ((engine.memory or 0.9) if layout.vllm else assumed.memory_share)
        stage = StagePlan(name, times, "games", load.games, load.prompt_tokens + load.new_tokens, hours, memory, room)
        if self.config.game.name != DEFAULT:
            stage.notes.append("turns, outcomes and tokens are assumed as in Adversarial Taboo; give this game's with --assume")
        used = layout.copies * layout.tensor_parallel
        if used > self.gpus:
            stage.problems.append(f"the engines need {used} GPUs, but there are {self.gpus}")
        if layout.vllm:
            self._check_cache(stage, layout, tokens, load.context)
        elif memory.total > room:
            stage.problems.append(_TOO_LARGE)
            stage.advice.append("engine.backend=vllm, or a lower engine.concurrency")
        if layout.vllm and self.gpus - used >= layout.tensor_parallel:
            copies = self.gpus // layout.tensor_parallel
            settings = f"engine.data_parallel={copies} and engine.concurrency={engine.concurrency * copies // layout.copies}"
            stage.notes.append(f"{self.gpus - used} of {self.gpus} GPUs play no games; set {settings}")
        return stage

    def _layout(self, models: int) -> EngineLayout:
        engine, cluster = self.config.engine, self.config.cluster
        if engine.backend == "transformers":
            return EngineLayout(1, 1, engine.concurrency, models, vllm=False)
        each = engine.tensor_parallel * engine.data_parallel
        workers = (cluster.workers or max(self.gpus // each, 1)) if cluster.address else 1
        return EngineLayout(workers * engine.data_parallel, engine.tensor_parallel, engine.concurrency / engine.data_parallel, models)

    def _slot_memory(self, models: int) -> Memory:
        config, assumed = self.config, self.assumed
        fed = round(assumed.instruction_tokens + assumed.utterance_tokens + assumed.name_tokens)
        slots, longest = config.engine.concurrency, self.work.longest_text
        return sum([slot_memory(self.shape, slots=slots, longest=longest, prefilled=fed, dtype=config.model.dtype)] * models, Memory())

    def _vllm_memory(self, models: int, tensor_parallel: int) -> tuple[Memory, int]:
        config = self.config
        engine = config.engine.model_copy(update={"tensor_parallel": tensor_parallel})
        lora = config.imitation.training.lora or config.offline_rl.lora
        adapter, working = 2 * self.shape.adapter(lora) if lora else 0, self.assumed.engine_gib * GIB
        return vllm_memory(self.shape, engine, self.gpu.memory, working, dtype=config.model.dtype, models=models, adapter=adapter)

    def _check_cache(self, stage: StagePlan, layout: EngineLayout, tokens: int, context: float) -> None:
        """Note how many games the cache holds, or why it cannot hold one text of ``engine.max_length``."""
        models, wanted = layout.models, self.config.engine.max_length
        length = min(wanted, self.shape.positions or wanted)
        if tokens >= length:
            in_flight = f"{layout.games / models:,.0f} are in flight"
            stage.notes.append(f"each engine's cache holds {tokens:,} tokens, about {tokens / context:,.0f} games; {in_flight}")
            return
        what = f"{models} models share a GPU" if models > 1 else "the model"
        room = f"weights leave the cache room for {max(tokens, 0):,} tokens, and a text may have {length:,}"
        stage.problems.append(f"{what}: {room}")
        wider = (n for n in (2, 4, 8) if self.shape.kv_heads % n == 0 and self._vllm_memory(models, n)[1] >= length)
        stage.advice.extend([f"engine.tensor_parallel={n}" + (f" with {n} GPUs" if n > self.gpus else "") for n in wider][:1])
        if models > 1:
            stage.advice.append("imitation.training.lora={}: adapters share one copy of the weights")


def training_advice(training: TrainingConfig, processes: int, memory_of: Callable[[TrainingConfig, int], Memory], room: float) -> list[str]:
    """Return what would make ``training`` fit into ``room`` bytes a GPU.

    The least change that computes the same on as many GPUs; where there is none, adapters instead of all weights, and more GPUs.
    """

    def first(candidates: Iterable[tuple[int, Changes]]) -> list[str]:
        for gpus, changes in candidates:
            new = {name: value for name, value in changes.items() if getattr(training, name) != value}
            chosen = training.model_copy(update=new)
            memory = memory_of(chosen, gpus)
            if chosen.global_batch_size % (chosen.micro_batch_size * gpus) == 0 and memory.total <= room:
                more = [f"{gpus} GPUs"] if gpus != processes else []
                return [f"{', '.join(more + [_setting(*one) for one in new.items()])}: {memory.total / GIB:.1f} GiB a GPU"]
        return []

    if quantized(training):
        return first((processes, changes) for changes in _LEANER)
    parallel = "fsdp" if training.parallel == "replicas" else training.parallel
    sharded: list[Changes] = [{"parallel": parallel, "offload": offload or training.offload} for offload in (False, True)]
    same = [*_LEANER, *(shard | lean for shard in sharded if processes > 1 for lean in _LEANER)]
    found = first((processes, changes) for changes in same)
    if found:
        return found
    lora = training.lora or LoraConfig()
    four_bits = {"lora": lora.model_copy(update={"quantize": True}), "parallel": "replicas", "offload": False}  # not sharded
    adapters: tuple[Changes, ...] = ({"lora": lora}, {"lora": lora, **_LEAN}, four_bits, {**four_bits, **_LEAN})
    more = ((gpus, {"parallel": parallel, **_LEAN}) for gpus in (2, 4, 8, 16, 32, 64, 128) if gpus > processes)
    return first((processes, changes) for changes in adapters) + first(more)


def _setting(name: str, value: Any) -> str:
    if isinstance(value, LoraConfig):
        return "lora={quantize: true} (QLoRA)" if value.quantize else "lora={}"
    return f"{name}={str(value).lower()}"
