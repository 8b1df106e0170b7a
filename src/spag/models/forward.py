"""The policy's log-probability of each completion, without upstream's tensor of all logits, (B, T, V).

A prompt is about ten times as long as its completion, and logits of 50,000 or more entries for every position cost more
time and memory than a small model's layers. So logits are computed only for the positions that predict a trained token,
a chunk at a time, and the backward pass recomputes each chunk instead of keeping it. The head does this inside the
model's forward pass, so DDP, FSDP and peft see nothing unusual.

Not every model supports this: ``probe_capabilities`` tests it. Other models get padded rows, or compute all logits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention
from torch.utils.checkpoint import checkpoint

from spag.models.packed_attention import ATTENTION, UNSUPPORTED, PackedRow, attends_to_all, computing_dtype
from spag.models.samples import Batch, EncodedSample, collate

CHUNK, CHUNK_ON_GPU = 128, 1024
"""Positions whose logits exist at once: 25 MB for a vocabulary of 50,000 in float32; on a GPU 200 MB, since each chunk
reads the head's weights again.
"""

_PROBE = ([0, 1, 2, 3, 4], [0, 1, 2, 0, 1], [6, 7])
"""Token ids, counted from the middle of the vocabulary, where tokens are words: half precision is too rough for special
ones. The first two share a prefix, then fork into repetitions that depend on it; the third shares nothing. The last
token of each is only predicted.
"""
_TOLERANCE, _HALF_TOLERANCE = 1e-3, 0.3  # half precision differs by the order of sums


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The optimisations that a model's forward pass supports.

    ``packed``: it attends within packed rows. ``kept``: it computes logits only for chosen positions
    (``logits_to_keep``). ``chunked``: its head can be called chunk by chunk. ``checkpointed``: the trainer recomputes
    its layers in the backward pass.
    """

    packed: bool = False
    kept: bool = False
    chunked: bool = False
    checkpointed: bool = False


def probe_capabilities(model: nn.Module, longest: int) -> Capabilities:
    """Return the capabilities of ``model`` for samples of up to ``longest`` tokens, tried on a few short ones.

    Leaves the model unchanged, except for packed attention if that works.
    """
    middle = _bare(model).config.get_text_config(decoder=True).vocab_size // 2
    samples = [EncodedSample.of([middle + one for one in ids], completion_start=1) for ids in _PROBE]
    training = model.training
    model.eval()
    with torch.no_grad():
        expected = _probe(model, samples, Capabilities())
        found = Capabilities(kept=_agrees(model, samples, Capabilities(kept=True), expected))
        chunked = replace(found, chunked=True)
        if found.kept and _ends_with_head(model, samples) and _agrees(model, samples, chunked, expected):
            found = chunked
        packed = replace(found, packed=True)
        if attends_to_all(_bare(model).config, longest):
            before = _bare(model).config._attn_implementation
            set_packed_attention(model)
            if _agrees(model, samples, packed, expected):
                found = packed
            else:
                _bare(model).set_attn_implementation(before)
    model.train(training)
    return found


def set_packed_attention(model: nn.Module) -> None:
    """Let ``model`` attend within packed rows (``packed_attention``)."""
    _bare(model).set_attn_implementation(ATTENTION)


class Entropy(Enum):
    """Whether to compute the entropy of each token's distribution: no, its value, or its gradient too."""

    NONE = 0
    VALUE = 1
    GRADIENT = 2


def token_scores(
    model: nn.Module, batch: Batch, capabilities: Capabilities, *, entropy: Entropy = Entropy.NONE
) -> Tensor:
    """Return each trained token's log-probability, with gradient, and if requested the entropy in nats: (K, 1 or 2).

    ``model`` may be wrapped (DDP, FSDP, peft). ``batch`` comes from ``collate`` with the same capabilities.
    """
    arguments: dict[str, Any] = {"input_ids": batch["input_ids"], "use_cache": False}
    if capabilities.packed:
        arguments |= {
            "position_ids": batch["position_ids"],
            "packed_row": PackedRow(batch["depths"], batch["input_ids"].device),
        }
        arguments["in_checkpoint"] = capabilities.checkpointed
    if capabilities.kept:
        arguments["logits_to_keep"] = batch["columns"]
    if capabilities.chunked:
        with _chunked_head(model, batch, entropy):
            scored: Tensor = model(**arguments).logits[0]
    else:
        logits = model(**arguments).logits
        kept = logits if capabilities.kept else logits[:, batch["columns"]]
        scored = _scores(kept.flatten(0, 1)[batch["picks"]], batch["labels"], entropy)
    return scored


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return ``batch`` with its tensors, of any shape, on ``device``."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }


