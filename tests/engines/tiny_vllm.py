"""A tiny Llama with head size 32 (the smallest that vLLM takes on a CPU), 7 MB of weights, and two LoRA adapters of
it. It has 42 logits more than its tokenizer has tokens.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model

from spag.engines.vllm.setup import VLLMSettings
from spag.models.loading import load_model, load_tokenizer
from tiny_model import make_model


@dataclass(frozen=True, slots=True)
class TinyVLLM:
    """The folders, and settings for one vLLM over all of them."""

    base: Path
    adapters: tuple[Path, Path]
    settings: VLLMSettings


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
    return TinyVLLM(
        base,
        adapters,
        VLLMSettings(str(base), "float32", "cpu", tuple(map(str, adapters)), 4, concurrency=16, max_length=512),
    )
