"""The transformers engine against plain ``generate`` and against itself without its cache. Real loading, a tiny random
model, float32.
"""

import math
import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    GPTNeoConfig,
    RwkvConfig,
)

from samplings import sampling_with
from spag.core.errors import EngineError, ModelError
from spag.core.options import SamplingConfig
from spag.engines.base import Completion, FinishReason, Request, RequestError
from spag.engines.thread import ModelThread
from spag.engines.transformers.engine import TransformersEngine
from spag.engines.transformers.sampler import random_bits, sample_tokens
from spag.engines.transformers.slots import attention_mask, grouped_attention
from spag.models.loading import load_model, load_tokenizer
from spag.models.tokens import PromptStyle, encode_prompt, shared_length
from tiny_model import make_model

GREEDY = SamplingConfig(temperature=0, max_new_tokens=12)
PROMPTS = ["rules of the game: " + tail for tail in ("a", "one two", "one two three", "x" * 50, "", "one two four")]


def answer(engine: TransformersEngine, requests: list[Request]) -> dict[str, Completion]:
    for request in requests:
        engine.submit(request)
    done: dict[str, Completion] = {}
    while completions := engine.poll():
        done |= {completion.id: completion for completion in completions}
    return done


def answer_apart(engine: TransformersEngine, requests: list[Request]) -> dict[str, Completion]:
    """Answer one request after another, none of which finds anything of those before."""
    done: dict[str, Completion] = {}
    for request in requests:
        done |= answer(engine, [request])
        engine.forget()
    return done


def finish(engine: TransformersEngine, requests: list[Request]) -> dict[str, Completion]:
    done = answer(engine, requests)
    engine.close()
    return done


def ask(prompts: list[str], sampling: SamplingConfig = GREEDY, **more: object) -> list[Request]:
    return [Request(f"{i}", prompt, sampling, seed=i, **more) for i, prompt in enumerate(prompts)]  # type: ignore[arg-type]


def assert_greedy(model: Any, tokenizer: Any, done: dict[str, Completion]) -> None:
    """The completions are those of ``generate``, whose choices are clear."""
    for index, prompt in enumerate(PROMPTS):
        ids = torch.tensor([encode_prompt(tokenizer, prompt, PromptStyle.PLAIN)])
        options = {
            "max_new_tokens": 12,
            "min_new_tokens": 2,
            "do_sample": False,
            "output_scores": True,
            "return_dict_in_generate": True,
        }
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        best, next_best = torch.cat(expected.scores).topk(2).values.unbind(-1)
        assert (best - next_best).min() > 1e-4  # logits of 2 are rounded to some 1e-6: on no processor does that choose
        assert list(done[str(index)].token_ids or ()) == expected.sequences[0, ids.shape[1] :].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 2, 8])
def test_greedy_tokens_are_those_of_generate(loaded: tuple, concurrency: int) -> None:
    model, tokenizer = loaded
    done = finish(TransformersEngine(model, tokenizer, concurrency=concurrency), ask(PROMPTS))
    assert_greedy(model, tokenizer, done)


def test_a_request_that_leaves_moves_one_neighbour_at_most(loaded: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = loaded
    engine = TransformersEngine(model, tokenizer, concurrency=8)
    swaps: list[tuple[int, int]] = []
    swap = engine._cache.swap
    monkeypatch.setattr(engine._cache, "swap", lambda *slots: (swaps.append(slots), swap(*slots)))
    requests = [
        Request(f"{i}", PROMPTS[0] * (1 + i % 3), sampling_with(0, max_new_tokens=4 + 5 * i % 7), seed=i)
        for i in range(24)
    ]
    assert len(finish(engine, requests)) == 24
    assert 0 < len(swaps) <= 24


def test_logprobs_are_the_models_own(loaded: tuple) -> None:
    model, tokenizer = loaded
    for completion in finish(
        TransformersEngine(model, tokenizer, concurrency=3), ask(PROMPTS, sampling_with(1.2, max_new_tokens=9))
    ).values():
        prompt = encode_prompt(tokenizer, PROMPTS[int(completion.id)], PromptStyle.PLAIN)
        tokens = list(completion.token_ids or ())
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None]).squeeze(-1)
        torch.testing.assert_close(
            torch.tensor(completion.logprobs), expected, atol=2e-6 * float(logits.abs().max()), rtol=1e-5
        )


