"""Kuhn poker as a table of 12 logits: how near to equilibrium online steps come, by the reference of the KL term.

One logit per information set is the smallest policy there is, so what is left to see is the method: 256 hands a step
unless a row says otherwise, with the baselines, the loss, the optimizer, the reference and the averages of
``reinforce``, or with the advantages of ``group``, and the exact figures of the game. Seeds are rows of one tensor:
their losses are added, and AdamW updates every number by itself. Differs from a run: no weights are shared between
information sets, hands are counted instead of written as texts, and gradients, whose norm stays below 0.2, are not
clipped.

    python -m benchmarks.kuhn_table     # the table of docs/online.md
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from spag.algorithms.base import TokenBatch, Totals
from spag.algorithms.credit import without_drift
from spag.algorithms.reinforce import Baselines, Reinforce, ReinforceSettings
from spag.games.base import Policy
from spag.games.kuhn_poker import solver
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.games.mixture import mixture
from spag.learning.devices import make_optimizer
from spag.learning.policy import Reference, WeightCopy

Advantages = Callable[[Tensor], Tensor]
"""From how often each hand was played, (seeds, 30), to both players' advantages in each hand, (seeds, 2, 30)."""

BY_DEAL = "the same by `group`, a deal being a group"
"""The row whose advantages are those of ``group``."""
PRESET = {"kl_coef": 1.0, "kl_coef_end": 0.2, "anneal_steps": 25}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "fixed, coefficient 1 to 0.2 in 25 steps (the preset)": PRESET,
    "the same, `{ema: 0.02}`": {**PRESET, "reference": {"ema": 0.02}},
    "constant 0.3, `{ema: 0.03}`": {"kl_coef": 0.3, "reference": {"ema": 0.03}},
    "the same, 1,024 hands a step": {"kl_coef": 0.3, "reference": {"ema": 0.03}, "games": 1024},
    BY_DEAL: {"kl_coef": 0.3, "reference": {"ema": 0.03}, "games": 1024},
    "constant 0.5, `{every: 25}`": {"kl_coef": 0.5, "reference": {"every": 25}},
    "no KL term": {"kl_coef": 0.0},
}
"""The options of ``reinforce`` by row of the table."""
HANDS_EACH = 256
"""Hands of an update, unless a row says otherwise."""
CHECKED = (80, 200, 400)
"""Steps after which exploitability is computed; the averages after the last one."""


