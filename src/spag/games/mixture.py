"""The mixture of several policies as one policy: each player draws one of them before the game and plays it throughout.

Moves are averaged by each policy's probability of reaching the decision by its own moves: a policy that always bets has
no say in answering a bet after its own check. This is the average of realisation plans (von Stengel, "Efficient
computation of behavior strategies", 1996), and no opponent can tell it from the draw (Kuhn, 1953). Averaging move by
move, with equal weights everywhere, gives a different policy, which can be worse or better.
"""

from collections.abc import Sequence
from math import prod

from spag.games.base import Decision, Policy


def mixture(decisions: Sequence[Decision], policies: Sequence[Policy]) -> dict[str, dict[str, float]]:
    """Return the mixture of ``policies``, each drawn as often as any other.

    At decisions that no policy reaches by its own moves, moves are averaged with equal weights. Raises ``ValueError``
    for a decision without the player's own moves.
    """
    mixed = {}
    for decision in decisions:
        if decision.own is None:
            raise ValueError(f"decision {decision.key!r} has no own moves, so policies cannot be mixed there")
        reach = [prod(policy[key][move] for key, move in decision.own) for policy in policies]
        weights = reach if any(reach) else [1.0] * len(policies)
        mixed[decision.key] = {
            move: sum(weight * policy[decision.key][move] for weight, policy in zip(weights, policies, strict=True))
            / sum(weights)
            for move in decision.moves
        }
    return mixed
