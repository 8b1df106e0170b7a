"""Kuhn poker as a table: how near to equilibrium each algorithm comes with equally many hands.

Every arm trains the tables of ``poker_table`` with 400 updates of 256 hands each, from uniform play. Its learning rate
is the best of ``RATES`` on other tables, which are not reported. An iteration of ``spag`` plays all its hands with the
policy at its beginning, which is the reference, as in the paper.

    python -m benchmarks.kuhn_algorithms     # the table of docs/online-results.md
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from benchmarks.poker_table import (
    CHECKED,
    HANDS_EACH,
    KUHN,
    PRESET,
    Advantages,
    Table,
    by_deal,
    cells,
    new_table,
    options,
    play,
    settings_of,
    train,
)
from spag.algorithms.spag import SpagSettings, offline_rl_terms
from spag.algorithms.winners import return_coefficients, role_weights
from spag.learning.devices import make_optimizer

RATES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Learning rates that are tried for every arm."""
MOVING = {"kl_coef": 0.3, "reference": {"ema": 0.03}}

Exploitability = Mapping[str, Sequence[float]]
"""That of every table, by step."""
Arm = Callable[[float, int, int], Exploitability]
"""Trains with a learning rate a number of tables with the hands of a seed."""

MOVES = [(hand, turn) for hand, (_, moves) in enumerate(KUHN.all) for turn in range(len(moves))]
"""Every move of every hand: the samples of ``spag``."""
HAND = torch.tensor([hand for hand, _ in MOVES])
MADE_AT = torch.tensor([2 * decision + move for places in KUHN.places for decision, move in places])
TURNS = torch.tensor([[(len(moves) + 1 - player) // 2 for _, moves in KUHN.all] for player in (0, 1)])
"""(2, 30): the turns of each player in a hand."""


def by_role(counts: Tensor) -> Tensor:
    """Return the advantages of ``turnwise``: what was won relative to the mean over the role's turns in this step,
    divided by their standard deviation. Kuhn poker rewards a role's last turn alone, so ``discount: 1`` gives all its
    turns the same.
    """
    share = counts[:, None] * TURNS
    share = share / share.sum(-1, keepdim=True)
    relative = KUHN.won - (share * KUHN.won).sum(-1, keepdim=True)
    low, high = KUHN.game.reward_range
    return relative / (share * relative.square()).sum(-1, keepdim=True).sqrt().clamp(min=0.1 * (high - low))


def online(
    advantages: Advantages | None, changes: Mapping[str, Any], rate: float, tables: int, seed: int
) -> Exploitability:
    """Train with an online algorithm: every update has hands of the current policy."""
    settings = settings_of({**changes, "learning_rate": rate})
    generator = torch.Generator().manual_seed(seed)
    return train(settings, new_table(KUHN, tables, generator), generator, averages=False, advantages=advantages)


def offline(iterations: int, loser_reward: float, rate: float, tables: int, seed: int) -> Exploitability:
    """Train with ``spag``: the updates of an iteration have hands of the policy at its beginning."""
    settings = SpagSettings(learning_rate=rate, adam_beta1=0.5, adam_beta2=0.95, loser_reward=loser_reward)
    generator = torch.Generator().manual_seed(seed)
    table = Table(KUHN, torch.zeros(tables, len(KUHN.decisions), 1, dtype=torch.float64))
    optimizer, found = make_optimizer(table, settings), dict[str, Sequence[float]]()
    updates = CHECKED[-1] // iterations
    for step in range(CHECKED[-1]):
        if step % updates == 0:
            reference = table.logprobs().detach()
            batches = torch.stack([play(table, HANDS_EACH, generator) for _ in range(updates)])
            weight = weights_of(batches.sum(0))
        offline_loss(table, reference, batches[step % updates], weight, settings).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 in CHECKED:
            found[f"{step + 1}"] = table.exploitability()
    return found


def offline_loss(table: Table, reference: Tensor, counts: Tensor, weight: Tensor, settings: SpagSettings) -> Tensor:
    """Return the sum of the tables' losses: ``offline_rl_loss`` with equal samples merged. ``reference``: (tables, 12,
    2), log-probabilities; ``counts``: (tables, 30); ``weight``: (tables, moves).
    """
    reward = rewards_of(settings)
    copies = counts[:, HAND] * (reward != 0.0)
    logprob, ref_logprob = (values.flatten(1)[:, MADE_AT] for values in (table.logprobs(), reference))
    weight = weight * copies / copies.sum(1, keepdim=True)
    columns = logprob, ref_logprob, reward.expand_as(logprob), weight, torch.zeros_like(logprob)
    return offline_rl_terms(*columns, kl_coef=settings.kl_coef, clip_range=settings.clip_range).sum()


def rewards_of(settings: SpagSettings) -> Tensor:
    """Return the reward of each of ``MOVES``; 0 if it is not trained."""
    rewards = []
    for hand, turn in MOVES:
        player = turn % 2
        shares = return_coefficients(int(TURNS[player, hand]), settings.discount)
        won = KUHN.won[player, hand].item()
        rewards.append((won if won > 0 else settings.loser_reward) * shares[turn // 2])
    return torch.tensor(rewards, dtype=torch.float64)


def weights_of(counts: Tensor) -> Tensor:
    """Return the weight of each of ``MOVES``, (tables, moves): that of the role which won the hand."""
    wins = (counts @ (KUHN.won > 0).double().T).int().tolist()  # (tables, 2)
    winner = [0 if KUHN.won[0, hand] > 0 else 1 for hand, _ in MOVES]
    by_table = [role_weights(dict(zip("01", each, strict=True))) for each in wins]
    return torch.tensor([[own.get(str(role), 0.0) for role in winner] for own in by_table], dtype=torch.float64)


ARMS: Mapping[str, Arm] = {
    "`reinforce`, fixed": partial(online, None, PRESET),
    "`reinforce`, moving": partial(online, None, MOVING),
    "`group`, fixed": partial(online, by_deal(KUHN), PRESET),
    "`group`, moving": partial(online, by_deal(KUHN), MOVING),
    "`turnwise`, fixed": partial(online, by_role, PRESET),
    "`turnwise`, moving": partial(online, by_role, MOVING),
    "`spag`, 5 iterations": partial(offline, 5, 0.0),
    "`spag`, 20 iterations": partial(offline, 20, 0.0),
    "`spag`, 20 iterations, `loser_reward: -1`": partial(offline, 20, -1.0),
    "`spag`, 100 iterations, `loser_reward: -1`": partial(offline, 100, -1.0),
}


def main() -> None:
    about = "of the hands of reported tables; the next one is swept"
    chosen = options("algorithm", about).parse_args()
    began = time.perf_counter()
    print(f"| algorithm | learning rate | {' | '.join(map(str, CHECKED))} |\n|---|---:|{'---:|' * len(CHECKED)}")
    for name, arm in ARMS.items():
        swept = {rate: fmean(arm(rate, chosen.seeds, chosen.seed + 1)[str(CHECKED[-1])]) for rate in RATES}
        rate = min(swept, key=swept.__getitem__)
        print(f"| {name} | {rate} | {cells(arm(rate, chosen.seeds, chosen.seed))} |", flush=True)
    print(f"mean of {chosen.seeds} tables ± its standard error; {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
