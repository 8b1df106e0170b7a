"""Private reasoning in a reply: what stands between the marks is thought, the rest is said.

The marks are those of Qwen3 and DeepSeek. A chat template may open the block itself; the reply then begins inside it.
"""

from typing import NamedTuple

OPEN, CLOSE = "<think>", "</think>"


class SplitReply(NamedTuple):
    """``thought`` is empty where nothing was thought. ``is_cut``: the last thought never closes, so nothing is said."""

    thought: str
    speech: str
    is_cut: bool


def split_thought(text: str) -> SplitReply:
    """Return what a reply thinks, stripped of white space, and what it says, as it stands.

    Several thoughts are joined by line breaks. What leads up to a closing mark that nothing opened is a thought, too.
    """
    thoughts, said = [], []
    *closed, rest = text.split(CLOSE)
    for block in closed:
        before, mark, inside = block.partition(OPEN)
        said.append(before if mark else "")
        thoughts.append(inside if mark else before)
    before, mark, inside = rest.partition(OPEN)
    thoughts.append(inside)
    said.append(before)
    found = (thought.replace(OPEN, "").strip() for thought in thoughts)
    return SplitReply("\n".join(filter(None, found)), "" if mark else "".join(said), bool(mark))


def speech_start(text: str) -> int | None:
    """Return where the speech behind the last thought begins; ``None`` inside a thought."""
    opened, closed = text.rfind(OPEN), text.rfind(CLOSE)
    if opened > closed:
        return None
    return closed + len(CLOSE) if closed >= 0 else 0
