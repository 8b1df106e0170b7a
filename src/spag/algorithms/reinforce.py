"""Online self-play: a token-level policy gradient on the games of the current policy, with a baseline for each role of
each game. ``group`` and ``turnwise`` share its samples and its loss, and differ only in their advantages.

REINFORCE (Williams, 1992) with role-conditioned advantage estimation (SPIRAL, arXiv 2506.24119): an utterance's
advantage is ``discount**k * (reward - baseline)``. The reward is its player's at the end of the game, k counts the
player's later utterances, and the baseline is a moving average of this role's rewards in this game in earlier steps.
Both roles are trained, winners and losers. Differs from SPIRAL: the baseline moves once per step, so it is the same for
all games of a step in any order; opponents other than the policy itself have separate baselines.

Tokens are trained as they were sampled. The engine and the trainer never agree exactly on a token's probability
(precision, kernels, temperature, filters), and games may be some steps old; the ratio of the two is an importance
weight. With several updates per step, ratios to the policy before the first are clipped as in PPO (arXiv 1707.06347).
With ``overlap`` games are older, and the engine's policy played them: ratios to its probabilities are then clipped,
since a single update would otherwise have no trust region (its ratio to the policy before it is 1).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from spag.algorithms.base import Algorithm, Metrics, Needs, TokenBatch, mean_of
from spag.algorithms.credit import RoleRewards, is_trained, opponents_of, prompt_digest, relative_to_mean, without_drift
from spag.algorithms.online_settings import OnlineSettings, RewardOverride
from spag.core.episodes import Episode, TrainingSample
from spag.core.errors import DataError
from spag.core.options import Fraction
from spag.games.base import Game

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Turn:
    """A trained utterance: position ``at`` of ``episode``; ``later`` more of the same player follow."""

    episode: Episode
    at: int
    later: int


def trained_turns(episodes: Sequence[Episode], role: str, learner: str | None) -> Iterator[Turn]:
    """Yield the trained utterances of ``role`` in order; none after the decision, even if play went on."""
    for episode in episodes:
        if is_trained(episode, role, learner):
            spoken = episode.spoken_by(role, episode.length)
            yield from (Turn(episode, at, len(spoken) - 1 - number) for number, at in enumerate(spoken))


def as_sampled(turn: Turn, game: Game, advantage: float) -> TrainingSample | None:
    """Return the sample of an utterance as it was sampled, after the prompt that the engine saw; ``None`` if empty.

    Raises ``DataError`` if the utterance has no token ids, or its prompt is not the one that the engine saw.
    """
    episode, said = turn.episode, turn.episode.history[turn.at]
    if said.token_ids is None:
        raise DataError(f"game {episode.id!r}: utterance {turn.at + 1} has no token ids; play it with a local engine")
    if not said.token_ids:
        return None
    prompt = game.prompt(game.observe(episode.before(turn.at), said.role))
    if said.prompt_digest not in (None, prompt_digest(prompt)):
        what = f"utterance {turn.at + 1} answered a different prompt from the one {game.name} gives now"
        raise DataError(f"game {episode.id!r}: {what}; play it again")
    return TrainingSample(
        prompt=prompt,
        completion=said.content,
        reward=advantage,
        role=f"{game.name}/{said.role}",
        episode_id=episode.id,
        turn=turn.at // len(game.roles) + 1,
        prompt_ids=said.prompt_ids,
        completion_ids=said.token_ids,
        logprobs=said.sampling_logprobs or said.logprobs,
        raw_logprobs=said.logprobs if said.sampling_logprobs else None,
        truncated=said.finish_reason == "length",
        thinking=said.thought is not None,
    )


class PolicyGradient(Algorithm):
    """The base of online algorithms: everything but their options and ``advantages``."""

    def __init__(self, settings: Any, *, seed: int = 0, state: Mapping[str, Any] | None = None) -> None:
        self.settings = settings

    @property
    def needs(self) -> Needs:
        settings: OnlineSettings = self.settings
        entropy = bool(settings.entropy_coef or settings.entropy_coef_end)
        return Needs(reference=settings.needs_reference, entropy=entropy)

    def needs_at(self, step: int) -> Needs:
        kl_coef, entropy_coef = coefficients(self.settings, step)
        return Needs(reference=kl_coef != 0.0, entropy=entropy_coef != 0.0)

    def advantages(
        self, turns: Sequence[Turn], episodes: Sequence[Episode], role: str, learner: str | None, rewards: RoleRewards
    ) -> Sequence[float]:
        """Return the advantages of ``turns``, all trained ones of ``role`` in ``episodes``. Called once a step for each
        role.
        """
        raise NotImplementedError

    def credit(self, episodes: Sequence[Episode], game: Game, learner: str | None) -> list[TrainingSample]:
        rewards = RoleRewards(game, self.settings.rewards.get(game.name, RewardOverride()))
        samples: list[TrainingSample | None] = []
        for role in (role for role in game.roles if self.settings.roles in ("both", role)):
            turns = list(trained_turns(episodes, role, learner))
            advantages = self.advantages(turns, episodes, role, learner, rewards)
            samples += (as_sampled(turn, game, advantage) for turn, advantage in zip(turns, advantages, strict=True))
        return [sample for sample in samples if sample is not None]

    def loss(self, batch: TokenBatch) -> "tuple[Tensor, Metrics]":
        return policy_gradient_loss(batch, self.settings)


class ReinforceSettings(OnlineSettings):
    """REINFORCE with role baselines."""

    baseline_decay: Fraction = Field(
        0.5, description="decay per step of each role's moving average of rewards; 1 trains without baselines"
    )
    normalize_advantages: bool = Field(
        False,
        description="centre a role's advantages against an opponent and divide them by their standard deviation over "
        "the step",
    )
    discount: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="an utterance followed by k more of the same player gets discount^k of the advantage"
    )


class Reinforce(PolicyGradient):
    """Satisfies ``spag.algorithms.base.Algorithm``."""

    name: ClassVar[str] = "reinforce"
    Settings: ClassVar[type[OnlineSettings]] = ReinforceSettings

    def __init__(self, settings: ReinforceSettings, *, seed: int = 0, state: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        self.baselines = Baselines(settings.baseline_decay, dict((state or {}).get("baselines", {})))

    def advantages(
        self, turns: Sequence[Turn], episodes: Sequence[Episode], role: str, learner: str | None, rewards: RoleRewards
    ) -> Sequence[float]:
        played = [episode for episode in episodes if is_trained(episode, role, learner)]
        keys = {id(episode): _baseline_key(episode, rewards.game, role, learner) for episode in played}
        paid = {id(episode): rewards.of(episode, role) for episode in played}
        baselines = self.baselines.move([(key, paid[game]) for game, key in keys.items()])
        relative = {game: paid[game] - baselines[key] for game, key in keys.items()}
        advantages = [self.settings.discount**turn.later * relative[id(turn.episode)] for turn in turns]
        if not self.settings.normalize_advantages:
            return without_drift(advantages, rewards.spread)
        groups = [keys[id(turn.episode)] for turn in turns]
        return relative_to_mean(advantages, groups, rewards.spread, normalize=True)

    def state(self) -> dict[str, Any]:
        return {"baselines": self.baselines.values}

    def summary(self) -> dict[str, Any]:
        return {f"{key}/baseline": value for key, value in self.baselines.values.items()}


def _baseline_key(episode: Episode, game: Game, role: str, learner: str | None) -> str:
    """Return ``GAME/ROLE``, and ``GAME/ROLE against NAME`` for games against another player than the learner."""
    opponents = opponents_of(episode, role, learner)
    return f"{game.name}/{role}{opponents and f' against {opponents}'}"


@dataclass(slots=True)
class Baselines:
    """Moving averages of rewards, one value per step: b <- decay * b + (1 - decay) * mean reward of the step.

    A step's games use the average of earlier steps; those of a first step use its own mean. With ``decay`` 1 there are
    no baselines: plain REINFORCE.
    """

    decay: float = 0.5
    values: dict[str, float] = field(default_factory=dict)

    def move(self, rewards: Sequence[tuple[str, float]]) -> dict[str, float]:
        """Take the rewards of a step's games by key; return the baselines that these games get."""
        if self.decay == 1.0:
            return dict.fromkeys((key for key, _ in rewards), 0.0)
        by_key: dict[str, list[float]] = defaultdict(list)
        for key, reward in rewards:
            by_key[key].append(reward)
        found = {}
        for key, own in by_key.items():
            mean = fmean(own)
            found[key] = self.values.get(key, mean)
            self.values[key] = self.decay * found[key] + (1.0 - self.decay) * mean
        return found


