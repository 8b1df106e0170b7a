"""How much a run's stages have to do: games, samples and tokens, from the config and the assumptions alone."""

from dataclasses import dataclass

from spag.config.schema import RunConfig, TrainingConfig
from spag.planning.assumptions import Assumptions

_TEACHER_GAMES = 551
_TRAIN_WORDS = 37_601


@dataclass(frozen=True, slots=True)
class Inputs:
    """What lies in files: words of the train split, games of teacher play, rows of instruction data for each stage.

    The defaults are the frequency list and the teacher play that the package ships.
    """

    train_words: int = _TRAIN_WORDS
    teacher_games: int = _TEACHER_GAMES
    imitation_sft: int = 0
    offline_rl_sft: int = 0


@dataclass(frozen=True, slots=True)
class TrainingLoad:
    """One training: samples over all passes and those of one pass, tokens fed and trained, and the mean length of a sample."""

    samples: int
    unique: int
    tokens: float
    target_tokens: float
    mean_length: float


@dataclass(frozen=True, slots=True)
class PlayLoad:
    """One stage of play: games, utterances, tokens read anew and generated, and the mean length of a text while it grows."""

    games: int
    prompt_tokens: float
    new_tokens: float
    context: float


def imitation_load(config: RunConfig, inputs: Inputs, assumptions: Assumptions) -> TrainingLoad:
    """Return what imitation trains on: the winners' utterances of teacher play, and instruction data."""
    games = min(config.imitation.max_episodes or inputs.teacher_games, inputs.teacher_games)
    rows = games * min(assumptions.turns, config.game.max_turns) * _kept_roles(config, assumptions)
    return _training(config, config.imitation.training, rows, inputs.imitation_sft, assumptions.teacher_tokens, assumptions)


def offline_rl_load(config: RunConfig, inputs: Inputs, assumptions: Assumptions) -> TrainingLoad:
    """Return what one iteration trains on."""
    opponents = config.selfplay.opponents
    others = 1 - opponents.get("self", 0.0) / sum(opponents.values())
    turns = min(assumptions.turns, config.game.max_turns)
    paid = assumptions.decided_share * turns * (2 if config.rewards.loser_reward else 1) * _kept_roles(config, assumptions)
    if config.rewards.tie_reward:
        paid += (1 - assumptions.decided_share) * 2 * config.game.max_turns
    rows = _selfplay_games(config, inputs) * paid * (1 - others / 2)  # of games against others, one side is trained
    spoken = min(assumptions.utterance_tokens, config.selfplay.attacker.max_new_tokens)
    return _training(config, config.offline_rl, rows, inputs.offline_rl_sft, spoken, assumptions)


def selfplay_load(config: RunConfig, inputs: Inputs, assumptions: Assumptions) -> PlayLoad:
    """Return what one iteration plays."""
    return _play(config, _selfplay_games(config, inputs), config.selfplay.attacker.max_new_tokens, assumptions)


def arena_load(config: RunConfig, assumptions: Assumptions) -> PlayLoad:
    """Return the games of the arena: each pair of base, imitation and the last iteration, in both role assignments."""
    entrants = 3 if config.iterations else 2
    pairings = entrants * (entrants - 1)
    return _play(config, pairings * config.arena.words, config.arena.sampling.max_new_tokens, assumptions)


def longest_sample(config: RunConfig, training: TrainingConfig, assumptions: Assumptions) -> int:
    """Return the longest sample there can be, in tokens: every utterance at its limit, cut at ``max_length``."""
    return min(training.max_length, longest_text(config, assumptions))


def longest_text(config: RunConfig, assumptions: Assumptions) -> int:
    """Return the longest game there can be, in tokens: rules, and every utterance at its limit."""
    said = config.selfplay.attacker.max_new_tokens + config.selfplay.defender.max_new_tokens + 2 * assumptions.name_tokens
    return round(assumptions.prefix_tokens + assumptions.instruction_tokens + config.game.max_turns * said)


def _selfplay_games(config: RunConfig, inputs: Inputs) -> int:
    return (config.selfplay.words or inputs.train_words) * config.selfplay.repeats


def _kept_roles(config: RunConfig, assumptions: Assumptions) -> float:
    shares = {"both": 1.0, "attacker": assumptions.attacker_share, "defender": 1 - assumptions.attacker_share}
    return shares[config.rewards.roles]


def _training(config: RunConfig, training: TrainingConfig, rows: float, sft: int, spoken: float, assumptions: Assumptions) -> TrainingLoad:
    sft = min(training.sft_samples, sft) if training.sft_samples is not None else sft
    unique = max(round(rows) + sft, 1)
    samples = training.max_steps * training.global_batch_size if training.max_steps else unique * training.epochs
    turns = min(assumptions.turns, config.game.max_turns)
    # The winner's k-th utterance follows 2(k - 1) others as attacker, 2k - 1 as defender: turns - 1/2 of them on average.
    history = (turns - 0.5) * (spoken + assumptions.name_tokens)
    length = assumptions.prefix_tokens + assumptions.instruction_tokens + history + spoken
    # Samples of a micro-batch that begin alike share their beginning in the packed row; random templates hardly do (1.1 measured).
    shared = assumptions.prefix_tokens * (1 - 1 / training.micro_batch_size) if config.rewards.template == "play" else 0.0
    share_sft = sft / unique
    sft_length = assumptions.sft_query_tokens + assumptions.sft_target_tokens
    limit = training.max_length
    fed = (1 - share_sft) * (min(length, limit) - shared) + share_sft * min(sft_length, limit)
    trained = (1 - share_sft) * spoken + share_sft * assumptions.sft_target_tokens
    mean = (1 - share_sft) * min(length, limit) + share_sft * min(sft_length, limit)
    return TrainingLoad(samples, unique, samples * fed, samples * trained, mean)


def _play(config: RunConfig, games: int, limit: int, assumptions: Assumptions) -> PlayLoad:
    spoken = min(assumptions.utterance_tokens, limit)
    turns = min(assumptions.turns, config.game.max_turns)
    utterances = 2 * turns
    # The cache keeps rules and conversation: new are the last utterance, its name, and the role's instruction.
    new = spoken + assumptions.name_tokens + assumptions.instruction_tokens
    history = (utterances - 1) / 2 * (spoken + assumptions.name_tokens)
    context = assumptions.prefix_tokens + assumptions.instruction_tokens + history + spoken / 2
    return PlayLoad(games, games * utterances * new, games * utterances * spoken, context)
