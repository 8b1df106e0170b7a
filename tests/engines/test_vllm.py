"""vLLM against the transformers engine: the same tokens and log-probabilities, adapters over one base, nothing left
behind.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from peft import PeftModel
from tiny_vllm import TinyVLLM

from samplings import sampling_with
from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import EngineError
from spag.core.options import SamplingConfig
from spag.engines.base import Completion, Engine, FinishReason, Request, token_limit
from spag.engines.prompts import TokenizedRequest
from spag.engines.transformers.engine import TransformersEngine
from spag.engines.turns import take_turns
from spag.engines.vllm import opening
from spag.engines.vllm import pool as vllm_pool
from spag.engines.vllm.engine import VLLMEngine, within_limits
from spag.engines.vllm.pool import VLLMPool
from spag.engines.vllm.worker import WorkerOutput
from spag.models.loading import load_model, load_tokenizer
from spag.models.tokens import PromptStyle, encode_prompt
from tiny_model import make_model

pytestmark = pytest.mark.vllm
GREEDY = SamplingConfig(temperature=0.0, max_new_tokens=12)
ARGUMENTS = {"max_model_len": 512, "model": "nowhere", "dtype": "float32", "trust_remote_code": False}
PROMPTS = [
    "Describe an apple.",
    "Describe an apple. It is",
    "a",
    "The attacker spoke first. " * 8,
    "Ünïcode ☃ and\nlines",
]


def ask(
    engine: Engine, prompts: Sequence[str], sampling: SamplingConfig, stop: tuple[str, ...] = ()
) -> list[Completion]:
    for index, prompt in enumerate(prompts):
        engine.submit(Request(str(index), prompt, sampling, index, stop))
    done: dict[str, Completion] = {}
    while len(done) < len(prompts):
        done |= {completion.id: completion for completion in engine.poll()}
    return [done[str(index)] for index in range(len(prompts))]


def ask_all(engines: Sequence[VLLMEngine]) -> list[list[Completion]]:
    """Ask the engines of one vLLM at once, which takes little longer than one of them."""
    for engine in engines:
        for index, prompt in enumerate(PROMPTS):
            engine.submit(Request(str(index), prompt, GREEDY, 0))
    done: list[dict[str, Completion]] = [{} for _ in engines]
    while any(len(part) < len(PROMPTS) for part in done):
        for part, engine in zip(done, engines, strict=True):
            part |= {completion.id: completion for completion in engine.poll()}
    return [[part[str(index)] for index in range(len(PROMPTS))] for part in done]


def reference(folder: object) -> TransformersEngine:
    return TransformersEngine(load_model(str(folder), dtype="float32", device="cpu"), load_tokenizer(str(folder)))


def assert_same(ours: Sequence[Completion], theirs: Sequence[Completion]) -> None:
    """The same completions, log-probabilities up to rounding."""
    for one, other in zip(ours, theirs, strict=True):
        assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
        assert (one.prompt_tokens, one.completion_tokens) == (other.prompt_tokens, other.completion_tokens)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def test_greedy_play_is_that_of_the_transformers_engine(vllm_engines: list[VLLMEngine], tiny_vllm: TinyVLLM) -> None:
    other = reference(tiny_vllm.base)
    free = ask(other, PROMPTS, GREEDY)
    assert_same(ask(vllm_engines[0], PROMPTS, GREEDY), free)
    assert all(len(completion.token_ids or ()) > 2 for completion in free)
    letters = [char for char in free[0].text if char.isascii() and char.isprintable()]
    for stop in ((letters[0],), ("never said", letters[-1])):
        assert_same(ask(vllm_engines[0], PROMPTS, GREEDY, stop), ask(other, PROMPTS, GREEDY, stop))


def test_log_probabilities_are_those_of_the_raw_distribution(
    vllm_engines: list[VLLMEngine], tiny_vllm: TinyVLLM
) -> None:
    drawn = ask(vllm_engines[0], PROMPTS, SamplingConfig(temperature=1.5, top_p=0.8, top_k=50, max_new_tokens=12))
    model, tokenizer = (
        load_model(str(tiny_vllm.base), dtype="float32", device="cpu"),
        load_tokenizer(str(tiny_vllm.base)),
    )
    for prompt, completion in zip(PROMPTS, drawn, strict=True):
        assert completion.token_ids is not None
        ids, sampled = encode_prompt(tokenizer, prompt, vllm_engines[0].style), list(completion.token_ids)
        with torch.inference_mode():
            logits = model(torch.tensor([ids + sampled])).logits[0, len(ids) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(sampled)[:, None]).squeeze(-1)
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-3)


def test_adapters_and_their_base_are_served_at_once_by_one_vllm(
    vllm_engines: list[VLLMEngine], tiny_vllm: TinyVLLM
) -> None:
    """Each generates what it does alone, also while all adapters are loaded and answer in the same step."""
    assert len({id(engine.pool) for engine in vllm_engines}) == 1
    expected = [ask(reference(folder), PROMPTS, GREEDY) for folder in (tiny_vllm.base, *tiny_vllm.adapters)]
    assert len({completions[0].text for completions in expected}) == 3
    for ours, alone in zip(ask_all(vllm_engines), expected, strict=True):
        assert_same(ours, alone)
    for ours, alone in zip(ask_all(vllm_engines[::-1]), expected[::-1], strict=True):
        assert_same(ours, alone)


@pytest.mark.long
def test_an_adapter_learns_and_the_others_stay(vllm_engines: list[VLLMEngine], tiny_vllm: TinyVLLM) -> None:
    before = ask_all(vllm_engines)
    adapted = PeftModel.from_pretrained(
        load_model(str(tiny_vllm.base), dtype="float32", device="cpu"), tiny_vllm.adapters[1], is_trainable=True
    )
    old = {name: value.detach().clone() for name, value in adapted.named_parameters() if value.requires_grad}
    new = {name: -value for name, value in old.items() if ".lora_B." in name}  # the other half stays
    adapted.load_state_dict(new, strict=False)
    expected = ask(TransformersEngine(adapted.merge_and_unload(), load_tokenizer(str(tiny_vllm.base))), PROMPTS, GREEDY)
    base = dict(load_model(str(tiny_vllm.base), dtype="float32", device="cpu").named_parameters())
    assert expected[0].token_ids != before[2][0].token_ids
    for weights, last in ((new, expected), (old, before[2]), (new, expected), (old, before[2])):
        vllm_engines[2].update_weights(weights)
        vllm_engines[0].update_weights(base)  # which loads adapters anew
        for ours, answers in zip(ask_all(vllm_engines), (before[0], before[1], last), strict=True):
            assert_same(ours, answers)


@pytest.mark.long
def test_a_base_model_learns_under_its_adapters(vllm_engines: list[VLLMEngine], tiny_vllm: TinyVLLM) -> None:
    """Embeddings tied to the output layer, and one of the weights that vLLM fuses, change."""
    before = ask_all(vllm_engines)
    models = [
        load_model(str(folder), dtype="float32", device="cpu") for folder in (tiny_vllm.base, *tiny_vllm.adapters)
    ]
    torch.manual_seed(2)
    names = {"model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight"}
    old = {name: value.detach().clone() for name, value in models[0].named_parameters()}
    new = old | {name: old[name] + 0.1 * torch.randn_like(old[name]) for name in names}
    for model in models:
        own = {
            name.replace("base_model.model.", "").replace(".base_layer", ""): value
            for name, value in model.named_parameters()
        }
        for name, value in new.items():
            own[name].data.copy_(value)
    tokenizer = load_tokenizer(str(tiny_vllm.base))
    expected = [ask(TransformersEngine(model, tokenizer), PROMPTS, GREEDY) for model in models]
    for weights, answers in ((new, expected), (old, before)):
        vllm_engines[0].update_weights(weights)
        for ours, answer in zip(ask_all(vllm_engines), answers, strict=True):
            assert_same(ours, answer)


def test_copies_take_turns(vllm_engines: list[VLLMEngine], tiny_vllm: TinyVLLM) -> None:
    """Two copies of the base model, asked at once, answer as if each had an engine of its own."""
    models = [load_model(str(tiny_vllm.base), dtype="float32", device="cpu") for _ in range(2)]
    torch.manual_seed(2)
    for weight in models[0].parameters():
        weight.data += 0.05 * torch.randn_like(weight)
    new, old = ({name: value.detach() for name, value in model.named_parameters()} for model in models)
    tokenizer = load_tokenizer(str(tiny_vllm.base))
    expected = [ask(TransformersEngine(model, tokenizer), PROMPTS, GREEDY) for model in models]
    copies = [*take_turns(vllm_engines[0], ["policy", "start"], lambda: old).values()]
    copies[0].update_weights(new)
    for copy in copies:
        for index, prompt in enumerate(PROMPTS):
            copy.submit(Request(str(index), prompt, GREEDY, index))
    done: list[dict[str, Completion]] = [{}, {}]
    while any(len(part) < len(PROMPTS) for part in done):
        for part, copy in zip(done, copies, strict=True):
            part |= {completion.id: completion for completion in copy.poll()}
    for part, alone in zip(done, expected, strict=True):
        assert_same([part[str(index)] for index in range(len(PROMPTS))], alone)
    vllm_engines[0].update_weights(old)


def test_learning_takes_no_memory(vllm_engines: list[VLLMEngine], tiny_vllm: TinyVLLM) -> None:
    """The base model and an adapter learn 20 times; 7 MB of weights go over each time, and would stay somewhere if
    anything leaked.
    """
    adapter = PeftModel.from_pretrained(
        load_model(str(tiny_vllm.base), dtype="float32", device="cpu"), tiny_vllm.adapters[0], is_trainable=True
    )
    weights = [
        {
            name: value.detach()
            for name, value in load_model(str(tiny_vllm.base), dtype="float32", device="cpu").named_parameters()
        },
        {name: value.detach() for name, value in adapter.named_parameters() if value.requires_grad},
    ]
    me = psutil.Process()

    def learn(times: int) -> int:
        for _ in range(times):
            for engine, values in zip(vllm_engines[:2], weights, strict=True):
                engine.update_weights(values)
        return sum(process.memory_info().rss for process in (me, *me.children()))

    assert sum(value.nbytes for value in weights[0].values()) > 6e6
    settled = learn(6)
    assert learn(20) - settled < 30e6


def test_more_text_than_one_step_takes_is_drawn_by_seed_all_the_same(vllm_engines: list[VLLMEngine]) -> None:
    """16 prompts of 450 tokens are more than the 2,048 of a step on a CPU, where no prompt may be prefilled in
    parts.
    """
    prompts = [f"{number} " + "some long story " * 28 for number in range(16)]
    sampling = sampling_with(1.2, max_new_tokens=4)
    first, again = ask(vllm_engines[0], prompts, sampling), ask(vllm_engines[0], prompts, sampling)
    assert sum(done.prompt_tokens for done in first) > 2 * 2048
    assert [done.token_ids for done in first] == [done.token_ids for done in again]


def test_a_prompt_that_leaves_no_room_is_refused(vllm_engines: list[VLLMEngine]) -> None:
    vllm_engines[0].submit(Request("game", "x" * 500, GREEDY, 0))
    [refused] = vllm_engines[0].poll()
    assert (refused.id, refused.text, refused.finish_reason) == ("game", "", FinishReason.CONTEXT)
    what = "a prompt of 501 tokens and max_new_tokens=12 exceed the context length of 512 tokens"
    assert refused.refusal == f"{what}; raise engine.max_length if the model takes more, or shorten utterances"
    assert vllm_engines[0].poll() == []


@pytest.mark.long
@pytest.mark.usefixtures("warm_vllm")
def test_opening_again_leaves_nothing_behind(
    vllm_engines: list[VLLMEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas, opened after another vLLM: the same play, also with new weights; no process, no file and no memory
    left over.
    """
    assert vllm_engines
    folder = make_model(tmp_path / "untied", hidden_size=128)
    model = load_model(str(folder), dtype="float32", device="cpu")
    old = {name: value.detach().clone() for name, value in model.named_parameters()}
    answers = {1.0: ask(reference(folder), PROMPTS, GREEDY)}
    for factor in (1.2, 0.7):
        model.load_state_dict({name: factor * value for name, value in old.items()}, strict=False)
        answers[factor] = ask(TransformersEngine(model, load_tokenizer(str(folder))), PROMPTS, GREEDY)
    environment, affinity, threads = dict(os.environ), os.sched_getaffinity(0), torch.get_num_threads()
    me = psutil.Process()
    before = {child.pid for child in me.children(recursive=True)}
    resident = me.memory_info().rss
    options = EngineConfig(concurrency=8, max_length=512, data_parallel=2)
    [engine] = opening.open_vllm([ModelConfig(name=str(folder), dtype="float32", device="cpu")], options, 1)
    assert len({child.pid for child in me.children()} - before) == 2
    assert_same(ask(engine, PROMPTS, GREEDY), answers[1.0])
    try:
        assert_learns(engine, old, answers)
    finally:
        engine.close()
        engine.close()
    assert {child.pid for child in me.children(recursive=True)} == before
    assert me.memory_info().rss - resident < 20e6
    assert (dict(os.environ), os.sched_getaffinity(0), torch.get_num_threads()) == (environment, affinity, threads)
    assert not torch.distributed.is_initialized()