def scheduled(start: float, end: float | None, step: int, steps: int) -> float:
    """Return the coefficient at ``step`` of a line from ``start`` (1) to ``end`` (``steps``); ``None``: constant."""
    return start if end is None or step <= 1 else start + (end - start) * min(1.0, (step - 1) / max(steps - 1, 1))


def coefficients(settings: OnlineSettings, step: int) -> tuple[float, float]:
    """Return the coefficients of the KL term and of the entropy bonus at ``step``."""
    steps = settings.anneal_steps or settings.steps
    return (
        scheduled(settings.kl_coef, settings.kl_coef_end, step, steps),
        scheduled(settings.entropy_coef, settings.entropy_coef_end, step, steps),
    )


def importance_correction(batch: TokenBatch, kind: str, limit: float) -> "tuple[Tensor, Tensor]":
    """Return each token's importance weight against the engine's distribution, and 1 where it was truncated or masked,
    else 0; both (K,), without gradient.

    w_t = exp(old_t - sampling_t). ``token``: min(w_t, limit) (truncated importance sampling); ``sequence``:
    min(prod w over the utterance, limit); ``mask``: w_t where 1/limit <= w_t <= limit, else 0.
    """
    log_ratio = (batch.old_logprob - batch.sampling_logprob).detach()
    ratio = (batch.total(log_ratio)[batch.sample] if kind == "sequence" else log_ratio).exp()
    if kind == "mask":
        limited = (ratio > limit) | (ratio < 1.0 / limit)
        return ratio.masked_fill(limited, 0.0), limited.float()
    return ratio.clamp(max=limit), (ratio > limit).float()


