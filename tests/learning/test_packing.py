"""Packed rows: every token sees its own sequence and nothing else."""

from collections.abc import Iterable
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spag.models import packing as packing_module
from spag.models.packing import Packing, Span, pack, packed_length

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=120), min_size=1, max_size=8)


def seen(packing: Packing, spans: Iterable[Span]) -> torch.Tensor:
    """Which tokens of the row each token attends to, as the spans say: (T, T)."""
    total = len(packing.input_ids)
    result = torch.zeros(total, total, dtype=torch.bool)
    for span in spans:
        size = span.stop - span.start
        keys = [at for first, last in [*span.context, (span.start, span.stop)] for at in range(first, last)]
        mask = torch.ones(size, len(keys), dtype=torch.bool).tril(len(keys) - size) if span.mask is None else span.mask
        result[span.start : span.stop, keys] = mask
    return result


@given(SEQUENCES, st.sampled_from(["cpu", "gpu", "chains"]), st.integers(1, 300))
def test_each_token_sees_exactly_its_own_sequence_so_far(sequences: list[list[int]], form: str, whole: int) -> None:
    packing = pack(sorted(sequences))
    with patch.object(packing_module, "_WHOLE_ON_GPU", whole):
        spans = list(packing.chains() if form == "chains" else packing.spans(on_gpu=form == "gpu"))
    visible = seen(packing, spans)
    assert sum(span.stop - span.start for span in spans) == len(packing.input_ids)
    for sequence, row in zip(sorted(sequences), packing.rows, strict=True):
        assert packing.input_ids[row].tolist() == sequence
        assert packing.position_ids[row].tolist() == list(range(len(sequence)))
        for depth, at in enumerate(row):
            assert visible[at].nonzero().squeeze(1).tolist() == row[: depth + 1].tolist()


@given(SEQUENCES, st.booleans())
def test_spans_cover_the_row_in_order(sequences: list[list[int]], on_gpu: bool) -> None:
    packing = pack(sequences)
    edges = [(span.start, span.stop) for span in packing.spans(on_gpu=on_gpu)]
    assert edges[0][0] == 0 and edges[-1][1] == len(packing.input_ids) == packed_length(sequences)
    assert all(one[1] == other[0] for one, other in pairwise(edges))


def test_a_shared_prefix_is_laid_out_once() -> None:
    rules, other = list(range(100, 400)), list(range(500, 510))
    packing = pack([[*rules, 1, 2, 3], [*rules, 1, 4], [*rules, 5], other])
    assert packing.input_ids.tolist() == [*rules, 1, 2, 3, 4, 5, *other]
    assert packing.position_ids[300:306].tolist() == [300, 301, 302, 301, 300, 0]
    spans = packing.spans()
    assert [(span.start, span.stop, span.context) for span in spans] == [
        (0, 300, ()),  # too long to be taken in one piece with what hangs from it
        (300, 304, ((0, 300),)),  # 1 with both its children
        (304, 305, ((0, 300),)),
        (305, 315, ()),
    ]
    assert spans[0].mask is None and spans[3].mask is None  # causal: the fastest kernel


def test_on_a_gpu_adjacent_subtrees_share_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_module, "_WHOLE_ON_GPU", 1000)
    rules, games = list(range(1500)), [[2000 + game] * 400 for game in range(5)]
    spans = pack([[*rules, *game] for game in games]).spans(on_gpu=True)
    assert [(span.start, span.stop, span.context) for span in spans] == [
        (0, 1500, ()),
        (1500, 2300, ((0, 1500),)),
        (2300, 3100, ((0, 1500),)),
        (3100, 3500, ((0, 1500),)),
    ]
    assert len(pack(games).spans(on_gpu=True)) == 3 and len(pack(games).spans()) == 5


def test_sequences_without_a_common_prefix_attend_causally_and_apart() -> None:
    packing = pack([[1, 2, 3], [2, 2], [3]])
    assert [(span.start, span.stop, span.context, span.mask) for span in packing.spans()] == [
        (0, 3, (), None),
        (3, 5, (), None),
        (5, 6, (), None),
    ]
