"""The samples and games counted in a plan: existing games stand in for those that a run will play.

The game itself renders the prompts, so rules, prompt files and shared prefixes match the run. Utterances come from the
shipped teacher games, lengthened because models say more, or else from the game's bots.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import chain, islice, pairwise
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
from spag.core.types import Split, Utterance
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
    caching) and trained (generated after distinct texts); the mean length of a text; the tokens fed and trained in the
    largest micro-batch (of the longest text); micro-batches (utterances); the ``games`` learned from; the tokens of all
    prompts as they are sent, and all tokens ``drawn``; how often each sample is trained on, how many times longer texts
    may be, and the ``size`` of a micro-batch in samples.
    """

    count: int
    fed: float
    trained: float
    length: float
    largest: tuple[float, float]
    parts: float
    games: int = 0
    prompts: float = 0.0
    drawn: float = 0.0
    passes: float = 1.0
    growth: float = 1.0
    size: int = 1

    def with_thoughts(self, thought: float) -> "Work":
        """Return this play with ``thought`` tokens before each utterance, all different and in no later prompt."""
        if not thought:
            return self
        drawn, largest = self.drawn + self.parts * thought, (self.largest[0] + thought, self.largest[1] + thought)
        return replace(self, trained=drawn, drawn=drawn, length=self.length + thought / 2, largest=largest)

    def __mul__(self, times: float) -> "Work":
        sums = {name: getattr(self, name) * times for name in ("fed", "trained", "parts", "prompts", "drawn")}
        return replace(self, count=round(self.count * times), **sums)


