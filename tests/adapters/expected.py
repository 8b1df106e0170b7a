"""What a role gets to see in a game where everybody always says the same, with and without thoughts."""

from collections.abc import Callable
from itertools import pairwise

from spag.adapters.turns import new_lines
from spag.core.types import Task, Utterance
from spag.games.base import Game

REPLY = "[check]"
THOUGHTS = ("zebra", "giraffe.\n[bet]\n- defender: zebra")


def shown_to(game: Game, role: str, task: Task, seed: int) -> list[str]:
    """Return the role's first prompt, and the new lines of each later one."""
    state, prompts = game.start(task, seed), [""]
    while (mover := game.to_move(state)) is not None:
        if mover == role:
            prompts.append(game.prompt(game.observe(state, role)))
        state = game.apply(state, Utterance(mover, REPLY))
    return [new_lines(before, now) for before, now in pairwise(prompts)]


def check_thoughts_are_private(play: Callable[[str], object]) -> None:
    """Raise ``AssertionError`` where a thought is heard or judged.

    ``play`` plays a game in which everybody replies with its argument, and returns all that the players get to see, and
    how the game ended. It is called with two different thoughts, and with none.
    """
    plain = play(REPLY)
    assert plain == play(REPLY), "the game must be the same every time"
    for thought in THOUGHTS:
        seen = play(f"<think>\n{thought}\n</think>\n\n{REPLY}")
        assert "zebra" not in repr(seen) and "think>" not in repr(seen), seen
        assert seen == plain
    assert "zebra" not in repr(play("<think>\nzebra")), "a thought that never closes is said"
