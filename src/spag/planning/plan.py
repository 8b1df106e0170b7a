"""What a run takes, stage by stage, before any machine is rented: ``plan_run``. Pure arithmetic on the config and the model's shape."""

from dataclasses import dataclass
from enum import StrEnum

from spag.config.schema import RunConfig, TrainingConfig
from spag.planning.assumptions import Assumptions
from spag.planning.costs import Tables, play_hours, training_hours
from spag.planning.gpus import GIB, GPU
from spag.planning.memory import Memory, MicroBatch, training_memory
from spag.planning.playing import slot_memory, vllm_memory
from spag.planning.remedies import training_remedies
from spag.planning.shapes import ModelShape
from spag.planning.workload import (
    Inputs,
    PlayLoad,
    TrainingLoad,
    arena_load,
    imitation_load,
    longest_sample,
    longest_text,
    offline_rl_load,
    selfplay_load,
)


class Unit(StrEnum):
    """What a stage counts."""

    SAMPLES = "samples"
    GAMES = "games"


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage, ``times`` times over: ``count`` samples or games, tokens and hours of one time.

    ``memory`` is the fullest moment of one GPU, ``room`` what may be filled, in bytes. ``faults`` say why the stage cannot run as
    configured (empty: it fits), ``remedies`` the nearest settings that could, ``notes`` what else is worth knowing.
    """

    name: str
    times: int
    unit: Unit
    count: int
    tokens: float
    hours: float
    memory: Memory
    room: float
    faults: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.faults


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run on ``gpus`` GPUs of one kind."""

    shape: ModelShape
    gpu: GPU
    gpus: int
    stages: tuple[StagePlan, ...]
    assumptions: Assumptions

    @property
    def fits(self) -> bool:
        """Whether every stage can run as configured."""
        return all(stage.fits for stage in self.stages)

    @property
    def hours(self) -> float:
        """Hours of all stages, one after another."""
        return sum(stage.hours * stage.times for stage in self.stages)

    @property
    def tokens(self) -> float:
        """Tokens read, trained and generated."""
        return sum(stage.tokens * stage.times for stage in self.stages)


def plan_run(
    config: RunConfig,
    shape: ModelShape,
    gpus: int,
    gpu: GPU,
    *,
    assumptions: Assumptions | None = None,
    inputs: Inputs | None = None,
) -> Plan:
    """Plan the run that ``config`` describes, with a model of ``shape``, on ``gpus`` GPUs."""
    planner = _Planner(config, shape, gpus, gpu, assumptions or Assumptions(), inputs or Inputs())
    return Plan(shape, gpu, gpus, planner.stages(), planner.assumptions)


