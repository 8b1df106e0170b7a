"""Games in which every move is one token, batches of their samples, and the exact gradient of Kuhn poker.

With one token a move, a sample is a decision: its log-probability is that of the move, and the whole way from games to
the gradient can be worked out by hand.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from spag.algorithms.base import TokenBatch, Totals
from spag.algorithms.credit import prompt_digest
from spag.core.episodes import Episode, PlayerInfo, TrainingSample
from spag.core.types import Task, Utterance
from spag.games.base import Game
from spag.games.kuhn_poker import solver
from spag.games.kuhn_poker.kuhn import KuhnPoker

KUHN = KuhnPoker()
MOVES = {move: index for index, move in enumerate(solver.MOVES)}
Deal = tuple[str, str]


def game_of(game: Game, task: Task, moves: Sequence[str], id: str = "", **players: str) -> Episode:
    """A game of ``moves``, between the policy and, by role, other ``players``; sampled with log-probability -0.5."""
    state = game.start(task, 0)
    for move in moves:
        role = game.to_move(state)
        assert role is not None
        digest = prompt_digest(game.prompt(game.observe(state, role)))
        state = game.apply(state, Utterance(role, f"[{move}]", "eos", (MOVES.get(move, 9),), (-0.5,), digest))
    result = state.result or game.replay(task, state.history)  # a game cut short is a draw
    return Episode(
        id=id or task.id, game=game.name, task=task, history=state.history, outcome=result.outcome,
        rewards=result.rewards, length=result.length,
        players={role: PlayerInfo(players.get(role, "policy")) for role in game.roles},
    )  # fmt: skip


def hand(first: str, second: str, moves: Sequence[str], id: str = "", **players: str) -> Episode:
    """A hand of Kuhn poker; its task is the deal."""
    return game_of(KUHN, Task(f"{first}{second}", {"player_0": first, "player_1": second}), moves, id, **players)


def batch_of(samples: Sequence[TrainingSample], logprob: Sequence[float], old: Sequence[float]) -> TokenBatch:
    """The one-token samples of an update as the loop would hand them to the loss: those of play, -0.5, are kept."""
    assert all(len(sample.completion_ids or ()) == 1 for sample in samples)
    columns = {
        "logprob": logprob,
        "old_logprob": old,
        "sampling_logprob": [value for sample in samples for value in sample.logprobs or ()],
        "played_logprob": [value for sample in samples for value in sample.raw_logprobs or sample.logprobs or ()],
        "ref_logprob": logprob,
        "entropy": [0.0] * len(samples),
        "advantage": [sample.reward for sample in samples],
        "weight": [sample.weight for sample in samples],
    }
    roles = list(dict.fromkeys(str(sample.role) for sample in samples))
    found = {name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}
    found["logprob"].requires_grad_()
    return TokenBatch(
        sample=torch.arange(len(samples)),
        group=torch.tensor([2 + roles.index(str(sample.role)) for sample in samples]),
        groups=("sft", "other", *roles),
        totals=Totals(len(samples), 0, sum(sample.weight for sample in samples)),
        **found,
    )


def trajectories(moves: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every way in which a hand can be played: five."""
    if not solver.legal_moves(moves):
        yield moves
    for move in solver.legal_moves(moves):
        yield from trajectories((*moves, move))


@dataclass
class Policy:
    """A policy of Kuhn poker as logits (2,) of each information set, those of the first given or random."""

    logits: Mapping[str, torch.Tensor]
    logprobs: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for card, moves in solver.INFORMATION_SETS:
            key = solver.information_set(card, moves)
            row = self.logits[key].log_softmax(-1)
            self.logprobs[key] = dict(zip(solver.legal_moves(moves), row, strict=True))

    def logprob(self, deal: Deal, moves: Sequence[str], at: int) -> torch.Tensor:
        return self.logprobs[solver.information_set(deal[at % 2], tuple(moves[:at]))][moves[at]]

    def chance(self, deal: Deal, moves: Sequence[str]) -> torch.Tensor:
        """The probability of ``moves`` after ``deal``."""
        return sum((self.logprob(deal, moves, at) for at in range(len(moves))), torch.zeros(())).exp()

    def gradient(self) -> dict[str, torch.Tensor]:
        """The exact gradient of what each role expects by the logits of its own information sets."""
        found = {}
        for player in (0, 1):
            worth = sum(
                self.chance(deal, moves) / 6 * (1 - 2 * player) * solver.chips(deal, moves)
                for deal in solver.DEALS
                for moves in trajectories()
            )
            own = [key for key in self.logits if len(key.split()[1:]) % 2 == player]
            gradients = torch.autograd.grad(worth, [self.logits[key] for key in own], retain_graph=True)
            found |= dict(zip(own, gradients, strict=True))
        assert max(gradient.abs().max() for gradient in found.values()) > 0.01
        return found


SETS = [solver.information_set(card, moves) for card, moves in solver.INFORMATION_SETS]


def random_policy(seed: int) -> Policy:
    torch.manual_seed(seed)
    return Policy({key: torch.randn(2, dtype=torch.float64).requires_grad_() for key in SETS})


@dataclass
class Estimate:
    """A sum of samples by weight, each behind its hand: the batch whose loss estimates the gradient."""

    policy: Policy
    columns: dict[str, list[torch.Tensor]] = field(
        default_factory=lambda: {"logprob": [], "advantage": [], "weight": []}
    )

    def add(self, sample: TrainingSample, deal: Deal, moves: Sequence[str], weight: torch.Tensor | float) -> None:
        at = 2 * ((sample.turn or 0) - 1) + int(str(sample.role).endswith("1"))
        self.columns["logprob"].append(self.policy.logprob(deal, moves, at))
        self.columns["advantage"].append(torch.tensor(sample.reward, dtype=torch.float64))
        self.columns["weight"].append(torch.as_tensor(weight, dtype=torch.float64))

    def batch(self, games: float) -> TokenBatch:
        """The samples as one update on policy; the loss is a mean over ``games``."""
        logprob, advantage, weight = (torch.stack(column) for column in self.columns.values())
        fixed = logprob.detach()
        return TokenBatch(
            sample=torch.arange(len(fixed)),
            logprob=logprob,
            old_logprob=fixed,
            sampling_logprob=fixed,
            played_logprob=fixed,
            ref_logprob=fixed,
            entropy=torch.zeros_like(fixed),
            advantage=advantage,
            weight=weight,
            group=torch.full((len(fixed),), 2),
            groups=("sft", "other", "kuhn_poker"),
            totals=Totals(len(fixed), 0, games),
        )

    def assert_is(self, expected: Mapping[str, torch.Tensor], share: float = 1.0) -> None:
        """Compare what ``loss.backward()`` left, downhill, with ``share`` of the ``expected`` gradient."""
        for key, logits in self.policy.logits.items():
            assert logits.grad is not None
            torch.testing.assert_close(-logits.grad, share * expected[key], atol=1e-10, rtol=0)
