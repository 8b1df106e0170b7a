"""The tree of Kuhn poker and its equilibria.

Kuhn, "A simplified two-person poker" (1950): three cards, an ante of one chip, one bet of one chip. Chips are always
player_0's net gain. A policy gives each move's probability in each of the 12 information sets, which are named by card
and moves: ``K``, ``K check bet``.
"""

from collections.abc import Mapping
from itertools import permutations, product

from spag.games.base import Policy
from spag.games.moves import Moves
from spag.games.poker import Deal, Tree

CARDS = ("J", "Q", "K")
DEALS: tuple[Deal, ...] = tuple(permutations(CARDS, 2))  # player_0's card, then player_1's
MOVES = ("check", "bet", "fold", "call")
_LEGAL: Mapping[Moves, Moves] = {
    (): ("check", "bet"),
    ("check",): ("check", "bet"),
    ("bet",): ("fold", "call"),
    ("check", "bet"): ("fold", "call"),
}
INFORMATION_SETS = tuple(product(CARDS, _LEGAL))


def legal_moves(moves: Moves) -> Moves:
    """Return the legal moves after ``moves``; none when the hand is over."""
    return _LEGAL.get(moves, ())


def information_set(card: str, moves: Moves) -> str:
    """Name what the player to move knows: its card, and the moves so far."""
    return " ".join((card, *moves))


def chips(deal: Deal, moves: Moves) -> int:
    """Return player_0's chips at the end of a hand."""
    if moves[-1] == "fold":
        return 1 if len(moves) == 2 else -1
    stake = 2 if moves[-1] == "call" else 1
    return stake if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -stake


TREE = Tree(
    dict.fromkeys(DEALS, 1),
    legal_moves,
    lambda moves: len(moves) % 2,
    lambda deal, player, moves: information_set(deal[player], moves),
    chips,
)
value, exploitability = TREE.value, TREE.exploitability


def equilibrium(alpha: float = 1 / 3) -> Policy:
    """Return the equilibrium in which player_0 bluffs with probability ``alpha``, 0 to 1/3; player_1 has just one."""
    pays: Mapping[Moves, tuple[float, float, float]] = {  # the probability of betting or calling with J, Q and K
        (): (alpha, 0, 3 * alpha),
        ("check",): (1 / 3, 0, 1),
        ("bet",): (0, 1 / 3, 1),
        ("check", "bet"): (0, alpha + 1 / 3, 1),
    }
    policy = {}
    for card, moves in INFORMATION_SETS:
        chance = pays[moves][CARDS.index(card)]
        policy[information_set(card, moves)] = dict(zip(_LEGAL[moves], (1 - chance, chance), strict=True))
    return policy
