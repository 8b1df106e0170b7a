"""A GGUF file is the model it was made of: read back by transformers, it gives the same logits and the same tokens."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from export_fixtures import byte_level_model, edit_tokenizer, qwen3_model, sentencepiece_model, tokens_of
from gguf import GGUFReader
from transformers import AutoModelForCausalLM

from spag.core.errors import ModelError, StorageError
from spag.export.gguf_file import GgufType, interleave_halves, write_gguf
from spag.models.loading import load_model, load_tokenizer, no_progress_bars, resolve_model
from tiny_model import make_model

PROMPT = torch.tensor([[0, 5, 77, 130, 9, 200, 41, 3]])


def written(folder: Path, kind: GgufType) -> Path:
    """Write the GGUF into a folder that holds nothing else, so that nothing else can be read."""
    alone = folder.parent / "alone"
    shutil.rmtree(alone, ignore_errors=True)
    alone.mkdir()
    write_gguf(folder, alone / "tiny.gguf", kind, "Tiny")
    return alone


def read_back(alone: Path) -> torch.Tensor:
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(alone, gguf_file="tiny.gguf", dtype=torch.float32)
        logits: torch.Tensor = model(PROMPT).logits
    return logits


def logits_of(folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(PROMPT).logits
    return logits


# Relative rounding: float16 keeps 11 bits, bfloat16 8; Q8_0 errs by up to 1/254 of the largest of 32 weights.
@pytest.mark.parametrize(
    ("kind", "tolerance"), [(GgufType.F32, 1e-6), (GgufType.F16, 1e-3), (GgufType.BF16, 1e-2), (GgufType.Q8_0, 2e-2)], ids=str
)
@pytest.mark.parametrize("make", [byte_level_model, qwen3_model], ids=["llama", "qwen3"])
def test_logits_survive(tmp_path: Path, make: Callable[[Path], Path], kind: GgufType, tolerance: float) -> None:
    folder = make(tmp_path / "model")
    before, after = logits_of(folder), read_back(written(folder, kind))
    error = float((before - after).norm() / before.norm())
    assert error < tolerance
    assert kind is GgufType.F32 or error > tolerance / 100  # it was rounded


@pytest.mark.parametrize("make", [byte_level_model, qwen3_model, sentencepiece_model])
def test_tokens_survive(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    folder = make(tmp_path / "model")
    alone = written(folder, GgufType.F16)
    tokens = tokens_of(folder)
    assert tokens_of(alone, gguf_file="tiny.gguf") == tokens
    assert any(index >= 258 for ids in tokens for index in ids)  # merges were at work


def test_fields_that_llama_cpp_reads(tmp_path: Path) -> None:
    alone = written(byte_level_model(tmp_path / "model"), GgufType.Q8_0)
    reader = GGUFReader(alone / "tiny.gguf")
    field = {name: one.contents() for name, one in reader.fields.items()}
    assert (field["general.architecture"], field["general.name"], field["general.file_type"]) == ("llama", "Tiny", 7)
    assert (field["llama.attention.head_count"], field["llama.attention.head_count_kv"]) == (4, 2)
    assert (field["llama.attention.key_length"], field["llama.rope.dimension_count"]) == (8, 8)
    assert (field["llama.rope.freq_base"], field["llama.context_length"]) == (10_000.0, 4096)
    assert (field["tokenizer.ggml.model"], field["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert (field["tokenizer.ggml.bos_token_id"], field["tokenizer.ggml.eos_token_id"]) == (0, 1)
    assert field["tokenizer.ggml.add_bos_token"] is False
    assert field["tokenizer.ggml.token_type"][:3] == [3, 3, 1]
    assert field["tokenizer.ggml.merges"][2] == "he ll"
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert (types["blk.1.attn_q.weight"], types["blk.1.attn_norm.weight"], types["output.weight"]) == ("Q8_0", "F32", "Q8_0")
    assert len(types) == 21


def test_sentencepiece_scores_order_merges(tmp_path: Path) -> None:
    alone = written(sentencepiece_model(tmp_path / "model"), GgufType.F16)
    field = {name: one.contents() for name, one in GGUFReader(alone / "tiny.gguf").fields.items()}
    score = dict(zip(field["tokenizer.ggml.tokens"], field["tokenizer.ggml.scores"], strict=True))
    assert (score["ab"], score["abc"], score["he"], score["el"]) == (0.0, -1.0, -4.0, -5.0)
    kinds = dict(zip(field["tokenizer.ggml.tokens"], field["tokenizer.ggml.token_type"], strict=True))
    assert (kinds["<unk>"], kinds["<s>"], kinds["<0x0A>"], kinds["abc"]) == (2, 3, 6, 1)
    assert field["tokenizer.ggml.add_space_prefix"] is True


def test_rows_of_a_head_are_paired_with_their_neighbours() -> None:
    rows = np.arange(8, dtype=np.float32)[:, None]  # two heads of four rows
    assert interleave_halves(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_digits_one_by_one_are_smollm(tmp_path: Path) -> None:
    steps = [{"type": "Digits", "individual_digits": True}]
    steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True})
    folder = edit_tokenizer(byte_level_model(tmp_path / "model"), pre_tokenizer={"type": "Sequence", "pretokenizers": steps})
    fields = GGUFReader(written(folder, GgufType.F16) / "tiny.gguf").fields
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"


def test_rows_that_make_no_blocks_stay_in_float16(tmp_path: Path) -> None:
    folder = byte_level_model(tmp_path / "model", intermediate_size=40)
    types = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(written(folder, GgufType.Q8_0) / "tiny.gguf").tensors}
    assert (types["blk.0.ffn_down.weight"], types["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")


def test_spag_loads_its_own_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPAG_CACHE", str(tmp_path / "cache"))
    folder = byte_level_model(tmp_path / "model")
    path = str(written(folder, GgufType.F32) / "tiny.gguf")
    with torch.inference_mode():
        ours = load_model(path, dtype="float32", device="cpu")(PROMPT).logits
    assert torch.allclose(ours, logits_of(folder), atol=1e-5)
    assert load_tokenizer(path)("hello 12").input_ids == load_tokenizer(str(folder))("hello 12").input_ids


def test_a_gguf_is_converted_once_wherever_its_copies_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPAG_CACHE", str(tmp_path / "cache"))
    first = written(byte_level_model(tmp_path / "model"), GgufType.F32) / "tiny.gguf"
    copy = tmp_path / "elsewhere" / first.name
    copy.parent.mkdir()
    shutil.copyfile(first, copy)
    os.utime(copy, (1, 1))
    converted = resolve_model(str(first))
    assert resolve_model(str(copy)) == converted
    shutil.copyfile(written(byte_level_model(tmp_path / "other", num_hidden_layers=1), GgufType.F32) / first.name, copy)
    assert resolve_model(str(copy)) != converted
    assert len(list((tmp_path / "cache").iterdir())) == 2


REFUSED = {
    "an unknown cut": ({"pre_tokenizer": {"type": "Whitespace"}}, "its way to cut text before merging (Whitespace)"),
    "a lower-casing normalizer": ({"normalizer": {"type": "Lowercase"}}, "its way to cut text"),
    "no BPE": ({"model": {"type": "Unigram", "vocab": []}}, "of the kind Unigram"),
}


@pytest.mark.parametrize(("parts", "says"), REFUSED.values(), ids=REFUSED)
def test_tokenizers_that_gguf_cannot_say_are_refused(tmp_path: Path, parts: dict[str, object], says: str) -> None:
    folder = edit_tokenizer(byte_level_model(tmp_path / "model"), **parts)
    with pytest.raises(ModelError) as refused:
        written(folder, GgufType.F16)
    assert says in str(refused.value) and "export without --gguf" in str(refused.value)


def test_no_merges_no_tokenizer_too_few_rows(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="it has no merges"):
        written(make_model(tmp_path / "bytes"), GgufType.F16)
    few = byte_level_model(tmp_path / "few")
    make_model(few / "smaller")  # 258 rows
    for name in ("config.json", "model.safetensors"):
        (few / "smaller" / name).replace(few / name)
    with pytest.raises(ModelError, match="token 267 has no row among the model's 258"):
        written(few, GgufType.F16)
    (few / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        written(few, GgufType.F16)


def test_architectures_that_need_more_are_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled = byte_level_model(tmp_path / "scaled", rope_parameters={**rope, "original_max_position_embeddings": 128}, attention_bias=True)
    with pytest.raises(ModelError, match="LlamaForCausalLM with attention_bias=True, rope_type=llama3: not what --gguf writes"):
        written(scaled, GgufType.F16)
    other = byte_level_model(tmp_path / "other")
    (other / "config.json").write_text((other / "config.json").read_text().replace("LlamaForCausalLM", "GPT2LMHeadModel"))
    with pytest.raises(ModelError, match="GPT2LMHeadModel: --gguf writes LlamaForCausalLM and Qwen3ForCausalLM only"):
        written(other, GgufType.F16)


def test_weights_too_large_for_float16(tmp_path: Path) -> None:
    folder = byte_level_model(tmp_path / "model")
    with no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(folder)
        model.model.layers[0].mlp.up_proj.weight.data[0, 0] = 1e5
        model.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.up_proj\.weight: holds weights too large for float16; use --gguf BF16"):
        written(folder, GgufType.F16)
    assert not list((tmp_path / "alone").iterdir())  # no half a file


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"gone/tiny\.gguf: cannot be written"):
        write_gguf(byte_level_model(tmp_path / "model"), tmp_path / "gone" / "tiny.gguf", GgufType.F16, "Tiny")
