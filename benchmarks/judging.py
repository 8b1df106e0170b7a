"""The cost of strict judging: games a second from an episode file to a samples file, against the paper's substrings on
the same games.

Two corpora of 50,000 made-up games over 40,000 words: ``plain`` prose like the teacher games', and ``dressed``, the
same prose with what chat models wrap around it (emphasis, lists, links, code, HTML, curly quotes, accents, emoji, other
alphabets). Each run is a process of its own, so caches start empty and its peak memory is its own. ``more`` holds the
seconds of CPU time that all games took (``seconds``), and the peak memory (``peak_mib``), of which ``grown_mib`` came
after the imports.

    python -m benchmarks.judging [--games N] [--pairs N]
"""

import argparse
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.corpus import made_up, teacher_utterances
from benchmarks.harness import Contest, Reading, Result, compete, peak_mib
from spag.algorithms.winners import RewardStats, assign_rewards
from spag.core.episodes import Episode
from spag.games.taboo.judge import JudgeMode
from spag.games.taboo.taboo import AdversarialTaboo
from spag.games.taboo.words import common_words
from spag.storage.episodes import read_episodes
from spag.storage.store import write_rows

GAMES = 50_000
MAX_TURNS = 5
Dress = Callable[[random.Random, str], str]


def corpus(kind: str, games: int, seed: int = 0) -> Iterator[Episode]:
    """Yield made-up games, ``plain`` or ``dressed``: a third each end in the defender's slip, in its guess, and in
    nothing.
    """
    rng = random.Random(seed)
    words = common_words(50_000)
    said = teacher_utterances()
    dress = _dressed if kind == "dressed" else _plain
    for number in range(games):
        yield _game(rng, f"{kind}-{number}", words, said, dress)


def _game(rng: random.Random, name: str, words: tuple[str, ...], said: list[str], dress: Dress) -> Episode:
    target = rng.choice(words)
    texts = [dress(rng, _prose(rng, words, said)) for _ in range(2 * rng.randint(1, MAX_TURNS))]
    match rng.randrange(3):
        case 0:
            texts[-1] = f"{texts[-1]} Do you mean the {target}, perhaps?"
        case 1:
            texts[-1] = f"I know the word! It is `{rng.choice((target, target, rng.choice(words)))}`!"
    return made_up(name, target, texts, MAX_TURNS)


def _prose(rng: random.Random, words: tuple[str, ...], said: list[str]) -> str:
    """One to three utterances of teacher play, in which one word in eight is replaced by any other."""
    prose = " ".join(rng.choices(said, k=rng.randint(1, 3)))
    return " ".join(rng.choice(words) if rng.random() < 1 / 8 else word for word in prose.split(" "))


def _plain(rng: random.Random, text: str) -> str:
    return text


def _dressed(rng: random.Random, text: str) -> str:
    """Dress every tenth word or so, and the whole now and then."""
    words = [
        rng.choice(_WORD_DRESSES).format(word, word[:1]) if rng.random() < 0.1 else word for word in text.split(" ")
    ]
    return rng.choice(_TEXT_DRESSES).format(" ".join(words))


_WORD_DRESSES = (
    "**{0}**", "*{0}*", "_{0}_", "`{0}`", "~~{0}~~", "<b>{0}</b>", "“{0}”", "‘{0}’", "{0} — oh —", "{0}😀", "{0}… ",
    "café {0}", "naïve {0}", "привет {0}", "αβγ {0}",
    "水 {0}", "[{0}](https://example.org/wiki/{0}_(a-b)?x=1&y=2#top)", "https://example.org/a/{0}.html", "{0}/{1}",
    "`print({0}[0])`", "x_{0}=f({0});", "semi-{0}", "{0} (1990s, 3rd, 5 p.m.)", "&quot;{0}&quot;", "{0}\u200b",
    "\n- {0}",
    "\n\n1. **{0}**:",
)  # fmt: skip
_TEXT_DRESSES = (
    "{0}", "{0}", "## Clue\n\n{0}", "> {0}\n\n---\n", "{0} 🙂👍🏽", "<p>{0}</p>",
    "| a | b |\n|---|---|\n| {0} | ✓ |", "1. {0}\n2. That’s it!",
    "```python\nfor i in range(10):\n    print(i)\n```\n{0}",
)  # fmt: skip


def measure(path: Path, mode: JudgeMode) -> Reading:
    """Read, judge, reward and write the games of ``path`` in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (path, mode))


def _measure(path: Path, mode: JudgeMode) -> Reading:
    before = peak_mib()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        game, stats = AdversarialTaboo(judge=mode), RewardStats()
        samples = assign_rewards(read_episodes(path), game=game, stats=stats)  # judges every game again
        write_rows(Path(folder) / "samples.jsonl", samples)
    seconds = time.process_time() - began
    peak = peak_mib()
    more = {"seconds": seconds, "peak_mib": peak, "grown_mib": peak - before}
    return Reading(sum(stats.outcomes.values()) / seconds, more)


def contest(kind: str, folder: Path, games: int = GAMES) -> Contest:
    """``strict`` against ``paper`` judging of a corpus, written to ``folder`` first. The rest of the work is the same
    for both.
    """
    path = folder / f"{kind}.jsonl"
    write_rows(path, corpus(kind, games))
    return Contest(
        f"judging and rewards, {kind}",
        "games/s",
        partial(measure, path, JudgeMode.PAPER),
        partial(measure, path, JudgeMode.STRICT),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time strict judging and rewards against the paper's judge.")
    parser.add_argument("--games", type=int, default=GAMES)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    print(f"{options.games:,} games, {options.pairs} pairs, one core; CPU time; medians")
    print(f"{'corpus':<10}{'judge':<8}{'games/s':>9}{'seconds':>9}{'peak MiB':>10}{'grown MiB':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("plain", "dressed"):
            _show(kind, compete(contest(kind, Path(folder), options.games), options.pairs))


def _show(kind: str, result: Result) -> None:
    for judge, readings in (("paper", result.baseline), ("strict", result.ours)):
        middle = sorted(readings, key=lambda reading: reading.value)[len(readings) // 2]
        print(
            f"{kind:<10}{judge:<8}{middle.value:>9,.0f}{middle.more['seconds']:>9.1f}{middle.more['peak_mib']:>10.0f}"
            f"{middle.more['grown_mib']:>11.0f}"
        )
    print(
        f"{kind:<10}strict runs at {result.ratio:.2f} of the paper judge's speed "
        f"({min(result.ratios):.2f}-{max(result.ratios):.2f})"
    )


if __name__ == "__main__":
    main()
