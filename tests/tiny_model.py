"""A tiny random Llama with a byte-level tokenizer, made on the spot: milliseconds a step, in float32, on the CPU."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def make_model(folder: Path, **config: object) -> Path:
    """Save a two-layer random Llama with a byte-level tokenizer as a transformers folder; milliseconds a step in
    float32.
    """
    vocab = {token: index for index, token in enumerate(["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    torch.manual_seed(0)
    defaults = {
        "vocab_size": len(vocab),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "initializer_range": 0.1,
    }
    LlamaForCausalLM(LlamaConfig(**{**defaults, **config})).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder
