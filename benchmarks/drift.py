"""What AdamW makes of small advantages: how far a policy drifts when all games end alike.

Tables of ``poker_table`` play Kuhn poker, in which from now on nobody wins anything: every reward is 0. The roles'
baselines are not there yet, and come nearer to 0 by ``DECAY`` in each step. So all moves of a role in a step get the
same, ever smaller advantage, and there is nothing to learn. Baselines begin at half of the largest reward, as after
decided games, or at a two-hundredth, as in a phase in which hardly a game is decided. ``credit.DRIFT`` sets advantages
below 1 % of the range of rewards to 0; rows without it keep them all. SGD's learning rate is that which makes its first
step as long as AdamW's after decided games.

    python -m benchmarks.drift     # the table of docs/online-results.md
"""

import time
from itertools import product
from statistics import fmean, stdev

import torch
from torch import Tensor

from benchmarks.poker_table import HANDS_EACH, KUHN, Table, new_table, options, play
from spag.algorithms.credit import without_drift
from spag.algorithms.reinforce import Baselines

CHECKED = (10, 25, 100)
"""Steps after which the distance from the first policy is computed."""
RATE = 0.05
"""AdamW's learning rate: the best of Kuhn poker's tables."""
DECAY = 0.95
"""Of the baselines: SPIRAL's, ours being 0.5."""
BEGINS = (0.5, 0.005)
"""The first baseline of one role, as a share of the largest reward. The other role's is the opposite."""


def advantages(first: float, *, cut: bool) -> list[float]:
    """Return the advantage of one role's moves in each step, as a share of the largest reward. ``cut``: with those
    below 1 % of the range set to 0, as in training.
    """
    baselines = Baselines(DECAY, {"role": first})
    found = [-baselines.move([("role", 0.0)])["role"] for _ in range(CHECKED[-1])]
    return without_drift(found, 2.0) if cut else found


def drift(optimizer: str, first: float, *, cut: bool, tables: int, seed: int) -> dict[str, list[float]]:
    """Return each table's mean KL divergence from its first policy, in nats per decision, by step."""
    generator = torch.Generator().manual_seed(seed)
    table = new_table(KUHN, tables, generator, 1.0)
    start, found = table.logprobs().detach(), dict[str, list[float]]()
    adamw = torch.optim.AdamW(table.parameters(), RATE, weight_decay=0.0)
    sign = torch.tensor([1.0, -1.0])[KUHN.player][:, None]
    rate = 0.0
    for step, advantage in enumerate(advantages(first, cut=cut), 1):
        direction = share_of_moves(table, generator) * sign * table.logprobs()
        (gradient,) = torch.autograd.grad(-direction.sum(), table.logits)
        rate = rate or RATE / (BEGINS[0] * gradient.abs().mean().item())
        if optimizer == "AdamW":
            table.logits.grad = advantage * gradient
            adamw.step()
        else:
            table.logits.data -= rate * advantage * gradient
        if step in CHECKED:
            found[f"{step}"] = (start.exp() * (start - table.logprobs().detach())).sum(-1).mean(-1).tolist()
    return found


def share_of_moves(table: Table, generator: torch.Generator) -> Tensor:
    """Play a step's hands; return each move's share of all moves, (seeds, D, M)."""
    made = torch.einsum("sh,him->sim", play(table, HANDS_EACH, generator), KUHN.made)
    return made / made.sum((1, 2), keepdim=True)


def main() -> None:
    chosen = options("what is left of its advantages", "of all hands").parse_args()
    began, error = time.perf_counter(), 0.0
    print(f"| first baseline | optimizer | below 1 % | {' | '.join(map(str, CHECKED))} |")
    print(f"|---:|---|---|{'---:|' * len(CHECKED)}")
    for first, optimizer, cut in product(BEGINS, ("AdamW", "SGD"), (False, True)):
        found = drift(optimizer, first, cut=cut, tables=chosen.seeds, seed=chosen.seed)
        cells = " | ".join(f"{fmean(each):.4f}" for each in found.values())
        print(f"| {first} | {optimizer} | {'0' if cut else 'kept'} | {cells} |", flush=True)
        error = max(error, *(stdev(each) for each in found.values()))
    print(f"mean of {chosen.seeds} tables, standard errors up to {error / chosen.seeds**0.5:.4f}; ", end="")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
