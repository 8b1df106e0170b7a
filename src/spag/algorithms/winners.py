"""Rewards of the paper: discounted returns for winners, and role weights (arXiv 2404.10642, section 3.2).

Only winners' utterances become samples. A winner's k-th utterance (k = 1, 2, ...) has the coefficient
``(1/discount)**k``, normalised to sum to 1 over the game, so later utterances, nearer to the win, earn more. The role
weight ``N / (2 * N_role)`` makes both roles count one half in expectation, however unequal their numbers of wins.
Rewards for losers and ties are options that upstream leaves out; its author reports that negative rewards for the loser
"did not even converge". Texts are stripped of white space, as upstream does; a text that is then empty keeps its share
of the return but is left out, whereas upstream trains its end token.

If the current policy (``learner``) played frozen opponents, only its own utterances become samples, since the
importance ratio is relative to it; ``N`` and ``N_role`` count the games that give samples, and of two winners only
those that are trained.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from spag.algorithms.base import Algorithm, Metrics, TokenBatch, mean_of, mixed
from spag.algorithms.credit import is_trained, result_of
from spag.core.episodes import Episode, SampleType, TrainingSample
from spag.core.errors import ConfigError, DataError
from spag.core.seeds import derive_seed
from spag.core.types import Result, Split
from spag.games.base import Game
from spag.games.registry import DEFAULT, get, settings_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """How games become samples. Rewards of losers and ties are totals over that side's utterances.

    ``template``: the wording of prompts: ``random`` (drawn per utterance, as upstream), ``game`` (drawn once per game,
    so that its utterances share a prefix) or ``play`` (the prompt of play, truncated as the engine did).
    ``completions``: ``sampled`` trains the sampled tokens if they are known, ``text`` the text, tokenised again with an
    end token, as upstream.
    ``roles``: whose samples are kept, ``both`` or a role; the other's count in the weights, then are dropped.
    ``utterances``: ``winners``, or ``all``: of both roles in games without a broken rule, with reward and weight 1.
    """

    discount: float = 0.8
    loser_reward: float = 0.0
    tie_reward: float = 0.0
    template: str = "random"
    completions: str = "sampled"
    seed: int = 0
    sample_type: SampleType = SampleType.RL
    roles: str = "both"
    learner: str | None = None
    utterances: str = "winners"


@dataclass(slots=True)
class RewardStats:
    """Counts of games and samples. ``utterances``: up to the judged ends; ``held_out``: games on held-out tasks."""

    utterances: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    samples: Counter[str] = field(default_factory=Counter)
    wins: Counter[str] = field(default_factory=Counter)
    role_weights: dict[str, float] = field(default_factory=dict)
    empty_completions: int = 0
    held_out: int = 0

    def summary(self) -> dict[str, Any]:
        """Return the entries about samples in the record of a phase."""
        return {
            "outcomes": dict(self.outcomes),
            "samples": dict(self.samples),
            "role_weights": {role: round(weight, 3) for role, weight in self.role_weights.items()},
            "held_out": self.held_out,
        }


def return_coefficients(count: int, discount: float) -> list[float]:
    """Return the normalised coefficients of ``count`` utterances: ``(1/discount)**k``, summing to 1."""
    powers = [discount**later for later in reversed(range(count))]  # the same shares, and no float is too large
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

    If given, ``settings`` replaces ``discount``, and games keep the result of when they were played; ``game`` (by
    default Adversarial Taboo) replaces ``judge``; ``stats`` is filled in. The prompt of a sample is drawn by (seed,
    episode id, turn), so it does not depend on the other episodes. Raises ``DataError`` for a game that cannot be
    judged, ``ConfigError`` for a discount that is not above 0 and at most 1.
    """
    if settings is None:
        if not 0.0 < discount <= 1.0:
            raise ConfigError(f"discount={discount}: input should be above 0 and at most 1; the paper's is 0.8")
        settings, episodes = RewardSettings(discount=discount), (replace(one, outcome=None) for one in episodes)
    game, stats = game or get(DEFAULT, judge=judge), stats if stats is not None else RewardStats()
    judged: list[tuple[Episode, Result, dict[str, float]]] = []
    trained: Counter[str] = Counter()
    for episode in episodes:
        result = result_of(episode, game)
        rewards = _trained_rewards(episode, game, result, settings)
        judged.append((episode, result, rewards))
        winners = game.outcomes[result.outcome].winners
        # where it plays one of two winners, the other's role gives no samples; a game lost counts for its winner
        trained.update([role for role in winners if role in rewards] or (winners if rewards else ()))
        stats.outcomes[result.outcome] += 1
        stats.wins.update(winners)
        stats.utterances += result.length
        stats.held_out += game.split_of(episode.task) is Split.HELD_OUT
    wins = {role: trained[role] for role in game.roles}
    stats.role_weights = dict.fromkeys(game.roles, 1.0) if settings.utterances == "all" else role_weights(wins)
    samples: list[TrainingSample] = []
    for episode, result, rewards in judged:
        winners = game.outcomes[result.outcome].winners
        for role, total in rewards.items():
            if settings.roles in ("both", role):
                # A loser's weight equals the winner's; samples of ties have weight 1.
                weight = stats.role_weights[role if role in winners else winners[0]] if winners else 1.0
                spoken = episode.spoken_by(role, result.length)
                own = list(_samples(episode, game, spoken, total, weight, settings))
                stats.samples[role] += len(own)
                stats.empty_completions += len(spoken) - len(own)
                samples += own
    return samples


