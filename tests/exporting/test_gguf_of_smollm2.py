"""The embedded language model, exported and read back. Slow."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from spag.export import GgufType, export_model, find_source

pytestmark = pytest.mark.model

TEXTS = (
    "The river flows to the sea.",
    "<|im_start|>user\nIt's 1234, isn't it?<|im_end|>\n<|im_start|>assistant\n",
    "  def f(x):\n\n    return x**2  # naïve 日本語 🙂",
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the exported model, and the GGUF file in ``alone``, where nothing else can be read."""
    folder = tmp_path_factory.mktemp("export")
    made = export_model(find_source("smollm2-135m"), folder / "smollm2", gguf=GgufType.Q8_0)
    assert made.gguf
    (folder / "alone").mkdir()
    made.gguf.rename(folder / "alone" / "smollm2.gguf")
    return folder


def test_smollm2_survives_gguf(exported: Path) -> None:
    folder, alone = exported / "smollm2", exported / "alone"
    before, after = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(alone, gguf_file="smollm2.gguf")
    assert [after(text).input_ids for text in TEXTS] == [before(text).input_ids for text in TEXTS]
    assert after.chat_template == before.chat_template
    ids = before(" ".join(TEXTS), return_tensors="pt").input_ids
    with torch.inference_mode():
        exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
        rounded = AutoModelForCausalLM.from_pretrained(alone, gguf_file="smollm2.gguf", dtype=torch.float32)(ids).logits
    assert float((exact - rounded).norm() / exact.norm()) < 0.05
    assert float((exact.argmax(-1) == rounded.argmax(-1)).float().mean()) > 0.9
    assert "license: apache-2.0" in (folder / "README.md").read_text()
