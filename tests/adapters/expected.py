"""What a role gets to see in a game where everybody always says the same."""

from itertools import pairwise

from spag.adapters.transcript import new_lines
from spag.core.types import Task, Utterance
from spag.games.base import Game

REPLY = "[check]"


def shown_to(game: Game, role: str, task: Task, seed: int) -> list[str]:
    """Return the role's first prompt, and the new lines of each later one."""
    state, prompts = game.start(task, seed), [""]
    while (mover := game.to_move(state)) is not None:
        if mover == role:
            prompts.append(game.prompt(game.observe(state, role)))
        state = game.apply(state, Utterance(mover, REPLY))
    return [new_lines(before, now) for before, now in pairwise(prompts)]
