"""The exact value and exploitability of any policy of Leduc poker, by a walk through the whole tree.

Suits never matter, so an information set is a rank, the moves and, in the second round, the board's rank: ``K``,
``K check bet call | Q``. There are 288; told apart by suits, as in OpenSpiel, they are 936. A policy gives each move's
probability there.
"""

from collections.abc import Mapping

from spag.games.leduc_poker.betting import DEALS, RANKS, Deal, Moves, chips, legal_moves, player_to_move, rounds

Policy = Mapping[str, Mapping[str, float]]


def information_set(rank: str, board: str, moves: Moves) -> str:
    """Return the name of what the player to move knows; ``board`` counts in the second round only."""
    return " ".join((rank, *moves, *(("|", board) if rounds(moves)[1] is not None else ())))


def value(policy: Policy, player: int, own: Policy | None = None) -> float:
    """Return what ``player`` (0 or 1) expects, in its own chips, against an opponent who follows ``policy``, when it
    follows ``own``, or a best response where that is ``None``.
    """
    return sum(
        _value((), {deal: ways / 120 for deal, ways in DEALS.items() if deal[player] == rank}, policy, player, own)
        for rank in RANKS
    )


def exploitability(policy: Policy) -> float:
    """Return NashConv / 2, as OpenSpiel does: the mean of what both players gain by a best response to ``policy``.

    The gains are measured against self-play, whose values cancel in the sum. For uniform play NashConv is 4.7472 and
    this figure 2.3736.
    """
    return (value(policy, 0) + value(policy, 1)) / 2


def _value(moves: Moves, weights: Mapping[Deal, float], policy: Policy, player: int, own: Policy | None) -> float:
    """Return the part of ``value`` behind ``moves``.

    ``weights``: the deals that ``player`` cannot tell apart, each with its chance and that of the opponent's moves.
    """
    boards = {board for _, _, board in weights}
    if len(boards) > 1 and rounds(moves)[1] is not None:  # the board card is turned up
        parts = [{deal: weight for deal, weight in weights.items() if deal[2] == board} for board in boards]
        return sum(_value(moves, part, policy, player, own) for part in parts)
    if not legal_moves(moves):
        won = sum(weight * chips(deal, moves) for deal, weight in weights.items())
        return won if player == 0 else -won
    mover = player_to_move(moves)
    after = {}
    for move in legal_moves(moves):
        reached = dict(weights)
        if mover != player:
            for deal in weights:
                reached[deal] *= policy[information_set(deal[mover], deal[2], moves)][move]
        after[move] = _value((*moves, move), reached, policy, player, own)
    if mover != player:
        return sum(after.values())
    if own is None:
        return max(after.values())
    deal = next(iter(weights))
    chances = own[information_set(deal[player], deal[2], moves)]
    return sum(chances[move] * later for move, later in after.items())
