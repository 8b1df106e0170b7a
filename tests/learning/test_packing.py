"""Packed rows: every token sees its own sequence and nothing else."""

from collections.abc import Iterable
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spag.models import spans as spans_module
from spag.models.samples import pack, packed_length
from spag.models.spans import Span, chains_of, spans_of

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=120), min_size=1, max_size=8)


def seen(total: int, spans: Iterable[Span]) -> torch.Tensor:
    """Which of the row's ``total`` tokens each token attends to, as the spans say: (T, T)."""
    result = torch.zeros(total, total, dtype=torch.bool)
    for span in spans:
        size = span.stop - span.start
        keys = [at for first, last in [*span.context, (span.start, span.stop)] for at in range(first, last)]
        mask = torch.ones(size, len(keys), dtype=torch.bool).tril(len(keys) - size) if span.mask is None else span.mask
        result[span.start : span.stop, keys] = mask
    return result


@pytest.mark.slow
@given(SEQUENCES, st.sampled_from(["cpu", "gpu", "chains"]), st.integers(1, 300))
def test_each_token_sees_exactly_its_own_sequence_so_far(sequences: list[list[int]], form: str, whole: int) -> None:
    tokens, depths, rows = pack(sorted(sequences))
    with patch.object(spans_module, "_WHOLE_ON_GPU", whole):
        spans = chains_of(depths) if form == "chains" else spans_of(depths, on_gpu=form == "gpu")
    visible = seen(len(tokens), spans)
    assert sum(span.stop - span.start for span in spans) == len(tokens)
    for sequence, row in zip(sorted(sequences), rows, strict=True):
        assert [tokens[at] for at in row] == sequence
        assert [depths[at] for at in row] == list(range(len(sequence)))
        for depth, at in enumerate(row):
            assert visible[at].nonzero().squeeze(1).tolist() == row[: depth + 1].tolist()


@pytest.mark.slow
@given(SEQUENCES, st.booleans())
def test_spans_cover_the_row_in_order(sequences: list[list[int]], on_gpu: bool) -> None:
    tokens, depths, _ = pack(sequences)
    edges = [(span.start, span.stop) for span in spans_of(depths, on_gpu=on_gpu)]
    assert edges[0][0] == 0 and edges[-1][1] == len(tokens) == packed_length(sequences)
    assert all(one[1] == other[0] for one, other in pairwise(edges))


def test_a_shared_prefix_is_laid_out_once() -> None:
    rules, other = list(range(100, 400)), list(range(500, 510))
    tokens, depths, _ = pack([[*rules, 1, 2, 3], [*rules, 1, 4], [*rules, 5], other])
    assert tokens == [*rules, 1, 2, 3, 4, 5, *other]
    assert depths[300:306] == [300, 301, 302, 301, 300, 0]
    spans = spans_of(depths)
    assert [(span.start, span.stop, span.context) for span in spans] == [
        (0, 300, ()),  # too long to be taken in one piece with what hangs from it
        (300, 304, ((0, 300),)),  # 1 with both its children
        (304, 305, ((0, 300),)),
        (305, 315, ()),
    ]
    assert spans[0].mask is None and spans[3].mask is None  # causal: the fastest kernel


def test_on_a_gpu_adjacent_subtrees_share_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans_module, "_WHOLE_ON_GPU", 1000)
    rules, games = list(range(1500)), [[2000 + game] * 400 for game in range(5)]
    spans = spans_of(pack([[*rules, *game] for game in games])[1], on_gpu=True)
    assert [(span.start, span.stop, span.context) for span in spans] == [
        (0, 1500, ()),
        (1500, 2300, ((0, 1500),)),
        (2300, 3100, ((0, 1500),)),
        (3100, 3500, ((0, 1500),)),
    ]
    _, depths, _ = pack(games)
    assert len(spans_of(depths, on_gpu=True)) == 3 and len(spans_of(depths)) == 5


def test_sequences_without_a_common_prefix_attend_causally_and_apart() -> None:
    _, depths, _ = pack([[1, 2, 3], [2, 2], [3]])
    assert [(span.start, span.stop, span.context, span.mask) for span in spans_of(depths)] == [
        (0, 3, (), None),
        (3, 5, (), None),
        (5, 6, (), None),
    ]
