"""SPAG: discounted returns for winners, role weights, and the clipped offline RL loss (arXiv 2404.10642, section 3.2 and 3.3).

Only winners' utterances become samples. A winner's k-th utterance (k = 1, 2, ...) has the coefficient ``(1/discount)**k``, normalised to
sum to 1 over the game, so later utterances, nearer to the win, earn more. The role weight ``N / (2 * N_role)`` makes both roles count one
half in expectation, however unequal their numbers of wins. Rewards for losers and ties are options that upstream leaves out; its author
reports that negative rewards for the loser "did not even converge". Texts are stripped of white space, as upstream's; a text that is empty
then keeps its share of the return and is left out, where upstream trains its end token. Sampled tokens stay as they were sampled.

Where the current policy (``learner``) played frozen opponents, only its own utterances become samples, since the importance ratio is
against it; ``N`` and ``N_role`` count the games that give samples, so a game that an opponent won has no effect on the weights.

Torch is not imported: the losses only call methods of the tensors that they are given.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar

from spag.algorithms.base import PolicyBatch, at_least_one
from spag.core.episodes import Episode, SampleType, TrainingSample
from spag.core.errors import DataError
from spag.core.seeds import derive_seed
from spag.core.types import Result, Split, State
from spag.games.base import Game
from spag.games.registry import DEFAULT, get
from spag.games.replay import replay

if TYPE_CHECKING:
    from torch import Tensor


_LARGEST_POWER = 600.0
"""e to this is 1e260: powers up to it can be added up."""


class Template(StrEnum):
    """The wording of a sample's prompt: drawn anew for each utterance, as upstream; drawn once a game; or the prompt of play.

    Utterances of one game that share a template share most of their prompt, which training computes once.
    """

    RANDOM = "random"
    GAME = "game"
    PLAY = "play"


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """How games become samples. Rewards of losers and ties are the total over that side's utterances."""

    discount: float = 0.8
    loser_reward: float = 0.0
    tie_reward: float = 0.0
    template: Template = Template.RANDOM
    sampled_tokens: bool = True
    """Train the tokens as they were sampled, where they are known; else the text, tokenised again and with an end token, as upstream."""
    seed: int = 0
    sample_type: SampleType = SampleType.RL
    roles: frozenset[str] | None = None
    """Whose samples are kept (``None``: all); the others' are made and weighed alike, then dropped."""
    learner: str | None = None
    """The player (by the name in the episodes) whose utterances are trained; ``None``: every player's."""
    everyone: bool = False
    """Both roles of every game without a broken rule, with reward and weight 1, whoever won: for imitation of play that is not to win."""


@dataclass(slots=True)
class RewardStats:
    """What the games were and what became of them. ``utterances`` counts those up to the judged ends."""

    utterances: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    samples: Counter[str] = field(default_factory=Counter)
    wins: Counter[str] = field(default_factory=Counter)
    role_weights: dict[str, float] = field(default_factory=dict)
    empty_completions: int = 0
    held_out: int = 0
    """Games on held-out tasks, whatever became of them."""


def return_coefficients(count: int, discount: float) -> list[float]:
    """Return the normalised coefficients of ``count`` utterances: ``(1/discount)**k``, summing to 1."""
    last = count if -count * math.log(discount) > _LARGEST_POWER else 0  # the same shares, from the largest power down
    powers = [discount ** (last - k) for k in range(1, count + 1)]
    total = sum(powers)
    return [power / total for power in powers]


def role_weights(wins: Mapping[str, int]) -> dict[str, float]:
    """Return ``N / (2 * N_role)`` for each role that won, with ``N`` the sum of all roles' wins."""
    total = sum(wins.values())
    return {role: total / (2 * count) for role, count in wins.items() if count}


def assign_rewards(
    episodes: Iterable[Episode],
    discount: float = 0.8,
    judge: str = "strict",
    *,
    settings: RewardSettings | None = None,
    game: Game | None = None,
    stats: RewardStats | None = None,
) -> list[TrainingSample]:
    """Judge ``episodes`` and return the training samples in game order.

    ``settings`` replaces ``discount``, and ``game`` (by default Adversarial Taboo) ``judge``, when given. ``stats`` is filled in when
    given. The prompt of a sample is drawn by (seed, episode id, turn), so it does not depend on the other episodes.
    """
    settings = settings or RewardSettings(discount=discount)
    return list(iterate_rewards(list(episodes), game or get(DEFAULT, judge=judge), settings, stats=stats))


