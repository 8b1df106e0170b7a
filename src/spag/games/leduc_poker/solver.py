"""The exact value and exploitability of any Leduc poker policy, by traversing the whole tree.

Suits never matter, so an information set is a rank, the moves and, in the second round, the board's rank: ``K``,
``K check bet call | Q``. There are 288; with suits, as in OpenSpiel, there are 936. A policy gives each move's
probability there.
"""

from collections.abc import Mapping

from spag.games.leduc_poker.betting import DEALS, RANKS, Deal, Moves, chips, legal_moves, player_to_move, rounds

Policy = Mapping[str, Mapping[str, float]]


def information_set(rank: str, board: str, moves: Moves) -> str:
    """Name what the player to move knows; ``board`` is used in the second round only."""
    return " ".join((rank, *moves, *(("|", board) if rounds(moves)[1] is not None else ())))


def value(policy: Policy, player: int, own: Policy | None = None) -> float:
    """Return the expected result of ``player`` (0 or 1), in its own chips, when it follows ``own`` (``None``: a best
    response) against an opponent who follows ``policy``.
    """
    return sum(
        _value((), {deal: ways / 120 for deal, ways in DEALS.items() if deal[player] == rank}, policy, player, own)
        for rank in RANKS
    )


def exploitability(policy: Policy) -> float:
    """Return NashConv / 2, as OpenSpiel does: the mean of both players' gains from a best response to ``policy``.

    Gains are relative to self-play, whose values cancel in the sum. For uniform play NashConv is 4.7472 and this metric
    2.3736.
    """
    return (value(policy, 0) + value(policy, 1)) / 2


def _value(moves: Moves, weights: Mapping[Deal, float], policy: Policy, player: int, own: Policy | None) -> float:
    """Return the part of ``value`` after ``moves``.

    ``weights``: the deals that ``player`` cannot tell apart, each weighted by its chance and that of the opponent's
    moves.
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