def policy_gradient_loss(batch: TokenBatch, settings: OnlineSettings) -> "tuple[Tensor, Metrics]":
    """Return sum_t weight / (total weight * most_tokens) * l_t, and metrics.

    r_t = exp(lp_t - old_t);  k_t = 1, with ``overlap`` exp(played_t - old_t);  c_t of ``importance_correction``
    l_t = -c_t * (min(A * r_t, A * clip(r_t, (1 - clip_range) * k_t, (1 + clip_range) * k_t))
                  - kl_coef / 2 * (lp_t - ref_t)^2) - entropy_coef * H_t

    With ``overlap`` the clip bounds r_t / k_t, the ratio to the policy that played: its temperature and filters are no
    staleness, and c_t alone corrects for them. If c_t = 1 / k_t, this is PPO's objective with that old policy. Half the
    squared difference has the gradient of KL[policy || reference], in expectation over the policy's own tokens.

    The constant divisor, the tokens of the longest thought and utterance, weighs every token of the update equally, so
    that long utterances are neither favored nor punished (arXiv 2503.20783). The total weight includes samples that
    were left out because they have no gradient.
    """
    kl_coef, entropy_coef = coefficients(settings, batch.step)
    correction, limited = importance_correction(batch, settings.correction, settings.correction_limit)
    advantage, weight = batch.advantage[batch.sample], batch.weight[batch.sample]
    ratio = (batch.logprob - batch.old_logprob).exp()
    played = (batch.played_logprob - batch.old_logprob).detach().clamp(-20.0, 20.0).exp() if settings.overlap else 1.0
    clipped = (ratio / played).clamp(1.0 - settings.clip_range, 1.0 + settings.clip_range) * played
    surrogate = (advantage * ratio).minimum(advantage * clipped)
    penalty = 0.5 * kl_coef * (batch.logprob - batch.ref_logprob) ** 2
    terms = -correction * (surrogate - penalty) - entropy_coef * batch.entropy
    loss = (weight * terms).sum() / (max(batch.totals.weight, 1e-9) * settings.sampling.most_tokens)
    return loss, _metrics(batch, weight, limited, settings)


def _metrics(batch: TokenBatch, weight: "Tensor", limited: "Tensor", settings: OnlineSettings) -> Metrics:
    to_engine = batch.old_logprob - batch.played_logprob
    found = {
        "mismatch": mean_of(to_engine.abs(), weight),
        "mismatch_kl": mean_of(to_engine.exp() - 1.0 - to_engine, weight),
        "truncated": mean_of(limited, weight),
    }
    if settings.needs_reference:
        to_reference = batch.ref_logprob - batch.logprob
        found["kl"] = mean_of(to_reference.exp() - 1.0 - to_reference, weight)
    if settings.clips:
        ratio = (batch.logprob - (batch.played_logprob if settings.overlap else batch.old_logprob)).exp()
        found["importance_ratio"] = mean_of(ratio, weight)
        found["clip_fraction"] = mean_of(((ratio - 1.0).abs() > settings.clip_range).float(), weight)
    found["entropy"] = mean_of(batch.entropy, weight)
    by_role = batch.by_group("{}/entropy", batch.entropy, weight, batch.group[batch.sample], sft=False)
    return found | dict(by_role)
