"""The samples and games counted in a plan: existing games stand in for those that a run will play.

The game itself renders the prompts, so rules, prompt files and shared prefixes match the run. Utterances come from the
shipped teacher games, lengthened because models say more, or else from the game's bots.
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, cycle, groupby, islice, pairwise
from math import ceil
from statistics import fmean
from typing import Any

from spag.algorithms import get
from spag.algorithms.credit import result_of
from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import OfflineSettings, TeacherSettings
from spag.config.schema import PhaseConfig
from spag.core.episodes import Episode, TrainingSample
from spag.core.errors import ConfigError
from spag.core.options import SamplingConfig
from spag.games.base import Game
from spag.models.tokens import shared_length
from spag.runs.teachers import BOT_GAMES, bot_games, teacher_file, teacher_path
from spag.storage.episodes import is_file_of_samples, read_episodes, read_samples, read_sft

_PIECES = re.compile(r" ?[^\W\d_]+|\d| ?[^\w\s]+|\s+(?!\S)|\s|_")
"""Words, digits and marks, used as tokens: SmolLM2's tokenizer gives 0 to 9 % more tokens for the shipped games."""
EXAMPLES, COUNTED = 128, 512
"""Games that stand in for those of play, and games whose samples are counted, at most; the rest is extrapolated."""
_DRAWS = 8
"""Updates drawn to find the largest micro-batch."""


class NoExamplesError(ConfigError):
    """Nothing stands in for the play of a game: it has neither bots nor teacher games."""


@dataclass(frozen=True, slots=True)
class Work:
    """The samples or games of a stage (for play, in brackets): how many; tokens fed after packing (read after prefix
    caching) and trained (generated); the mean length of a text; tokens fed for a sample of the largest micro-batch (of
    the longest text); micro-batches (utterances); the ``games`` learned from; how often each sample is trained on, and
    how many times longer texts may be.
    """

    count: int
    fed: float
    trained: float
    length: float
    largest: float
    parts: float
    games: int = 0
    passes: float = 1.0
    growth: float = 1.0

    def __mul__(self, times: float) -> "Work":
        sums = {name: getattr(self, name) * times for name in ("fed", "trained", "parts")}
        return replace(self, count=round(self.count * times), **sums)


@lru_cache(maxsize=16)
def examples(game: Game, tokens: float, count: int = EXAMPLES) -> list[Episode]:
    """Return up to ``count`` finished games: shipped, with utterances of ``tokens`` tokens, or else games of a bot."""
    try:
        shipped = list(islice(read_episodes(teacher_path(game)), count))
    except ConfigError:  # it ships none
        name = next((name for name in ("random", *game.bots) if name in game.bots), None)
        if name is None:
            fix = "add one to its bots, or data/teacher_games.jsonl to its package"
            needs = "a plan needs a bot or teacher games to stand in for play"
            raise NoExamplesError(f"{game.name}: {needs}; {fix}") from None
        return list(bot_games(f"bot:{name}", count, 0, game))
    return [_drawn_out(one, max(round(tokens), 1), game) for one in shipped]


def _drawn_out(episode: Episode, size: int, game: Game) -> Episode:
    """Return a game with utterances of ``size`` tokens, which ended as it did with its own."""
    episode = replace(episode, settings=None)  # in any language
    words = [islice(cycle(pieces(f" {one.content}")), size) for one in episode.history]
    said = tuple(replace(one, content="".join(text).strip()) for one, text in zip(episode.history, words, strict=True))
    end = result_of(episode, game)
    return replace(episode, history=said, outcome=end.outcome, rewards=end.rewards, length=end.length)