def _trained_rewards(episode: Episode, game: Game, result: Result, settings: RewardSettings) -> dict[str, float]:
    """Return the total reward of every role trained on this game, winners first."""
    outcome = game.outcomes[result.outcome]
    totals: dict[str, float] = {}
    if settings.utterances == "all":
        totals = dict.fromkeys(game.roles, 1.0) if outcome.fault is None else {}
    elif outcome.winners:
        losers = [role for role in game.roles if role not in outcome.winners]
        winners = [role for role in game.roles if role in outcome.winners]
        totals = {role: result.rewards[role] for role in winners} | dict.fromkeys(losers, settings.loser_reward)
    elif outcome.is_draw:
        totals = dict.fromkeys(game.roles, settings.tie_reward)
    return {role: total for role, total in totals.items() if total and is_trained(episode, role, settings.learner)}


def _samples(
    episode: Episode, game: Game, spoken: Sequence[int], total: float, weight: float, settings: RewardSettings
) -> Iterator[TrainingSample]:
    """Yield the samples of the utterances at ``spoken``; an empty one keeps its share, with nothing to train on."""
    for at, coefficient in zip(spoken, return_coefficients(len(spoken), settings.discount), strict=True):
        said, sampled = episode.history[at], settings.completions == "sampled"
        if completion := said.content.strip():
            yield TrainingSample(
                prompt=_prompt(episode, game, at, settings),
                completion=completion,
                reward=total * coefficient,
                weight=weight,
                role=said.role,
                type=settings.sample_type,
                episode_id=episode.id,
                turn=at // len(game.roles) + 1,
                prompt_ids=said.prompt_ids if sampled and settings.template == "play" else None,
                completion_ids=said.token_ids if sampled else None,
                truncated=sampled and said.finish_reason == "length",
                thinking=sampled and said.token_ids is not None and said.thought is not None,
            )


def _prompt(episode: Episode, game: Game, at: int, settings: RewardSettings) -> str:
    """Return the prompt that the utterance at position ``at`` is trained with."""
    observation = game.observe(episode.before(at), episode.history[at].role)
    if settings.template == "play":
        return game.prompt(observation)
    utterance = (at,) if settings.template == "random" else ()
    return game.training_prompt(
        observation, random.Random(derive_seed(settings.seed, episode.id or episode.task.id, *utterance))
    )


def refuse_other_rules(episodes: Iterable[Episode], game: Game) -> None:
    """Raise ``DataError`` for a game recorded under another value of a setting of ``game.judged_by``."""
    settings = settings_of(game)
    for episode in episodes:
        for name in game.judged_by:
            value = settings[name]
            if (played := (episode.settings or {}).get(name, value)) != value:
                fix = f"set game.{name}={played}"
                if name == "judge":
                    fix += f", or judge the file again: spag judge FILE --mode {value} --output NEW"
                raise DataError(f"game {episode.id!r} was played with {name} {played!r}, not {value!r}; {fix}")


class OfflineAlgorithm(Algorithm):
    """The base of the paper's two algorithms: everything but their options and the loss of a sample.

    An option with the name of a field of ``RewardSettings`` sets that field.
    """

    sample_type: ClassVar[SampleType] = SampleType.RL

    def __init__(self, settings: Any, *, seed: int = 0, state: Mapping[str, Any] | None = None) -> None:
        self.settings, self.seed, self.stats = settings, seed, RewardStats()

    def terms(self, batch: TokenBatch, logprob: "Tensor", reference: "Tensor") -> "tuple[Tensor, dict[str, Tensor]]":
        """Return each sample's loss, weighted but without ``sft_coef``, and values to average as metrics, all (B,).

        ``logprob`` and ``reference`` (B,) are means over a sample's trained tokens.
        """
        raise NotImplementedError

    def credit(self, episodes: Sequence[Episode], game: Game, learner: str | None) -> list[TrainingSample]:
        refuse_other_rules(episodes, game)
        chosen = self.settings.model_dump(include={one.name for one in fields(RewardSettings)})
        settings = RewardSettings(**chosen, seed=self.seed, sample_type=self.sample_type, learner=learner)
        return assign_rewards(episodes, settings=settings, game=game, stats=self.stats)

    def loss(self, batch: TokenBatch) -> "tuple[Tensor, Metrics]":
        terms, values = self.terms(batch, batch.mean(batch.logprob), batch.mean(batch.ref_logprob))
        counted = (batch.group >= 0).float()
        metrics = dict(batch.by_group("loss_{}", terms, counted, batch.group))
        metrics |= {name: mean_of(value, counted * ~batch.is_sft) for name, value in values.items()}
        return mixed(terms, batch.is_sft, self.settings.sft_coef, batch.totals.samples, batch.totals.sft), metrics

    def summary(self) -> dict[str, Any]:
        return self.stats.summary()
