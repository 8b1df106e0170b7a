"""Log-probabilities of targets: every way of computing them gives those of each sample alone."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_samples, sample_logprobs, settings
from torch import Tensor
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    MixtralConfig,
    OPTConfig,
    Qwen2MoeConfig,
    Qwen3Config,
)

from spag.algorithms.settings import LoraConfig
from spag.algorithms.winners import RewardSettings, assign_rewards
from spag.config.schema import ModelConfig
from spag.learning.devices import make_accelerator
from spag.learning.start import load, trainable
from spag.models import forward, packed_attention, spans
from spag.models.forward import Capabilities, probe_capabilities
from spag.models.loading import load_model, load_tokenizer
from spag.models.samples import EncodedSample, collate, encode_samples
from spag.models.scoring import completion_logprobs
from spag.models.tokens import PromptStyle
from spag.runs.teachers import teacher_path
from spag.storage.episodes import read_episodes
from spag.training.losses import mean_logprob, offline_rl_loss
from taboo_games import TABOO
from tiny_model import make_model

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
}


def alone(model: torch.nn.Module, sample: EncodedSample) -> float:
    ids = torch.tensor([sample.input_ids.tolist()])
    labels = ids.clone()
    labels[0, : sample.completion_start] = -100
    return mean_logprob(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits, labels).item()


def encoded(folder: Path) -> list[EncodedSample]:
    return encode_samples(make_samples(12), load_tokenizer(str(folder)), PromptStyle.PLAIN, 100)


@pytest.mark.parametrize(
    "capabilities",
    [
        Capabilities(),
        Capabilities(kept=True),
        Capabilities(kept=True, chunked=True),
        Capabilities(packed=True),
        Capabilities(packed=True, kept=True),
        Capabilities(packed=True, kept=True, chunked=True),
    ],
)
def test_every_way_gives_the_log_probability_of_each_sample_alone(
    model_folder: Path, capabilities: Capabilities, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "CHUNK", 7)  # several chunks, the last one short
    model = load_model(str(model_folder), dtype="float32", device="cpu")
    samples = encoded(model_folder)
    expected = [alone(model, sample) for sample in samples]
    if capabilities.packed:
        model.set_attn_implementation("spag_packed")
    together = sample_logprobs(model, collate(samples, packed=capabilities.packed), capabilities)
    assert together.tolist() == pytest.approx(expected, rel=1e-5)
    assert together.std() > 0.1


@pytest.mark.parametrize("whole", [1, 40, 4096])
def test_rows_attend_in_the_calls_of_a_gpu_with_the_same_result(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    model = load_model(str(model_folder), dtype="float32", device="cpu")
    samples = sorted(encoded(model_folder), key=lambda sample: sample.input_ids)
    expected = [alone(model, sample) for sample in samples]
    monkeypatch.setattr(spans, "_WHOLE_ON_GPU", whole)
    monkeypatch.setattr(packed_attention, "spans_of", lambda depths, *, on_gpu: spans.spans_of(depths, on_gpu=True))
    capabilities = probe_capabilities(model, 100)
    found = sample_logprobs(model, collate(samples, packed=True), capabilities)
    assert capabilities.packed and found.tolist() == pytest.approx(expected, rel=1e-5)


def varlen(q: Tensor, k: Tensor, v: Tensor, q_ends: Tensor, k_ends: Tensor, *_: int, scale: float, **__: Any) -> Tensor:
    """What flash attention computes on a GPU: each sequence's queries see its keys, the last of both aligned."""
    found = []
    for (q_start, q_stop), (k_start, k_stop) in zip(pairwise(q_ends), pairwise(k_ends), strict=True):
        own = [one.transpose(0, 1) for one in (q[q_start:q_stop], k[k_start:k_stop], v[k_start:k_stop])]
        mask = torch.ones(own[0].shape[1], own[1].shape[1], dtype=torch.bool).tril(own[1].shape[1] - own[0].shape[1])
        attended = functional.scaled_dot_product_attention(*own, attn_mask=mask, scale=scale, enable_gqa=True)
        found.append(attended.transpose(0, 1))
    return torch.cat(found)