def iterate_rewards(
    episodes: Iterable[Episode], game: Game, settings: RewardSettings, *, stats: RewardStats | None = None
) -> Iterator[TrainingSample]:
    """Yield what ``assign_rewards`` returns, holding one game at a time when ``episodes`` is an ``EpisodeFile``.

    Computes role weights first, from all games, then the samples: ``episodes`` is read twice. An iterator, which can be read once only, is
    kept in memory. Raises ``DataError`` when the second reading shows other games.
    """
    stats = stats if stats is not None else RewardStats()
    games = list(episodes) if isinstance(episodes, Iterator) else episodes
    known: dict[tuple[object, ...], Result] = {}  # equal results are one object: 8 bytes a game
    results = []
    trained: Counter[str] = Counter()
    for episode in games:
        result = replace(replay(game, episode), reason="")
        results.append(known.setdefault((result.outcome, result.length, *result.rewards.values()), result))
        if _paid_roles(episode, game, result, settings):
            trained.update(game.outcomes[result.outcome].winners)
        stats.outcomes[result.outcome] += 1
        stats.utterances += result.length
        stats.held_out += game.split_of(episode.task) is Split.HELD_OUT
        stats.wins.update(game.outcomes[result.outcome].winners)
    stats.role_weights = role_weights({role: trained[role] for role in game.roles})
    for episode_, result_ in zip_longest(games, results):
        if episode_ is None or result_ is None:
            raise DataError("the file of games changed while it was read; try again when nothing writes to it")
        winners = game.outcomes[result_.outcome].winners
        for role, total in _paid_roles(episode_, game, result_, settings).items():
            if settings.roles is None or role in settings.roles:
                weighed = role if role in winners else winners[0] if winners else None  # a loser's samples weigh as the winner's
                weight = stats.role_weights[weighed] if weighed and not settings.everyone else 1.0
                yield from _role_samples(episode_, game, result_, role, total, weight, settings, stats)


def _paid_roles(episode: Episode, game: Game, result: Result, settings: RewardSettings) -> dict[str, float]:
    """Return the total reward of every role that is trained on this game."""
    outcome = game.outcomes[result.outcome]
    totals: dict[str, float] = {}
    if settings.everyone:
        totals = dict.fromkeys(game.roles, 1.0) if outcome.fault is None else {}
    elif outcome.winners:
        totals = {role: result.rewards[role] if role in outcome.winners else settings.loser_reward for role in game.roles}
        totals = {role: totals[role] for role in sorted(totals, key=lambda role: role not in outcome.winners)}  # winners first
    elif outcome.is_draw:
        totals = dict.fromkeys(game.roles, settings.tie_reward)
    return {role: total for role, total in totals.items() if total and _is_trained(episode, role, settings.learner)}


def _is_trained(episode: Episode, role: str, learner: str | None) -> bool:
    player = episode.players.get(role)
    return learner is None or (player is not None and player.model == learner)


def _role_samples(
    episode: Episode,
    game: Game,
    result: Result,
    role: str,
    total: float,
    weight: float,
    settings: RewardSettings,
    stats: RewardStats,
) -> Iterator[TrainingSample]:
    spoken = [at for at, said in enumerate(episode.history[: result.length]) if said.role == role]
    for at, coefficient in zip(spoken, return_coefficients(len(spoken), settings.discount), strict=True):
        said = episode.history[at]
        if not said.content.strip():
            stats.empty_completions += 1  # it keeps its share of the return, but there is nothing to train on
            continue
        stats.samples[role] += 1
        yield TrainingSample(
            prompt=_prompt(episode, game, at, settings),
            completion=said.content.strip(),
            reward=total * coefficient,
            weight=weight,
            role=role,
            type=settings.sample_type,
            episode_id=episode.id,
            turn=at // len(game.roles) + 1,
            completion_ids=said.token_ids if settings.sampled_tokens else None,
            truncated=settings.sampled_tokens and said.finish_reason == "length",
        )


