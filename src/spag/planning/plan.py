"""A run's stages before any machine is rented: work, hours, memory of each GPU, and what to change where a stage does not fit."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from spag.config.base import LARGEST
from spag.config.schema import LoraConfig, RunConfig, TrainingConfig, UpdateConfig
from spag.core.sft import read_sft
from spag.games.registry import DEFAULT
from spag.planning.hours import Assumptions, Load, play_hours, training_hours
from spag.planning.memory import Memory, training_memory, vllm_memory
from spag.planning.specs import GIB, GPU, ModelShape
from spag.runs.folder import arena_entrants, imitates, learns_online, offline_iterations
from spag.runs.sft import mix_warning
from spag.runs.stages import selfplay_tasks, teacher_count


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


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans the run that ``config`` describes, with a model of ``shape``, on ``gpus`` GPUs of one kind."""

    config: RunConfig
    shape: ModelShape
    gpus: int
    gpu: GPU
    assumed: Assumptions = field(default_factory=Assumptions)

    def stages(self) -> Iterator[StagePlan]:
        """Yield the stages in their order."""
        config = self.config
        imitation = config.imitation.training
        # what imitation trained as an adapter is trained on as an adapter
        offline_rl = config.offline_rl.model_copy(update={"lora": config.offline_rl.lora or imitation.lora})
        both = 1 if imitation.lora else 2  # adapters share the weights of their base
        game, play, sampling = config.game.build(), config.selfplay, config.arena.sampling
        teacher = config.imitation
        taught = teacher_count(teacher.episodes, teacher.max_episodes, game, keep_held_out=teacher.keep_held_out)
        if imitates(config):
            yield self._training("imitation", 1, imitation, self.training_load(imitation, taught, self.assumed.teacher_tokens))
        iterations = offline_iterations(config)
        if iterations:
            games = (play.tasks or len(selfplay_tasks(game, play, None, config.seed))) * play.repeats
            utterance = min(self.assumed.utterance_tokens, self.longest_utterance)
            models = both if set(play.opponents) - {"self"} else 1
            yield self._play("self-play", iterations, self.play_load(games, utterance), models)
            trained_games = games * self.assumed.decided_share * (2 if config.rewards.loser_reward else 1)
            trained = self.training_load(offline_rl, trained_games, utterance)
            yield self._training("offline RL", iterations, offline_rl, trained)
        if learns_online(config):
            yield from self._online()
        entrants = len(arena_entrants(config))
        games = entrants * (entrants - 1) * config.arena.tasks  # each pair, in both role assignments
        yield self._play("arena", 1, self.play_load(games, min(self.assumed.utterance_tokens, sampling.max_new_tokens)), both)

    def _online(self) -> Iterator[StagePlan]:
        """Yield play and training of all online steps. Engines and trainer stay loaded, and take turns where they share GPUs."""
        online, engine, cluster = self.config.online, self.config.engine, self.config.cluster
        processes = online.processes or self.gpus
        actors = (cluster.online_workers or 0) if cluster.address else 0
        games, utterance = online.steps * online.games, min(self.assumed.utterance_tokens, online.sampling.max_new_tokens)
        play = self._play("online play", 1, self.play_load(games, utterance), 1, actors or processes)
        shared = {name: getattr(online, name) for name in UpdateConfig.model_fields}
        batch = min(online.micro_batch_size * processes, LARGEST)
        update = TrainingConfig(**shared, epochs=online.epochs, global_batch_size=batch, sft_coef=0.0)
        training = self._training("online training", 1, update, self.training_load(update, 2 * games, utterance))  # both roles
        share = 0.95 - training.memory.total / self.gpu.memory
        if actors:
            needed = processes + actors * engine.tensor_parallel * engine.data_parallel
            if needed > self.gpus:
                play.problems.append(f"training and the actors that play need {needed} GPUs, but there are {self.gpus}")
        elif 0.05 < share < play.memory.total / self.gpu.memory:
            play.notes.append(f"engine and trainer share each GPU: set engine.memory={share:.2f} or less")
        yield from (play, training)

    @property
    def max_turns(self) -> float:
        """Turns of the longest game, by the game's settings; of a game without such a setting, the assumed turns."""
        settings = self.config.game.model_extra or {}
        return next((settings[name] for name in ("max_turns", "max_questions") if name in settings), self.assumed.turns)

    @property
    def longest_utterance(self) -> int:
        """Tokens of the longest utterance in self-play, of either role."""
        play = self.config.selfplay
        return max(sampling.max_new_tokens for sampling in (play.sampling, *play.roles.values()))

    @property
    def longest_text(self) -> int:
        """Tokens of the longest game there can be: rules, and every utterance at its limit."""
        utterances = 2 * self.max_turns * (self.longest_utterance + self.assumed.name_tokens)
        return round(self.assumed.prefix_tokens + self.assumed.instruction_tokens + utterances)

    def training_load(self, training: TrainingConfig, decided: float, utterance: float) -> Load:
        """Return what is trained: the winners' utterances of ``decided`` games, and instruction data."""
        assumed, limit, turns = self.assumed, training.max_length, min(self.assumed.turns, self.max_turns)
        sft = len(read_sft(training.sft_data, training.sft_samples, 0)) if training.sft_data else 0
        unique = max(round(decided * turns) + sft, 1)
        samples = training.max_steps * training.global_batch_size if training.max_steps else unique * training.epochs
        # The winner's k-th utterance follows 2(k - 1) others as attacker, 2k - 1 as defender: turns - 1/2 of them on average.
        history = (turns - 0.5) * (utterance + assumed.name_tokens)
        length = min(assumed.prefix_tokens + assumed.instruction_tokens + history + utterance, limit)
        sft_length = min(assumed.sft_prompt_tokens + assumed.sft_completion_tokens, limit)
        mean = length + (sft_length - length) * sft / unique
        trained = utterance + (assumed.sft_completion_tokens - utterance) * sft / unique
        return Load(samples, samples * mean, samples * trained, mean, unique)

    def play_load(self, games: int, utterance: float) -> Load:
        """Return what is read and generated in ``games`` games."""
        assumed, utterances = self.assumed, 2 * min(self.assumed.turns, self.max_turns)
        # The cache keeps rules and conversation: new are the last utterance, its name, and the role's instruction.
        new = utterance + assumed.name_tokens + assumed.instruction_tokens
        history = (utterances - 1) / 2 * (utterance + assumed.name_tokens)
        context = assumed.prefix_tokens + assumed.instruction_tokens + history + utterance / 2
        return Load(games, games * utterances * new, games * utterances * utterance, context)

    def _training(self, name: str, times: int, training: TrainingConfig, load: Load) -> StagePlan:
        processes, assumed = training.processes or self.gpus, self.assumed
        hours = training_hours(self.shape, training, load, self.gpu, processes, assumed) + assumed.stage_minutes / 60
        memory, room = self._training_memory(training, processes), self.gpu.memory * assumed.memory_share
        stage = StagePlan(name, times, "samples", load.count, load.read, hours, memory, room)
        if processes > self.gpus:
            stage.problems.append(f"processes={processes}, but there are {self.gpus} GPUs")
        if training.parallel != "replicas" and training.lora and training.lora.quantize:
            what = "a model in 4 bits is not sharded; set parallel=replicas"
            stage.problems.append(f"parallel={training.parallel} with lora.quantize: {what}")
        if training.global_batch_size % (together := training.micro_batch_size * processes):
            what = f"is not a multiple of {together} (micro_batch_size x GPUs)"
            stage.problems.append(f"global_batch_size={training.global_batch_size} {what}")
        if memory.total > room:
            stage.problems.append("it needs more memory than a GPU has")
            stage.advice.extend(self._advice(training, processes, room))
        if self.config.model.trust_remote_code:
            stage.notes.append("the model's own code is planned as a Llama's; it pads rows and computes all logits, which takes more")
        if warning := mix_warning(training):
            stage.notes.append(warning)
        if memory.host:
            stage.notes.append(f"CPU memory for offload: {memory.host * processes / GIB:,.0f} GiB in all")
        return stage

    def _training_memory(self, training: TrainingConfig, processes: int) -> Memory:
        size, longest = training.micro_batch_size, min(training.max_length, self.longest_text)
        tokens, trained = size * longest, size * min(self.longest_utterance + 1, longest)
        return training_memory(self.shape, training, tokens, trained, dtype=self.config.model.dtype, processes=processes)

    def _advice(self, training: TrainingConfig, processes: int, room: float) -> list[str]:
        """Return the first change that fits on as many GPUs; where only an adapter does, also the number of GPUs that would."""

        def first(candidates: Iterable[tuple[int, dict[str, Any]]]) -> list[str]:
            for gpus, changes in candidates:
                new = {name: value for name, value in changes.items() if getattr(training, name) != value}
                chosen = training.model_copy(update=new)
                memory = self._training_memory(chosen, gpus)
                if chosen.global_batch_size % (chosen.micro_batch_size * gpus) == 0 and memory.total <= room:
                    said = [f"{gpus} GPUs"] * (gpus != processes) + [_setting(*one) for one in new.items()]
                    return [f"{', '.join(said)}: {memory.total / GIB:.1f} GiB a GPU"]
            return []

        lean: dict[str, Any] = {"micro_batch_size": 1, "gradient_checkpointing": True}
        if training.lora and training.lora.quantize:
            return first([(processes, lean)])
        sharded: dict[str, Any] = {"parallel": "fsdp" if training.parallel == "replicas" else training.parallel}
        same = [lean, *([sharded, sharded | lean, sharded | {"offload": True} | lean] if processes > 1 else [])]
        lora = training.lora or LoraConfig()
        four_bits = {"lora": lora.model_copy(update={"quantize": True}), "parallel": "replicas", "offload": False}  # not sharded
        adapters = [{"lora": lora} | lean, four_bits | lean]
        more = [(gpus, sharded | lean) for gpus in (2, 4, 8, 16, 32, 64, 128) if gpus > processes]
        return first((processes, one) for one in same) or first((processes, one) for one in adapters) + first(more)

    def _play(self, name: str, times: int, load: Load, models: int, engines: int | None = None) -> StagePlan:
        """Plan the play of ``load`` by ``models`` models at once. ``engines``: how many online steps have; they use what GPUs they find."""
        config, shape, engine, cluster = self.config, self.shape, self.config.engine, self.config.cluster
        each = engine.tensor_parallel * engine.data_parallel
        workers = engines or ((cluster.workers or max(self.gpus // each, 1)) if cluster.address else 1)
        copies, used = workers * engine.data_parallel, workers * each
        batch = max(engine.concurrency / engine.data_parallel / models, 1.0)  # two models take turns, each with half of the games
        hours = play_hours(shape, engine, load, self.gpu, copies, batch, config.model.dtype, self.assumed)
        adapter = 2 * shape.adapter(config.imitation.training.lora or config.offline_rl.lora)
        memory, held = vllm_memory(shape, engine, self.gpu.memory, dtype=config.model.dtype, models=models, adapter=adapter)
        room = self.gpu.memory * (engine.memory or 0.9)
        hours += self.assumed.stage_minutes / 60
        stage = StagePlan(name, times, "games", load.count, load.read + load.written, hours, memory, room)
        if config.game.name != DEFAULT:
            stage.notes.append("turns, outcomes and tokens are assumed as in Adversarial Taboo; give this game's with --assume")
        if engine.backend == "transformers":
            stage.notes.append("planned with vLLM; engine.backend=transformers takes far longer")
        if used > self.gpus:
            stage.problems.append(f"the engines need {used} GPUs, but there are {self.gpus}")
        if held < engine.max_length:
            what = f"{models} models share a GPU" if models > 1 else "the model"
            lacks = f"weights leave the cache room for {max(held, 0):,} tokens, and a text may have {engine.max_length:,}"
            stage.problems.append(f"{what}: {lacks}")
            stage.advice.append(f"engine.tensor_parallel={2 * engine.tensor_parallel}, on as many GPUs, halves the weights on each")
            if models > 1:
                stage.advice.append("imitation.training.lora={}: adapters share one copy of the weights")
        else:
            games = f"about {held / load.length:,.0f} games; {batch:,.0f} are in flight"
            stage.notes.append(f"each engine's cache holds {held:,} tokens, {games}")
        if engines is None and self.gpus - used >= engine.tensor_parallel:
            more = self.gpus // engine.tensor_parallel
            settings = f"engine.data_parallel={more} and engine.concurrency={engine.concurrency * more // copies}"
            if engine.backend == "transformers":  # a process has one engine of this kind
                settings = "cluster.address=local"
            stage.notes.append(f"{self.gpus - used} of {self.gpus} GPUs play no games; set {settings}")
        return stage


def _setting(name: str, value: Any) -> str:
    if isinstance(value, LoraConfig):
        return "lora={quantize: true} (QLoRA)" if value.quantize else "lora={}"
    return f"{name}={str(value).lower()}"