def test_the_head_reads_states_of_their_own(loaded: tuple) -> None:
    """Given a view of longer rows, torch copies a frozen head's weights for each."""
    model, tokenizer = loaded
    shapes: list[tuple[int, ...]] = []

    def read(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        assert given[0].is_contiguous()
        shapes.append(tuple(given[0].shape))

    engine = TransformersEngine(model, tokenizer)
    with model.get_output_embeddings().register_forward_pre_hook(read):
        answer(engine, ask(PROMPTS))
    assert max(rows for rows, _, _ in shapes) > 1
    assert {length for _, length, _ in shapes} == {1}


@pytest.mark.slow
def test_sampled_text_depends_on_the_requests_seed_alone(loaded: tuple) -> None:
    model, tokenizer = loaded
    requests = ask(PROMPTS * 3, sampling_with(1.0, max_new_tokens=8))
    alone = finish(TransformersEngine(model, tokenizer, concurrency=1), requests)
    shuffled = random.Random(3).sample(requests, len(requests))
    together = finish(TransformersEngine(model, tokenizer, concurrency=7), shuffled)
    assert {i: c.token_ids for i, c in alone.items()} == {i: c.token_ids for i, c in together.items()}
    assert len({c.token_ids for i, c in alone.items() if int(i) % 6 == 0}) == 3  # same prompt, other seed


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False])
def test_requests_at_the_same_tokens_share_a_forward_pass(loaded: tuple, at_once: bool) -> None:
    model, tokenizer = loaded
    rows: list[int] = []
    engine = TransformersEngine(model, tokenizer, concurrency=4)  # it tries the model, which is not counted
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: rows.append(kwargs["input_ids"].shape[0]), with_kwargs=True
    )
    requests = [Request(f"{i}", PROMPTS[0], sampling_with(0.3, max_new_tokens=3), seed=i) for i in range(40)]
    done: dict[str, Completion] = {}
    for request in [] if at_once else requests:
        engine.submit(request)
        done |= {completion.id: completion for completion in engine.poll()}
    done |= finish(engine, requests if at_once else [])
    fed = sum(rows)
    apart = answer_apart(TransformersEngine(model, tokenizer, concurrency=4), requests)
    hook.remove()
    assert {i: c.token_ids for i, c in done.items()} == {i: c.token_ids for i, c in apart.items()}
    # a pass for the prompt, and one for each different continuation that another token follows
    assert fed == len({(c.token_ids or ())[:length] for c in done.values() for length in range(3)}) < 120


@pytest.mark.slow
def test_new_weights_drop_what_was_cached(loaded: tuple) -> None:
    """An engine with changed weights says what a fresh engine with these weights says, and the old ones bring the old
    tokens back.
    """
    model, tokenizer = loaded
    old = {name: weight.clone() for name, weight in model.named_parameters()}
    new = {
        name: weight + 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
        for name, weight in old.items()
    }
    engine = TransformersEngine(model, tokenizer, concurrency=4)

    def tokens() -> dict[str, tuple[int, ...] | None]:
        return {name: completion.token_ids for name, completion in answer(engine, ask(PROMPTS)).items()}

    before = tokens()
    engine.update_weights(new)
    changed = tokens()
    assert changed == {
        name: c.token_ids for name, c in answer_apart(TransformersEngine(model, tokenizer), ask(PROMPTS)).items()
    }
    assert changed != before
    engine.update_weights(old)
    assert tokens() == before


