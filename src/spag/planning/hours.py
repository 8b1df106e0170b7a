"""Hours of training and play: tokens from the config, operations over what GPUs compute, bytes over what memory and links move.

A linear map of N parameters takes 2N operations a token forward and 4N backward (2N where its weights are frozen); gradient checkpointing
repeats the forward pass, and the reference log-probabilities cost one more. Attention adds 2 x length x query size a layer and token
forward (causal: half of the length is seen), and the same multiples of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, ValidationError

from spag.config.schema import RunConfig, Section, TrainingConfig
from spag.core.errors import ConfigError
from spag.planning.memory import number_bytes
from spag.planning.specs import GPU, ModelShape

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class Assumptions(Section):
    """Numbers that no config states, each with its reason. ``--assume NAME=VALUE`` changes one."""

    training_mfu: Share = Field(0.35, description="share of peak FLOP/s in training; 0.3 to 0.5 reported for 7B on A100s; not measured")
    prefill_mfu: Share = Field(0.4, description="share of peak FLOP/s while prefilling prompts in batches; not measured")
    decode_mfu: Share = Field(0.4, description="share of peak FLOP/s in a decoding step bound by computing; not measured")
    bandwidth_share: Share = Field(0.6, description="share of memory bandwidth in a decoding step; not measured")
    step_overhead_ms: Positive = Field(3.0, description="vLLM's own work between two decoding steps; a guess")
    layer_overhead_ms: Positive = Field(0.8, description="transformers engine: launching one layer's kernels from Python; a guess")
    link_share: Share = Field(0.6, description="share of the datasheet's link speed that collective operations reach; a guess")
    machine_gpus: Positive = Field(8, description="GPUs in a machine, as A100 and H100 machines have")
    network_gb_s: Positive = Field(50.0, description="GB/s between two machines: 400 Gbit/s; the largest offer 3,200")
    host_gb_s: Positive = Field(20.0, description="GB/s between a GPU and CPU memory (offload): PCIe 4.0 x16 less protocol")
    stage_minutes: Positive = Field(4.0, description="minutes a stage for weights and engines to load; a guess for 7B from a local disk")
    memory_share: Share = Field(0.92, description="share of a GPU that training can fill; the rest: driver, CUDA context, fragments, ECC")
    engine_gib: Positive = Field(2.0, description="vLLM's memory beside weights and cache: CUDA graphs and working space")
    utterance_tokens: Positive = Field(40, description="mean utterance; teacher play has 15, models say more at temperature 1.2; a guess")
    teacher_tokens: Positive = Field(16, description="mean utterance of teacher play with its end: 15.4 measured in the shipped games")
    turns: Positive = Field(2.94, description="the winner's utterances in a decided game: 99,740 in 33,973 games of the paper's LLaMA-2-7B")
    decided_share: Share = Field(0.68, description="games that somebody wins: 33,973 of 50,000 of the paper's LLaMA-2-7B after imitation")
    first_role_share: Share = Field(0.92, description="decided games that the first role (the attacker) wins: 31,273 of 33,973")
    prefix_tokens: Positive = Field(160, description="rules and names before the conversation: 120 to 137 tokens a paraphrase, and headers")
    instruction_tokens: Positive = Field(45, description="a role's instruction and cue behind the conversation: 35 and 50 tokens")
    name_tokens: Positive = Field(5, description="a line's player name in the conversation")
    sft_prompt_tokens: Positive = Field(60, description="instruction rows: prompt with its template; a guess for Alpaca")
    sft_completion_tokens: Positive = Field(65, description="instruction rows: completion, some 270 characters in Alpaca")

    def changed(self, changes: Sequence[str]) -> "Assumptions":
        """Return these assumptions with ``NAME=VALUE`` changes. Raises ``ConfigError``."""
        values = dict(text.partition("=")[::2] for text in changes)
        try:
            return Assumptions.model_validate(self.model_dump() | values)
        except ValidationError as error:
            first = error.errors()[0]
            name, known = str(first["loc"][0]), list(Assumptions.model_fields)
            what = f"there is no assumption {name} (known: {', '.join(known)})" if name not in known else first["msg"].lower()
            raise ConfigError(f"--assume {name}={first['input']}: {what}") from error


@dataclass(frozen=True, slots=True)
class Inputs:
    """What games and files hold: tasks to train on, games of teacher play, instruction rows. Defaults: Adversarial Taboo as shipped."""

    train_tasks: int = 37_601
    teacher_games: int = 551
    imitation_sft: int = 0
    offline_rl_sft: int = 0


@dataclass(frozen=True, slots=True)
class TrainingLoad:
    """Samples over all passes and in one pass, tokens fed and trained, and the mean length of a sample."""

    samples: int
    unique: int
    tokens: float
    trained_tokens: float
    mean_length: float


@dataclass(frozen=True, slots=True)
class PlayLoad:
    """Games, prompt tokens that the cache does not hold, generated tokens, and the mean length of a text while it grows."""

    games: int
    prompt_tokens: float
    new_tokens: float
    context: float


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run's stages have to do, in a game of two roles that speak in turn."""

    config: RunConfig
    inputs: Inputs
    assumed: Assumptions

    @property
    def max_turns(self) -> float:
        """Turns of the longest game, by the game's settings; of a game without such a setting, the assumed turns."""
        settings = self.config.game.model_extra or {}
        return next((settings[name] for name in ("max_turns", "max_questions") if name in settings), self.assumed.turns)

    @property
    def turns(self) -> float:
        return min(self.assumed.turns, self.max_turns)

    @property
    def utterance_limits(self) -> list[int]:
        """The longest utterance of each role in self-play, in tokens."""
        return [self.config.selfplay.sampling_of(role).max_new_tokens for role in self.config.game.build().roles]

    @property
    def longest_text(self) -> int:
        """Tokens of the longest game there can be: rules, and every utterance at its limit."""
        turn = sum(self.utterance_limits) + 2 * self.assumed.name_tokens
        return round(self.assumed.prefix_tokens + self.assumed.instruction_tokens + self.max_turns * turn)

    @property
    def _selfplay_games(self) -> int:
        return (self.config.selfplay.tasks or self.inputs.train_tasks) * self.config.selfplay.repeats

    @property
    def _kept_roles(self) -> float:
        kept, first = self.config.rewards.roles, self.assumed.first_role_share
        return 1.0 if kept == "both" else first if kept == self.config.game.build().roles[0] else 1 - first

    def imitation(self) -> TrainingLoad:
        """Return what imitation trains on: the winners' utterances of teacher play, and instruction data."""
        games = min(self.config.imitation.max_episodes or self.inputs.teacher_games, self.inputs.teacher_games)
        rows = games * self.turns * self._kept_roles
        return self._training(self.config.imitation.training, rows, self.inputs.imitation_sft, self.assumed.teacher_tokens)

    def offline_rl(self) -> TrainingLoad:
        """Return what one iteration trains on."""
        rewards, play, assumed = self.config.rewards, self.config.selfplay, self.assumed
        others = 1 - play.opponents.get("self", 0.0) / sum(play.opponents.values())
        rewarded = assumed.decided_share * self.turns * (2 if rewards.loser_reward else 1) * self._kept_roles
        if rewards.tie_reward:
            rewarded += (1 - assumed.decided_share) * 2 * self.max_turns
        rows = self._selfplay_games * rewarded * (1 - others / 2)  # of games against others, one role is trained
        utterance = min(assumed.utterance_tokens, self.utterance_limits[0])
        return self._training(self.config.offline_rl, rows, self.inputs.offline_rl_sft, utterance)

    def selfplay(self) -> PlayLoad:
        """Return what one iteration plays."""
        return self._play(self._selfplay_games, self.utterance_limits[0])

    def arena(self) -> PlayLoad:
        """Return the games of the arena: each pair of base, imitation and the last iteration, in both role assignments."""
        players = 3 if self.config.iterations else 2
        return self._play(players * (players - 1) * self.config.arena.tasks, self.config.arena.sampling.max_new_tokens)

    def _training(self, training: TrainingConfig, rows: float, sft: int, utterance: float) -> TrainingLoad:
        assumed, limit = self.assumed, training.max_length
        sft = sft if training.sft_samples is None else min(training.sft_samples, sft)
        unique = max(round(rows) + sft, 1)
        samples = training.max_steps * training.global_batch_size if training.max_steps else unique * training.epochs
        # The winner's k-th utterance follows 2(k - 1) others as attacker, 2k - 1 as defender: turns - 1/2 of them on average.
        history = (self.turns - 0.5) * (utterance + assumed.name_tokens)
        length = min(assumed.prefix_tokens + assumed.instruction_tokens + history + utterance, limit)
        sft_length = min(assumed.sft_prompt_tokens + assumed.sft_completion_tokens, limit)
        # Samples of a micro-batch that begin alike share their beginning in the packed row; random templates hardly do (1.1 measured).
        alike = self.config.rewards.template == "play"
        shared = assumed.prefix_tokens * (1 - 1 / training.micro_batch_size) if alike else 0.0

        def mean(game: float, instruction: float) -> float:
            return game + (instruction - game) * sft / unique

        fed, trained = mean(length - shared, sft_length), mean(utterance, assumed.sft_completion_tokens)
        return TrainingLoad(samples, unique, samples * fed, samples * trained, mean(length, sft_length))

    def _play(self, games: int, limit: int) -> PlayLoad:
        assumed = self.assumed
        length = min(assumed.utterance_tokens, limit)
        utterances = 2 * self.turns
        # The cache keeps rules and conversation: new are the last utterance, its name, and the role's instruction.
        new = length + assumed.name_tokens + assumed.instruction_tokens
        history = (utterances - 1) / 2 * (length + assumed.name_tokens)
        context = assumed.prefix_tokens + assumed.instruction_tokens + history + length / 2
        return PlayLoad(games, games * utterances * new, games * utterances * length, context)


