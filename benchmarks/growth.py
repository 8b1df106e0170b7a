"""How the cost of play grows: with games in flight, and with the length of the conversation. One curve a question, on the CPU.

Tokens a second of full games by the number played at once; seconds of an utterance by its place in the game, with the key/value cache kept
between turns and without.
"""

from benchmarks.harness import Curve
from benchmarks.play import FULL, MODEL, TURNS, full_games, rounds
from spag.engines.transformers import TransformersEngine
from spag.models import load_model, load_tokenizer

IN_FLIGHT = (1, 4, 16, 64)
AT_ONCE = 8


def curves(dtype: str) -> list[Curve]:
    model, tokenizer = load_model(MODEL.name, dtype=dtype, device="cpu"), load_tokenizer(MODEL.name)
    speeds = []
    for size in IN_FLIGHT:
        reading = full_games(TransformersEngine(model, tokenizer, concurrency=size), size)
        speeds.append(reading.more["tokens_per_second"])
    batch = Curve("transformers", "games in flight", "tokens/s", list(map(float, IN_FLIGHT)), speeds)
    turns = []
    for name, reuse in (("cache kept", True), ("cache dropped", False)):
        engine = TransformersEngine(model, tokenizer, concurrency=AT_ONCE, reuse=reuse)
        seconds = [reading.more["seconds"] for reading in rounds(engine, AT_ONCE, TURNS, FULL)]
        places = list(map(float, range(1, 2 * TURNS + 1)))
        turns.append(Curve(name, "utterance of the game", f"seconds for {AT_ONCE} utterances", places, seconds))
    return [batch, *turns]