def test_weights_that_do_not_fit_are_refused(loaded: tuple) -> None:
    model, tokenizer = loaded
    engine = TransformersEngine(model, tokenizer)
    with pytest.raises(EngineError, match=r"model\.nothing: the model has no weight of this name"):
        engine.update_weights({"model.nothing": torch.zeros(1)})
    with pytest.raises(EngineError, match=r"lm_head\.weight|embed_tokens"):
        engine.update_weights({next(name for name, _ in model.named_parameters()): torch.zeros(1)})
    engine.submit(ask(["hello"])[0])
    with pytest.raises(EngineError, match="between requests"):
        engine.update_weights({})
    engine.close()


@pytest.mark.slow
def test_growing_conversations_reuse_their_slot_and_stay_exact(loaded: tuple) -> None:
    """Turn after turn of several games, each prompt continuing the last; the model must be fed only what is new."""
    model, tokenizer = loaded
    fed: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    texts: dict[bool, list[str]] = {}
    totals = {}
    for reuse in (True, False):
        fed.clear()
        engine = TransformersEngine(model, tokenizer, concurrency=4)
        prompts, said = [f"{'rules ' * 20}game {i}." for i in range(4)], []
        for turn in range(4):
            requests = [Request(f"{at}", f"{prompt} now:", GREEDY, seed=turn) for at, prompt in enumerate(prompts)]
            answers = (answer if reuse else answer_apart)(engine, requests)
            done = {name: completion.text for name, completion in answers.items()}
            said.append(str(sorted(done.items())))
            prompts = [f"{prompt} {done[str(i)]}." for i, prompt in enumerate(prompts)]
        texts[reuse], totals[reuse] = said, sum(fed)
    hook.remove()
    assert texts[True] == texts[False]
    assert totals[True] < 0.5 * totals[False]


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_sliding_window_models_are_exact_too(tmp_path: Path, attention: str) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    folder = make_model(tmp_path / "m")
    config = MistralConfig(
        vocab_size=258, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, initializer_range=0.2, bos_token_id=0, eos_token_id=1, pad_token_id=1,
        attn_implementation=attention,
    )  # fmt: skip
    torch.manual_seed(1)
    model = MistralForCausalLM(config).eval()
    tokenizer = load_tokenizer(str(folder))
    done = finish(TransformersEngine(model, tokenizer, concurrency=3), ask(PROMPTS))
    assert_greedy(model, tokenizer, done)


@pytest.mark.slow
def test_a_loaded_model_caps_its_attention_scores_as_its_config_says(tmp_path: Path) -> None:
    """torch's own kernel ignores the cap, so an engine over it would play another policy than vLLM."""
    folder = make_model(tmp_path / "m")
    sizes: dict[str, Any] = {"vocab_size": 258, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.5}
    torch.manual_seed(1)
    for cap in (None, 0.01):
        config = Gemma2Config(**sizes, attn_logit_softcapping=cap, pad_token_id=1, eos_token_id=1, bos_token_id=0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        capped = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
        tokenizer, model = load_tokenizer(str(folder)), load_model(str(folder), dtype="float32", device="cpu")
        ids = torch.arange(20, 40)[None]
        torch.testing.assert_close(model(ids).logits, capped(ids).logits, atol=1e-4, rtol=1e-4)
        assert_greedy(capped, tokenizer, finish(TransformersEngine(model, tokenizer, concurrency=3), ask(PROMPTS)))


@pytest.mark.slow
def test_layers_may_take_the_keys_of_earlier_ones(loaded: tuple) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 8, "laurel_rank": 4}
    sizes |= {"num_hidden_layers": 6, "num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.0] * 6}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size_per_layer_input": 8}
    sizes |= {"vocab_size": 258, "vocab_size_per_layer_input": 258, "sliding_window": 16}
    kinds = ["sliding_attention", "full_attention"] * 3
    model = Gemma3nForCausalLM(Gemma3nTextConfig(**sizes, layer_types=kinds)).eval()
    engine = TransformersEngine(model, loaded[1], concurrency=4)
    found = [answer(engine, ask(PROMPTS)), answer_apart(engine, ask(PROMPTS))]
    for name, done in found[0].items():
        assert done.token_ids == found[1][name].token_ids
        assert done.logprobs == pytest.approx(found[1][name].logprobs, abs=1e-4)


