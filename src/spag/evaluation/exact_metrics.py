"""A model's policy in a solved game, computed from its probabilities instead of played games, and its exact metrics."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from spag.config.schema import ModelConfig
from spag.games.base import SolvedGame
from spag.games.mixture import mixture
from spag.models.roles import model_of_role
from spag.models.tokens import PromptStyle, as_reply, encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class MoveProbabilities:
    """``policy``: decision -> move -> probability, normalised over the legal moves; ``legal_mass``: their total before.

    A move's probability is that of its bare text and the end of the reply: ``[bet]`` and nothing else.
    """

    policy: Mapping[str, Mapping[str, float]]
    legal_mass: Mapping[str, float]

    def __or__(self, other: "MoveProbabilities") -> "MoveProbabilities":
        return MoveProbabilities({**self.policy, **other.policy}, {**self.legal_mass, **other.legal_mass})


OnScored = Callable[[int], object]
"""Told how many more moves have been scored."""


def move_probabilities(
    model: ModelConfig, game: SolvedGame, on_scored: OnScored = lambda count: None
) -> MoveProbabilities:
    """Return the policy of ``model`` at every decision of ``game``. Raises the errors of loading a model."""
    from spag.models.loading import fastest_dtype, load_model, load_tokenizer  # noqa: PLC0415 - imports torch

    trusted, style = model.trust_remote_code, PromptStyle(model.prompt_style)
    dtype = fastest_dtype(model.device) if model.dtype == "auto" else model.dtype
    names = {role: model_of_role(model.name, game.name, role) for role in game.roles}
    found = MoveProbabilities({}, {})
    for name in dict.fromkeys(names.values()):
        tokenizer = load_tokenizer(name, trust_remote_code=trusted)
        roles = [role for role in game.roles if names[role] == name]
        load = partial(load_model, name, dtype=dtype, device=model.device, trust_remote_code=trusted)
        # no variable holds the model, which would stay in memory while the other role's is loaded
        found |= probabilities_of(load(), tokenizer, style, game, roles, on_scored)
    return found


def probabilities_of(
    weights: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    style: PromptStyle,
    game: SolvedGame,
    roles: Collection[str],
    on_scored: OnScored = lambda count: None,
) -> MoveProbabilities:
    """Return the policy of a loaded model at every decision of ``roles``."""
    from spag.models.scoring import completion_logprobs  # noqa: PLC0415 - imports torch

    policy, legal_mass = {}, {}
    decisions = [decision for decision in game.decisions() if decision.observation.role in roles]
    prompts = [encode_prompt(tokenizer, game.prompt(decision.observation), style) for decision in decisions]
    moves = [[as_reply(move, style) for move in decision.moves] for decision in decisions]
    scored = completion_logprobs(weights, tokenizer, prompts, moves, style, on_scored)
    for decision, logprobs in zip(decisions, scored, strict=True):
        likeliest = max(logprobs)
        shares = [math.exp(logprob - likeliest) for logprob in logprobs]
        policy[decision.key] = {move: share / sum(shares) for move, share in zip(decision.moves, shares, strict=True)}
        legal_mass[decision.key] = sum(map(math.exp, logprobs))
    return MoveProbabilities(policy, legal_mass)


def figures_of(found: MoveProbabilities, game: SolvedGame) -> dict[str, float]:
    """Return the game's metrics of a policy, and its mean ``legal_mass``."""
    return {**game.score_policy(found.policy), "legal_mass": fmean(found.legal_mass.values())}


def mixture_of(found: Sequence[MoveProbabilities], game: SolvedGame) -> MoveProbabilities:
    """Return the mixture of several equally likely policies, such as a run's snapshots; ``legal_mass`` is the mean.

    Raises ``ValueError`` for a game whose decisions do not record the player's earlier moves.
    """
    decisions = game.decisions()
    legal_mass = {decision.key: fmean(one.legal_mass[decision.key] for one in found) for decision in decisions}
    return MoveProbabilities(mixture(decisions, [one.policy for one in found]), legal_mass)
