"""The work of each stage on plain files: what ``spag run`` chains and the single commands call."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from spag.collect import PlaySummary, collect_episodes
from spag.config import (
    EngineConfig,
    GameConfig,
    ModelConfig,
    OfflineRLConfig,
    RewardsConfig,
    RunConfig,
    SamplingConfig,
    TrainingConfig,
    WordsConfig,
)
from spag.engines.opening import open_engines, sampling_of
from spag.episodes import Episode, SampleType, TrainingSample, read_episodes
from spag.errors import ConfigError, DataError
from spag.evaluation.arena import Pairing, arena_report, match_specs, pairings
from spag.game.base import Role
from spag.game.judge import JudgeMode
from spag.game.prompts import PromptSet
from spag.game.taboo import AdversarialTaboo
from spag.game.words import Split, split_of
from spag.progress import Reporter, Tracker
from spag.promptfile import load_prompts
from spag.rewards import RewardSettings, RewardStats, Template, iterate_rewards
from spag.seeding import derive_seed
from spag.selfplay import GameSpec, Player
from spag.store import write_json, write_rows
from spag.wordlist import load_words

TEACHER = "teacher"


@dataclass(frozen=True, slots=True)
class Side:
    """Who plays a role: the name for the record, the model, and how it samples."""

    name: str
    model: ModelConfig
    sampling: SamplingConfig


def settle_dtype(config: RunConfig, remember: Callable[[Callable[[], str]], str] = lambda measure: measure()) -> RunConfig:
    """Replace dtype ``auto`` by the fastest one here; ``remember`` may answer from an earlier measurement."""
    if config.model.dtype != "auto":
        return config
    from spag.models import fastest_dtype  # noqa: PLC0415 - imports torch

    dtype = remember(fastest_dtype)
    return config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})


@dataclass(frozen=True, slots=True)
class Table:
    """What games are played with besides players: the engines' settings, the rules, the prompts, and who watches."""

    engine: EngineConfig
    game: GameConfig
    prompts: PromptSet
    reporter: Reporter


def prompts_of(game: GameConfig) -> PromptSet:
    """Return the prompts that the settings name. Raises ``DataError`` for a faulty prompt file."""
    return load_prompts(game.prompts) if game.prompts else PromptSet.default()


def table_of(config: RunConfig, reporter: Reporter) -> Table:
    """Return the table that the settings describe."""
    return Table(config.engine, config.game, prompts_of(config.game), reporter)


def play_games(
    path: Path,
    specs: Sequence[GameSpec],
    sides: Mapping[Role, Side],
    table: Table,
    *,
    title: str,
    file_specs: Sequence[GameSpec] | None = None,
) -> PlaySummary:
    """Play ``specs`` into ``path``. Sides with equal models share one engine, adapters of one base model one vLLM."""

    def make_players(stack: ExitStack) -> dict[Role, Player]:
        engines = open_engines([side.model for side in sides.values()], table.engine, stack, table.reporter.note)
        return {
            role: Player(engine, side.name, sampling_of(side.sampling)) for (role, side), engine in zip(sides.items(), engines, strict=True)
        }

    return collect_episodes(
        path,
        specs,
        make_players,
        game=AdversarialTaboo(JudgeMode(table.game.judge)),
        max_turns=table.game.max_turns,
        prompts=table.prompts,
        reporter=table.reporter,
        title=title,
        in_flight=table.engine.concurrency,
        file_specs=file_specs,
    )


def play_matches(
    path: Path,
    matches: Mapping[Pairing, Sequence[GameSpec]],
    models: Mapping[str, ModelConfig],
    sampling: Mapping[Role, SamplingConfig],
    table: Table,
    *,
    title: str,
) -> PlaySummary:
    """Play the games of every pairing into one file; ``models`` are by the names in the pairings."""
    everything = [spec for specs in matches.values() for spec in specs]
    summary = PlaySummary()
    for pairing, specs in matches.items():
        sides = {
            role: Side(name, models[name], sampling[role]) for role, name in zip(Role, (pairing.attacker, pairing.defender), strict=True)
        }
        named = f"{title} {pairing.title}" if len(matches) > 1 else title
        summary.add(play_games(path, specs, sides, table, title=named, file_specs=everything))
    return summary


def draw_opponents(
    specs: Sequence[GameSpec], learner: str, weights: Mapping[str, float], earlier: Sequence[str]
) -> dict[Pairing, list[GameSpec]]:
    """Divide games by who plays them: ``learner``, in either role, and an opponent, both drawn by the game's own seed.

    ``weights`` are those of ``selfplay.opponents``. ``earlier`` stands for one of the names in ``earlier``, and for ``self`` while there is
    none.
    """
    matches: dict[Pairing, list[GameSpec]] = {}
    names = sorted(weights)
    for spec in specs:
        rng = random.Random(derive_seed(spec.seed, "opponent"))
        [opponent] = rng.choices(names, [weights[name] for name in names])
        if opponent == "earlier":
            opponent = rng.choice(earlier) if earlier else "self"
        sides = [learner, learner if opponent == "self" else opponent]
        rng.shuffle(sides)
        matches.setdefault(Pairing(*sides), []).append(spec)
    return matches


