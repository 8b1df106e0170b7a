"""The work of each stage on plain files: what ``spag run`` chains and the single commands call."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from spag.algorithms.spag import RewardSettings, RewardStats, Template, iterate_rewards
from spag.config.schema import ModelConfig, RewardsConfig, RunConfig, SelfPlayConfig
from spag.core.episodes import Episode, SampleType, TrainingSample, read_episodes
from spag.core.errors import ConfigError, DataError
from spag.core.seeds import derive_seed
from spag.core.store import write_json, write_rows
from spag.core.types import Split, Task
from spag.engines.base import Sampling
from spag.engines.bot import BOT_PREFIX, BotEngine, bot_of
from spag.engines.opening import OPENAI_PREFIX
from spag.evaluation.arena.games import arena_report
from spag.evaluation.yardsticks import score_model
from spag.games.base import Game, SolvedGame, drawn
from spag.rollout.matchmaking import match_specs, pairings
from spag.rollout.play import PlaySetup, pair_up, play_matches
from spag.rollout.runner import Player, game_specs, play

TEACHER = "teacher"
BOT_GAMES = 200
"""Games of a bot that imitation takes when ``imitation.max_episodes`` says nothing."""


def resolve_dtype(config: RunConfig, remember: Callable[[Callable[[], str]], str] = lambda measure: measure()) -> RunConfig:
    """Replace dtype ``auto`` by the fastest one here; ``remember`` may answer from an earlier measurement."""
    if config.model.dtype != "auto":
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"dtype": remember(_measure_dtype)})})


def _measure_dtype() -> str:
    from spag.models.loading import fastest_dtype  # noqa: PLC0415 - imports torch

    return fastest_dtype()


def teacher_path(game: Game) -> Path:
    """Return the file of teacher games that the game's package ships. Raises ``ConfigError`` where there is none."""
    module = type(game).__module__
    path = Path(str(resources.files(module.rpartition(".")[0] or module) / "data" / "teacher_games.jsonl"))
    if not path.is_file():
        bots = ", ".join(f"{BOT_PREFIX}{name}" for name in game.bots) or "none"
        raise ConfigError(f"imitation.episodes: {game.name} ships no teacher games; name files of games, or one of its bots: {bots}")
    return path


def teacher_episodes(
    sources: Sequence[str],
    limit: int | None,
    seed: int,
    game: Game,
    *,
    keep_held_out: bool = False,
    note: Callable[[str], None] = lambda line: None,
) -> list[Episode]:
    """Read teacher play from ``sources``, at most ``limit`` games drawn by seed.

    ``teacher`` names the games that the package ships, ``bot:NAME`` games of that bot against itself. Games on held-out tasks are left out
    before the draw, unless ``keep_held_out``, and ``note`` is told how many. Raises ``DataError`` when no others are there.
    """
    episodes: list[Episode] = []
    for source in sources:
        path = teacher_file(source, game)
        episodes += _bot_episodes(source, limit or BOT_GAMES, seed, game) if path is None else read_episodes(path)
    if not keep_held_out:
        episodes = without_held_out(episodes, game, ", ".join(sources), note)
    if limit is not None and limit < len(episodes):
        kept = sorted(random.Random(derive_seed(seed, TEACHER)).sample(range(len(episodes)), limit))
        episodes = [episodes[index] for index in kept]
    return episodes


def teacher_count(sources: Sequence[str], limit: int | None, game: Game, *, keep_held_out: bool = False) -> int:
    """Return how many games ``teacher_episodes`` would return, without playing those of bots. Raises what it raises."""
    paths = [teacher_file(source, game) for source in sources]
    files = [source for source, path in zip(sources, paths, strict=True) if path is not None]
    count = len(teacher_episodes(files, None, 0, game, keep_held_out=keep_held_out)) if files else 0
    count += paths.count(None) * (limit or BOT_GAMES)
    return count if limit is None else min(count, limit)


def selfplay_tasks(game: Game, play: SelfPlayConfig, count: int | None, seed: int) -> Sequence[Task]:
    """Return ``count`` tasks of self-play, drawn by ``seed`` (all of them when ``None``). Raises ``ConfigError`` for too many."""
    if not play.keep_held_out:
        return game.tasks(Split.TRAIN, count, seed)
    everything = [task for split in Split for task in game.tasks(split, None, seed)]
    return drawn(everything, count, seed, f"tasks asked for, but there are {len(everything)}")


def model_of_play(model: ModelConfig, play: SelfPlayConfig) -> ModelConfig:
    """Return ``model`` with the precision of self-play."""
    return model.model_copy(update={"dtype": play.dtype}) if play.dtype else model