def teacher_work(phase: PhaseConfig, settings: TeacherSettings, game: Game) -> Work:
    """Return the work of a phase that learns from files and bots; samples are counted on part of the games."""
    rows: list[TrainingSample] = []
    counted: list[TrainingSample] = []
    total, found = 0, 0.0
    most = ceil(COUNTED / max(len(settings.episodes), 1))
    for source in settings.episodes:
        path = teacher_file(source, game)
        if path is not None and is_file_of_samples(path):
            rows.extend(read_samples(path))
            continue
        if path is None:
            count = settings.max_episodes or BOT_GAMES
            games = list(bot_games(source, min(count, most), 0, game))
        else:
            every = [one for one in read_episodes(path) if game.split_of(one.task) in settings.splits]
            count, games = len(every), random.Random(0).sample(every, min(len(every), most))
        credited = _credited(phase, games, game)
        counted.extend(credited)
        total, found = total + count, found + count * len(credited) / max(len(games), 1)
    used = min(total, settings.max_episodes or total)
    return _offline(settings, [*rows, *counted], len(rows) + round(used / max(total, 1) * found), used)


def iteration_work(phase: PhaseConfig, game: Game, games: float, tokens: float, thought: float = 0.0) -> Work:
    """Return the training work of an iteration after ``games`` games with utterances of ``tokens`` tokens, each after
    ``thought`` tokens of thought.
    """
    episodes = examples(game, tokens)
    samples = _credited(phase, episodes, game)
    return _offline(phase.settings, samples, round(games * len(samples) / len(episodes)), round(games), thought)


def _credited(phase: PhaseConfig, games: Sequence[Episode], game: Game) -> list[TrainingSample]:
    algorithm: Any = get(phase.algorithm)(phase.settings, seed=0)
    return list(algorithm.credit(games, game, None))


