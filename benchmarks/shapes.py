"""Models with random weights: as large as those that people train, without their weights. Speed does not depend on what
weights say.
"""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spag.models.finding import EMBEDDED_NAME
from spag.models.loading import default_device, load_tokenizer, save_model

SHAPES = {
    # LLaMA-2-7B's layers; the head and the embedding have the entries of the embedded model's vocabulary
    "7b": {
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
}


def random_model(folder: Path, shape: str) -> Path:
    """Save a random Llama of ``shape`` in bfloat16 to ``folder``, with the vocabulary of SmolLM2."""
    tokenizer = load_tokenizer(EMBEDDED_NAME)
    special = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=4096, dtype="bfloat16", **special, **SHAPES[shape]
    )
    torch.manual_seed(0)
    with torch.device(default_device()):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    save_model(model, tokenizer, folder)
    del model
    torch.cuda.empty_cache()  # what is measured next wants all of a GPU
    return folder
