"""Poker as a table of logits: how near to equilibrium online steps come, by the reference of the KL term.

A row of logits per information set is the smallest policy there is, so what is left to see is the method: the
baselines, the loss, the optimizer, the reference and the averages of ``reinforce``, or the advantages of ``group``, and
the exact figures of the game. Seeds are rows of one tensor: their losses are added, and AdamW updates every number by
itself. Differs from a run: no weights are shared between information sets, hands are counted instead of written as
texts, and gradients, whose norm stays below 0.2 in Kuhn poker, are not clipped.

    python -m benchmarks.poker_table                      # the tables of docs/online-results.md: Kuhn poker,
    python -m benchmarks.poker_table --game leduc_poker   # and Leduc poker
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
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.games.leduc_poker.leduc import LeducPoker
from spag.games.leduc_poker.solver import honest_chances
from spag.games.mixture import mixture
from spag.games.moves import Moves
from spag.learning.devices import make_optimizer
from spag.learning.policy import Reference, WeightCopy

Advantages = Callable[[Tensor], Tensor]
"""From how often each hand was played, (seeds, H), to both players' advantages in each hand, (seeds, 2, H)."""


class Hands:
    """All H ways in which a hand can be dealt and played, deal by deal, and its D decisions of at most M moves.

    ``made``: (H, D, M), 1 at each move of a hand; ``won``: (2, H), each player's chips; ``legal``: (D, M).
    """

    def __init__(self, game: KuhnPoker | LeducPoker) -> None:
        self.game, tree = game, game.tree
        self.decisions, self.deals = game.decisions(), len(game.deals)
        self.all = [(deal, moves) for deal in game.deals for moves in self._endings()]
        self.player = [game.roles.index(decision.observation.role) for decision in self.decisions]
        at = {decision.key: number for number, decision in enumerate(self.decisions)}
        self.places = [
            [
                (at[tree.information_set(deal, tree.player_to_move(moves[:turn]), moves[:turn])],
                 tree.legal_moves(moves[:turn]).index(move))
                for turn, move in enumerate(moves)
            ]
            for deal, moves in self.all
        ]  # fmt: skip
        most = max(len(decision.moves) for decision in self.decisions)
        self.made = torch.zeros(len(self.all), len(self.decisions), most, dtype=torch.float64)
        for hand, turns in enumerate(self.places):
            for place in turns:
                self.made[hand][place] = 1.0
        chips = [tree.chips(*hand) for hand in self.all]
        self.won = torch.tensor([chips, [-won for won in chips]], dtype=torch.float64)
        self.legal = torch.tensor([[move < len(one.moves) for move in range(most)] for one in self.decisions])

    def _endings(self, moves: Moves = ()) -> Iterator[Moves]:
        legal = self.game.tree.legal_moves(moves)
        if not legal:
            yield moves
        for move in legal:
            yield from self._endings((*moves, move))


class Table(nn.Module):
    """``logits``: (seeds, D, M - 1), of every move but the first, whose logit is 0. All 0 is uniform play."""

    def __init__(self, hands: Hands, logits: Tensor) -> None:
        super().__init__()
        self.hands = hands
        self.logits = nn.Parameter(logits)

    def logprobs(self) -> Tensor:
        """(seeds, D, M): log-probabilities of the moves of every decision; -1e9 where there is no such move."""
        logits = torch.cat([torch.zeros_like(self.logits[..., :1]), self.logits], dim=-1)
        return logits.masked_fill(~self.hands.legal, -1e9).log_softmax(-1)

    @torch.no_grad()
    def policies(self) -> list[Policy]:
        """Return the policy of each seed."""
        return [
            {
                one.key: dict(zip(one.moves, row, strict=False))
                for one, row in zip(self.hands.decisions, rows, strict=True)
            }
            for rows in self.logprobs().exp().tolist()
        ]

    def exploitability(self) -> list[float]:
        """Return that of each seed."""
        return [self.hands.game.score_policy(policy)["exploitability"] for policy in self.policies()]