@pytest.fixture(params=["by span", "by chain"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "by chain":
        monkeypatch.setattr(packed_attention, "varlen_attn", varlen)
        monkeypatch.setattr(packed_attention, "supports_chains", lambda *_: True)
    return str(request.param)


@pytest.mark.parametrize(
    ("dtype", "query", "value", "expected"),
    [
        (torch.bfloat16, 128, 128, True),
        (torch.float16, 64, 64, True),
        (torch.float32, 128, 128, False),
        (torch.bfloat16, 192, 128, False),  # as DeepSeek's
        (torch.bfloat16, 512, 512, False),
    ],
)
def test_a_gpu_attends_by_chain_where_flash_attention_can(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, query: int, value: int, expected: bool
) -> None:
    heads = torch.empty(1, 2, 3, query), torch.empty(1, 2, 3, value)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert packed_attention.supports_chains(torch.device("cuda"), dtype, *heads) == expected
    assert not packed_attention.supports_chains(torch.device("cpu"), dtype, *heads)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert not packed_attention.supports_chains(torch.device("cuda"), dtype, *heads)


@pytest.mark.slow
@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_gradients_are_those_of_padded_rows(model_folder: Path, checkpointing: bool) -> None:
    gradients = []
    for packed in (False, True):
        model = load_model(str(model_folder), dtype="float32", device="cpu").train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        capabilities = probe_capabilities(model, 100) if packed else Capabilities()
        assert capabilities.packed == packed
        samples = sorted(
            encoded(model_folder), key=lambda sample: sample.input_ids
        )  # neighbours share their beginnings
        batch = collate(samples, packed=packed)
        sample_logprobs(model, batch, capabilities).square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert batch["input_ids"].numel() < 0.7 * sum(len(sample.input_ids) for sample in samples)  # they do share
    for name, gradient in gradients[0].items():
        assert (gradients[1][name] - gradient).norm() < 1e-5 * gradient.norm(), name


def test_a_llama_can_do_everything(model_folder: Path) -> None:
    model = load_model(str(model_folder), dtype="float32", device="cpu")
    assert probe_capabilities(model, 100) == Capabilities(packed=True, kept=True, chunked=True)
    assert not model.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_ignores_which_tokens_see_each_other_is_found_out(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3Config(**SHAPE)).to(dtype)
    attention = model.config._attn_implementation
    with monkeypatch.context() as patched:
        patched.setattr(forward, "ATTENTION", "sdpa")
        assert probe_capabilities(model, 100) == Capabilities(kept=True, chunked=True)
    assert model.config._attn_implementation == attention
    assert probe_capabilities(model, 100) == Capabilities(packed=True, kept=True, chunked=True)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (Qwen3Config(**SHAPE), Capabilities(packed=True, kept=True, chunked=True)),
        (Gemma3TextConfig(**SHAPE, sliding_window=64), Capabilities(packed=True, kept=True, chunked=True)),
        # a window of 0, which no layer has
        (
            Qwen2MoeConfig(**SHAPE, num_experts=4, moe_intermediate_size=16),
            Capabilities(packed=True, kept=True, chunked=True),
        ),
        (
            Gemma3TextConfig(**SHAPE, sliding_window=16),
            Capabilities(packed=False, kept=True, chunked=True),
        ),  # samples are longer
        (
            Gemma2Config(**SHAPE, attn_logit_softcapping=None, final_logit_softcapping=1.0),
            Capabilities(packed=True, kept=True, chunked=False),
        ),  # caps its logits
        (
            Gemma2Config(**SHAPE, attn_logit_softcapping=50.0, attn_implementation="eager"),
            Capabilities(packed=False, kept=True, chunked=False),
        ),  # caps its attention scores too
    ],
    ids=["qwen3", "gemma3", "qwen2-moe", "gemma3-short-window", "gemma2", "gemma2-attention"],
)
def test_other_models_are_tried_out_and_stay_exact(config: object, expected: Capabilities) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    samples = [EncodedSample.of([2, *range(5, 30 + n), 3], completion_start=20 + n) for n in range(4)]
    expected_logprobs = [alone(model, sample) for sample in samples]
    capabilities = probe_capabilities(model, 40)
    found = sample_logprobs(model, collate(samples, packed=capabilities.packed), capabilities)
    assert found.tolist() == pytest.approx(expected_logprobs, rel=1e-5)
    assert capabilities == expected


