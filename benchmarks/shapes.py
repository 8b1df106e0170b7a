"""Models with random weights: as large as those that people train, without their weights. Speed does not depend on what
weights say.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from spag.models.finding import EMBEDDED_NAME
from spag.models.loading import default_device, load_tokenizer, save_model

SHAPES: dict[str, dict[str, Any]] = {
    # LLaMA-2-7B's layers; the head and the embedding have the entries of the embedded model's vocabulary
    "7b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    "tiny": {
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
    # from each model's config.json on the Hugging Face hub
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "qwen3-4b": {
        "model_type": "qwen3",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {  # Qwen3 has no model of this size
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
    "qwen3-tiny": {
        "model_type": "qwen3",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 49_216,
        "tie_word_embeddings": True,
    },
}


def config_of(shape: str) -> Any:
    """Return the transformers config of ``shape``, with the special tokens of SmolLM2's tokenizer."""
    tokenizer = load_tokenizer(EMBEDDED_NAME)
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    common = {"vocab_size": len(tokenizer), "max_position_embeddings": 4096, "dtype": "bfloat16"}
    options = common | {name: getattr(tokenizer, name) for name in names} | SHAPES[shape]
    return AutoConfig.for_model(options.pop("model_type"), **options)


def random_model(folder: Path, shape: str) -> Path:
    """Save a random model of ``shape`` in bfloat16 to ``folder``, with SmolLM2's tokenizer."""
    config = config_of(shape)
    torch.manual_seed(0)
    with torch.device(default_device()):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    save_model(model, _tokenizer(config.vocab_size), folder)
    del model
    torch.cuda.empty_cache()  # what is measured next wants all of a GPU
    return folder


def _tokenizer(size: int) -> PreTrainedTokenizerBase:
    """Return SmolLM2's tokenizer with ``size`` tokens. Those that it lacks are words that no text is split into, so
    that whatever a random model draws can be decoded.
    """
    tokenizer = load_tokenizer(EMBEDDED_NAME)
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    described["model"]["vocab"] |= {f"Ġw{number}": number for number in range(len(tokenizer), size)}
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(described))
    return tokenizer


if __name__ == "__main__":
    random_model(Path(sys.argv[2]), sys.argv[1])
