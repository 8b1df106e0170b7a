"""How the cost of play grows: with games in flight, and with the length of the conversation. One curve a question, on the CPU.

Tokens a second of full games by the number played at once; seconds of an utterance by its place in the game, with the key/value cache kept
between turns and without.
"""

import random
import time

from benchmarks.harness import Curve
from benchmarks.play import FULL, MODEL, TURNS, EndlessTaboo, full_games
from spag.engines.base import Engine, Request
from spag.engines.transformers import TransformersEngine
from spag.game.base import Utterance
from spag.game.prompts import play_prompt
from spag.models import load_model, load_tokenizer
from spag.wordlist import load_words

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
        seconds = seconds_by_place(TransformersEngine(model, tokenizer, concurrency=AT_ONCE, reuse=reuse))
        places = list(map(float, range(1, 2 * TURNS + 1)))
        turns.append(Curve(name, "utterance of the game", f"seconds for {AT_ONCE} utterances", places, seconds))
    return [batch, *turns]


def seconds_by_place(engine: Engine) -> list[float]:
    """Return the seconds that the first, second, ... utterance of ``AT_ONCE`` games took together."""
    game = EndlessTaboo()
    words = random.sample(load_words("shipped", 2000), AT_ONCE)
    states = {word: game.initial_state(word, TURNS) for word in words}
    seconds = []
    for _ in range(2 * TURNS):
        began, done = time.perf_counter(), 0
        for word, state in states.items():
            engine.submit(Request(word, play_prompt(game.observe(state, state.role_to_move)), FULL, random.getrandbits(62)))
        while done < AT_ONCE:
            for completion in engine.poll():
                done += 1
                state = states[completion.id]
                states[completion.id] = game.apply(state, Utterance(state.role_to_move, completion.text))
        seconds.append(time.perf_counter() - began)
    return seconds