def test_capped_logits_are_found_out_in_half_precision_too() -> None:
    """A cap of 30 changes log-probabilities of -5, those of a small vocabulary, by less than bfloat16 may."""
    torch.manual_seed(0)
    config = Gemma2Config(**SHAPE, attn_logit_softcapping=None, final_logit_softcapping=30.0)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    assert probe_capabilities(model, 100) == Capabilities(packed=True, kept=True, chunked=False)


def test_autocast_decides_how_gpus_attend_where_norms_leave_heads_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, keys, values and masks must then meet in one precision; a CPU stands for the GPU."""
    monkeypatch.setattr(packed_attention, "IN_FLOAT32", ())
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3Config(**SHAPE))
    samples = [EncodedSample.of([2, *range(5, 30), n, 3], completion_start=20) for n in range(4)]
    capabilities = probe_capabilities(model, 40)
    expected = sample_logprobs(model, collate(samples, packed=True), capabilities)
    with torch.autocast("cpu", torch.bfloat16):
        found = sample_logprobs(model, collate(samples, packed=True), capabilities)
    found.sum().backward()
    assert found.tolist() == pytest.approx(expected.tolist(), rel=0.1)


def test_an_adapter_and_checkpointing_keep_the_fast_way(model_folder: Path) -> None:
    import peft

    model = load_model(str(model_folder), dtype="float32", device="cpu")
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
    capabilities = probe_capabilities(adapted, 100)
    assert capabilities == Capabilities(packed=True, kept=True, chunked=True)
    adapted.enable_input_require_grads()
    adapted.gradient_checkpointing_enable({"use_reentrant": False})
    samples = encoded(model_folder)
    found = sample_logprobs(adapted.train(), collate(samples, packed=True), capabilities)
    found.sum().backward()
    assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in adapted.parameters())


def test_checkpointed_layers_compute_attention_twice_not_three_times(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed attention recomputes itself in the backward pass, unless the layer around it does."""
    calls: list[int] = []
    plain = packed_attention.attend_by_products
    monkeypatch.setattr(packed_attention, "attend_by_products", lambda *a, **k: calls.append(1) or plain(*a, **k))
    gradients, counts, batch = [], [], collate(encoded(model_folder), packed=True)
    for checkpointed in (False, True):
        model = load_model(str(model_folder), dtype="float32", device="cpu").train()
        capabilities = probe_capabilities(model, 100)
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        capabilities = replace(capabilities, checkpointed=checkpointed)
        calls.clear()
        sample_logprobs(model, batch, capabilities).sum().backward()
        counts.append(len(calls))
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]))
    assert counts == [2 * len(spans.spans_of(batch["depths"])) * model.config.num_hidden_layers] * 2
    torch.testing.assert_close(*gradients)


def test_a_trained_model_scores_replies_as_it_does_elsewhere(model_folder: Path) -> None:
    """Exact figures are read off the policy in training, whose attention is that of packed rows already."""
    model, tokenizer = load_model(str(model_folder), dtype="float32", device="cpu"), load_tokenizer(str(model_folder))
    prompts = [[2, 3, 4, 5, 6, last, 7] for last in (8, 9)]
    asked = model, tokenizer, prompts, [["[bet]", "[check]"]] * 2
    expected = completion_logprobs(*asked)
    assert probe_capabilities(model, 100).packed
    for found, wanted in zip(completion_logprobs(*asked), expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)
    assert expected[0] != pytest.approx(expected[1], abs=1e-3)  # the prompt is seen to its end


