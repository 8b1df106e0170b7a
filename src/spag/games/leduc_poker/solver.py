"""The tree of Leduc poker: legal moves, their order, and their cost.

Southey et al., "Bayes' bluff" (arXiv 1207.1411): six cards, two each of J, Q and K; an ante of one chip; two rounds of
betting with bets of two and four chips and at most two raises each, including the first bet; a board card between the
rounds. A pair with the board wins, else the higher card. Chips are always player_0's net gain.

Suits never matter, so an information set is a rank, the moves and, in the second round, the board's rank: ``K``,
``K check bet call | Q``. There are 288; with suits, as in OpenSpiel, there are 936. For uniform play NashConv is 4.7472
and exploitability, its half, 2.3736.
"""

from collections.abc import Mapping
from functools import cache
from itertools import product

from spag.games.moves import Moves
from spag.games.poker import Deal, Tree

RANKS = ("J", "Q", "K")
MOVES = ("check", "bet", "fold", "call", "raise")
_BET = (2, 4)  # chips, by round
_LEGAL: Mapping[Moves, Moves] = {  # in a round
    (): ("check", "bet"),
    ("check",): ("check", "bet"),
    ("bet",): ("fold", "call", "raise"),
    ("check", "bet"): ("fold", "call", "raise"),
    ("bet", "raise"): ("fold", "call"),
    ("check", "bet", "raise"): ("fold", "call"),
}
DEALS: Mapping[Deal, int] = {
    (first, second, board): 2 * (2 - (first == second)) * (2 - (first == board) - (second == board))
    for first, second, board in product(RANKS, repeat=3)
    if not first == second == board
}
"""How many of the 120 deals give player_0, player_1 and the board these ranks."""


@cache
def rounds(moves: Moves) -> tuple[Moves, Moves | None]:
    """Return the moves of the first and the second round; ``None`` until the first is over."""
    for length in range(len(moves) + 1):
        first = moves[:length]
        if first not in _LEGAL and "fold" not in first:
            return first, moves[length:]
    return moves, None


def legal_moves(moves: Moves) -> Moves:
    """Return the legal moves after ``moves``; none when the hand is over."""
    first, second = rounds(moves)
    return _LEGAL.get(first if second is None else second, ())


def player_to_move(moves: Moves) -> int:
    """Return 0 or 1; player_0 moves first in each round."""
    first, second = rounds(moves)
    return len(first if second is None else second) % 2


def paid(moves: Moves) -> tuple[int, int]:
    """Return the chips that each player has paid in."""
    chips = [1, 1]
    for bet, part in zip(_BET, rounds(moves), strict=True):
        for turn, move in enumerate(part or ()):
            if move in ("call", "bet", "raise"):
                chips[turn % 2] = max(chips) + (0 if move == "call" else bet)
    return chips[0], chips[1]


def chips(deal: Deal, moves: Moves) -> int:
    """Return player_0's chips at the end of a hand."""
    first, second, board = deal
    mine, others = paid(moves)
    if moves[-1] == "fold":
        return -mine if mine < others else others
    if first == second:
        return 0
    strength = [(rank == board, RANKS.index(rank)) for rank in (first, second)]
    return mine if strength[0] > strength[1] else -mine


def honest_chances(card: str, board: str | None, legal: Moves) -> Mapping[str, float]:
    """Return the chance of each legal move of a player who bets what it holds and never bluffs: with a pair, or a K
    before the board, it raises or bets; with an unpaired J it folds or checks; with the rest it calls or checks.

    A quarter of the moves are random. Exploitability 0.884; a third of uniform play's.
    """
    if card == (board or "K"):
        wanted: Moves = ("raise", "bet", "call")
    else:
        wanted = ("fold", "check") if card == "J" else ("call", "check")
    chosen = next(move for move in wanted if move in legal)
    return {move: 0.25 / len(legal) + 0.75 * (move == chosen) for move in legal}


def information_set(rank: str, board: str, moves: Moves) -> str:
    """Name what the player to move knows; ``board`` is used in the second round only."""
    return " ".join((rank, *moves, *(("|", board) if rounds(moves)[1] is not None else ())))


TREE = Tree(
    DEALS, legal_moves, player_to_move, lambda deal, player, moves: information_set(deal[player], deal[2], moves), chips
)
value, exploitability, histories = TREE.value, TREE.exploitability, TREE.histories
