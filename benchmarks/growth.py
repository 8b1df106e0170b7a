"""How the cost of play and training grows. One curve a question.

Tokens a second of full games by the number played at once; seconds of an utterance by its place in the game, with the
key/value cache kept between turns and without; the operations of the paper's step over ours, by the length of games
(counted, not timed: few samples are noise).
"""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.harness import Curve
from benchmarks.play import FULL, LONG_GAME, MODEL, TURNS, full_games, rounds
from benchmarks.steps import Ours, PaperStyle
from benchmarks.training import KINDS
from spag.engines.transformers.engine import TransformersEngine
from spag.models.loading import load_model, load_tokenizer

IN_FLIGHT = (1, 4, 16, 64)
AT_ONCE = 8
LENGTHS = (1, 2, 4, 8)  # turns


def play_curves() -> Iterator[Curve]:
    model, tokenizer = load_model(MODEL.name, dtype=MODEL.dtype, device=MODEL.device), load_tokenizer(MODEL.name)
    speeds = []
    for size in IN_FLIGHT:
        reading = full_games(TransformersEngine(model, tokenizer, concurrency=size), size)
        speeds.append(reading.more["tokens_per_second"])
    yield Curve("transformers", "games in flight", "tokens/s", list(map(float, IN_FLIGHT)), speeds)
    for name, is_kept in (("cache kept", True), ("cache dropped", False)):
        engine, seconds = TransformersEngine(model, tokenizer, concurrency=AT_ONCE), list[float]()
        for reading in rounds(engine, AT_ONCE, LONG_GAME, FULL):
            seconds.append(reading.more["seconds"])
            if not is_kept:
                engine.forget()
        places = list(map(float, range(1, 2 * TURNS + 1)))
        yield Curve(name, "utterance of the game", f"seconds for {AT_ONCE} utterances", places, seconds)


def training_curves() -> Iterator[Curve]:
    for name, kind in KINDS.items():
        works = [replace(kind, turns=turns) for turns in LENGTHS]
        ratios = [PaperStyle(work).flops() / Ours(work).flops() for work in works]
        yield Curve(name, "turns of a game trained on", "times fewer operations", list(map(float, LENGTHS)), ratios)