def test_memory_for_logits_is_bounded_by_the_chunk(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of all positions' logits exists: the head never sees more than a chunk of rows."""
    model = load_model(str(model_folder), dtype="float32", device="cpu").train()
    capabilities = probe_capabilities(model, 100)
    seen: list[int] = []
    plain = model.lm_head.forward
    monkeypatch.setattr(model.lm_head, "forward", lambda hidden: seen.append(len(hidden)) or plain(hidden))
    monkeypatch.setattr(forward, "CHUNK", 16)
    samples = encoded(model_folder)
    sample_logprobs(model, collate(samples, packed=True), capabilities).sum().backward()
    trained = sum(len(sample.completion) for sample in samples)
    assert max(seen) == 16
    assert sum(seen) == 2 * trained  # once forward, once again for the backward pass


def test_the_tiny_model_s_window_is_read_from_its_config(tmp_path: Path) -> None:
    model = load_model(str(make_model(tmp_path / "m")), dtype="float32", device="cpu")
    assert probe_capabilities(model, 10_000).packed  # full attention has no window


@pytest.mark.slow
@pytest.mark.parametrize(("template", "share"), [("game", 0.6), ("play", 0.4)])
def test_whole_games_train_from_one_row_with_the_loss_of_each_utterance_alone(
    model_folder: Path, template: str, share: float
) -> None:
    """One template a game: the winner's utterances share their queries, tokens are computed once, the loss stays."""
    episodes = [episode for episode in read_episodes(teacher_path(TABOO)) if len(episode.history) >= 9][:2]
    samples = assign_rewards(episodes, settings=RewardSettings(template=template))
    rows = encode_samples(samples, load_tokenizer(str(model_folder)), PromptStyle.PLAIN, 100_000)
    rows.sort(key=lambda sample: sample.input_ids)
    assert len(rows) >= 8
    model = load_model(str(model_folder), dtype="float32", device="cpu")
    losses = []
    for fast in (False, True):
        capabilities = probe_capabilities(model, 1000) if fast else Capabilities()
        batch = collate(rows, packed=capabilities.packed)
        logprob = sample_logprobs(model, batch, capabilities)
        coefficients = {"kl_coef": 0.2, "sft_coef": 0.5, "clip_range": 0.2}
        losses.append(
            offline_rl_loss(
                logprob,
                torch.full_like(batch["weight"], -3.0),
                batch["advantage"],
                batch["weight"],
                batch["group"] == 2,
                **coefficients,
            )
        )
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-5)
    assert batch["input_ids"].numel() < share * sum(len(row.fed) for row in rows)


@pytest.mark.parametrize("config", [GPT2Config, OPTConfig, MixtralConfig])
def test_dropout_and_noise_of_routers_are_off_while_training(tmp_path: Path, config: type) -> None:
    shape = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"intermediate_size": 48, "num_key_value_heads": 2, "router_jitter_noise": 0.5}
    AutoModelForCausalLM.from_config(config(**shape, word_embed_proj_dim=32, ffn_dim=48)).save_pretrained(tmp_path)
    model = ModelConfig(name=str(tmp_path), device="cpu", dtype="float32")
    policy = load(model, None, make_accelerator(model, settings().settings, 0), 0, {}).train()
    ids = torch.arange(1, 30)[None]
    with torch.no_grad():
        assert torch.equal(policy(ids).logits, policy(ids).logits)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_frozen_maps_in_half_precision_change_no_bit(
    model_folder: Path, tmp_path: Path, tied: bool, checkpointing: bool
) -> None:
    folder = make_model(tmp_path / "model", tie_word_embeddings=tied, attention_bias=True)
    half, batch = ModelConfig(name=str(folder), dtype="bfloat16", device="cpu"), collate(encoded(folder), packed=True)
    accelerator, found = make_accelerator(half, settings().settings, 0), []
    for sharded in (True, False):  # a sharded model keeps its weights
        model, capabilities = trainable(half, LoraConfig(rank=4), accelerator, 0, 100, {}, sharded=sharded)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for name, weight in model.named_parameters():
            if "lora_B" in name:  # as after some updates: it begins at 0
                torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(0))
        with accelerator.autocast():
            logprobs = sample_logprobs(model, batch, replace(capabilities, checkpointed=checkpointing))
        logprobs.square().sum().backward()
        found.append([logprobs, *(weight.grad for weight in model.parameters() if weight.requires_grad)])
    halves = [name for name, weight in model.named_parameters() if weight.dtype is torch.bfloat16]
    assert sum(".base_layer." in name for name in halves) == 2 * (7 + 4)  # two layers: seven maps, four with a bias
    assert ("base_model.model.lm_head.weight" in halves) == (not tied) and len(halves) == 22 + (not tied)
    for before, after in zip(*found, strict=True):
        assert torch.equal(before, after)