def without_held_out(episodes: Sequence[Episode], game: Game, source: str, note: Callable[[str], None]) -> list[Episode]:
    """Return the games on tasks that may be trained on; tell ``note`` how many others there were. Raises ``DataError`` when all were."""
    kept = [episode for episode in episodes if game.split_of(episode.task) is not Split.HELD_OUT]
    if left_out := len(episodes) - len(kept):
        if not kept:
            raise DataError(
                f"{source}: all {left_out:,} games are on held-out tasks, which imitation leaves out; name games on other tasks, or "
                "train on these with imitation.keep_held_out=true"
            )
        note(f"{source}: {left_out:,} of {len(episodes):,} games left out, because their tasks are held out")
    return kept


def teacher_file(source: str, game: Game) -> Path | None:
    """Return the file of a source of teacher play; ``None`` for a bot, whose games are made when they are needed."""
    if source.startswith(BOT_PREFIX):
        bot_of(game, source)
        return None
    return teacher_path(game) if source == TEACHER else Path(source)


def _bot_episodes(name: str, count: int, seed: int, game: Game) -> Iterator[Episode]:
    """Play ``count`` games, on each task once before any is played again."""
    everything, seed = len(game.tasks(Split.TRAIN, None, 0)), derive_seed(seed, name)
    repeats = -(-count // everything)
    specs = game_specs(game.tasks(Split.TRAIN, min(count, everything), seed), repeats, seed)
    player = Player(BotEngine(bot_of(game, name)), name, Sampling())
    in_rounds = [spec for repeat in range(repeats) for spec in specs[repeat::repeats]]
    return play(in_rounds[:count], dict.fromkeys(game.roles, player), game=game)


def write_samples(
    path: Path,
    episodes: Iterable[Episode],
    rewards: RewardsConfig,
    *,
    game: Game,
    seed: int,
    sample_type: SampleType = SampleType.RL,
    sft: Sequence[TrainingSample] = (),
    learner: str | None = None,
    everyone: bool = False,
) -> RewardStats:
    """Judge ``episodes`` and write their training samples and the SFT mix to ``path``, row by row.

    ``learner``, ``everyone``: whose samples, as in ``RewardSettings``.

    Raises ``DataError`` when no game gave a sample, unless there are only SFT rows; an older ``path`` then stays as it is.
    """
    stats = RewardStats()
    settings = RewardSettings(
        discount=rewards.discount,
        loser_reward=rewards.loser_reward,
        tie_reward=rewards.tie_reward,
        template=Template(rewards.template),
        sampled_tokens=rewards.completions == "sampled",
        seed=seed,
        sample_type=sample_type,
        roles=None if rewards.roles == "both" else frozenset({rewards.roles}),
        learner=learner,
        everyone=everyone,
    )

    def rows() -> Iterator[TrainingSample]:
        yield from iterate_rewards(episodes, game, settings, stats=stats)
        games = sum(stats.outcomes.values())
        if not stats.samples and (games or not sft):
            raise DataError(
                f"{path}: no game of {games} gave a sample ({dict(stats.outcomes)}); play more games, or train the model further first"
            )
        yield from sft

    write_rows(path, rows())
    return stats


def play_arena(
    folder: Path, entrants: Mapping[str, ModelConfig], config: RunConfig, setup: PlaySetup, *, force: bool = False
) -> dict[str, Any]:
    """Let every pair of ``entrants`` (by name) play the held-out tasks.

    Writes ``episodes.jsonl`` and ``results.json``; returns the results. Games in the file stay. Raises ``RunError`` where some are of other
    entrants or settings, which ``force`` removes.
    """
    path = folder / "episodes.jsonl"
    tasks = setup.game.tasks(Split.HELD_OUT, config.arena.tasks, derive_seed(config.seed, "arena"))
    pairs = {pairing: match_specs(pairing, tasks, config.seed) for pairing in pairings(list(entrants))}
    matches = pair_up(pairs, entrants, lambda _: config.arena.sampling, setup.game.roles, "arena")
    play_matches(path, matches, setup, force=force)
    results = arena_report(read_episodes(path), setup.game, list(entrants))
    results["yardsticks"] = yardsticks(entrants, setup.game)
    write_json(folder / "results.json", results)
    return results


def yardsticks(entrants: Mapping[str, ModelConfig], game: Game) -> dict[str, dict[str, float]]:
    """Return the exact figures of each local model's policy, where the game is solved; nothing for bots and endpoints."""
    if not isinstance(game, SolvedGame):
        return {}
    local = {name: model for name, model in entrants.items() if not model.name.startswith((BOT_PREFIX, OPENAI_PREFIX))}
    return {name: score_model(model, game) for name, model in local.items()}
