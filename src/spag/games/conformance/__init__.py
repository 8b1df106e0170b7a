"""One test suite for any game. Each check takes a game and a seed, and raises ``AssertionError`` naming the fault.

@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_my_game(check):
    check(MyGame(), 0)
"""

from collections.abc import Callable

from spag.games.base import Game
from spag.games.conformance import declarations, results, visibility

Check = Callable[[Game, int], None]
CHECKS: tuple[Check, ...] = tuple(
    value
    for module in (declarations, results, visibility)
    for name, value in vars(module).items()
    if name.startswith("check_")
)


def check_game(game: Game, seed: int = 0) -> None:
    """Run every check."""
    for check in CHECKS:
        check(game, seed)
