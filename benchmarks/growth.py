"""How the cost of play and training grows. One curve a question.

Tokens a second of full games by the number played at once; seconds of an utterance by its place in the game, with the key/value cache kept
between turns and without; training's samples a second over those of the paper's way, by the length of games.
"""

from collections.abc import Iterator

from benchmarks.harness import Curve
from benchmarks.play import FULL, MODEL, TURNS, full_games, rounds
from benchmarks.steps import Work
from benchmarks.training import alone
from spag.engines.transformers import TransformersEngine
from spag.models import load_model, load_tokenizer

IN_FLIGHT = (1, 4, 16, 64)
AT_ONCE = 8
LENGTHS = (1, 2, 4, 8)  # turns
SAMPLES = 32


def play_curves() -> Iterator[Curve]:
    model, tokenizer = load_model(MODEL.name, dtype=MODEL.dtype, device=MODEL.device), load_tokenizer(MODEL.name)
    speeds = []
    for size in IN_FLIGHT:
        reading = full_games(TransformersEngine(model, tokenizer, concurrency=size), size)
        speeds.append(reading.more["tokens_per_second"])
    yield Curve("transformers", "games in flight", "tokens/s", list(map(float, IN_FLIGHT)), speeds)
    for name, reuse in (("cache kept", True), ("cache dropped", False)):
        engine = TransformersEngine(model, tokenizer, concurrency=AT_ONCE, reuse=reuse)
        seconds = [reading.more["seconds"] for reading in rounds(engine, AT_ONCE, TURNS, FULL)]
        places = list(map(float, range(1, 2 * TURNS + 1)))
        yield Curve(name, "utterance of the game", f"seconds for {AT_ONCE} utterances", places, seconds)


def training_curves() -> Iterator[Curve]:
    for name, template, micro_batch in (("template per game", "play", 16), ("template per utterance", "random", 8)):
        ratios = []
        for turns in LENGTHS:
            work = Work(template=template, samples=SAMPLES, micro_batch=micro_batch, turns=turns)
            ratios.append(alone("ours", work).value / alone("paper", work).value)
        yield Curve(name, "turns of a game trained on", "times the paper's samples/s", list(map(float, LENGTHS)), ratios)
