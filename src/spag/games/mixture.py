"""The mixture of several policies as one policy: each player draws one of them before the game and plays it throughout.

Moves are averaged by how likely each policy is to get to the decision by its own moves: a policy that always bets does
not say how to answer a bet after its own check. This is the average of realisation plans (von Stengel, "Efficient
computation of behavior strategies", 1996), and nothing that an opponent can do tells it from the draw (Kuhn, 1953). The
average move by move, which weighs all policies alike everywhere, is another policy, and can be worse or better.
"""

from collections.abc import Mapping, Sequence
from math import prod

from spag.games.base import Decision

Policy = Mapping[str, Mapping[str, float]]


def mixture(
    decisions: Sequence[Decision], policies: Sequence[Policy], weights: Sequence[float] | None = None
) -> dict[str, dict[str, float]]:
    """Return the mixture of ``policies`` (decision key -> move -> probability), drawn by ``weights``, by default alike.

    Where none of the policies gets by its own moves, moves are averaged by ``weights``. Raises ``ValueError`` for a
    decision that does not say how the player got there.
    """
    weights = [1.0] * len(policies) if weights is None else weights
    mixed = {}
    for decision in decisions:
        if decision.own is None:
            raise ValueError(f"decision {decision.key!r} has no own moves, so policies cannot be mixed there")
        reach = [
            weight * prod(policy[key][move] for key, move in decision.own)
            for weight, policy in zip(weights, policies, strict=True)
        ]
        shares = reach if any(reach) else weights
        mixed[decision.key] = {
            move: sum(share * policy[decision.key][move] for share, policy in zip(shares, policies, strict=True))
            / sum(shares)
            for move in decision.moves
        }
    return mixed