@dataclass(frozen=True, slots=True)
class _Planner:
    config: RunConfig
    shape: ModelShape
    gpus: int
    gpu: GPU
    assumptions: Assumptions
    inputs: Inputs

    def stages(self) -> tuple[StagePlan, ...]:
        config, given, taken = self.config, self.inputs, self.assumptions
        imitation = config.imitation.training
        # what imitation trained as an adapter is trained on as an adapter
        offline_rl = config.offline_rl.model_copy(update={"lora": config.offline_rl.lora or imitation.lora})
        others = set(config.selfplay.opponents) - {"self"}
        found = [self.training("imitation", 1, imitation, imitation_load(config, given, taken))]
        if config.iterations:
            found += [
                self.play("self-play", config.iterations, selfplay_load(config, given, taken), 2 if others and not imitation.lora else 1),
                self.training("offline RL", config.iterations, offline_rl, offline_rl_load(config, given, taken)),
            ]
        found.append(self.play("arena", 1, arena_load(config, taken), 1 if imitation.lora else 2))
        return tuple(found)

    def training(self, name: str, times: int, training: TrainingConfig, load: TrainingLoad) -> StagePlan:
        processes = training.processes or self.gpus
        room = self.gpu.memory * self.assumptions.memory_share

        def memory_of(chosen: TrainingConfig, gpus: int) -> Memory:
            longest = longest_sample(self.config, chosen, self.assumptions)
            said = max(self.config.selfplay.attacker.max_new_tokens, self.config.selfplay.defender.max_new_tokens)
            batch = MicroBatch(chosen.micro_batch_size * longest, chosen.micro_batch_size * min(said + 1, longest))
            return training_memory(self.shape, chosen, batch, dtype=self.config.model.dtype, processes=gpus)

        memory = memory_of(training, processes)
        faults = self._training_faults(training, processes)
        remedies: tuple[str, ...] = ()
        if memory.total > room:
            faults += ("it needs more memory than a GPU has",)
            remedies = training_remedies(training, processes, memory_of, room)
        notes: tuple[str, ...] = (f"CPU memory for offload: {memory.host * processes / GIB:,.0f} GiB in all",) if memory.host else ()
        if self.shape.own_code:
            notes += ("the model brings its own code: its attention's memory is not counted, its rows are padded and all logits computed",)
        hours = training_hours(self.shape, training, load, self.gpu, processes, self.assumptions) + self.assumptions.stage_minutes / 60
        return StagePlan(name, times, Unit.SAMPLES, load.samples, load.tokens, hours, memory, room, faults, remedies, notes)

    def _training_faults(self, training: TrainingConfig, processes: int) -> tuple[str, ...]:
        faults: tuple[str, ...] = ()
        if processes > self.gpus:
            faults += (f"processes={processes}, but there are {self.gpus} GPUs",)
        if training.parallel != "replicas" and training.lora is not None and training.lora.quantize:
            faults += (f"parallel={training.parallel} with lora.quantize: a model in 4 bits is not sharded; set parallel=replicas",)
        together = training.micro_batch_size * processes
        if training.global_batch_size % together:
            faults += (f"global_batch_size={training.global_batch_size} is not a multiple of {together} (micro_batch_size x GPUs)",)
        return faults

    def play(self, name: str, times: int, load: PlayLoad, models: int) -> StagePlan:
        config, dtype = self.config, self.config.model.dtype
        tables = self._tables(models)
        hours = play_hours(self.shape, load, self.gpu, tables, dtype, self.assumptions) + self.assumptions.stage_minutes / 60
        tokens = load.prompt_tokens + load.new_tokens
        longest = longest_text(config, self.assumptions)
        if tables.vllm:
            memory, faults, remedies, notes = self._vllm(tables, models, load)
            room = (config.engine.memory or 0.9) * self.gpu.memory
        else:
            fed = round(self.assumptions.instruction_tokens + self.assumptions.utterance_tokens + self.assumptions.name_tokens)
            one = slot_memory(self.shape, slots=config.engine.concurrency, longest=longest, prefilled=fed, dtype=dtype)
            memory = _times(one, models)
            room, notes = self.gpu.memory * self.assumptions.memory_share, ()
            faults, remedies = (), ()
            if memory.total > room:
                faults = ("it needs more memory than a GPU has",)
                remedies = ("engine.backend=vllm, or a lower engine.concurrency",)
        idle = self.gpus - tables.copies * tables.gpus_each
        if idle < 0:
            faults = (f"the engines need {tables.copies * tables.gpus_each} GPUs, but there are {self.gpus}", *faults)
        elif idle >= tables.gpus_each and tables.vllm:
            copies = self.gpus // tables.gpus_each
            wanted = config.engine.concurrency * copies // tables.copies
            notes += (f"{idle} of {self.gpus} GPUs play no games; set engine.data_parallel={copies} and engine.concurrency={wanted}",)
        return StagePlan(name, times, Unit.GAMES, load.games, tokens, hours, memory, room, faults, remedies, notes)

    def _tables(self, models: int) -> Tables:
        engine, cluster = self.config.engine, self.config.cluster
        if engine.backend == "transformers":
            return Tables(1, 1, engine.concurrency, models, vllm=False)
        each = engine.tensor_parallel * engine.data_parallel
        workers = (cluster.workers or max(self.gpus // each, 1)) if cluster.address else 1
        return Tables(workers * engine.data_parallel, engine.tensor_parallel, engine.concurrency / engine.data_parallel, models)

    def _vllm(self, tables: Tables, models: int, load: PlayLoad) -> tuple[Memory, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        config, taken = self.config, self.assumptions
        lora = config.imitation.training.lora or config.offline_rl.lora
        adapter = 2 * self.shape.adapter(lora) if lora else 0
        length = min(config.engine.max_length, self.shape.positions or config.engine.max_length)

        def room_in(tensor_parallel: int) -> tuple[Memory, int]:
            engine = config.engine.model_copy(update={"tensor_parallel": tensor_parallel})
            return vllm_memory(self.shape, engine, self.gpu, taken, dtype=config.model.dtype, models=models, adapter=adapter)

        memory, tokens = room_in(config.engine.tensor_parallel)
        if tokens >= length:
            games = tokens / load.context
            note = f"each engine's cache holds {tokens:,} tokens, about {games:,.0f} games; {tables.batch / models:,.0f} are in flight"
            return memory, (), (), (note,)
        what = f"{models} models share a GPU" if models > 1 else "the model"
        fault = f"{what}: weights leave the cache room for {max(tokens, 0):,} tokens, and a text may have {length:,}"
        wider = (n for n in (2, 4, 8) if self.shape.kv_heads % n == 0 and room_in(n)[1] >= length)
        remedies = tuple(f"engine.tensor_parallel={n}" + (f" with {n} GPUs" if n > self.gpus else "") for n in wider)[:1]
        if models > 1:
            remedies += ("imitation.training.lora={}: adapters share one copy of the weights",)
        return memory, (fault,), remedies, ()


def _times(memory: Memory, models: int) -> Memory:
    return Memory(
        weights=models * memory.weights, cache=models * memory.cache, activations=models * memory.activations, logits=models * memory.logits
    )
