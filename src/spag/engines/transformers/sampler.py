"""Token sampling for a batch of requests, each with its own parameters and random stream.

Each token of the vocabulary gets its own noise from the request's generator. So the rest of the batch affects a sample
only through rounding of the logits: an error of e changes it with a probability of about e. Inverting the cumulative
distribution with one random number would change it far more often, because every boundary between two tokens moves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from spag.core.options import SamplingConfig


@dataclass(frozen=True, slots=True)
class Draw:
    """One token per row. All are (B,).

    ``logprobs``: under the raw distribution, temperature 1, no filter, nothing banned. ``sampling_logprobs``: under the
    distribution that the token was drawn from; 0 where the temperature is 0.
    """

    tokens: torch.Tensor
    logprobs: torch.Tensor
    sampling_logprobs: torch.Tensor


def sample_tokens(
    logits: torch.Tensor,
    sampling: Sequence[SamplingConfig],
    noise: torch.Tensor,
    banned: Mapping[int, Sequence[int]],
    size: int | None = None,
) -> Draw:
    """Sample one token per row from ``logits``, (B, V), with ``noise``, (B, V), from ``random_bits``.

    ``banned``: by row, tokens that must not be sampled; neither must any from ``size`` on.
    """
    logits = logits.float()
    raw_total = logits.logsumexp(-1)
    allowed = logits[:, :size]
    if banned:
        allowed = allowed.clone()
        places = [(row, token) for row, tokens in banned.items() for token in tokens]
        rows, tokens = torch.tensor(places, dtype=torch.long, device=logits.device).view(-1, 2).T
        allowed[rows, tokens] = -torch.inf
    # while another thread loads a model, torch's default dtype is that model's
    temperature = torch.tensor([s.temperature for s in sampling], dtype=torch.float32, device=logits.device)
    greedy = temperature == 0
    chosen = allowed.argmax(-1) if bool(greedy.any()) else torch.zeros_like(raw_total, dtype=torch.long)
    sampling_logprobs = torch.zeros_like(raw_total)
    if not bool(greedy.all()):
        scaled = allowed if bool((temperature == 1).all()) else allowed / temperature.where(~greedy, 1.0)[:, None]
        drawn_from = _filtered(scaled, sampling)
        is_raw = drawn_from is allowed and not banned and allowed.shape == logits.shape
        total = raw_total if is_raw else drawn_from.logsumexp(-1)
        chosen = torch.where(greedy, chosen, _gumbel_max(drawn_from, noise[:, :size]))
        sampling_logprobs = torch.where(greedy, sampling_logprobs, _at(drawn_from, chosen) - total)
    return Draw(chosen, _at(logits, chosen) - raw_total, sampling_logprobs)


def _at(values: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return values.gather(-1, tokens[:, None]).squeeze(-1)


def random_bits(generators: Sequence[torch.Generator | None], size: int, device: torch.device) -> torch.Tensor:
    """Return integers of 31 random bits, (B, ``size``) int32, one row per generator; zeros if there is none."""
    pairs = torch.zeros(len(generators), -(-size // 2), dtype=torch.int64, device=device)
    for row, generator in zip(pairs, generators, strict=True):
        if generator is not None:
            row.random_(generator=generator)
    return pairs.view(torch.int32)[:, :size].bitwise_and_(2**31 - 1)


def _gumbel_max(logits: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Sample one token a row, (B,), from logits (B, V): the largest sum of logit and Gumbel noise."""
    uniform = noise.float().add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)  # never 0, and never rounded to 1
    exponential = uniform.neg_().log1p_().neg_()
    return exponential.log_().neg_().add_(logits).argmax(-1)


def _filtered(scaled: torch.Tensor, sampling: Sequence[SamplingConfig]) -> torch.Tensor:
    """Set logits dropped by top-k to minus infinity, then those dropped by top-p from the renormalised rest."""
    if all(s.top_k == 0 and s.top_p >= 1.0 for s in sampling):
        return scaled
    ordered, index = scaled.softmax(-1).sort(-1, descending=True)
    size = scaled.shape[-1]
    top_k = torch.tensor([s.top_k or size for s in sampling], device=scaled.device)
    top_p = torch.tensor([s.top_p for s in sampling], dtype=ordered.dtype, device=scaled.device)
    rank = torch.arange(size, device=scaled.device)
    beyond = rank >= top_k[:, None]
    total = ordered.masked_fill(beyond, 0.0).sum(-1)
    before = ordered.cumsum(-1) - ordered
    dropped = beyond | ((before >= (top_p * total)[:, None]) & (rank > 0))
    return scaled.masked_fill(torch.zeros_like(dropped).scatter(-1, index, dropped), -torch.inf)
