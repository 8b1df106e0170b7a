"""Drawing next tokens for a batch of requests, each with its own sampling and its own stream of random numbers.

The random numbers come from Python's generator, one a token, and pick from the cumulative distribution: the same seed draws the same
token on every device, whatever else is in the batch (up to rounding of the logits).
"""

from collections.abc import Mapping, Sequence

import torch

from spag.engines.base import Sampling


def draw_tokens(
    logits: torch.Tensor, sampling: Sequence[Sampling], uniforms: Sequence[float], banned: Mapping[int, Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row.

    logits: (B, V); uniforms: one number in [0, 1) a row; banned: by row, tokens that must not be drawn. Returns the tokens (B,) and their
    log-probabilities (B,) under the raw distribution: temperature 1, no filter, nothing banned.
    """
    logits = logits.float()
    raw_total = logits.logsumexp(-1)
    allowed = logits
    if banned:
        allowed = logits.clone()
        for row, tokens in banned.items():
            allowed[row, torch.tensor(tokens, dtype=torch.long, device=logits.device)] = -torch.inf
    temperature = torch.tensor([s.temperature for s in sampling], device=logits.device)
    greedy = temperature == 0
    chosen = allowed.argmax(-1) if bool(greedy.any()) else torch.zeros_like(raw_total, dtype=torch.long)
    if not bool(greedy.all()):
        drawn = _draw(allowed / temperature.where(~greedy, 1.0)[:, None], sampling, uniforms)
        chosen = torch.where(greedy, chosen, drawn)
    return chosen, logits.gather(-1, chosen[:, None]).squeeze(-1) - raw_total


def _draw(scaled: torch.Tensor, sampling: Sequence[Sampling], uniforms: Sequence[float]) -> torch.Tensor:
    """Draw one token a row, (B,), from ``scaled`` logits (B, V) by inverting the cumulative distribution."""
    probabilities = _filtered(scaled.softmax(-1), sampling)
    cumulative = probabilities.cumsum(-1)
    threshold = torch.tensor(uniforms, dtype=cumulative.dtype, device=scaled.device) * cumulative[:, -1]
    drawn = torch.searchsorted(cumulative, threshold[:, None], right=True).squeeze(-1).clamp(max=scaled.shape[-1] - 1)
    forbidden = probabilities.gather(-1, drawn[:, None]).squeeze(-1) == 0  # rounding at the very end picked one
    if bool(forbidden.any()):
        last = scaled.shape[-1] - 1 - probabilities.flip(-1).ne(0).to(torch.uint8).argmax(-1)
        drawn = torch.where(forbidden, last, drawn)
    return drawn


def _filtered(probabilities: torch.Tensor, sampling: Sequence[Sampling]) -> torch.Tensor:
    """Zero what top-k and top-p leave out (not renormalised: the caller draws in proportion)."""
    if all(s.top_k == 0 and s.top_p >= 1.0 for s in sampling):
        return probabilities
    ordered, index = probabilities.sort(-1, descending=True)
    size = probabilities.shape[-1]
    top_k = torch.tensor([s.top_k or size for s in sampling], device=probabilities.device)
    top_p = torch.tensor([s.top_p for s in sampling], dtype=ordered.dtype, device=probabilities.device)
    rank = torch.arange(size, device=probabilities.device)
    before = ordered.cumsum(-1) - ordered
    kept = (rank < top_k[:, None]) & ((before < top_p[:, None]) | (rank == 0))
    return torch.zeros_like(probabilities).scatter(-1, index, ordered * kept)
