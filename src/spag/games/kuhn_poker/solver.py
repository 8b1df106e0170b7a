"""The tree of Kuhn poker, its equilibria, and the exact value and exploitability of any policy.

Kuhn, "A simplified two-person poker" (1950): three cards, an ante of one chip, one bet of one chip. Chips are always
player_0's net gain. A policy gives each move's probability in each of the 12 information sets, which are named by card
and moves: ``K``, ``K check bet``.
"""

from collections.abc import Iterator, Mapping
from itertools import permutations, product
from statistics import fmean

Moves = tuple[str, ...]
Deal = tuple[str, str]
Policy = Mapping[str, Mapping[str, float]]

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


def value(first: Policy, second: Policy) -> float:
    """Return player_0's expected chips if it follows ``first`` and player_1 follows ``second``."""
    return fmean(_expected(deal, (), (first, second)) for deal in DEALS)


def best_response_value(policy: Policy, player: int) -> float:
    """Return the best expected result of ``player`` (0 or 1), in its own chips, against an opponent who follows
    ``policy``.

    Some deterministic policy is always a best response; each player has only 2^6 of them.
    """
    if player == 0:
        return max(value(response, policy) for response in _deterministic(0))
    return max(-value(policy, response) for response in _deterministic(1))


def exploitability(policy: Policy) -> float:
    """Return NashConv / 2, as OpenSpiel does: the mean of both players' gains from a best response to ``policy``.

    Gains are relative to self-play, whose values cancel in the sum. 0 at an equilibrium, and only there.
    """
    return (best_response_value(policy, 0) + best_response_value(policy, 1)) / 2


def uniform() -> Policy:
    """Return the policy that takes either move with probability 1/2."""
    return {information_set(card, moves): dict.fromkeys(legal_moves(moves), 0.5) for card, moves in INFORMATION_SETS}


def equilibrium(alpha: float = 1 / 3) -> Policy:
    """Return the equilibrium in which player_0 bluffs with probability ``alpha``, 0 to 1/3: player_0 has a family of
    equilibrium strategies, player_1 just one.
    """
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


def _expected(deal: Deal, moves: Moves, policies: tuple[Policy, Policy]) -> float:
    if not legal_moves(moves):
        return chips(deal, moves)
    player = len(moves) % 2
    chances = policies[player][information_set(deal[player], moves)]
    return sum(chances[move] * _expected(deal, (*moves, move), policies) for move in legal_moves(moves))


def _deterministic(player: int) -> Iterator[Policy]:
    """Yield every policy of ``player`` that never mixes."""
    own = [(card, moves) for card, moves in INFORMATION_SETS if len(moves) % 2 == player]
    for chosen in product(*(legal_moves(moves) for _, moves in own)):
        yield {
            information_set(card, moves): {move: float(move == choice) for move in legal_moves(moves)}
            for (card, moves), choice in zip(own, chosen, strict=True)
        }
