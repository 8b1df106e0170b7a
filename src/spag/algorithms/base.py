"""The interface between an algorithm and the learning loop: what an algorithm provides, and the inputs of a loss.

One file holds one algorithm: its options, its advantages (``credit``), its loss and its metrics. The loop
(``spag.learning.loop``) plays or reads games, asks for credit, turns samples into tokens, and adds up the losses.
Torch is not imported: losses only call methods of the tensors that they are given.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from spag.algorithms.settings import UpdateSettings
from spag.core.episodes import Episode, TrainingSample
from spag.games.base import Game

if TYPE_CHECKING:
    from torch import Tensor

Metrics = Mapping[str, "tuple[Tensor, Tensor]"]
"""Means by name, as two sums that the loop adds up over micro-batches and processes: of the weighted values, and of the
weights (``mean_of``). Every micro-batch has the same names.
"""
SFT, OTHER = 0, 1
"""Groups of the SFT mix, and of samples without a role; the groups from 2 on are the roles."""
FILLER = -1
"""Group of the sample of weight 0 that fills the batch of a process without samples left."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a loss needs for each trained token besides its log-probability; nothing else is computed.

    ``reference``: its log-probability under the reference policy. ``entropy``: that of its distribution, with gradient;
    online it is always computed without gradient, for metrics.
    """

    reference: bool = False
    entropy: bool = False


@dataclass(frozen=True, slots=True)
class Totals:
    """The samples of an update, over all micro-batches and processes, so that any split gives the same step.

    ``samples`` and ``sft``: how many samples are outside and in the SFT mix. ``weight``: the sum of weights outside the
    mix; online, the weight of a pass over its mini-batches, including samples left out because they have no gradient.
    """

    samples: int
    sft: int
    weight: float


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The K trained tokens of a micro-batch's B samples.

    (K,): ``sample``, each token's sample (int64); ``logprob`` and ``entropy`` (in nats) under the policy, with
    gradient; ``old_logprob`` under the policy before the step's first update; ``sampling_logprob`` under the
    distribution that the engine drew it from, and ``played_logprob`` under the engine's policy, without its temperature
    and filters: games record both; ``ref_logprob`` under the reference policy. These equal ``logprob`` without gradient
    if unknown or not needed: the first with one update per step and offline, the next two offline, the last if
    ``Needs`` leaves it out; for rows of the SFT mix it is 0. Offline, ``entropy`` is 0 unless needed.
    (B,): ``advantage`` (for some algorithms a reward), ``weight``, ``group`` (int64, index in ``groups``).
    """

    sample: "Tensor"
    logprob: "Tensor"
    old_logprob: "Tensor"
    sampling_logprob: "Tensor"
    played_logprob: "Tensor"
    ref_logprob: "Tensor"
    entropy: "Tensor"
    advantage: "Tensor"
    weight: "Tensor"
    group: "Tensor"
    groups: Sequence[str]
    totals: Totals
    step: int = 1
    """The step, from 1: an online self-play step, otherwise an update."""

    @property
    def is_sft(self) -> "Tensor":
        """(B,) bool: rows of the SFT mix."""
        return self.group == SFT

    def total(self, values: "Tensor") -> "Tensor":
        """Return the sum of ``values`` (K,) over each sample's tokens: (B,)."""
        return values.new_zeros(len(self.weight)).index_add(0, self.sample, values)

    def mean(self, values: "Tensor") -> "Tensor":
        """Return the mean of ``values`` (K,) over each sample's tokens: (B,)."""
        return self.total(values) / self.total(values.new_ones(len(values))).clamp(min=1)

    def by_group(
        self, name: str, values: "Tensor", weight: "Tensor", member: "Tensor", *, sft: bool = True
    ) -> "Iterator[tuple[str, tuple[Tensor, Tensor]]]":
        """Yield the metric ``name.format(group)`` of each role, and of the SFT mix.

        ``values``, ``weight`` and ``member`` (the group's index) are all (B,) or all (K,).
        """
        for index, group in enumerate(self.groups):
            if index > OTHER or (sft and index == SFT):
                yield name.format(group), mean_of(values, weight * (member == index))


def needs_at(algorithm: "Algorithm", step: int) -> Needs:
    """Return what an online ``step`` is trained for: the algorithm's own ``needs_at(step)``, if any, else ``needs``."""
    at: Callable[[int], Needs] | None = getattr(algorithm, "needs_at", None)
    return algorithm.needs if at is None else at(step)


class Algorithm(Protocol):
    """Turns games into samples and losses. Pure except for its state, which is saved with checkpoints.

    ``Settings`` extends ``TeacherSettings``, ``IterationSettings`` or ``OnlineSettings`` (``settings.py``), which says
    where the games come from. ``seed`` decides what ``credit`` draws.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[UpdateSettings]]

    def __init__(self, settings: Any, *, seed: int = 0, state: Mapping[str, Any] | None = None) -> None: ...

    @property
    def needs(self) -> Needs:
        """What ``loss`` needs with these settings."""

    def credit(self, episodes: Sequence[Episode], game: Game, learner: str | None) -> list[TrainingSample]:
        """Return the samples of finished games, each with its advantage (``reward``) and weight.

        ``learner``: the player (by its name in the episodes) whose utterances are trained; ``None``: every player's.
        Online, samples of reward 0 are not trained unless ``needs`` asks for a KL or entropy term, and those of equal
        tokens may be merged into one with their mean reward: ``loss`` should be linear in the advantage.
        """

    def loss(self, batch: TokenBatch) -> "tuple[Tensor, Metrics]":
        """Return the micro-batch's share of the update's loss, a scalar, and metrics."""

    def state(self) -> dict[str, Any]:
        """Return the state that ``credit`` keeps between steps, as plain JSON."""
        return {}

    def summary(self) -> dict[str, Any]:
        """Return the credit's entries for the phase's record or an online step's row, as plain JSON."""
        return {}


def mean_of(values: "Tensor", weight: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return the mean of ``values`` by ``weight``, both (N,), as two sums: of weighted values and of weights."""
    values, weight = values.detach().double(), weight.detach().double()
    return (values * weight).sum(), weight.sum()


def mixed(terms: "Tensor", sft: "Tensor", sft_coef: float, n: int, n_sft: int) -> "Tensor":
    """Return a micro-batch's share of the mean of the samples' ``terms`` plus ``sft_coef`` times that of the SFT mix's.

    ``terms`` (B,) are losses with their weights, ``sft`` (B,) bool tells those of the mix; ``n`` and ``n_sft`` count
    both kinds in the whole update.
    """
    own, mix = terms.masked_fill(sft, 0.0).sum(), terms.masked_fill(~sft, 0.0).sum()
    return own / max(n, 1) + sft_coef * mix / max(n_sft, 1)
