"""The tree of Leduc poker, for the exact value and exploitability of any policy.

Suits never matter, so an information set is a rank, the moves and, in the second round, the board's rank: ``K``,
``K check bet call | Q``. There are 288; with suits, as in OpenSpiel, there are 936. For uniform play NashConv is 4.7472
and exploitability, its half, 2.3736.
"""

from spag.games.leduc_poker.betting import DEALS, chips, legal_moves, player_to_move, rounds
from spag.games.moves import Moves
from spag.games.poker import Policy, Tree

__all__ = ["TREE", "Policy", "exploitability", "information_set", "value"]


def information_set(rank: str, board: str, moves: Moves) -> str:
    """Name what the player to move knows; ``board`` is used in the second round only."""
    return " ".join((rank, *moves, *(("|", board) if rounds(moves)[1] is not None else ())))


TREE = Tree(
    DEALS,
    legal_moves,
    player_to_move,
    lambda deal, player, moves: information_set(deal[player], deal[2], moves),
    chips,
)
value, exploitability = TREE.value, TREE.exploitability