def training_flops(shape: ModelShape, training: TrainingConfig, load: TrainingLoad) -> float:
    """Return the operations of all optimiser steps and of the reference pass, which sees each sample once."""
    token = 2.0 * shape.matrices + 2.0 * shape.layers * shape.query_size * load.mean_length  # forward
    head = 2.0 * shape.embedding  # forward, for a trained token
    passes = (2 if training.lora else 3) + training.gradient_checkpointing
    head_passes = passes + (not training.gradient_checkpointing)  # its chunks are always computed again
    once = load.unique / load.samples
    return load.tokens * token * (passes + once) + load.trained_tokens * head * (head_passes + once)


def training_hours(
    shape: ModelShape, training: TrainingConfig, load: TrainingLoad, gpu: GPU, processes: int, assumed: Assumptions
) -> float:
    """Return the hours on ``processes`` GPUs. Computing and communicating overlap: the longer one counts.

    Replicas add up float32 gradients once a step (2 x 4 bytes a parameter). Sharded weights are gathered in half precision for each
    forward and backward pass of a micro-batch (2 x 2 bytes), and their gradients scattered (4 bytes).
    """
    computing = training_flops(shape, training, load) / (gpu.flops * assumed.training_mfu * processes)
    rounds = load.samples / (training.micro_batch_size * processes)
    trained = shape.adapter(training.lora) if training.lora else shape.parameters
    link = gpu.link if processes <= assumed.machine_gpus else min(gpu.link, assumed.network_gb_s * 1e9)
    seconds_a_byte = (processes - 1) / processes / (link * assumed.link_share)
    if training.parallel == "replicas":
        moving = load.samples / training.global_batch_size * 8.0 * trained * seconds_a_byte
    else:
        moving = rounds * (4.0 * shape.parameters + 4.0 * trained) * seconds_a_byte
        if training.offload:
            moving += rounds * (8.0 * shape.parameters + 4.0 * trained) / processes / (assumed.host_gb_s * 1e9)
    return max(computing, moving) / 3600


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """Engines that play at the same time, GPUs of each, and games in flight on each; ``models`` that take turns on the same GPUs."""

    copies: int
    tensor_parallel: int
    games: float
    models: int = 1
    vllm: bool = True

    @property
    def batch(self) -> float:
        """Utterances in a decoding step: of two models, each has half of the games."""
        return max(self.games / self.models, 1.0)


