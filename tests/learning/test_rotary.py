"""Rotary positions keep float32 in models that compute in bfloat16. The published training, on transformers 4.37.2
under ZeRO-3, had them in bfloat16, which has 8 significant bits: positions above 256 share values (its issue 28685).
"""

from pathlib import Path

import pytest
import torch

from spag.models.loading import load_model


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
