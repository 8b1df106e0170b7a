"""What all adapters do with a game: begin it, show a role its prompt, and apply its text.

A prompt is made of ``Game.observe`` alone, so an adapter that shows nothing else keeps every secret of the game. Other
trainers hand over replies as they were sampled, private reasoning included: only what is said is applied.
"""

import random
from collections.abc import Sequence

from spag.core.thinking import split_thought
from spag.core.types import State, Task, Utterance
from spag.engines.base import FinishReason
from spag.games.base import Game
from spag.storage.episodes import MAX_UTTERANCE


def begin(game: Game, tasks: Sequence[Task], seed: int | None) -> State:
    """Start a game on the task that ``seed`` draws, on a random one when ``None``."""
    rng = random.Random(seed)
    return game.start(rng.choice(tasks), rng.getrandbits(32))


def prompt_of(game: Game, state: State, role: str) -> str:
    """Return the prompt of ``role``; when it is not its turn, what it would be asked now."""
    return game.prompt(game.observe(state, role))


def after(game: Game, state: State, text: str) -> State:
    """Return the position once the player to move has replied ``text``. An illegal move ends the game by its own rules.

    A thought in it is nobody else's to hear; one that never closes leaves nothing to say.
    """
    role = game.to_move(state)
    assert role is not None, "the game is over"
    thought, speech, is_cut = split_thought(text)
    reason = str(FinishReason.THOUGHT) if is_cut else None
    return game.apply(state, Utterance(role, speech.strip(), reason, thought=thought[:MAX_UTTERANCE] or None))
