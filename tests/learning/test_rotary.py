"""Rotary positions keep float32 in models that compute in bfloat16. The published training, on transformers 4.37.2
under ZeRO-3, had them in bfloat16, which has 8 significant bits: positions above 256 share values (its issue 28685).
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import sample_logprobs
from transformers import LlamaConfig, LlamaForCausalLM

from spag.learning.batches import TrainingData
from spag.models.forward import Capabilities, probe_capabilities
from spag.models.loading import load_model, load_tokenizer
from spag.models.packed_attention import short_length
from spag.models.samples import EncodedSample, collate
from spag.models.scoring import completion_logprobs


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_positions_are_computed_in_float32_whatever_the_model_computes_in(model_folder: Path, dtype: str) -> None:
    rotary = load_model(str(model_folder), dtype=dtype, device="cpu").model.rotary_emb
    positions = torch.arange(2048)
    assert rotary.inv_freq.dtype == torch.float32
    cos, sin = rotary(torch.zeros(1, 1, 1), positions[None])
    assert cos.dtype == torch.float32  # of the input, which alone sets what is rounded, and after the product
    angles = positions[:, None].double() * rotary.inv_freq.double()
    assert torch.allclose(cos[0, :, : angles.shape[1]].double(), angles.cos(), atol=2e-4)
    assert torch.allclose(sin[0, :, : angles.shape[1]].double(), angles.sin(), atol=2e-4)


def test_positions_in_bfloat16_share_values_above_256() -> None:
    rounded = torch.arange(2048).bfloat16()
    counts = [rounded[start:end].unique().numel() for start, end in ((0, 256), (256, 512), (512, 1024), (1024, 2048))]
    assert counts[0] == 256 and [round(256 * 2**at / count) for at, count in enumerate(counts[1:])] == [2, 4, 8]


def long_rope(vocab_size: int) -> LlamaForCausalLM:
    """``longrope`` has other frequencies for long texts, here of over 32 tokens, and takes those of the longest for all
    beside it.
    """
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 8.0}
    rope: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 10_000.0, **factors}
    sizes = {"vocab_size": vocab_size, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.5,
    }
    rope["original_max_position_embeddings"] = 32
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, rope_parameters=rope)).eval()


@pytest.mark.parametrize("packed", [True, False])
def test_a_long_sample_does_not_change_a_short_one(packed: bool) -> None:
    model = long_rope(vocab_size=50)
    capabilities = probe_capabilities(model, 200) if packed else Capabilities()
    assert capabilities.packed == packed
    samples = [EncodedSample.of([at % 48 + 2 for at in range(length)], 10) for length in (20, 33, 34, 60)]

    def logprobs(*chosen: EncodedSample) -> torch.Tensor:
        return sample_logprobs(model, collate(chosen, packed=packed), capabilities)

    alone = [logprobs(one) for one in samples]
    assert (logprobs(*samples)[0] - alone[0]).abs().max() > 0.01  # they would share frequencies
    data = TrainingData(samples, 4, packed=packed, short_length=short_length(model.config))
    batches = data.split(range(4))
    assert sorted(map(sorted, batches)) == [[0, 1], [2, 3]]  # a sample's last token is only predicted
    for batch in batches:
        expected = torch.cat([alone[at] for at in batch])
        torch.testing.assert_close(logprobs(*(samples[at] for at in batch)), expected)


def test_a_long_prompt_does_not_change_the_scores_behind_a_short_one(model_folder: Path) -> None:
    model, tokenizer = long_rope(vocab_size=258), load_tokenizer(str(model_folder))
    prompts = [list(range(5, 5 + length)) for length in (20, 60)]
    alone = [completion_logprobs(model, tokenizer, [prompt], [["ab"]])[0] for prompt in prompts]
    together = completion_logprobs(model, tokenizer, prompts, [["ab"], ["ab"]])
    assert together == [pytest.approx(one, rel=1e-5) for one in alone]
