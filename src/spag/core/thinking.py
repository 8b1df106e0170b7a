"""Private reasoning in a reply: text between the marks is thought, the rest is said.

The marks are those of Qwen3 and DeepSeek. A chat template may open the block itself; the reply then begins inside it.
Base models without a chat template are asked for an answer in tags or in a box, as in DeepSeek-R1-Zero (arXiv
2501.12948) and SPIRAL (arXiv 2506.24119): the answer alone is said.
"""

from collections.abc import Iterator
from typing import NamedTuple

OPEN, CLOSE = "<think>", "</think>"
ANSWER, END_OF_ANSWER, BOX = "<answer>", "</answer>", "\\boxed{"


class SplitReply(NamedTuple):
    """``thought`` is empty if there was none. ``is_cut``: the last thought never closes, so nothing is said."""

    thought: str
    speech: str
    is_cut: bool


def split_thought(text: str) -> SplitReply:
    """Split a reply into its thought, stripped of white space, and its speech, unchanged.

    Several thoughts are joined by line breaks. Text before a closing mark that was never opened is also a thought.
    """
    starts, ends = zip(*speech_spans(text), strict=True)
    between = (text[end:start] for end, start in zip((0, *ends), (*starts, len(text)), strict=True))
    thoughts = (part.replace(OPEN, "").strip() for block in between for part in block.split(CLOSE))
    is_cut = ends[-1] < len(text)
    speech = "" if is_cut else "".join(text[start:end] for start, end in zip(starts, ends, strict=True))
    return SplitReply("\n".join(filter(None, thoughts)), speech, is_cut)


def speech_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each stretch of speech begins and ends, before, between and after thoughts; some are empty."""
    start = 0
    while (closed := text.find(CLOSE, start)) >= 0:
        if (opened := text.find(OPEN, start, closed)) >= 0:
            yield start, opened
        start = closed + len(CLOSE)
    opened = text.find(OPEN, start)
    yield start, len(text) if opened < 0 else opened


class Answer(NamedTuple):
    """Where an answer's mark begins, and its span. ``after``: the end of the closing mark, ``None`` without one."""

    mark: int
    start: int
    end: int
    after: int | None


def find_answer(text: str, start: int = 0) -> Answer | None:
    """Return the first answer from ``start`` on: between the tags, or in a box with possibly nested braces."""
    tag, box = text.find(ANSWER, start), text.find(BOX, start)
    if tag < 0 and box < 0:
        return None
    if box < 0 or 0 <= tag < box:
        first = tag + len(ANSWER)
        end = text.find(END_OF_ANSWER, first)
        return Answer(tag, first, len(text), None) if end < 0 else Answer(tag, first, end, end + len(END_OF_ANSWER))
    first, depth = box + len(BOX), 1
    for at in range(first, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return Answer(box, first, at, at + 1)
    return Answer(box, first, len(text), None)


def answered(text: str, *, thinking: bool) -> str:
    """Rewrite a tagged reply to say its answer alone; with ``thinking``, the rest becomes its thought.

    Without an answer after the thought, nothing is said. A thought that never closes stays as it is.
    """
    thought, speech, is_cut = split_thought(text)
    if is_cut:
        return text if thinking else ""
    found = find_answer(speech)
    said = speech[found.start : found.end] if found else ""
    if (inner := find_answer(said)) is not None:  # a box between the tags
        said = said[inner.start : inner.end]
    if not thinking:
        return said
    rest = speech[: found.mark] + speech[found.after or len(speech) :] if found else speech
    private = "\n".join(filter(None, (thought, rest.strip())))
    return f"{OPEN}{private}{CLOSE}{said}"