def test_limits_and_stop_strings(loaded: tuple) -> None:
    model, tokenizer = loaded
    free = finish(
        TransformersEngine(model, tokenizer), ask(["hello"], sampling_with(0, max_new_tokens=12, min_new_tokens=12))
    )["0"]
    assert (free.finish_reason, free.completion_tokens) == (FinishReason.LENGTH, 12)
    raw = tokenizer.decode(list(free.token_ids or ()))
    stop = raw[5:7]
    cut = finish(
        TransformersEngine(model, tokenizer), ask(["hello"], sampling_with(0, max_new_tokens=12), stop=(stop,))
    )["0"]
    assert cut.finish_reason is FinishReason.STOP
    assert cut.text == raw[: raw.index(stop)]


def test_min_new_tokens_bans_the_end(loaded: tuple) -> None:
    model, tokenizer = loaded
    engine = TransformersEngine(model, tokenizer)
    engine._stop_ids = frozenset(range(200))  # nearly every token ends a reply
    assert (
        finish(engine, ask(["hello"], sampling_with(0, max_new_tokens=9, min_new_tokens=4)))["0"].completion_tokens >= 4
    )


def test_unusual_designs_are_refused(loaded: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = loaded
    monkeypatch.setattr(model.config, "layer_types", ["full_attention", "linear_attention"], raising=False)
    with pytest.raises(ModelError, match=r"cannot cache this model \(linear_attention\); play it with vLLM"):
        TransformersEngine(model, tokenizer)


def test_models_that_compute_something_else_over_slots_are_refused(loaded: tuple, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 258, "hidden_size": 32, "bos_token_id": 0, "eos_token_id": 1}
    local = [[["global", "local"], 1]]
    for config, says in (
        (RwkvConfig(**sizes, num_hidden_layers=2), "it does not follow the masks of slots"),
        (BloomConfig(**sizes, n_layer=2, n_head=4), "too many values to unpack"),  # it wants a mask of two dimensions
        (GPTNeoConfig(**sizes, num_layers=2, attention_types=local, num_heads=4), "local"),
    ):
        model = AutoModelForCausalLM.from_config(config).eval()
        with pytest.raises(ModelError, match=rf"cannot cache this model \({says}.*play it with vLLM"):
            TransformersEngine(model, loaded[1])


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_memory_that_runs_out_names_the_option(
    error: RuntimeError, loaded: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[Completion]:
        raise error

    engine = TransformersEngine(*loaded, concurrency=2)
    monkeypatch.setattr(TransformersEngine, "_admit", refuse)
    for request in ask(PROMPTS[:1]):
        engine.submit(request)
    with pytest.raises(EngineError, match=r"out of memory with 0 utterances in flight; lower engine\.concurrency"):
        engine.poll()


def test_a_prompt_without_room_for_the_utterance_is_refused(loaded: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = loaded
    monkeypatch.setattr(model.config, "max_position_embeddings", 64)
    engine = TransformersEngine(model, tokenizer)
    for request in ask(["x" * 51, "x" * 52]):  # the first, with BOS and 12 new tokens, has 64
        engine.submit(request)
    [refused] = engine.poll()
    assert (refused.id, refused.text, refused.finish_reason) == ("1", "", FinishReason.CONTEXT)
    assert (refused.token_ids, refused.logprobs) == ((), ())
    what = "a prompt of 53 tokens and max_new_tokens=12 exceed the context length of 64 tokens"
    assert refused.refusal == f"{what}; use a model with a longer context, or shorten utterances"
    [answered] = engine.poll()
    assert (answered.id, len(answered.token_ids or ())) == ("0", 12)
    engine.close()


def test_a_request_that_is_refused_in_a_thread_stops_no_other(loaded: tuple) -> None:
    model, tokenizer = loaded[0], deepcopy(loaded[1])
    tokenizer.bos_token = None
    thread = ModelThread(lambda: TransformersEngine(model, tokenizer))
    replies = [thread.ask(request) for request in ask(["x", "", "y"])]
    assert len(replies[0].wait(60).token_ids or ()) == len(replies[2].wait(60).token_ids or ()) == 12
    with pytest.raises(RequestError, match="1: the prompt is empty"):
        replies[1].wait(60)
    assert thread.problem is None
    thread.close()


def test_a_text_can_be_watched_while_it_waits_for_a_slot(loaded: tuple) -> None:
    model, tokenizer = loaded
    engine = TransformersEngine(model, tokenizer, concurrency=1)
    for number in range(2):
        engine.submit(Request(f"{number}", "a", SamplingConfig(max_new_tokens=4, min_new_tokens=4), number))
    assert [done.id for done in engine.poll()] == ["0"]
    assert engine.partial("1")  # its first token has the logits of the other's
    engine.close()


def test_the_shortest_utterance_is_counted_from_the_end_of_the_thought(loaded: tuple) -> None:
    model, tokenizer = loaded
    engine = TransformersEngine(model, tokenizer)
    steps = iter(tokenizer.encode("<think>a</think>", add_special_tokens=False))
    forward, [second] = engine._slots.logits, tokenizer.encode("x", add_special_tokens=False)

    def scripted(*fed: Any) -> torch.Tensor:
        logits = torch.zeros_like(forward(*fed))
        logits[:, second] = 20
        logits[:, next(steps, 1)] = 50  # 1 is </s>
        return logits

    engine._slots.logits = scripted  # type: ignore[method-assign]
    sampling = sampling_with(temperature=0, min_new_tokens=3, max_new_tokens=8, thought_tokens=60)
    assert finish(engine, ask(["p"], sampling))["0"].text == "<think>a</think>xxx"


def noise(rows: int, tokens: int) -> torch.Tensor:
    return random_bits([torch.Generator().manual_seed(row) for row in range(rows)], tokens, torch.device("cpu"))


@pytest.mark.slow
def test_the_largest_noise_leaves_the_only_candidate() -> None:
    """Once in 2**25 the noise rounds to 1, whose Gumbel value would be infinite."""
    most = torch.full((1, 4), 2**31 - 1, dtype=torch.int32)
    draw = sample_tokens(torch.tensor([[-1.0, 2.0, 0.0, 1.0]]), [sampling_with(1.0, top_k=1)], most, {})
    assert (draw.tokens.tolist(), draw.sampling_logprobs.tolist()) == ([1], [0.0])


@pytest.mark.slow
def test_draws_follow_the_distribution_and_the_filters() -> None:
    logits, draws = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), 400_000
    bits = noise(1, 4 * draws).view(draws, 4)

    def shares(sampling: SamplingConfig, banned: tuple[int, ...] = (), draws: int = draws) -> list[float]:
        forbidden = dict.fromkeys(range(draws if banned else 0), banned)
        draw = sample_tokens(logits.expand(draws, 4), [sampling] * draws, bits[:draws], forbidden)
        found = (torch.bincount(draw.tokens, minlength=4) / draws).tolist()
        # each token's log-probability is that of the distribution that it was drawn from
        described = {
            token: math.exp(value)
            for token, value in zip(draw.tokens.tolist(), draw.sampling_logprobs.tolist(), strict=True)
        }
        assert [described.get(token, 0.0) for token in range(4)] == pytest.approx(found, abs=0.002)
        return found

    # softmax([2, 1, 0, -1]) = .644 .237 .087 .032; at temperature 2 softmax([1, .5, 0, -.5]) = .455 .276 .167 .102
    assert shares(sampling_with(1.0)) == pytest.approx([0.644, 0.237, 0.087, 0.032], abs=0.002)
    assert shares(sampling_with(2.0)) == pytest.approx([0.455, 0.276, 0.167, 0.102], abs=0.002)
    assert shares(sampling_with(1.0, top_k=2)) == pytest.approx([0.731, 0.269, 0, 0], abs=0.002)
    assert shares(sampling_with(1.0, top_p=0.7)) == pytest.approx([0.731, 0.269, 0, 0], abs=0.002)
    assert shares(sampling_with(1.0, top_p=0.5), draws=10_000) == [1, 0, 0, 0]
    assert shares(sampling_with(0.0), draws=10_000) == [1, 0, 0, 0]
    assert shares(sampling_with(1.0), (0, 3)) == pytest.approx([0, 0.731, 0.269, 0], abs=0.002)
    logprobs = sample_tokens(
        logits, [sampling_with(2.0)], torch.tensor([[0, 0, 2**30, 0]], dtype=torch.int32), {0: (0, 3)}
    ).logprobs
    assert logprobs.item() == pytest.approx(-1.4402, abs=1e-4)  # log .237: raw, whatever the temperature or the ban


def test_rounding_changes_hardly_a_draw() -> None:
    logits = torch.randn(500, 5_000, generator=torch.Generator().manual_seed(1))
    wrong = logits + 1e-5 * torch.randn(500, 5_000, generator=torch.Generator().manual_seed(2))
    bits, sampling = noise(500, 5_000), [sampling_with(1.2)] * 500
    assert torch.equal(
        sample_tokens(logits, sampling, bits, {}).tokens, sample_tokens(wrong, sampling, bits, {}).tokens
    )


def test_torchs_default_dtype_changes_no_draw() -> None:
    """While another thread loads a model, it is that model's."""
    logits, bits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)), noise(3, 50)
    drawn = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            drawn.append(sample_tokens(logits, [sampling_with(0.7)] * 3, bits, {}))
        finally:
            torch.set_default_dtype(torch.float32)
    assert drawn[0].sampling_logprobs.equal(drawn[1].sampling_logprobs)