BY_DEAL = "the same by `group`, a deal being a group"
"""The row of Kuhn poker whose advantages are those of ``group``."""
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
"""The options of ``reinforce`` by row of Kuhn poker's table."""
LEDUC_ARMS: Mapping[str, Mapping[str, Any]] = {
    "fixed, 1": {"kl_coef": 1.0},
    "fixed, 1, 4,800 hands": {"kl_coef": 1.0, "games": 4800},
    "fixed, 0.3": {"kl_coef": 0.3},
    "fixed, 2": {"kl_coef": 2.0},
    "`{ema: 0.03}`, 1": {"kl_coef": 1.0, "reference": {"ema": 0.03}},
    "`{ema: 0.03}`, 1, 4,800 hands": {"kl_coef": 1.0, "reference": {"ema": 0.03}, "games": 4800},
    "`{ema: 0.03}`, 1 to 0.4 in 20 steps": {
        "kl_coef": 1.0, "kl_coef_end": 0.4, "anneal_steps": 20, "reference": {"ema": 0.03}
    },
    "no KL term": {"kl_coef": 0.0},
}  # fmt: skip
"""The same for Leduc poker, with the advantages of ``group``."""
HANDS_EACH = 256
"""Hands of an update of Kuhn poker, unless a row says otherwise."""
CHECKED = (80, 200, 400)
"""Steps after which exploitability is computed; the averages after the last one."""
LEDUC_CHECKED = (20, 60, 120)


KUHN = Hands(KuhnPoker())


def new_table(
    hands: Hands, seeds: int, generator: torch.Generator, start: float = 0.0, first: Tensor | None = None
) -> Table:
    """Return a table whose logits are ``first``, (D, M - 1), or 0, plus noise of standard deviation ``start``."""
    shape = (seeds, *hands.legal[:, 1:].shape)
    noise = start * torch.randn(shape, generator=generator, dtype=torch.float64)
    return Table(hands, noise if first is None else first + noise)


def settings_of(options: Mapping[str, Any]) -> ReinforceSettings:
    """Return the options of ``reinforce`` with those that all rows share."""
    shared = {"steps": CHECKED[-1], "games": HANDS_EACH, "learning_rate": 0.1, "adam_beta1": 0.5, "adam_beta2": 0.95}
    return ReinforceSettings(**{**shared, "average_decay": 0.9, "sampling": {"max_new_tokens": 1}, **options})


def train(
    settings: ReinforceSettings,
    table: Table,
    generator: torch.Generator,
    checked: Sequence[int] = CHECKED,
    *,
    averages: bool = True,
    advantages: Advantages | None = None,
) -> dict[str, list[float]]:
    """Train a table; return each seed's exploitability after the steps ``checked``, and of its averages.

    ``advantages``: ``None`` takes those of ``reinforce``.
    """
    hands = table.hands
    algorithm, optimizer = Reinforce(settings), make_optimizer(table, settings)
    reference = Reference([table.logits], settings.reference)
    moving, mean = WeightCopy([table.logits]), WeightCopy([table.logits])
    advantages, found, policies = advantages or by_baseline(hands, algorithm.baselines), {}, []
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
        mixed = [mixture(hands.decisions, of_seed) for of_seed in zip(*policies, strict=True)]
        found["mixture"] = [hands.game.score_policy(policy)["exploitability"] for policy in mixed]
    return found


@torch.no_grad()
def play(table: Table, games: int, generator: torch.Generator) -> Tensor:
    """Return how often each hand was played, (seeds, H). Deals come in whole rounds, the last one cut."""
    hands = table.hands
    seeds, made = len(table.logits), hands.made
    chances = (table.logprobs().flatten(1) @ made.flatten(1).T).exp().view(seeds, hands.deals, -1)
    order = torch.rand(seeds, hands.deals, generator=generator).argsort(1)
    dealt = order[:, torch.arange(games) % hands.deals]  # (seeds, games)
    limits = chances.cumsum(-1)[torch.arange(seeds)[:, None], dealt]  # (seeds, games, H / deals)
    drawn = torch.rand(seeds, games, 1, generator=generator, dtype=torch.float64)
    numbers = dealt * chances.shape[-1] + (drawn >= limits[..., :-1]).sum(-1)
    return torch.zeros(seeds, len(made), dtype=torch.float64).scatter_add_(1, numbers, torch.ones_like(drawn[..., 0]))


def credit(hands: Hands, counts: Tensor, advantages: Advantages) -> tuple[Tensor, Tensor]:
    """Return the mean advantage of each move, and how often it was made, both (seeds, D, M).

    That is the ``credit`` of an algorithm with equal samples merged, as in training. ``counts``: (seeds, H).
    """
    low, high = hands.game.reward_range
    relative = advantages(counts)
    kept = torch.tensor(without_drift(relative.flatten().tolist(), high - low), dtype=torch.float64)
    sums = torch.einsum("sph,him->spim", counts[:, None] * kept.view_as(relative), hands.made)
    made = torch.einsum("sh,him->sim", counts, hands.made)
    return sums[:, hands.player, torch.arange(len(hands.decisions))] / made.clamp(min=1.0), made