def _offline(
    settings: OfflineSettings, samples: Sequence[TrainingSample], unique: int, games: int, thought: float = 0.0
) -> Work:
    """Return the work of all updates on ``unique`` samples like ``samples`` and on the SFT mix. As in training, the
    samples of a game are in one update if they share prefixes.
    """
    sft = read_sft(settings.sft_data, settings.sft_samples, 0) if settings.sft_data else []
    total = max(unique + len(sft), 1)
    mixed = [*samples, *sft[: len(sft) * len(samples) // unique if unique else None]]
    mixed = mixed or [TrainingSample(prompt=" ", completion="")]
    size, is_alone = min(settings.global_batch_size, len(mixed)), settings.template == "random"
    units = [[*unit] for _, unit in groupby(mixed, lambda one: (not is_alone and one.episode_id) or id(one))]
    drawn = (random.Random(seed).sample(units, min(size, len(units))) for seed in range(_DRAWS))
    updates = [[*islice(chain.from_iterable(one), size)] for one in drawn]
    count = settings.max_steps * settings.global_batch_size if settings.max_steps else total * settings.epochs
    work = packed_work(updates, settings.micro_batch_size, settings.max_length, thought) * (count / size / _DRAWS)
    return replace(work, count=count, games=games, passes=count / total)


def online_work(
    settings: OnlineSettings, mix: Sequence[tuple[Game, float]], tokens: float, thought: float = 0.0
) -> Work:
    """Return the work of a pass over one step: every utterance of the trained roles, each after ``thought`` tokens of
    thought; without thoughts, equal ones are merged.
    """
    samples: dict[tuple[str, str, str, int], TrainingSample] = {}
    games = counted = 0
    for game, weight in mix:
        wanted = max(round(settings.games * weight / sum(weight for _, weight in mix)), 1)
        episodes = examples(game, tokens, min(max(wanted, EXAMPLES), COUNTED))[:wanted]
        games, counted = games + wanted, counted + len(episodes)
        said = (one for episode in episodes for one in utterances(episode, game))
        for at, one in enumerate(said):
            if settings.roles in ("both", one.role):
                samples[f"{game.name}/{one.role}", one.prompt, one.completion, at if thought else 0] = one
    work = packed_work([list(samples.values())], settings.micro_batch_size, thought=thought)
    return replace(work * (games / counted), passes=settings.epochs)


def packed_work(
    updates: Sequence[Sequence[TrainingSample]], size: int, limit: int = 10**6, thought: float = 0.0
) -> Work:
    """Return the work of training on the samples of ``updates`` in micro-batches of ``size``, packed like
    ``spag.learning.batches``: sorted, with prefixes shared with the previous sample fed once. Samples lose tokens above
    ``limit``; no two share a ``thought``.
    """
    lengths: list[float] = []
    parts: list[tuple[float, int]] = []  # tokens fed, and samples
    for update in updates:
        ordered = sorted(pieces(one.prompt + one.completion)[-limit:] for one in update)
        lengths += [min(len(text) + thought, limit) for text in ordered]
        for part in (ordered[at : at + size] for at in range(0, len(ordered), size)):
            parts.append((min(_packed(part) + len(part) * thought, len(part) * limit), len(part)))
    trained = sum(min(_tokens(one.completion) + 1 + thought, limit) for update in updates for one in update)
    fed, (most, count) = sum(tokens for tokens, _ in parts), max(parts)
    return Work(len(lengths), fed, trained, fmean(lengths), most / count, len(parts))


@lru_cache(maxsize=16)
def play_work(game: Game, tokens: float, thought: float = 0.0, *, merged: bool = False) -> Work:
    """Return the tokens that an average game reads and generates, with ``thought`` tokens before each utterance, all
    different and in no later prompt. Engines read equal prefixes once; ``merged``: they also generate equal utterances
    once.
    """
    played = examples(game, tokens)
    said = [one for episode in played for one in utterances(episode, game)]
    prompts, written = [_tokens(one.prompt) for one in said], [_tokens(one.completion) + 1 + thought for one in said]
    distinct = len({(one.prompt, one.completion) for one in said}) if merged and not thought else len(said)
    length, read = fmean(prompts) + fmean(written) / 2, _packed([pieces(one.prompt) for one in said])
    longest = max(map(sum, zip(prompts, written, strict=True)))
    return Work(len(played), read, distinct * fmean(written), length, longest, len(said)) * (1 / len(played))


def games_work(
    plays: Mapping[Game, int], sampling: SamplingConfig, tokens: float, thought: float, *, merged: bool
) -> Work:
    """Return the work of playing so many of each game with utterances of ``tokens`` tokens, each after ``thought``
    tokens of thought. Texts may grow until every thought and utterance has the maximum length.
    """
    usual = {game: play_work(game, tokens, thought, merged=merged) for game in plays}
    works = [work * plays[game] for game, work in usual.items()]
    growth = 1.0
    for game, work in usual.items():  # the longest text grows evenly with its utterances
        slope = (play_work(game, 2 * tokens, thought, merged=merged).largest - work.largest) / tokens
        most = work.largest + slope * (sampling.max_new_tokens - tokens) + sampling.thought_tokens - thought
        growth = max(growth, most / work.largest)
    parts, longest = sum(one.parts for one in works), max(one.largest for one in works)
    length = sum(one.length * one.parts for one in works) / parts
    fed, trained = sum(one.fed for one in works), sum(one.trained for one in works)
    return Work(sum(plays.values()), fed, trained, length, longest, parts, growth=growth)


def utterances(episode: Episode, game: Game) -> Iterator[TrainingSample]:
    """Yield each utterance of a game with the prompt of play that it answers."""
    for at, said in enumerate(episode.history[: episode.length]):
        prompt = game.prompt(game.observe(episode.before(at), said.role))
        yield TrainingSample(prompt=prompt, completion=said.content, role=said.role)


def _packed(texts: Iterable[list[str]]) -> int:
    """Return the tokens of ``texts``, counting prefixes shared with the previous text once."""
    ordered = sorted(texts)
    return sum(map(len, ordered)) - sum(shared_length(*pair) for pair in pairwise(ordered))


def pieces(text: str) -> list[str]:
    """Return the words, digits and marks of ``text``, used as its tokens."""
    return _PIECES.findall(text)


def _tokens(text: str) -> int:
    return len(pieces(text))