def assert_learns(engine: VLLMEngine, old: dict[str, torch.Tensor], answers: dict[float, list[Completion]]) -> None:
    """Both replicas take multiples of the old weights. ``answers`` are those of the transformers engine."""
    for factor in (1.2, 0.7, 1.0):
        engine.update_weights({name: factor * value for name, value in old.items()})
        assert_same(ask(engine, PROMPTS, GREEDY), answers[factor])


@pytest.mark.parametrize(
    ("child", "message"),
    [
        (
            "import sys; print('RuntimeError: an old one'); raise ValueError('no room for the cache')",
            "vLLM ended: ValueError: no room for the cache",
        ),
        (
            "print('pydantic.ValidationError: 1 validation error for VllmConfig\\n  Value error, 3 heads [type=value')",
            "vLLM ended: ValidationError: 3 heads ",
        ),
        ("import sys; sys.exit(3)", "vLLM ended: exit status 3"),
    ],
)
def test_a_vllm_that_does_not_start_says_why(child: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_pool, "WORKER", [sys.executable, "-c", child])
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    with pytest.raises(EngineError, match=message):
        VLLMPool(ARGUMENTS, [{}], 258)


def test_a_vllm_that_ends_before_it_is_asked_leaves_no_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the process may have ended before its settings are sent."""
    logs: list[Any] = []
    plain = vllm_pool.VLLMReplica.send

    def late(self: vllm_pool.VLLMReplica, message: object) -> None:
        self._process.wait()
        logs.append(self._log)
        plain(self, message)

    monkeypatch.setattr(vllm_pool, "WORKER", [sys.executable, "-c", "raise ValueError('no room')"])
    monkeypatch.setattr(vllm_pool.VLLMReplica, "send", late)
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    with pytest.raises(EngineError, match="vLLM ended: ValueError: no room"):
        VLLMPool(ARGUMENTS, [{}], 258)
    assert [log.closed for log in logs] == [True]


def test_a_vllm_that_dies_while_playing_is_an_error(monkeypatch: pytest.MonkeyPatch, model_folder: object) -> None:
    child = "import sys; from multiprocessing.connection import Connection as C; "
    child += "c = C(int(sys.argv[1])); c.recv(); c.send(None); c.recv()"
    monkeypatch.setattr(vllm_pool, "WORKER", [sys.executable, "-c", child])
    pool = VLLMPool(ARGUMENTS, [{}], 258)
    engine = VLLMEngine(pool, load_tokenizer(str(model_folder)), frozenset({1}))
    engine.submit(Request("game", "Hello.", GREEDY, 0))
    with pytest.raises(EngineError, match="vLLM ended: exit status 0"):
        engine.poll()
    engine.close()


def test_a_process_that_will_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    child = "import sys, time; from multiprocessing.connection import Connection as C; "
    child += "C(int(sys.argv[1])).send(None); time.sleep(600)"
    monkeypatch.setattr(vllm_pool, "WORKER", [sys.executable, "-c", child])
    monkeypatch.setattr(vllm_pool, "_CLOSING_SECONDS", 0.2)
    pool = VLLMPool(ARGUMENTS, [{}], 258)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 300  # of the 600 that it would sleep


def trimmed(output: WorkerOutput, stop: tuple[str, ...], min_new_tokens: int, folder: object) -> tuple[object, ...]:
    engine = VLLMEngine(SimpleNamespace(), load_tokenizer(str(folder)), frozenset({1}))  # type: ignore[arg-type]
    request = Request("game", "", SamplingConfig(min_new_tokens=min_new_tokens), 0, stop)
    engine._take(TokenizedRequest(request, engine.tokenizer, engine.style, (0,), truncated=False, opening=""), output)
    [done] = engine.poll()
    return done.text, done.finish_reason, done.token_ids


def test_where_a_completion_ends(model_folder: object) -> None:
    tokenizer = load_tokenizer(str(model_folder))
    ids = tuple(encode_prompt(tokenizer, "abcd", PromptStyle.PLAIN)[1:])
    logprobs = (-1.0,) * 5
    assert trimmed(WorkerOutput("1", ids, logprobs, logprobs, True), (), 2, model_folder) == (
        "abcd",
        FinishReason.LENGTH,
        ids,
    )
    assert trimmed(WorkerOutput("1", (*ids, 1), logprobs, logprobs, True), (), 2, model_folder) == (
        "abcd",
        FinishReason.EOS,
        (*ids, 1),
    )
    assert trimmed(WorkerOutput("1", ids, logprobs, logprobs, False), ("d",), 2, model_folder) == (
        "abc",
        FinishReason.STOP,
        ids,
    )
    assert trimmed(WorkerOutput("1", ids, logprobs, logprobs, True), ("b",), 3, model_folder) == (
        "a",
        FinishReason.STOP,
        ids[:2],
    )


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Hello my friend, well <think>x</think>yes", "Hello"),  # a thought that begins late
        ("Hi <think>x</think>yes, and more", "Hi <t"),  # its mark is cut
        ("  <think>x</think>yes, and more", "  <think>x</think>yes, "),
        ("       Hello", "       H"),  # white space may lead to a thought
        ("<think>" + "x" * 50, "<think>" + "x" * 23),
        ("<think>" + "x" * 15 + "</think>yes, and", "<think>" + "x" * 15 + "</think>yes, "),
        ("<think>" + "x" * 16 + "</think>yes", "<think>" + "x" * 16 + "</think"),  # closed too late
        ("x</think>yes, and more", "x</th"),  # nobody opened it
        ("Hi", "Hi"),
        ("", ""),
    ],
)
def test_tokens_end_at_the_limit_that_is_reached_first(text: str, kept: str) -> None:
    sampling = sampling_with(max_new_tokens=5, thought_tokens=30)

    def decode(ids: tuple[int, ...]) -> str:
        return "".join(map(chr, ids))

    closed_at, count = None, 0
    while count < len(text):  # as the transformers engine goes
        count += 1
        closed_at = count if closed_at is None and "</think>" in text[:count] else closed_at
        if count >= token_limit(sampling, text[:count], closed_at):
            break
    assert decode(within_limits(tuple(map(ord, text)), decode, sampling)) == text[:count] == kept