def _prompt(episode: Episode, game: Game, at: int, settings: RewardSettings) -> str:
    """Return the prompt that the utterance at position ``at`` is trained with."""
    state = State(episode.task, episode.seed or 0, tuple(episode.history[:at]))
    observation = game.observe(state, episode.history[at].role)
    if settings.template is Template.PLAY:
        return game.prompt(observation)
    utterance = (at,) if settings.template is Template.RANDOM else ()
    rng = random.Random(derive_seed(settings.seed, episode.id or episode.task.id, *utterance))
    return game.training_prompt(observation, rng)


def importance_ratio(logprob: "Tensor", ref_logprob: "Tensor") -> "Tensor":
    """Return exp(lp - lp_ref), (B,): one length-normalised ratio a sample (what TRL and GSPO call sequence-level)."""
    return (logprob - ref_logprob).exp()


def offline_rl_terms(
    logprob: "Tensor", ref_logprob: "Tensor", reward: "Tensor", weight: "Tensor", is_sft: "Tensor", *, kl_coef: float, clip_range: float
) -> "Tensor":
    """Return the loss of each sample, weight included, ``sft_coef`` not: (B,)."""
    ratio = importance_ratio(logprob, ref_logprob)
    advantage = reward - kl_coef * (logprob - ref_logprob)
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
    surrogate = (advantage * ratio).minimum(advantage * clipped)
    return -weight * logprob.where(is_sft.bool(), surrogate)


def offline_rl_loss(
    logprob: "Tensor",
    ref_logprob: "Tensor",
    reward: "Tensor",
    weight: "Tensor",
    is_sft: "Tensor",
    *,
    kl_coef: float,
    sft_coef: float,
    clip_range: float,
    n_rl: "int | Tensor | None" = None,
    n_sft: "int | Tensor | None" = None,
) -> "Tensor":
    """Clipped policy gradient on self-play samples, mixed with instruction data: a scalar.

    ratio_i = exp(lp_i - lp_ref_i);  A_i = reward_i - kl_coef * (lp_i - lp_ref_i)
    loss = -1/n_rl * sum_RL weight_i * min(A_i * ratio_i, A_i * clip(ratio_i, 1 - clip_range, 1 + clip_range))
           - sft_coef/n_sft * sum_SFT weight_i * lp_i

    All tensors are (B,); ``is_sft`` is true (or 1) for rows of the SFT mix, whose ``reward`` and ``ref_logprob`` are not used. ``n_rl`` and
    ``n_sft`` count the rows of the whole batch, by default of this one. In the paper the advantage is a constant estimate and the KL term
    stands beside the clipped one. In the published code, which is followed here, the KL estimate is part of A and A is NOT detached, so it
    is clipped together with the reward and its gradient flows; one frozen model is both behavior policy and KL reference.
    """
    terms = offline_rl_terms(logprob, ref_logprob, reward, weight, is_sft, kl_coef=kl_coef, clip_range=clip_range)
    sft = is_sft.bool()
    rl_loss = terms.masked_fill(sft, 0.0).sum() / at_least_one((~sft).sum() if n_rl is None else n_rl)
    sft_loss = terms.masked_fill(~sft, 0.0).sum() / at_least_one(sft.sum() if n_sft is None else n_sft)
    return rl_loss + sft_coef * sft_loss


@dataclass(frozen=True, slots=True)
class OfflineRL:
    """The offline RL stage of SPAG, mixed with instruction data."""

    kl_coef: float
    sft_coef: float
    clip_range: float | None
    name: ClassVar[str] = "offline_rl"

    def loss(self, batch: PolicyBatch) -> "Tensor":
        return offline_rl_loss(
            *_columns(batch),
            kl_coef=self.kl_coef,
            sft_coef=self.sft_coef,
            clip_range=self.clip_range or 0.0,
            n_rl=batch.n,
            n_sft=batch.n_sft,
        )

    def terms(self, batch: PolicyBatch) -> "Tensor":
        return offline_rl_terms(*_columns(batch), kl_coef=self.kl_coef, clip_range=self.clip_range or 0.0)


def _columns(batch: PolicyBatch) -> "tuple[Tensor, Tensor, Tensor, Tensor, Tensor]":
    return batch.logprob, batch.ref_logprob, batch.reward, batch.weight, batch.is_sft
