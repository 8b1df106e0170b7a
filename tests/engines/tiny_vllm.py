"""A tiny Llama with head size 32 (the smallest that vLLM takes on a CPU), 7 MB of weights, and two LoRA adapters of
it. It has 42 logits more than its tokenizer has tokens.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model

from spag.models.loading import load_model, load_tokenizer
from tiny_model import make_model


@dataclass(frozen=True, slots=True)
class TinyVLLM:
    """The folders of the model and its adapters."""

    base: Path
    adapters: tuple[Path, Path]


def make_tiny_vllm(folder: Path) -> TinyVLLM:
    base = make_model(
        folder / "base", hidden_size=128, intermediate_size=2048, tie_word_embeddings=True, vocab_size=300
    )
    adapters = (folder / "first", folder / "second")
    for seed, adapter in enumerate(adapters, 1):
        torch.manual_seed(seed)
        lora = LoraConfig(
            r=4, lora_alpha=16, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
        )
        get_peft_model(load_model(str(base), dtype="float32", device="cpu"), lora).save_pretrained(adapter)
        load_tokenizer(str(base)).save_pretrained(adapter)
    return TinyVLLM(base, adapters)
