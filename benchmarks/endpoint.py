"""CPU time of an utterance from an endpoint, with 256 games in flight against a local stub.

Ours is real play, judging included. The baseline is what one would write by hand: the ``openai`` package's default
client and ``asyncio.gather``, 256 calls at once with the first prompt, no game around them. The unit is utterances per
second of CPU time; ``more["cpu_ms"]`` is the CPU time of one utterance.

    python -m benchmarks.endpoint [--games N] [--pairs N]
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import openai

from benchmarks.harness import Contest, Reading, compete
from spag.core.options import SamplingConfig
from spag.core.types import Split
from spag.engines.base import Player
from spag.engines.openai.engine import OpenAIEngine
from spag.games.registry import get
from spag.rollout.runner import PlayStats, game_specs, next_request, play

IN_FLIGHT = 256
GAMES = 512
TARGET_MS = 2.0
TABOO = get("adversarial_taboo", words="shipped")


@contextmanager
def stub() -> Iterator[str]:
    """Run the stub server, and name it in the environment; the value is its base URL."""
    command = [sys.executable, "-m", "benchmarks.endpoint_stub"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        os.environ |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
        yield url
        server.communicate()


def ours(games: int) -> Reading:
    """Play ``games`` games of Taboo against the endpoint in the environment."""
    engine, stats = OpenAIEngine("stub", concurrency=IN_FLIGHT), PlayStats()
    player = Player(engine, "stub", SamplingConfig())
    specs = game_specs(TABOO.tasks(Split.TRAIN, games, seed=0), 1, seed=0)
    began = time.process_time()
    for _ in play(specs, dict.fromkeys(TABOO.roles, player), game=TABOO, in_flight=IN_FLIGHT, stats=stats):
        pass
    seconds = time.process_time() - began
    engine.close()
    return _reading(stats.utterances, seconds)


def by_hand(url: str, calls: int) -> Reading:
    """Make ``calls`` calls with the plain client."""
    return asyncio.run(_by_hand(url, calls))


async def _by_hand(url: str, calls: int) -> Reading:
    start = TABOO.start(TABOO.tasks(Split.TRAIN, 1, seed=0)[0], seed=0)
    prompt = next_request("", TABOO, start, 0, SamplingConfig()).prompt
    gate = asyncio.Semaphore(IN_FLIGHT)
    async with openai.AsyncOpenAI(api_key="none", base_url=url) as client:

        async def call(seed: int) -> str | None:
            async with gate:
                reply = await client.chat.completions.create(
                    model="stub",
                    messages=[{"role": "user", "content": prompt}],
                    temperature=1.2,
                    max_tokens=256,
                    seed=seed,
                )
                return reply.choices[0].message.content

        began = time.process_time()
        await asyncio.gather(*map(call, range(calls)))
        return _reading(calls, time.process_time() - began)


def _reading(utterances: int, seconds: float) -> Reading:
    return Reading(utterances / seconds, {"cpu_ms": 1000 * seconds / utterances})


def contest(url: str, games: int = GAMES) -> Contest:
    """Play against the stub at ``url``; the baseline makes as many calls as the games have utterances."""
    return Contest(
        "endpoint, 256 in flight", "utterances/CPU s", partial(by_hand, url, 10 * games), partial(ours, games)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure our own CPU time per utterance from an endpoint.")
    parser.add_argument("--games", type=int, default=GAMES)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with stub() as url:
        ours(IN_FLIGHT // 4)  # imports, dictionaries
        result = compete(contest(url, options.games), options.pairs)
    print(
        f"{IN_FLIGHT} in flight, {options.games} games, {options.pairs} pairs; own CPU time of one "
        "utterance, median (range)"
    )
    for name, readings in (("openai package", result.baseline), ("spag play", result.ours)):
        costs = [reading.more["cpu_ms"] for reading in readings]
        print(f"{name:<16}{statistics.median(costs):>7.2f} ms  ({min(costs):.2f}-{max(costs):.2f})")
    print(f"{'ratio':<16}{result.ratio:>7.2f}     (target: {TARGET_MS} ms)")


if __name__ == "__main__":
    main()
