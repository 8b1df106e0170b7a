"""Which stretches of a packed row (``samples.py``) attend to which, from the depths of its tokens in the tree of
prefixes. ``packed_attention.py`` attends over the row span by span.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

_WHOLE, _WHOLE_ON_GPU = 96, 4096
"""A subtree of at most this many tokens attends in one call: many small calls cost more than some masked-out scores.
On a GPU, where starting a kernel costs as much as many scores, adjacent subtrees share a call, too.
"""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the row whose queries are computed together.

    They attend to all of the stretches ``context`` (their common ancestors), and to themselves according to ``mask``:
    (stop - start, context + stop - start), True where a query may attend; ``None`` means causal, without context.
    """

    start: int
    stop: int
    context: tuple[tuple[int, int], ...] = ()
    mask: Tensor | None = None


@dataclass(slots=True)
class _Branch:
    """Tokens ``start`` to ``stop`` without a fork; ``end`` is the end of all their descendants."""

    start: int
    stop: int
    end: int
    children: "list[_Branch]" = field(default_factory=list)


def spans_of(depths: Sequence[int], *, on_gpu: bool = False) -> list[Span]:
    """Return the spans of a row, which cover it in order. ``depths``: each token's number of ancestors."""
    ends = _ends(depths)
    return list(_spans(_branches(depths, ends), ends, on_gpu=on_gpu))


def chains_of(depths: Sequence[int]) -> list[Span]:
    """Return spans without a fork inside, which cover the row in order; they need no mask."""
    return list(_chains(_branches(depths, _ends(depths))))


def _ends(depths: Sequence[int]) -> list[int]:
    """Return for each token the end of its subtree: the next token in depth-first order that is not deeper."""
    ends = [len(depths)] * len(depths)
    open_tokens: list[int] = []
    for index, depth in enumerate(depths):
        while len(open_tokens) > depth:
            ends[open_tokens.pop()] = index
        open_tokens.append(index)
    return ends


def _branches(depths: Sequence[int], ends: Sequence[int]) -> list[_Branch]:
    """Return the roots of the tree of branches. A branch ends at a fork: all its children continue its last token."""
    starts = {0}
    path: list[int] = []
    for index, depth in enumerate(depths):
        if depth < len(path):  # no child of the token before it, but of a fork, or a root
            starts |= {index, *({path[depth - 1] + 1} if depth else ())}
        path[depth:] = [index]
    roots: list[_Branch] = []
    stack: list[_Branch] = []
    for start, stop in pairwise([*sorted(starts), len(depths)]):
        while stack and stack[-1].end <= start:
            stack.pop()
        branch = _Branch(start, stop, ends[start])
        (stack[-1].children if stack else roots).append(branch)
        stack.append(branch)
    return roots


def _spans(
    branches: Sequence[_Branch], ends: Sequence[int], context: tuple[tuple[int, int], ...] = (), *, on_gpu: bool
) -> Iterator[Span]:
    whole = _WHOLE_ON_GPU if on_gpu else _WHOLE
    for group in _adjacent(branches, whole if on_gpu else 0):
        first, stop = group[0], group[-1].end
        if stop - first.start <= whole or not first.children:
            yield _span(first.start, stop, context, ends)
        else:  # one branch: only its own tokens, then those that continue it
            yield _span(first.start, first.stop, context, ends)
            yield from _spans(first.children, ends, _joined(context, (first.start, first.stop)), on_gpu=on_gpu)


def _chains(branches: Sequence[_Branch], context: tuple[tuple[int, int], ...] = ()) -> Iterator[Span]:
    for branch in branches:
        yield Span(branch.start, branch.stop, context)
        yield from _chains(branch.children, _joined(context, (branch.start, branch.stop)))


def _adjacent(branches: Sequence[_Branch], most: int) -> Iterator[list[_Branch]]:
    """Yield ``branches`` in groups whose subtrees have at most ``most`` tokens, or of one branch."""
    group: list[_Branch] = []
    for branch in branches:
        if group and branch.end - group[0].start > most:
            yield group
            group = []
        group.append(branch)
    if group:
        yield group


def _span(start: int, stop: int, context: tuple[tuple[int, int], ...], ends: Sequence[int]) -> Span:
    own = ends[start:stop]
    if not context and min(own) >= stop:  # no fork
        return Span(start, stop)
    token = torch.arange(start, stop)
    mask = (token[None, :] <= token[:, None]) & (token[:, None] < torch.tensor(own)[None, :])
    before = sum(last - first for first, last in context)
    return Span(start, stop, context, functional.pad(mask, (before, 0), value=True))


def _joined(context: tuple[tuple[int, int], ...], stretch: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    if context and context[-1][1] == stretch[0]:
        return (*context[:-1], (context[-1][0], stretch[1]))
    return (*context, stretch)
