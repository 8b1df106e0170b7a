"""Prompts as tokens: the prompt styles, and the tokens that end a reply. Imports no torch."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

from spag.core.errors import ModelError, first_line
from spag.core.thinking import ANSWER, CLOSE, END_OF_ANSWER, OPEN, answered
from spag.models.refusals import library_errors
from spag.models.templates import render

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from transformers import PreTrainedTokenizerBase as Tokenizer


class PromptStyle(StrEnum):
    """How a prompt's text becomes tokens.

    Plain: BOS (where the tokenizer has one) and the bare text, as upstream. Chat: one user message in the model's own
    chat template, with thinking switched on or off if the template has such a switch. Rendered: a conversation already
    rendered by that template. Tagged: BOS and our own template for base models without one, which asks for the answer
    in tags.
    """

    PLAIN = "plain"
    CHAT = "chat"
    RENDERED = "rendered"
    TAGGED = "tagged"

    @property
    def has_template(self) -> bool:
        """Whether prompts use the model's chat template."""
        return self in (PromptStyle.CHAT, PromptStyle.RENDERED)


_TAGGED = "A conversation between a user and an assistant. The user makes a request, and the assistant {how}."
_THINKS = (
    f"first reasons about it between {OPEN} and {CLOSE}, which nobody else reads, and then gives its answer between "
    f"{ANSWER} and {END_OF_ANSWER}"
)
_ANSWERS = f"gives its answer between {ANSWER} and {END_OF_ANSWER}"


def tagged_text(prompt: str, *, thinking: bool) -> str:
    """Return a prompt in the template for base models, modelled on R1-Zero's (arXiv 2501.12948, table 1).

    It opens the first block itself, so that a base model need not produce the opening tag.
    """
    how, opening = (_THINKS, OPEN) if thinking else (_ANSWERS, ANSWER)
    return f"{_TAGGED.format(how=how)}\n\nUser: {prompt}\n\nAssistant: {opening}"


def spoken(text: str, style: PromptStyle, *, thinking: bool) -> str:
    """Return a reply's text with only its thought in marks: for tagged replies, only the answer is said."""
    return answered(text, thinking=thinking) if style is PromptStyle.TAGGED else text


def as_reply(text: str, style: PromptStyle) -> str:
    """Return what a model writes to say ``text`` without a thought."""
    return text + END_OF_ANSWER if style is PromptStyle.TAGGED else text


_ENCODING = Lock()
"""``split_special_tokens`` is a switch of the tokenizer itself, which threads share."""


def _ids(tokenizer: "Tokenizer", text: str) -> list[int]:
    with _ENCODING:
        return list(tokenizer.encode(text, add_special_tokens=False))


@lru_cache(maxsize=8)
def _specials(tokenizer: "Tokenizer") -> frozenset[str]:
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return frozenset({*tokenizer.all_special_tokens, *added})


def special_ids(tokenizer: "Tokenizer") -> frozenset[int]:
    """Return the ids of the special tokens, which are not text."""
    added = (int(number) for number, token in tokenizer.added_tokens_decoder.items() if token.special)
    return frozenset({*tokenizer.all_special_ids, *added})


def _has_specials(tokenizer: "Tokenizer", text: str) -> bool:
    """Whether ``text`` spells a special token, which a player may write to end the other's turn."""
    return any(token in text for token in _specials(tokenizer))


def said_ids(tokenizer: "Tokenizer", text: str) -> list[int]:
    """Return the tokens of what players say: special tokens that they spell are ordinary text."""
    if not _has_specials(tokenizer, text):
        return _ids(tokenizer, text)
    with _ENCODING:
        return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def _templated_ids(tokenizer: "Tokenizer", rendered: str, said: str) -> list[int]:
    """Return the tokens of ``rendered``, a template with ``said`` in it: those of ``said`` as ordinary text, unless the
    template has changed it.
    """
    if not _has_specials(tokenizer, said):
        return _ids(tokenizer, rendered)
    before, found, after = rendered.rpartition(said.strip())
    return [*_ids(tokenizer, before), *said_ids(tokenizer, found), *_ids(tokenizer, after)]


def encode_prompt(tokenizer: "Tokenizer", prompt: str, style: PromptStyle, *, thinking: bool = False) -> list[int]:
    """Return the token ids that a reply to ``prompt`` continues. ``thinking``: the reply may begin with a thought."""
    if not style.has_template:
        bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        text = prompt if style is PromptStyle.PLAIN else tagged_text(prompt, thinking=thinking)
        return [*bos, *said_ids(tokenizer, text)]
    if style is PromptStyle.RENDERED:
        return _ids(tokenizer, prompt)
    rendered = chat_text(tokenizer, [{"role": "user", "content": prompt}], reply_follows=True, thinking=thinking)
    return _templated_ids(tokenizer, rendered, prompt)


def encode_follow_up(
    tokenizer: "Tokenizer", reply: Sequence[int], text: str, style: PromptStyle, *, thinking: bool = False
) -> list[int]:
    """Return the tokens between ``reply`` and the next one when ``text`` is the model's next user message."""
    if not style.has_template:
        turn = f"\n\nUser: {text}\n\nAssistant: {OPEN if thinking else ANSWER}"
        return said_ids(tokenizer, turn if style is PromptStyle.TAGGED else f"\n{text}")
    mark = "END-OF-REPLY"
    said = (("user", "a"), ("assistant", mark), ("user", text))
    messages = [{"role": role, "content": content} for role, content in said]
    between = chat_text(tokenizer, messages, reply_follows=True, thinking=thinking).partition(mark)[2]
    ids = _templated_ids(tokenizer, between, text)
    end = end_token_id(tokenizer, style)
    ended = bool(reply) and reply[-1] == end and end in ids[:2]  # some templates write a space before it
    return ids[ids.index(end) + 1 :] if ended else ids