def by_deal(hands: Hands) -> Advantages:
    """Return the advantages of ``group``, a deal being a group: what was won minus the mean of the deal's hands."""

    def advantages(counts: Tensor) -> Tensor:
        played = counts.view(len(counts), 1, hands.deals, -1)
        won = (played * hands.won.view(2, hands.deals, -1)).sum(-1) / played.sum(-1).clamp(min=1.0)
        return hands.won - won.repeat_interleave(played.shape[-1], dim=-1)

    return advantages


def by_baseline(hands: Hands, baselines: Baselines) -> Advantages:
    """Return those of ``reinforce``: what was won minus the role's baseline, which moves with each step."""

    def advantages(counts: Tensor) -> Tensor:
        means = (counts @ hands.won.T / counts.sum(1, keepdim=True)).tolist()
        paid = {
            f"{seed}/{role}": mean
            for seed, row in enumerate(means)
            for role, mean in zip(hands.game.roles, row, strict=True)
        }
        moved = baselines.move(list(paid.items()))
        return hands.won - torch.tensor([moved[key] for key in paid], dtype=torch.float64).view(-1, 2, 1)

    return advantages


def batch_of(table: Table, reference: Reference, counts: Tensor, advantages: Advantages, step: int) -> TokenBatch:
    """Return a step's samples, a move each. Weights add up to 1 per seed, so the loss is the sum of the seeds' own."""
    advantage, made = credit(table.hands, counts, advantages)
    logprob = table.logprobs().flatten()
    with torch.no_grad(), reference.in_place():
        ref_logprob = table.logprobs().flatten()
    fixed, game = logprob.detach(), table.hands.game.name
    return TokenBatch(
        sample=torch.arange(len(fixed)), logprob=logprob, old_logprob=fixed, sampling_logprob=fixed,
        played_logprob=fixed, ref_logprob=ref_logprob, entropy=torch.zeros_like(fixed), advantage=advantage.flatten(),
        weight=(made / made.sum((1, 2), keepdim=True)).flatten(), group=torch.full((len(fixed),), 2),
        groups=("sft", "other", game), totals=Totals(len(fixed), 0, 1.0), step=step,
    )  # fmt: skip


def options(about: str, seed: str) -> argparse.ArgumentParser:
    """Return a parser of the number of tables and of the seed, which is that of ``seed``."""
    parser = argparse.ArgumentParser(description=f"Exploitability in poker of a table, by {about}")
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


def honest_logits(hands: Hands) -> Tensor:
    """Return the logits of Leduc poker's scripted player, (D, M - 1)."""
    chances = torch.ones(hands.legal.shape, dtype=torch.float64)
    for row, decision in zip(chances, hands.decisions, strict=True):
        facts = decision.observation.facts
        for move, chance in enumerate(honest_chances(facts["card"], facts.get("board"), facts["legal"]).values()):
            row[move] = chance
    return chances[:, 1:].log() - chances[:, :1].log()


def main() -> None:
    parser = options("reference of the KL term", "of all hands")
    parser.add_argument("--game", choices=["kuhn_poker", "leduc_poker"], default="kuhn_poker")
    parser.add_argument("--start", type=float, help="standard deviation of the first logits: 0, in Leduc poker 0.5")
    chosen = parser.parse_args()
    began, seeds = time.perf_counter(), chosen.seeds
    leduc = chosen.game == "leduc_poker"
    hands, arms, checked = (Hands(LeducPoker()), LEDUC_ARMS, LEDUC_CHECKED) if leduc else (KUHN, ARMS, CHECKED)
    start = chosen.start if chosen.start is not None else 0.5 * leduc
    for number, (name, arm) in enumerate(arms.items()):
        generator = torch.Generator().manual_seed(chosen.seed)
        table = new_table(hands, seeds, generator, start, honest_logits(hands) if leduc else None)
        settings = settings_of({"games": 480, **arm, "steps": checked[-1]} if leduc else arm)
        began_at = {"0": table.exploitability()} if leduc else {}
        advantages = by_deal(hands) if leduc or name == BY_DEAL else None
        found = began_at | train(settings, table, generator, checked, advantages=advantages)
        if number == 0:
            print(f"| reference | {' | '.join(found)} |\n|---|{'---:|' * len(found)}")
        print(f"| {name} | {cells(found)} |", flush=True)
    print(f"mean of {seeds} seeds ± its standard error; {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
