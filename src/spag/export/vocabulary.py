"""A tokenizer in the words of GGUF, read from ``tokenizer.json``.

GGUF knows kinds of tokenizers, and for byte-level BPE a name (``tokenizer.ggml.pre``) for the way text is cut before merging. llama.cpp's
own converter recognises that way by a hash of some encoded text, which a tokenizer with one more token no longer matches. Here it is read
off the tokenizer's structure, and one that is not known exactly is refused: a wrong name gives other tokens without any error.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, SpecialVocab, TokenType

from spag.core.errors import ModelError
from spag.models.loading import load_tokenizer

Json = Mapping[str, Any]

_SPACE = "\u2581"  # SentencePiece's sign for a space
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_SPLITS = {
    # the regular expression of a Split before byte-level BPE: its name in llama.cpp
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen2",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "llama-bpe",
}


class Kind(StrEnum):
    """``tokenizer.ggml.model``: byte-level BPE, or SentencePiece's BPE with single bytes for unknown characters."""

    BYTE_LEVEL = "gpt2"
    SENTENCEPIECE = "llama"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All tokens by id, ``vocab_size`` of them; ``scores`` decide the merges of SentencePiece, and are empty for byte-level BPE."""

    kind: Kind
    pre: str
    tokens: Sequence[str]
    types: Sequence[TokenType]
    scores: Sequence[float]
    add_space_prefix: bool
    special: SpecialVocab


def read_vocabulary(folder: Path, vocab_size: int) -> Vocabulary:
    """Read the tokenizer of a transformers folder for a model with ``vocab_size`` tokens. Raises ``ModelError`` for one GGUF cannot say."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder}: no tokenizer.json, and a GGUF file can be made of such a tokenizer only; export without --gguf")
    data = json.loads(path.read_text(encoding="utf-8"))
    model = data["model"]
    if model["type"] != "BPE":
        raise ModelError(f"{path}: a tokenizer of the kind {model['type']} has no place in this GGUF export; export without --gguf")
    if not model["merges"]:
        raise ModelError(f"{path}: it has no merges, only single bytes, which GGUF cannot say; export without --gguf")
    kind = Kind.SENTENCEPIECE if model.get("byte_fallback") else Kind.BYTE_LEVEL
    by_id = {index: token for token, index in model["vocab"].items()} | {added["id"]: added["content"] for added in data["added_tokens"]}
    if max(by_id) >= vocab_size:
        raise ModelError(f"{path}: token {max(by_id)} has no row among the model's {vocab_size}; the tokenizer is another model's")
    tokens = [by_id.get(index, f"[PAD{index}]") for index in range(vocab_size)]
    sentencepiece = kind is Kind.SENTENCEPIECE
    special = _special(folder, vocab_size, load_merges=not sentencepiece)
    return Vocabulary(
        kind=kind,
        pre="default" if sentencepiece else _pre(path, data),
        tokens=tokens,
        types=_types(tokens, by_id, data["added_tokens"], special.special_token_ids.get("unk", -1) if sentencepiece else None),
        scores=_scores(tokens, model["merges"]) if sentencepiece else [],
        add_space_prefix=_adds_space(path, data) if sentencepiece else False,
        special=special,
    )


def add_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    """Write the vocabulary's fields."""
    writer.add_tokenizer_model(str(vocabulary.kind))
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list([token.encode() for token in vocabulary.tokens])
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
    writer.add_token_types(vocabulary.types)
    writer.add_add_space_prefix(vocabulary.add_space_prefix)
    vocabulary.special.add_to_gguf(writer, quiet=True)


def _types(tokens: Sequence[str], by_id: Mapping[int, str], added_tokens: Sequence[Json], unknown: int | None) -> list[TokenType]:
    """Return each token's type; ``unknown`` is SentencePiece's token for what it cannot say, and ``None`` for byte-level BPE."""
    added = {one["id"]: TokenType.CONTROL if one["special"] else TokenType.USER_DEFINED for one in added_tokens}

    def type_of(index: int, token: str) -> TokenType:
        if index not in by_id:
            return TokenType.UNUSED
        if index == unknown:
            return TokenType.UNKNOWN
        if unknown is not None and _BYTE.fullmatch(token):
            return TokenType.BYTE
        return added.get(index, TokenType.NORMAL)

    return [type_of(index, token) for index, token in enumerate(tokens)]


def _scores(tokens: Sequence[str], merges: Sequence[str | Sequence[str]]) -> list[float]:
    """Return scores that order merges as their ranks do: the earliest merge that makes a token decides.

    SentencePiece merges the pair whose result has the highest score; its own scores are minus the rank too. What no merge makes is never
    merged to, so that its score does not matter.
    """
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault("".join(pair), rank)
    return [-float(ranks.get(token, len(merges))) for token in tokens]


def _pre(path: Path, data: Json) -> str:
    """Return llama.cpp's name for the way the tokenizer cuts text before merging bytes."""
    cutter = data["pre_tokenizer"] or {}
    steps = cutter.get("pretokenizers", [cutter])
    byte_level = steps[-1] if steps[-1].get("type") == "ByteLevel" else {}
    if data.get("normalizer") in (None, {"type": "NFC"}) and byte_level and not byte_level["add_prefix_space"]:
        before = [step["type"] for step in steps[:-1]]
        if before == [] and byte_level["use_regex"]:
            return "gpt-2"
        if before == ["Digits"] and steps[0]["individual_digits"] and byte_level["use_regex"]:
            return "smollm"
        if before == ["Split"] and not byte_level["use_regex"] and steps[0]["behavior"] == "Isolated" and not steps[0]["invert"]:
            name = _SPLITS.get(steps[0]["pattern"].get("Regex", ""))
            if name:
                return name
    kinds = ", ".join(step.get("type", "nothing") for step in steps)
    raise ModelError(f"{path}: its way to cut text before merging ({kinds}) is none that this GGUF export knows; export without --gguf")


def _adds_space(path: Path, data: Json) -> bool:
    """Return whether a SentencePiece tokenizer puts a space before the text."""
    normalizer, cutter = data["normalizer"], data["pre_tokenizer"]
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepended = {"type": "Prepend", "prepend": _SPACE}
    if cutter is None and normalizer in ({"type": "Sequence", "normalizers": [prepended, replaced]}, replaced):
        return bool(normalizer != replaced)
    if cutter and cutter["type"] == "Metaspace" and cutter["replacement"] == _SPACE and not cutter["split"] and normalizer is None:
        return bool(cutter["prepend_scheme"] != "never")
    raise ModelError(f"{path}: its treatment of spaces is none that this GGUF export knows; export without --gguf")


def _special(folder: Path, vocab_size: int, *, load_merges: bool) -> SpecialVocab:
    """Return the special tokens and the chat template; whether BOS and EOS are added is tried out."""
    special = SpecialVocab(folder, load_merges=load_merges, n_vocab=vocab_size)
    tokenizer = load_tokenizer(str(folder))
    ids = tokenizer("a").input_ids
    special.add_special_token.update(bos=ids[0] == tokenizer.bos_token_id, eos=ids[-1] == tokenizer.eos_token_id)
    return special
