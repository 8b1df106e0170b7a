"""The work of each stage on plain files: what ``spag run`` chains and the single commands call."""

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from spag.algorithms.spag import RewardSettings, RewardStats, Template, iterate_rewards
from spag.config.schema import (
    ClusterConfig,
    EngineConfig,
    GameConfig,
    ModelConfig,
    RewardsConfig,
    RunConfig,
    SamplingConfig,
    WordsConfig,
)
from spag.core.episodes import Episode, SampleType, TrainingSample, read_episodes
from spag.core.errors import ConfigError, DataError
from spag.core.progress import Reporter
from spag.core.seeds import derive_seed
from spag.core.store import write_json, write_rows
from spag.engines.opening import gpus_of, open_engines, sampling_of
from spag.evaluation.arena.games import Pairing, arena_report, match_specs, pairings
from spag.games.taboo.judge.judge import JudgeMode
from spag.games.taboo.promptfile import load_prompts
from spag.games.taboo.prompts import PromptSet
from spag.games.taboo.rules import AdversarialTaboo
from spag.games.taboo.types import Role
from spag.games.taboo.wordlist import load_words
from spag.games.taboo.words import Split, split_of
from spag.rollout.ray import require_ray
from spag.rollout.runner import GameSpec, Player, PlayRules, PlayStats, play_by
from spag.rollout.writer import PlaySummary, collect_episodes

logger = logging.getLogger(__name__)

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
    from spag.models.loading import fastest_dtype  # noqa: PLC0415 - imports torch

    dtype = remember(fastest_dtype)
    return config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})


@dataclass(frozen=True, slots=True)
class Table:
    """What games are played with besides players: the engines' settings, the rules, the prompts, and who watches."""

    engine: EngineConfig
    game: GameConfig
    prompts: PromptSet
    reporter: Reporter
    cluster: ClusterConfig = field(default_factory=ClusterConfig)


def prompts_of(game: GameConfig) -> PromptSet:
    """Return the prompts that the settings name. Raises ``DataError`` for a faulty prompt file."""
    return load_prompts(game.prompts) if game.prompts else PromptSet.default()


def table_of(config: RunConfig, reporter: Reporter) -> Table:
    """Return the table that the settings describe."""
    return Table(config.engine, config.game, prompts_of(config.game), reporter, config.cluster)


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
    rules = PlayRules(AdversarialTaboo(JudgeMode(table.game.judge)), table.game.max_turns, table.prompts, table.engine.concurrency)

    def play_them(left: Sequence[GameSpec], stats: PlayStats, stack: ExitStack) -> Iterator[Sequence[Episode]]:
        if table.cluster.address is None:
            return play_by(rules, left, open_players(sides, table.engine, stack, table.reporter.note), stats)
        return _play_elsewhere(left, sides, rules, table, stats, stack)

    return collect_episodes(path, specs, play_them, reporter=table.reporter, title=title, file_specs=file_specs)


def _play_elsewhere(
    left: Sequence[GameSpec], sides: Mapping[Role, Side], rules: PlayRules, table: Table, stats: PlayStats, stack: ExitStack
) -> Iterator[Sequence[Episode]]:
    """Play on the table's cluster; with ``cluster.storage``, weights in local folders go there first."""
    cluster = table.cluster
    require_ray(str(cluster.address))
    from spag.rollout.ray.play import play_on_ray  # noqa: PLC0415 - ray is optional
    from spag.rollout.ray.weights import publish  # noqa: PLC0415
    from spag.rollout.ray.worker import PlayJob  # noqa: PLC0415

    sides = {role: replace(side, model=_at_a_full_path(side.model)) for role, side in sides.items()}
    gpus = gpus_of([side.model for side in sides.values()], table.engine)
    if cluster.storage is not None:
        sides = {role: replace(side, model=publish(side.model, cluster.storage)) for role, side in sides.items()}
    job = PlayJob(partial(_open_there, sides, table.engine), rules, gpus)
    return play_on_ray(left, job, cluster, stats, stack, table.reporter.note)


def _at_a_full_path(model: ModelConfig) -> ModelConfig:
    """Processes of other nodes work in other folders."""
    path = Path(model.name).expanduser()
    return model.model_copy(update={"name": str(path.resolve())}) if path.exists() else model


def _open_there(sides: Mapping[Role, Side], engine: EngineConfig, stack: ExitStack) -> dict[Role, Player]:
    """``open_players`` on a node of the cluster."""
    from spag.models.loading import cache_folder  # noqa: PLC0415 - imports torch
    from spag.rollout.ray.weights import fetch  # noqa: PLC0415

    return open_players({role: replace(side, model=fetch(side.model, cache_folder())) for role, side in sides.items()}, engine, stack)


def open_players(
    sides: Mapping[Role, Side], engine: EngineConfig, stack: ExitStack, note: Callable[[str], None] = logger.info
) -> dict[Role, Player]:
    """Open the engines of both sides; ``stack`` closes them. Equal models share one, adapters of one base model one vLLM."""
    engines = open_engines([side.model for side in sides.values()], engine, stack, note)
    return {
        role: Player(opened, side.name, sampling_of(side.sampling)) for (role, side), opened in zip(sides.items(), engines, strict=True)
    }


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
    return Path(str(resources.files("spag.games.taboo.data") / "teacher_games.jsonl"))


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