@pytest.mark.parametrize("size", [1, 5, 8])
def test_random_bits_are_31_and_even(size: int) -> None:
    bits = noise(4000, size).double() / 2**31
    assert bits.min() >= 0
    assert bits.max() < 1
    assert bits.mean(0).tolist() == pytest.approx([0.5] * size, abs=0.03)
    assert bits.var(0).tolist() == pytest.approx([1 / 12] * size, abs=0.01)


@pytest.mark.parametrize(("queries", "dtype"), [(1, torch.float32), (5, torch.float32), (1, torch.bfloat16)])
def test_grouped_attention_is_attention_with_the_keys_repeated(queries: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, *shape, generator=draw).to(dtype) for shape in ((6, queries, 8), (2, 9, 8), (2, 9, 6))
    )
    mask = attention_mask(torch.tensor([[4 + i for i in range(queries)], [2 + i for i in range(queries)]]), 9)
    found, _ = grouped_attention(torch.nn.Identity(), query, key, value, mask, scaling=0.5)
    repeated = (states.repeat_interleave(3, dim=1) for states in (key, value))
    expected = torch.nn.functional.scaled_dot_product_attention(query, *repeated, attn_mask=mask, scale=0.5)
    expected = expected.transpose(1, 2)
    assert (found - expected).abs().max() < 4 * torch.finfo(dtype).eps * expected.abs().max()


def test_masks_and_prefixes() -> None:
    assert shared_length([1, 2, 3], [1, 2, 4, 5]) == 2
    assert shared_length([], [1]) == 0
    assert shared_length([1, 2], [1, 2, 3]) == 2
    mask = attention_mask(torch.tensor([[-1, 2]]), width=4)
    assert mask.tolist() == [[[[True, False, False, False], [True, True, True, False]]]]
    assert attention_mask(torch.tensor([[3]]), width=4, window=2).tolist() == [[[[False, False, True, True]]]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
