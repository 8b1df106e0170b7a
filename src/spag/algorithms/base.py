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
"""Means by name, each as two sums that the loop adds up over micro-batches and processes: of the weighted values, and
of the weights (``mean_of``). Every micro-batch has the same names.
"""
SFT, OTHER = 0, 1
"""Group of the SFT rows, and of samples without a role; groups from 2 on are the roles."""
FILLER = -1
"""Group of the sample of weight 0 that fills the batch of a process that has no samples left."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a loss needs for each trained token besides its log-probability; nothing else is computed.

    ``reference``: the token's log-probability under the reference policy. ``entropy``: the entropy of its distribution,
    with gradient; online it is always computed without gradient, for metrics.
    """

    reference: bool = False
    entropy: bool = False


@dataclass(frozen=True, slots=True)
class Totals:
    """The samples of an update, over all micro-batches and processes, so that any split gives the same step.

    ``samples`` and ``sft``: the numbers of other samples and of SFT rows. ``weight``: the sum of the other samples'
    weights; online, a pass's weight over its mini-batches, including samples skipped because they have no gradient.
    """

    samples: int
    sft: int
    weight: float


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The K trained tokens of a micro-batch's B samples.

    (K,): ``sample``, each token's sample (int64); ``logprob`` and ``entropy`` (in nats) under the policy, with
    gradient; ``old_logprob`` under the policy before the step's first update; ``sampling_logprob`` under the
    distribution that the engine sampled from, and ``played_logprob`` under the engine's policy, without its temperature
    and filters (games record both); ``ref_logprob`` under the reference policy. If unknown or not needed, these equal
    ``logprob`` without gradient: the first offline and with one update per step, the next two offline, the last if
    ``Needs`` omits it; for SFT rows it is 0. Offline, ``entropy`` is 0 unless needed.
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
        """(B,) bool: SFT rows."""
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
        """Yield the metric ``name.format(group)`` of each role, and of the SFT rows.

        ``values``, ``weight`` and ``member`` (the group's index) are all (B,) or all (K,).
        """
        for index, group in enumerate(self.groups):
            if index > OTHER or (sft and index == SFT):
                yield name.format(group), mean_of(values, weight * (member == index))


def needs_at(algorithm: "Algorithm", step: int) -> Needs:
    """Return what the loss needs at an online ``step``: ``needs_at(step)`` if the algorithm has it, else ``needs``."""
    at: Callable[[int], Needs] | None = getattr(algorithm, "needs_at", None)
    return algorithm.needs if at is None else at(step)


class Algorithm(Protocol):
    """Turns games into samples and losses. Pure except for its state, which is saved with checkpoints.

    ``Settings`` extends ``TeacherSettings``, ``IterationSettings`` or ``OnlineSettings`` (``settings.py``), which
    determines where the games come from. ``seed`` seeds the random draws of ``credit``.
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
        Online, samples of reward 0 are not trained unless ``needs`` asks for a KL or entropy term, and duplicates may
        be merged into one sample with their mean reward, so ``loss`` should be linear in the advantage.
        """

    def loss(self, batch: TokenBatch) -> "tuple[Tensor, Metrics]":
        """Return the micro-batch's share of the update's loss, a scalar, and metrics."""

    def state(self) -> dict[str, Any]:
        """Return the state that ``credit`` keeps between steps, as plain JSON."""
        return {}

    def summary(self) -> dict[str, Any]:
        """Return what ``credit`` adds to the phase's record or an online step's row, as plain JSON."""
        return {}


def mean_of(values: "Tensor", weight: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return the weighted mean of ``values``, (N,) like ``weight``, as two sums: of weighted values and of weights."""
    values, weight = values.detach().double(), weight.detach().double()
    return (values * weight).sum(), weight.sum()


def mixed(terms: "Tensor", sft: "Tensor", sft_coef: float, n: int, n_sft: int) -> "Tensor":
    """Return a micro-batch's share of the samples' mean loss plus ``sft_coef`` times that of the SFT rows.

    ``terms`` (B,) are weighted losses, ``sft`` (B,) bool marks SFT rows; ``n`` and ``n_sft`` count both kinds in the
    whole update.
    """
    own, mix = terms.masked_fill(sft, 0.0).sum(), terms.masked_fill(~sft, 0.0).sum()
    return own / max(n, 1) + sft_coef * mix / max(n_sft, 1)