def _endings(moves: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not solver.legal_moves(moves):
        yield moves
    for move in solver.legal_moves(moves):
        yield from _endings((*moves, move))


GAME = KuhnPoker()
DECISIONS = GAME.decisions()
PLAYER = [GAME.roles.index(decision.observation.role) for decision in DECISIONS]
HANDS = [(deal, moves) for deal in solver.DEALS for moves in _endings()]
"""All 30 hands: deal by deal, each with the five ways to play it."""


_AT = {decision.key: number for number, decision in enumerate(DECISIONS)}
PLACES = [
    [
        (_AT[solver.information_set(deal[turn % 2], moves[:turn])], solver.legal_moves(moves[:turn]).index(move))
        for turn, move in enumerate(moves)
    ]
    for deal, moves in HANDS
]
"""The decision of each turn of each hand, and the move made there."""
MADE = torch.zeros(len(HANDS), len(DECISIONS), 2, dtype=torch.float64)
"""(30, 12, 2): 1 at ``PLACES``."""
for _hand, _turns in enumerate(PLACES):
    for _place in _turns:
        MADE[_hand][_place] = 1.0
WON = torch.tensor([[sign * solver.chips(*hand) for hand in HANDS] for sign in (1, -1)], dtype=torch.float64)
"""(2, 30): chips of player_0 and of player_1."""


class Table(nn.Module):
    """(seeds, 12): the logit of the second move, the bet or call. 0 is uniform play."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def logprobs(self) -> Tensor:
        """(seeds, 12, 2): log-probabilities of the moves of every decision."""
        return nn.functional.logsigmoid(torch.stack([-self.logits, self.logits], dim=-1))

    @torch.no_grad()
    def policies(self) -> list[Policy]:
        """Return the policy of each seed."""
        return [
            {one.key: dict(zip(one.moves, pair, strict=True)) for one, pair in zip(DECISIONS, rows, strict=True)}
            for rows in self.logprobs().exp().tolist()
        ]

    def exploitability(self) -> list[float]:
        """Return that of each seed."""
        return [GAME.score_policy(policy)["exploitability"] for policy in self.policies()]


def settings_of(options: Mapping[str, Any]) -> ReinforceSettings:
    """Return the options of ``reinforce`` with those that all rows share."""
    shared = {"steps": CHECKED[-1], "games": HANDS_EACH, "learning_rate": 0.1, "adam_beta1": 0.5, "adam_beta2": 0.95}
    return ReinforceSettings(**{**shared, "average_decay": 0.9, "sampling": {"max_new_tokens": 1}, **options})


def train(
    settings: ReinforceSettings,
    seeds: int,
    checked: Sequence[int] = CHECKED,
    *,
    seed: int = 0,
    start: float = 0.0,
    averages: bool = True,
    advantages: Advantages | None = None,
) -> dict[str, list[float]]:
    """Train ``seeds`` tables; return each one's exploitability after the steps ``checked``, and of its averages.

    ``start``: the standard deviation of the first logits. ``advantages``: ``None`` takes those of ``reinforce``.
    """
    generator = torch.Generator().manual_seed(seed)
    table = Table(start * torch.randn(seeds, len(DECISIONS), generator=generator, dtype=torch.float64))
    algorithm, optimizer = Reinforce(settings), make_optimizer(table, settings)
    reference = Reference([table.logits], settings.reference)
    moving, mean = WeightCopy([table.logits]), WeightCopy([table.logits])
    advantages, found, policies = advantages or by_baseline(algorithm.baselines), {}, []
    for step in range(1, settings.steps + 1):
        batch = batch_of(table, reference, play(table, settings.games, generator), advantages, step)
        algorithm.loss(batch)[0].backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        moving.move(1.0 if step == 1 else 1.0 - settings.average_decay)
        mean.move(1.0 / step)
        reference.after_step(step)
        policies += [table.policies()] if averages else []
        if step in checked:
            found[f"{step}"] = table.exploitability()
    if averages:
        for name, weights in (("moving average", moving), ("mean weights", mean)):
            with weights.in_place():
                found[name] = table.exploitability()
        mixed = [mixture(DECISIONS, of_seed) for of_seed in zip(*policies, strict=True)]
        found["mixture"] = [GAME.score_policy(policy)["exploitability"] for policy in mixed]
    return found


@torch.no_grad()
def play(table: Table, games: int, generator: torch.Generator) -> Tensor:
    """Return how often each hand was played, (seeds, 30). Deals come in whole rounds of six, the last one cut."""
    seeds, deals = len(table.logits), len(solver.DEALS)
    chances = (table.logprobs().flatten(1) @ MADE.flatten(1).T).exp().view(seeds, deals, -1)
    order = torch.rand(seeds, deals, generator=generator).argsort(1)
    dealt = order[:, torch.arange(games) % deals]  # (seeds, games)
    limits = chances.cumsum(-1)[torch.arange(seeds)[:, None], dealt]  # (seeds, games, 5)
    drawn = torch.rand(seeds, games, 1, generator=generator, dtype=torch.float64)
    hands = dealt * chances.shape[-1] + (drawn >= limits[..., :-1]).sum(-1)
    return torch.zeros(seeds, len(HANDS), dtype=torch.float64).scatter_add_(1, hands, torch.ones_like(drawn[..., 0]))


def credit(counts: Tensor, advantages: Advantages) -> tuple[Tensor, Tensor]:
    """Return the mean advantage of each move, and how often it was made, both (seeds, 12, 2).

    That is the ``credit`` of an algorithm with equal samples merged, as in training. ``counts``: (seeds, 30).
    """
    low, high = GAME.reward_range
    relative = advantages(counts)
    kept = torch.tensor(without_drift(relative.flatten().tolist(), high - low), dtype=torch.float64)
    sums = torch.einsum("sh,sph,him->spim", counts, kept.view_as(relative), MADE)
    made = torch.einsum("sh,him->sim", counts, MADE)
    return sums[:, PLAYER, torch.arange(len(DECISIONS))] / made.clamp(min=1.0), made


def by_deal(counts: Tensor) -> Tensor:
    """Return the advantages of ``group``, a deal being a group: what was won minus the mean of the deal's hands."""
    hands = counts.view(len(counts), 1, len(solver.DEALS), -1)
    won = (hands * WON.view(2, len(solver.DEALS), -1)).sum(-1) / hands.sum(-1).clamp(min=1.0)
    return WON - won.repeat_interleave(hands.shape[-1], dim=-1)


def by_baseline(baselines: Baselines) -> Advantages:
    """Return those of ``reinforce``: what was won minus the role's baseline, which moves with each step."""

    def advantages(counts: Tensor) -> Tensor:
        means = (counts @ WON.T / counts.sum(1, keepdim=True)).tolist()
        paid = {
            f"{seed}/{role}": mean for seed, row in enumerate(means) for role, mean in zip(GAME.roles, row, strict=True)
        }
        moved = baselines.move(list(paid.items()))
        return WON - torch.tensor([moved[key] for key in paid], dtype=torch.float64).view(-1, 2, 1)

    return advantages


def batch_of(table: Table, reference: Reference, counts: Tensor, advantages: Advantages, step: int) -> TokenBatch:
    """Return a step's samples, a move each. Weights add up to 1 per seed, so the loss is the sum of the seeds' own."""
    advantage, made = credit(counts, advantages)
    logprob = table.logprobs().flatten()
    with torch.no_grad(), reference.in_place():
        ref_logprob = table.logprobs().flatten()
    fixed = logprob.detach()
    return TokenBatch(
        sample=torch.arange(len(fixed)), logprob=logprob, old_logprob=fixed, sampling_logprob=fixed,
        played_logprob=fixed, ref_logprob=ref_logprob, entropy=torch.zeros_like(fixed), advantage=advantage.flatten(),
        weight=(made / made.sum((1, 2), keepdim=True)).flatten(), group=torch.full((len(fixed),), 2),
        groups=("sft", "other", GAME.name), totals=Totals(len(fixed), 0, 1.0), step=step,
    )  # fmt: skip


def options(about: str, seed: str) -> argparse.ArgumentParser:
    """Return a parser of the number of tables and of the seed, which is that of ``seed``."""
    parser = argparse.ArgumentParser(description=f"Exploitability in Kuhn poker of a table, by {about}")
    parser.add_argument("--seeds", type=_several, default=32, help="tables that are trained side by side, 2 or more")
    parser.add_argument("--seed", type=int, default=0, help=seed)
    return parser


def _several(text: str) -> int:
    if (count := int(text)) < 2:
        raise argparse.ArgumentTypeError("must be 2 or more: a standard error needs two")
    return count


def cells(found: Mapping[str, Sequence[float]]) -> str:
    """Return the mean and the standard error of each entry, as the cells of a table's row."""
    return " | ".join(f"{fmean(one):.3f} ± {stdev(one) / len(one) ** 0.5:.3f}" for one in found.values())


def main() -> None:
    parser = options("reference of the KL term", "of all hands")
    parser.add_argument("--start", type=float, default=0.0, help="standard deviation of the first logits")
    chosen = parser.parse_args()
    began = time.perf_counter()
    for number, (name, arm) in enumerate(ARMS.items()):
        settings, advantages = settings_of(arm), by_deal if name == BY_DEAL else None
        found = train(settings, chosen.seeds, seed=chosen.seed, start=chosen.start, advantages=advantages)
        if number == 0:
            print(f"| reference | {' | '.join(found)} |\n|---|{'---:|' * len(found)}")
        print(f"| {name} | {cells(found)} |", flush=True)
    print(f"mean of {chosen.seeds} seeds ± its standard error; {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
