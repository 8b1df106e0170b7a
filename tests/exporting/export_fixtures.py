"""Tiny models that can be exported: a tokenizer with merges of each kind, every architecture that GGUF is written for."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaTokenizer, Qwen3Config, Qwen3ForCausalLM

from tiny_model import make_model

MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("1", "2"), ("Ġ", "1"), ("Ġ", "Ġ"), ("'", "l"), ("ll", "o")]
TEXTS = ("hello world", "  hell, 12 1234\n\n", "he'll owe 12 wörlds 🙂", "<s>hello</s> llo", "x  12")


def byte_level_model(folder: Path, **config: object) -> Path:
    """The tiny Llama with a few merges."""
    vocab_size = 258 + len(MERGES)
    make_model(folder, vocab_size=vocab_size, **config)
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["merges"] = [list(merge) for merge in MERGES]
    data["model"]["vocab"] |= {"".join(merge): 258 + place for place, merge in enumerate(MERGES)}
    path.write_text(json.dumps(data))
    return folder


def edit_tokenizer(folder: Path, **parts: Any) -> Path:
    """Replace parts of ``tokenizer.json``."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))
    return folder


def sentencepiece_model(folder: Path) -> Path:
    """A tiny Llama with a tokenizer of LLaMA-2's kind: a sign for spaces, bytes for unknown characters. "he" comes before "el"."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdehlow", "ab", "abc", "bc", "▁a", "he", "el", "lo"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("a", "b"), ("ab", "c"), ("b", "c"), ("▁", "a"), ("h", "e"), ("e", "l"), ("l", "o"), ("a", "bc")]
    make_model(folder, vocab_size=len(vocab), bos_token_id=1, eos_token_id=2, pad_token_id=2)
    for old in folder.glob("*token*"):
        old.unlink()
    LlamaTokenizer(vocab=vocab, merges=merges).save_pretrained(folder)
    return folder


def qwen3_model(folder: Path) -> Path:
    """A tiny random Qwen3 with heads wider than hidden_size / heads (128, which transformers takes for granted), and tied embeddings."""
    byte_level_model(folder)
    sizes = {"vocab_size": 258 + len(MERGES), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, tie_word_embeddings=True, initializer_range=0.1)).save_pretrained(folder)
    split = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    steps = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    ]
    return edit_tokenizer(folder, pre_tokenizer={"type": "Sequence", "pretokenizers": steps})


def tokens_of(folder: Path, **source: str) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder, **source)
    return [tokenizer(text).input_ids for text in TEXTS]