@contextmanager
def _chunked_head(model: nn.Module, batch: Batch, entropy: Entropy) -> Iterator[None]:
    """Let the model's forward pass return ``_scores`` of the labels, (1, K, 1 or 2), in place of logits."""
    head = _bare(model).get_output_embeddings()
    plain, wrapped = head.forward, vars(head).get("forward")

    def score(hidden: Tensor, labels: Tensor) -> Tensor:
        return _scores(plain(hidden), labels, entropy)

    def forward(hidden: Tensor) -> Tensor:
        rows = hidden.flatten(0, 1)[batch["picks"]]
        size = CHUNK if rows.device.type == "cpu" else CHUNK_ON_GPU
        parts = [
            checkpoint(score, rows[at : at + size], batch["labels"][at : at + size], use_reentrant=False)
            for at in range(0, len(rows), size)
        ]
        return torch.cat(parts)[None].clone()  # FSDP2 warns about outputs that are views

    head.forward = forward
    try:
        yield
    finally:
        if wrapped is None:
            del head.forward  # bound to the head, ``plain`` would keep it in memory
        else:
            head.forward = wrapped


def _scores(logits: Tensor, labels: Tensor, entropy: Entropy) -> Tensor:
    """Return log p(label), and if requested the entropy, (K, 1 or 2), for ``logits`` (K, V); sums are float32.

    An entropy without gradient comes last, after all tensors saved for the checkpoint, so the backward pass skips it.
    """
    logprobs = logits.float().log_softmax(-1)
    del logits
    picked = -F.nll_loss(logprobs, labels, reduction="none")
    if entropy is Entropy.NONE:
        return picked[:, None]
    if entropy is Entropy.GRADIENT:
        return torch.stack([picked, -(logprobs.exp() * logprobs).sum(-1)], dim=1)
    with torch.no_grad():
        value = -logprobs.exp().mul_(logprobs).sum(-1)
    return torch.stack([picked, value], dim=1)


def _bare(model: nn.Module) -> Any:
    """Return the transformers model inside DDP, FSDP and peft wrappers."""
    inner: Any = model
    while hasattr(inner, "module"):
        inner = inner.module
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def _probe(model: nn.Module, samples: list[EncodedSample], capabilities: Capabilities) -> Tensor:
    batch = collate(samples, packed=capabilities.packed)
    return token_scores(model, to_device(batch, next(model.parameters()).device), capabilities)[:, 0]


def _ends_with_head(model: nn.Module, samples: list[EncodedSample]) -> bool:
    """Whether the model's logits are its head's output, neither capped nor scaled: ``_agrees`` is too tolerant to tell
    in half precision.
    """
    outputs: list[Tensor] = []
    batch = to_device(collate(samples, packed=False), next(model.parameters()).device)
    head = _bare(model).get_output_embeddings()
    if head is None:
        return False
    with head.register_forward_hook(lambda module, given, output: outputs.append(output)):
        logits = model(input_ids=batch["input_ids"], use_cache=False, logits_to_keep=batch["columns"]).logits
    return len(outputs) == 1 and torch.equal(outputs[0].float(), logits.float())


def _agrees(model: nn.Module, samples: list[EncodedSample], capabilities: Capabilities, expected: Tensor) -> bool:
    """Whether ``model`` supports ``capabilities`` and computes the same log-probabilities with them."""
    try:
        found = _probe(model, samples, capabilities)
    except UNSUPPORTED:
        return False
    in_float32 = computing_dtype(found.device, _bare(model).dtype) is torch.float32
    return torch.allclose(found, expected, atol=_TOLERANCE if in_float32 else _HALF_TOLERANCE, rtol=_TOLERANCE)