_CONTEXT = 8
"""Tokens of a prompt that ``decode_reply`` looks at."""
_MOST_BYTES = 4
"""Bytes of a character in UTF-8, so also tokens."""
BROKEN = "\ufffd"
"""What a decoder writes for bytes that are not a character."""


def decode_reply(tokenizer: "Tokenizer", prompt: Sequence[int], reply: Sequence[int]) -> str:
    """Return the text of ``reply`` as decoded after ``prompt``: alone, a LLaMA tokenizer drops its leading space.

    That tokenizer breaks all of adjacent characters written in bytes if one is incomplete, as the first may be where
    the context begins, and the last of a reply at its token limit.
    """
    contexts = [list(prompt[-count:]) for count in range(_CONTEXT, _CONTEXT - _MOST_BYTES, -1)]
    whole = (one for one in contexts if not _decoded(tokenizer, one).startswith(BROKEN))
    context = next(whole, contexts[0])
    before, text = _decoded(tokenizer, context), _decoded(tokenizer, [*context, *reply])
    for cut in range(1, min(_MOST_BYTES, len(reply) + 1) if text.endswith(2 * BROKEN) else 1):
        if not (complete := _decoded(tokenizer, [*context, *reply[:-cut]])).endswith(BROKEN):
            text = complete + cut * BROKEN
            break
    if text.startswith(before):
        return text[len(before) :]
    return _decoded(tokenizer, reply)


def _decoded(tokenizer: "Tokenizer", ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True))


def token_texts(tokenizer: "Tokenizer", prompt: Sequence[int], reply: Sequence[int]) -> list[str]:
    """Return what each token adds to the text of ``reply``.

    A token that ends within a character adds nothing: the text comes with the token that completes the character.
    """
    ids, read, texts = [*prompt, *reply], len(prompt), []
    for end in range(read + 1, len(ids) + 1):
        text = decode_reply(tokenizer, ids[max(0, read - _CONTEXT) : read], ids[read:end])
        if text.endswith(BROKEN) and end < len(ids) and end - read < _MOST_BYTES:
            text = ""
        else:
            read = end
        texts.append(text)
    return texts


def opening_of(tokenizer: "Tokenizer", prompt: Sequence[int], style: PromptStyle, *, thinking: bool) -> str:
    """Return the mark after which a reply begins, empty if there is none."""
    if style is PromptStyle.TAGGED:
        return OPEN if thinking else ANSWER
    end = str(tokenizer.decode(list(prompt[-2 * _CONTEXT :]), skip_special_tokens=False)) if thinking else ""
    return OPEN if end.rstrip().endswith(OPEN) else ""


def end_token_id(tokenizer: "Tokenizer", style: PromptStyle) -> int:
    """Return the token that ends a reply: EOS, or the special token that a chat template adds after the assistant's."""
    if style.has_template:
        question, mark = "QUESTION", "END-OF-REPLY"
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": mark}]
        before, found, suffix = chat_text(tokenizer, messages, reply_follows=False).rpartition(mark)
        if question not in before or not found:
            fix = "fix it, or use prompt_style plain"
            raise ModelError(f"{tokenizer.name_or_path}: its chat template drops messages; {fix}")
        ids = _ids(tokenizer, suffix)
        special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
        if ids and ids[0] in special:
            return ids[0]
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{tokenizer.name_or_path}: has no end-of-sequence token, so replies could never end")
    return int(tokenizer.eos_token_id)


def stop_token_ids(generation: "GenerationConfig | None", tokenizer: "Tokenizer", style: PromptStyle) -> frozenset[int]:
    """Return every token that ends generation: the reply's end token, EOS, and those in the generation config."""
    configured = getattr(generation, "eos_token_id", None)
    extra = configured if isinstance(configured, list) else [configured]
    return frozenset(int(i) for i in (end_token_id(tokenizer, style), tokenizer.eos_token_id, *extra) if i is not None)


def token_count(tokenizer: "Tokenizer") -> int:
    """Return the tokenizer's largest token id plus one. Many models have more logits, as padding."""
    return 1 + max(map(int, tokenizer.get_vocab().values()))


def check_ids(tokenizer: "Tokenizer", ids: Iterable[int], size: int) -> None:
    """Raise ``ModelError`` if one of ``ids`` is beyond the model's ``size`` tokens: a GPU would crash the process."""
    if (highest := max(ids, default=0)) >= size:
        fault = f"token {highest} is beyond the model's {size}"
        raise ModelError(f"{tokenizer.name_or_path}: {fault}; the tokenizer is another model's")


def shared_length(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the length of the longest common prefix."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))


def chat_text(
    tokenizer: "Tokenizer", messages: list[dict[str, str]], *, reply_follows: bool, thinking: bool = False
) -> str:
    """Return a conversation in the model's chat template. Without ``thinking``, a thought that it opens is closed.

    Raises ``ModelError`` if the template is missing or fails.
    """
    if tokenizer.chat_template is None:
        raise ModelError(f"{tokenizer.name_or_path}: the tokenizer has no chat template; use prompt_style plain")
    fault, fix = f"{tokenizer.name_or_path}: its chat template fails", "fix it, or use prompt_style plain"
    with library_errors(lambda error: ModelError(f"{fault} ({first_line(error, 200)}); {fix}")):
        values = {**tokenizer.special_tokens_map, "add_generation_prompt": reply_follows, "enable_thinking": thinking}
        text = render(tokenizer.get_chat_template(), messages=messages, tools=None, documents=None, **values)
    if reply_follows and not thinking and (begun := text.rstrip()).endswith(OPEN):
        return f"{begun}\n\n{CLOSE}\n\n"  # a template without a switch: as Qwen3's does
    return text
