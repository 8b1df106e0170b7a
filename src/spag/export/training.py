"""What of a run's plan made one of its models, and by which settings."""

from dataclasses import dataclass
from typing import Any

from spag.config.schema import RunConfig, UpdateConfig
from spag.games.base import Game
from spag.runs.folder import IMITATION, ONLINE, imitates, offline_iterations
from spag.runs.reading import RunFolder

SETTINGS = (
    "learning_rate", "lr_scheduler", "warmup_ratio", "weight_decay", "max_grad_norm", "epochs", "max_steps", "global_batch_size",
    "minibatches", "max_length", "objective", "clip_range", "correction_limit", "kl_coef", "kl_coef_end", "entropy_coef",
    "entropy_coef_end", "anneal_steps", "roles", "discount", "tie_reward", "loser_reward", "baseline_decay", "normalize_advantages",
    "loss_divisor", "average_decay", "sft_coef", "temperature", "max_new_tokens", "lora_rank",
)  # fmt: skip
"""Which settings the card shows, by their names in a config: those that decide what is learned, in the order of the table."""


@dataclass(frozen=True, slots=True)
class Training:
    """What made a model.

    imitates: whether imitation or SFT came first. iterations: offline iterations. steps: online steps that were trained, 0 without.
    games: what it was trained on, in order. stopped: why online training ended early; empty where it did not.
    """

    imitates: bool
    iterations: int
    steps: int
    games: list[Game]
    stopped: str

    @property
    def plays(self) -> bool:
        """Whether it was trained on games of its own."""
        return bool(self.iterations or self.steps)


def training_of(name: str, run: RunFolder, config: RunConfig) -> Training:
    """Return what made the model ``name`` of ``run``."""
    is_online = name == ONLINE
    iterations = offline_iterations(config) if is_online else 0 if name == IMITATION else int(name.partition("-")[2])
    results = run.stages.get(f"{ONLINE}/train", {}).get("results") or {}
    own = [run.game] if iterations or config.imitation.episodes else []
    games = {game.name: game for game in (*own, *(run.online_games if is_online else ()))}
    return Training(
        imitates=imitates(config),
        iterations=iterations,
        steps=results.get("steps", config.online.steps) if is_online else 0,
        games=list(games.values()),
        stopped=run.stopped if is_online else "",
    )


def settings_rows(training: Training, config: RunConfig) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of the stages, and for each setting that any of them has its name and their values; ``None`` for one without."""
    stages: dict[str, dict[str, Any]] = {}
    if training.imitates:
        stages[IMITATION] = _values(config.imitation.training)
    if training.iterations:
        rewards = config.rewards.model_dump(include={"discount", "loser_reward", "tie_reward", "roles"})
        stages["iterations"] = _values(config.offline_rl, config.selfplay.sampling) | rewards
    if training.steps:
        stages[ONLINE] = _values(config.online, config.online.sampling)
    rows = [(name, *(values.get(name) for values in stages.values())) for name in SETTINGS]
    return list(stages), [row for row in rows if any(value is not None for value in row[1:])]


def _values(update: UpdateConfig, sampling: Any = None) -> dict[str, Any]:
    sampled = sampling.model_dump(include={"temperature", "max_new_tokens"}) if sampling else {}
    rank = {"lora_rank": update.lora.rank} if update.lora else {}
    kept = update.model_dump() | sampled | rank
    if not kept.get("sft_data"):
        kept.pop("sft_coef", None)
    return kept