def teacher_path() -> Path:
    """Return the file of teacher games that the package ships."""
    return Path(str(resources.files("spag.data") / "teacher_games.jsonl"))


def teacher_episodes(sources: Sequence[str], limit: int | None, seed: int) -> list[Episode]:
    """Read teacher play from ``sources`` (``teacher`` names the shipped games), at most ``limit`` games drawn by seed."""
    episodes = [episode for source in sources for episode in read_episodes(teacher_path() if source == TEACHER else Path(source))]
    if limit is not None and limit < len(episodes):
        kept = sorted(random.Random(derive_seed(seed, TEACHER)).sample(range(len(episodes)), limit))
        episodes = [episodes[index] for index in kept]
    return episodes


def draw_words(config: WordsConfig, split: Split, count: int | None, seed: int) -> list[str]:
    """Return ``count`` words of a split, drawn by seed (all of them, in order, when ``count`` is ``None``). Raises ``ConfigError``."""
    words = [word for word in load_words(config.source, config.top) if split_of(word) is split]
    if count is None:
        return words
    if count > len(words):
        raise ConfigError(
            f"{count} words asked for, but {config.source} has {len(words)} in its {split} split; ask for fewer or raise words.top"
        )
    return random.Random(seed).sample(words, count)


def write_samples(
    path: Path,
    episodes: Iterable[Episode],
    rewards: RewardsConfig,
    *,
    judge: JudgeMode,
    prompts: PromptSet,
    seed: int,
    sample_type: SampleType = SampleType.RL,
    sft: Sequence[TrainingSample] = (),
    learner: str | None = None,
) -> RewardStats:
    """Judge ``episodes`` and write their training samples (``learner``'s alone, when given) and the SFT mix to ``path``, row by row.

    Raises ``DataError`` when no game gave a sample, unless there are only SFT rows; an older ``path`` then stays as it is.
    """
    stats = RewardStats()
    settings = RewardSettings(
        discount=rewards.discount,
        judge=judge,
        loser_reward=rewards.loser_reward,
        tie_reward=rewards.tie_reward,
        template=Template(rewards.template),
        seed=seed,
        sample_type=sample_type,
        roles=frozenset(Role) if rewards.roles == "both" else frozenset({Role(rewards.roles)}),
        learner=learner,
    )

    def rows() -> Iterator[TrainingSample]:
        yield from iterate_rewards(episodes, settings, prompts=prompts, stats=stats)
        games = sum(stats.outcomes.values())
        if not stats.samples and (games or not sft):
            raise DataError(
                f"{path}: no game of {games} gave a sample ({dict(stats.outcomes)}); play more games, or train the model further first"
            )
        yield from sft

    write_rows(path, rows())
    return stats


def train_on(
    samples: Sequence[TrainingSample],
    model: ModelConfig,
    training: TrainingConfig,
    *,
    start_from: str,
    output: Path,
    seed: int,
    reporter: Reporter,
    title: str,
) -> dict[str, Any]:
    """Train and return the figures worth keeping. Offline RL when ``training`` is an ``OfflineRLConfig``, else imitation."""
    from spag.models import library_versions  # noqa: PLC0415 - imports torch
    from spag.training import Phase, Stage, TrainProgress, train  # noqa: PLC0415 - imports torch

    stage = Stage.OFFLINE_RL if isinstance(training, OfflineRLConfig) else Stage.IMITATION
    with ExitStack() as stack:
        bars: dict[Phase, Tracker] = {}

        def show(at: TrainProgress) -> None:
            if at.phase not in bars:
                stack.close()  # the bar of the phase before
                bars[at.phase] = stack.enter_context(reporter.track(f"{title}: {at.phase}", at.total_steps))
            loss = "" if at.loss is None else f"  loss {at.loss:.3f}"
            bars[at.phase].update(at.step, f"{at.samples_per_second:.2f} samples/s{loss}")

        result = train(stage, samples, model=model, training=training, start_from=start_from, output=output, seed=seed, progress=show)
    figures = {"steps": result.steps, "samples": result.samples, "seconds": round(result.seconds, 1), "metrics": result.metrics}
    return {**figures, "versions": library_versions()}


def play_arena(folder: Path, entrants: Mapping[str, ModelConfig], config: RunConfig, table: Table) -> dict[str, Any]:
    """Let every pair of ``entrants`` (by name) play the held-out words.

    Writes ``episodes.jsonl`` and ``results.json``; returns the results.
    """
    path = folder / "episodes.jsonl"
    words = draw_words(config.words, Split.HELD_OUT, config.arena.words, derive_seed(config.seed, "arena"))
    matches = {pairing: match_specs(pairing, words, config.seed) for pairing in pairings(list(entrants))}
    play_matches(path, matches, entrants, dict.fromkeys(Role, config.arena.sampling), table, title="arena")
    results = arena_results(path, JudgeMode(config.game.judge), list(entrants))
    write_json(folder / "results.json", results)
    return results


def arena_results(path: Path, judge: JudgeMode, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return what ``results.json`` holds: rates, ratings, the win matrix and paired comparisons. ``names`` come first, in this order."""
    return arena_report(read_episodes(path), judge, names)