@lru_cache(maxsize=16)
def examples(game: Game, tokens: float, count: int = EXAMPLES) -> list[Episode]:
    """Return up to ``count`` finished games: shipped, with utterances of ``tokens`` tokens, or else games of a bot."""
    size = max(round(tokens), 1)

    def drawn_out(said: Utterance) -> Utterance:
        words = pieces(f" {said.content}")
        return replace(said, content="".join((words * (size // len(words) + 1))[:size]).strip())

    played = []
    for one, free in _finished(game, count):
        end = result_of(one, game)
        said = tuple(map(drawn_out, one.history)) if free else one.history
        played.append(replace(one, history=said, outcome=end.outcome, rewards=end.rewards, length=end.length))
    return played


def _finished(game: Game, count: int) -> list[tuple[Episode, bool]]:
    """Return up to ``count`` games, and whether their players speak freely."""
    try:
        shipped = islice(read_episodes(teacher_path(game)), count)
        return [(replace(one, settings=None), True) for one in shipped]  # in any language
    except ConfigError:  # it ships none
        name = next((name for name in ("random", *game.bots) if name in game.bots), None)
        if name is None:
            fix = "add one to its bots, or data/teacher_games.jsonl to its package"
            needs = "a plan needs a bot or teacher games to stand in for play"
            raise NoExamplesError(f"{game.name}: {needs}; {fix}") from None
        return [(one, False) for one in bot_games(f"bot:{name}", count, 0, game)]


def teacher_work(phase: PhaseConfig, settings: TeacherSettings, game: Game) -> Work:
    """Return the work of a phase that learns from files and bots; samples are counted on part of the games."""
    samples: list[TrainingSample] = []
    sources: list[tuple[int, list[TrainingSample], int]] = []  # how many games; how many of them are counted
    for source in settings.episodes:
        path, most = teacher_file(source, game), ceil(COUNTED / len(settings.episodes))
        if path is not None and is_file_of_samples(path):
            samples.extend(read_samples(path))
            continue
        if path is None:
            count = settings.max_episodes or BOT_GAMES
            games = list(bot_games(source, min(count, most), 0, game))
        else:
            every = (
                one for one in read_episodes(path) if settings.keep_held_out or game.split_of(one.task) is Split.TRAIN
            )
            count = len(games := list(every))
            games = random.Random(0).sample(games, min(count, most))
        sources.append((count, _credited(phase, games, game), len(games)))
    total = sum(count for count, _, _ in sources)
    used = min(total, settings.max_episodes or total)
    found = sum(count * len(credited) / counted for count, credited, counted in sources if counted)
    rows = len(samples)
    samples.extend(chain.from_iterable(credited for _, credited, _ in sources))
    return _offline(settings, samples, rows + round(used / max(total, 1) * found), used)


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
    """Return the work of all updates on ``unique`` samples like ``samples`` and on the SFT mix."""
    sft = read_sft(settings.sft_data, settings.sft_samples, 0) if settings.sft_data else []
    total = max(unique + len(sft), 1)
    mixed = [*samples, *sft[: len(sft) * len(samples) // unique if unique else None]]
    mixed = mixed or [TrainingSample(prompt=" ", completion="")]
    size, limit = min(settings.global_batch_size, len(mixed)), settings.max_length
    tokens = cache(lambda at: _sample_tokens(mixed[at]))
    draws = [list(map(tokens, random.Random(seed).sample(range(len(mixed)), size))) for seed in range(_DRAWS)]
    batch = settings.micro_batch_size
    parts = [part for draw in draws for part in micro_batches(draw, batch, limit, thought)]
    count = settings.max_steps * settings.global_batch_size if settings.max_steps else total * settings.epochs
    length = fmean(min(len(text) + thought, limit) for draw in draws for text, _ in draw)
    fed, trained = (sum(sums) for sums in zip(*parts, strict=True))
    seen = Work(size * _DRAWS, fed, trained, length, max(parts), len(parts), games, passes=count / total, size=batch)
    return replace(seen * (count / seen.count), count=count)


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
        said = [said for episode in episodes for said in utterances(episode, game)]
        for at, one in enumerate(said):
            if settings.roles in ("both", one.role):
                samples[f"{game.name}/{one.role}", one.prompt, one.completion, at if thought else 0] = one
    size = settings.micro_batch_size
    merged = list(map(_sample_tokens, samples.values()))
    parts = micro_batches(merged, size, thought=thought)
    length = fmean(len(text) for text, _ in merged) + thought
    fed, trained = (sum(sums) for sums in zip(*parts, strict=True))
    seen = Work(len(samples), fed, trained, length, max(parts), len(parts), passes=settings.epochs, size=size)
    return seen * (games / counted)


@lru_cache(maxsize=16)
def play_work(game: Game, tokens: float) -> Work:
    """Return the tokens that an average game reads and generates. Engines compute equal prefixes once."""
    played = examples(game, tokens)
    said = [sample for episode in played for sample in utterances(episode, game)]
    prompts, written = [_tokens(one.prompt) for one in said], [_tokens(one.completion) + 1 for one in said]
    largest = max(map(sum, zip(prompts, written, strict=True))), max(written)
    length, read = fmean(prompts) + fmean(written) / 2, _packed([pieces(one.prompt) for one in said])
    decoded = len({(one.prompt, one.completion) for one in said}) * fmean(written)
    sent = {"prompts": sum(prompts), "drawn": sum(written)}
    return Work(len(played), read, decoded, length, largest, len(said), **sent) * (1 / len(played))


def longest_text(game: Game, tokens: int) -> float:
    """Return the tokens of a game's longest text if every utterance has ``tokens``: it grows evenly with them."""
    short, long = (play_work(game, size).largest[0] for size in (32, 64))
    return short + (long - short) * (tokens - 32) / 32


def utterances(episode: Episode, game: Game) -> Iterator[TrainingSample]:
    """Yield each utterance of a game with the prompt of play that it answers."""
    for at, said in enumerate(episode.history[: episode.length]):
        prompt = game.prompt(game.observe(episode.before(at), said.role))
        yield TrainingSample(prompt=prompt, completion=said.content, role=said.role)


def _sample_tokens(sample: TrainingSample) -> tuple[list[str], int]:
    """Return the tokens of a sample's text, and how many of them are trained, with the end."""
    return pieces(sample.prompt + sample.completion), _tokens(sample.completion) + 1


def micro_batches(
    samples: Sequence[tuple[list[str], int]], size: int, limit: int = 10**6, thought: float = 0.0
) -> list[tuple[float, float]]:
    """Return the tokens fed and trained of each micro-batch of ``samples`` (their tokens, how many are trained), packed
    like ``spag.learning.batches``: sorted, with prefixes shared with the previous sample fed once. Samples lose tokens
    above ``limit``; no two share a ``thought``.
    """
    ordered = sorted((text[-limit:], trained) for text, trained in samples)
    cut = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    fed = (min(_packed([text for text, _ in part]) + len(part) * thought, len(part) * limit) for part in cut)
    trained = (sum(min(trained + thought, limit) for _, trained in part) for part in cut)
    return list(zip(fed, trained, strict=True))


def _packed(texts: Sequence[list[str]]) -> int:
    """Return the tokens of ``texts``, counting prefixes shared with the previous text once."""
    ordered = sorted(texts)
    return sum(map(len, ordered)) - sum(shared_length(*pair) for pair in pairwise(ordered))


def pieces(text: str) -> list[str]:
    """Return the words, digits and marks of ``text``, used as its tokens."""
    return _PIECES.findall(text)


def _tokens(text: str) -> int:
    return len(pieces(text))