def step_seconds(shape: ModelShape, gpu: GPU, layout: EngineLayout, context: float, dtype: str, assumed: Assumptions) -> float:
    """Return the seconds of a decoding step: reading weights and cache, or computing, whichever is longer, and starting it."""
    number, weights = number_bytes(dtype), shape.matrices + shape.embedding
    read = number * weights + layout.batch * context * shape.kv_bytes(number)
    operations = layout.batch * 2.0 * (weights + 2 * shape.layers * shape.query_size * context)
    moving = read / layout.tensor_parallel / (gpu.bandwidth * assumed.bandwidth_share)
    computing = operations / layout.tensor_parallel / (gpu.flops * assumed.decode_mfu)
    overhead = assumed.step_overhead_ms if layout.vllm else shape.layers * assumed.layer_overhead_ms
    return max(moving, computing) + overhead / 1000


def play_hours(shape: ModelShape, load: PlayLoad, gpu: GPU, layout: EngineLayout, dtype: str, assumed: Assumptions) -> float:
    """Return the hours of a stage of play: reading what is new in each prompt, and decoding in batches."""
    reading = load.prompt_tokens * 2.0 * shape.matrices / (gpu.flops * assumed.prefill_mfu * layout.copies * layout.tensor_parallel)
    steps = load.new_tokens / layout.copies / layout.batch
    return (reading + steps * step_seconds(shape, gpu, layout, load.context, dtype, assumed)) / 3600
