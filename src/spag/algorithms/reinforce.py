"""Online self-play: policy gradient on the games of the current policy, with a baseline for each role of each game.

REINFORCE (Williams, 1992) with role-conditioned advantage estimation (SPIRAL, arXiv 2506.24119): the advantage of every utterance of a
player is its reward at the end of the game minus a moving average of the rewards that this role of this game got before. Both roles are
trained. Differs from the offline algorithm of the paper (``spag.py``) in three ways: games are those of the policy itself, losers are
trained as well as winners, and the loss is a sum over tokens instead of a mean.

Tokens are trained as they were sampled. The engine and the trainer never agree exactly on a token's probability (precision, kernels,
temperature, filters); the quotient is a truncated importance weight. With several updates a step, ratios are clipped as in PPO
(arXiv 1707.06347).

Torch is not imported: the losses only call methods of the tensors that they are given.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from spag.core.episodes import Episode, TrainingSample
from spag.core.errors import DataError
from spag.core.types import State, Utterance
from spag.games.base import Game
from spag.rollout.runner import prompt_digest

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Baselines:
    """Exponential moving averages of rewards, by ``GAME/ROLE``: b <- decay * b + (1 - decay) * reward, from 0.

    With ``decay`` 1 they stay 0: plain REINFORCE.
    """

    decay: float = 0.95
    values: dict[str, float] = field(default_factory=dict)

    def advantage(self, key: str, reward: float) -> float:
        """Return ``reward`` minus the baseline as it was before this reward, then move the baseline."""
        before = self.values.get(key, 0.0)
        self.values[key] = self.decay * before + (1.0 - self.decay) * reward
        return reward - before


@dataclass(frozen=True, slots=True)
class CreditSettings:
    """How the games of a step become samples.

    ``tie_reward`` and ``illegal_reward`` replace what the game pays in draws, and to a role that breaks a rule; ``None``: as the game says.
    ``discount``: a player's reward counts ``discount**k`` for an utterance that k more of its own follow. ``normalize``: divide the
    advantages of a role by their standard deviation over the step.
    """

    discount: float = 1.0
    normalize: bool = False
    tie_reward: float | None = None
    illegal_reward: float | None = None
    roles: frozenset[str] | None = None
    learner: str | None = None


def role_reward(episode: Episode, game: Game, role: str, settings: CreditSettings) -> float:
    """Return the reward of ``role`` at the end of ``episode``."""
    outcome = game.outcomes[episode.outcome or ""]
    if outcome.is_draw and settings.tie_reward is not None:
        return settings.tie_reward
    if outcome.fault == role and settings.illegal_reward is not None:
        return settings.illegal_reward
    return episode.rewards[role]


def credit(episodes: Iterable[Episode], game: Game, settings: CreditSettings, baselines: Baselines) -> list[TrainingSample]:
    """Return a sample for each utterance of the current policy, its advantage in ``reward``; ``role`` is ``GAME/ROLE``.

    Games are taken in the given order, which decides what the baselines are. Raises ``DataError`` for a game without token ids, or whose
    prompts are not those that the engine saw.
    """
    advantages: dict[str, list[tuple[float, float, Episode, str]]] = defaultdict(list)
    for episode in episodes:
        for role in game.roles:
            if _is_trained(episode, role, settings):
                key, reward = f"{game.name}/{role}", role_reward(episode, game, role, settings)
                advantages[key].append((reward, baselines.advantage(key, reward), episode, role))
    samples = []
    for key, rows in advantages.items():
        scale = (pstdev([advantage for _, advantage, _, _ in rows]) or 1.0) if settings.normalize else 1.0
        for reward, advantage, episode, role in rows:
            samples += _role_samples(episode, game, role, key, reward, reward - advantage, settings.discount, scale)
    return samples


def _is_trained(episode: Episode, role: str, settings: CreditSettings) -> bool:
    player = episode.players.get(role)
    is_learner = settings.learner is None or (player is not None and player.model == settings.learner)
    return is_learner and (settings.roles is None or role in settings.roles)


def _role_samples(
    episode: Episode, game: Game, role: str, key: str, reward: float, baseline: float, discount: float, scale: float
) -> list[TrainingSample]:
    spoken = [at for at, said in enumerate(episode.history) if said.role == role]
    samples = []
    for later, at in enumerate(reversed(spoken)):
        said = episode.history[at]
        if not said.token_ids:
            raise DataError(f"game {episode.id!r}: utterance {at + 1} has no token ids; online training needs a local engine")
        samples.append(
            TrainingSample(
                prompt=_prompt(episode, game, at, said),
                completion=said.content,
                reward=(discount**later * reward - baseline) / scale,
                role=key,
                episode_id=episode.id,
                turn=at // len(game.roles) + 1,
                completion_ids=said.token_ids,
                logprobs=said.sampling_logprobs or said.logprobs,
                truncated=said.finish_reason == "length",
            )
        )
    return samples[::-1]


def _prompt(episode: Episode, game: Game, at: int, said: Utterance) -> str:
    """Return the prompt that the utterance at position ``at`` answered."""
    state = State(episode.task, episode.seed or 0, tuple(episode.history[:at]))
    prompt = game.prompt(game.observe(state, said.role))
    if said.prompt_digest not in (None, prompt_digest(prompt)):
        raise DataError(f"game {episode.id!r}: utterance {at + 1} answered another prompt than {game.name} gives now; play anew")
    return prompt


def merge_equal(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Merge samples of equal role, prompt and tokens: one with their mean advantage, its weight the sum of theirs.

    The gradient is that of all of them. In a small game a step of hundreds of hands has a few dozen different samples.
    """
    groups: dict[tuple[str | None, str, tuple[int, ...] | None], list[TrainingSample]] = defaultdict(list)
    for sample in samples:
        groups[sample.role, sample.prompt, sample.completion_ids].append(sample)
    return [
        replace(
            group[0],
            reward=fmean((sample.reward for sample in group), weights=[sample.weight for sample in group]),
            weight=sum(sample.weight for sample in group),
        )
        for group in groups.values()
    ]


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The K trained tokens of a micro-batch. All are (K,).

    ``logprob`` and ``entropy`` (of the distribution that the token comes from, in nats) are the policy's, with gradient. ``old_logprob``
    is the policy's before this step's first update, ``sampling_logprob`` the engine's, ``ref_logprob`` the frozen reference's.
    ``share``: the token's part in the loss, the sample's weight over samples and tokens (see ``token_share``).
    """

    logprob: "Tensor"
    old_logprob: "Tensor"
    sampling_logprob: "Tensor"
    ref_logprob: "Tensor"
    entropy: "Tensor"
    advantage: "Tensor"
    share: "Tensor"


def token_share(weight: float, tokens: int, total_weight: float, divisor: int | None) -> float:
    """Return each token's part in the loss: weight / (total weight * divisor), where ``None`` divides by the sample's own ``tokens``.

    A constant divisor gives every token of the step the same part, so that long utterances are neither favored nor punished
    (arXiv 2503.20783).
    """
    return weight / (total_weight * (tokens if divisor is None else divisor))


def importance_correction(old_logprob: "Tensor", sampling_logprob: "Tensor", limit: float) -> "Tensor":
    """Return min(policy / engine, ``limit``) for each token, (K,), without gradient."""
    return (old_logprob - sampling_logprob).detach().exp().clamp(max=limit)


def reinforce_terms(batch: TokenBatch, *, clip_range: float, kl_coef: float, entropy_coef: float, correction_limit: float) -> "Tensor":
    """Return each token's loss without its share, (K,).

    c_t = min(exp(old_t - sampling_t), correction_limit);  r_t = exp(lp_t - old_t)
    l_t = -c_t * (min(A * r_t, A * clip(r_t, 1 - clip_range, 1 + clip_range)) - kl_coef / 2 * (lp_t - ref_t)^2) - entropy_coef * H_t

    The gradient of half the squared difference is that of KL[policy || reference], in expectation over the policy's own tokens.
    """
    correction = importance_correction(batch.old_logprob, batch.sampling_logprob, correction_limit)
    ratio = (batch.logprob - batch.old_logprob).exp()
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
    surrogate = (batch.advantage * ratio).minimum(batch.advantage * clipped)
    penalty = 0.5 * kl_coef * (batch.logprob - batch.ref_logprob) ** 2
    return -correction * (surrogate - penalty) - entropy_coef * batch.entropy


def reinforce_loss(
    batch: TokenBatch, *, clip_range: float = 0.2, kl_coef: float = 0.0, entropy_coef: float = 0.0, correction_limit: float = 2.0
) -> "Tensor":
    """Return sum_t share_t * l_t of ``reinforce_terms``: a scalar, the batch's part of the step's loss."""
    terms = reinforce_terms(batch, clip_range=clip_range, kl_coef=kl_coef, entropy_coef=entropy_coef, correction_limit=correction_limit)
    return (batch.share * terms).sum()


def scheduled(start: float, end: float | None, step: int, steps: int) -> float:
    """Return a coefficient that moves along a line from ``start`` (step 1) to ``end`` (step ``steps``), then stays; ``None``: it stays."""
    return start if end is None or steps < 2 else start + (end - start) * min(1.0, (step - 1) / (steps - 1))
