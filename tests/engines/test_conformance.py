"""What every engine must do, whatever generates its text.

To add an engine: write a fixture that returns an ``EngineFactory`` and put its name into ``ENGINES`` (with a mark where
it is slow).
"""

import copy
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from openai_stub import Answer, Call, StubServer, completion
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from samplings import sampling_with
from spag.core.errors import EngineError
from spag.core.options import SamplingConfig
from spag.engines.base import Completion, Engine, FinishReason, Request
from spag.engines.openai.engine import OpenAIEngine
from spag.engines.scripted import ScriptedEngine
from spag.engines.thread import ModelThread
from spag.engines.transformers.engine import TransformersEngine
from spag.engines.vllm.engine import VLLMEngine
from spag.models.loading import load_model
from spag.models.tokens import BROKEN, PromptStyle, encode_prompt, token_count
from spag.rollout.runner import without_thought

EngineFactory = Callable[[int], Engine]
"""Concurrency -> a fresh engine. The tests close it; the fixture cleans up what lies behind it."""

MODELS = [
    "transformers",
    pytest.param("vllm", marks=pytest.mark.vllm),
]  # these hold a model: tokens, and weights that can change
ENGINES = ["scripted", "openai", *MODELS]


def babble(prompt: str, seed: int, temperature: float) -> str:
    """A stand-in for a model: eight words drawn from the prompt and the seed, or from the prompt alone when greedy."""
    draw = random.Random(f"{prompt}/{seed if temperature else 'greedy'}")
    return (
        " " + " ".join(draw.choice(["red", "round", "sweet", "a fruit", "small", "on a tree"]) for _ in range(8)) + "\n"
    )


@pytest.fixture
def scripted() -> EngineFactory:
    return lambda concurrency: ScriptedEngine(
        lambda request: babble(request.prompt, request.seed, request.sampling.temperature),
        concurrency=concurrency,
        latency_s=0.01,
    )


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineFactory]:
    def answer(call: Call) -> Answer:
        words = babble(call.prompt, call.body["seed"], call.body["temperature"]).split(" ")
        kept = words[: call.body["max_tokens"] + 1]  # the text starts with a space
        reason = "length" if len(kept) < len(words) else "stop"
        body = completion(
            " ".join(kept), reason, prompt_tokens=len(call.prompt.split()), completion_tokens=len(kept) - 1
        )
        return Answer(body, delay_s=0.01)

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with StubServer(answer) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield lambda concurrency: OpenAIEngine("stub", concurrency=concurrency)


@pytest.fixture
def transformers(padded: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> EngineFactory:
    model, tokenizer = padded
    return lambda concurrency: TransformersEngine(model, tokenizer, concurrency=concurrency)


@pytest.fixture
def vllm(vllm_engines: list[VLLMEngine]) -> EngineFactory:
    """New engines over one running vLLM, which stays up for all tests."""
    base = vllm_engines[0]
    return lambda concurrency: VLLMEngine(base.pool, base.tokenizer, base.stop_ids, concurrency=concurrency)


@pytest.fixture(params=ENGINES)
def make_engine(request: pytest.FixtureRequest) -> EngineFactory:
    factory: EngineFactory = request.getfixturevalue(request.param)
    return factory


@pytest.fixture
def engine(make_engine: EngineFactory) -> Iterator[Engine]:
    engine = make_engine(4)
    yield engine
    engine.close()


@pytest.fixture
def model(engine: Engine, request: pytest.FixtureRequest) -> PreTrainedModel:
    """The weights of an engine among ``MODELS``."""
    if isinstance(engine, VLLMEngine):
        return load_model(str(request.getfixturevalue("tiny_vllm").base), dtype="float32", device="cpu")
    padded: tuple[PreTrainedModel, PreTrainedTokenizerBase] = request.getfixturevalue("padded")
    return padded[0]


def ask(number: int, *, seed: int | None = None, stop: tuple[str, ...] = (), **sampling: float) -> Request:
    settings = sampling_with(**{"max_new_tokens": 16, **sampling})  # type: ignore[arg-type]
    return Request(
        f"r{number}", f"Describe thing {number} in a few words.", settings, number if seed is None else seed, stop
    )


def collect(engine: Engine, count: int) -> dict[str, Completion]:
    done: list[Completion] = []
    while len(done) < count:
        done += engine.poll()
    assert len({completion.id for completion in done}) == len(done) == count
    return {completion.id: completion for completion in done}


def test_white_space_around_a_text_stays_where_it_is_wanted(engine: Engine) -> None:
    for number in range(48):
        engine.submit(ask(number, max_new_tokens=3, temperature=2.0))
    done = collect(engine, 48).values()
    stripped = [without_thought(one, SamplingConfig()).text for one in done]
    assert stripped == [one.text.strip() for one in done]
    assert stripped != [one.text for one in done]
    assert [without_thought(one, SamplingConfig(published=True)).text for one in done] == [one.text for one in done]


def test_every_request_is_answered_once(engine: Engine) -> None:
    assert engine.concurrency == 4
    requests = [ask(number) for number in range(11)]  # more than its concurrency
    for request in requests:
        engine.submit(request)
    assert set(collect(engine, 11)) == {request.id for request in requests}
    assert engine.poll() == []


def test_poll_does_not_wait_when_nothing_is_in_flight(engine: Engine) -> None:
    assert engine.poll() == []
    engine.submit(ask(0))
    collect(engine, 1)
    assert engine.poll() == []


def test_requests_may_be_added_while_others_are_in_flight(engine: Engine) -> None:
    engine.submit(ask(0))
    engine.submit(ask(1))
    seen: list[str] = []
    while len(seen) < 6:
        for completion_ in engine.poll():
            seen.append(completion_.id)
            if len(seen) <= 4:
                engine.submit(ask(10 + len(seen)))
    assert sorted(seen) == ["r0", "r1", "r11", "r12", "r13", "r14"]


def test_the_seed_alone_decides_the_draw(engine: Engine) -> None:
    engine.submit(ask(3, seed=5))
    alone = collect(engine, 1)["r3"]
    for number in (1, 2, 3, 4, 6):
        engine.submit(ask(number, seed=5))
    crowd = collect(engine, 5)["r3"]
    assert (alone.text, alone.token_ids) == (crowd.text, crowd.token_ids)


@pytest.mark.slow
def test_seeds_differ_unless_greedy(engine: Engine) -> None:
    def texts(temperature: float) -> set[str]:
        found = set()
        for seed in range(6):
            engine.submit(ask(0, seed=seed, temperature=temperature))
            found.add(collect(engine, 1)["r0"].text)
        return found

    assert len(texts(1.2)) > 1
    assert len(texts(0.0)) == 1


def test_text_is_counted(engine: Engine) -> None:
    for number in range(4):
        engine.submit(ask(number))
    for done in collect(engine, 4).values():
        assert done.text.strip() != ""
        assert done.prompt_tokens > 0
        assert 0 < done.completion_tokens <= 16


def test_the_token_limit_ends_a_text(engine: Engine) -> None:
    engine.submit(ask(0, max_new_tokens=2))
    done = collect(engine, 1)["r0"]
    assert done.finish_reason is FinishReason.LENGTH
    assert done.completion_tokens == 2


def test_generation_ends_before_any_stop_string(engine: Engine) -> None:
    engine.submit(ask(0, seed=1))
    free = collect(engine, 1)["r0"].text
    assert len(free) > 4
    stop = free[2:4]
    engine.submit(ask(0, seed=1, stop=("never seen", stop)))
    done = collect(engine, 1)["r0"]
    assert done.finish_reason is FinishReason.STOP
    assert done.text == free[: free.index(stop)]


class _ShortPrompts(SamplingConfig):
    limit: int

    @property
    def max_prompt_tokens(self) -> int:
        return self.limit


@pytest.mark.parametrize("make_engine", MODELS, indirect=True)
def test_a_prompt_over_its_limit_loses_its_beginning(
    engine: Engine, loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> None:
    ids = encode_prompt(loaded[1], ask(0).prompt, PromptStyle.PLAIN)
    for number, limit in enumerate((len(ids) - 5, len(ids), 0)):
        sampling = _ShortPrompts(max_new_tokens=16, limit=limit)
        engine.submit(replace(ask(0), id=f"r{number}", sampling=sampling))
    done = collect(engine, 3)
    assert [done[f"r{number}"].prompt_ids for number in range(3)] == [tuple(ids[5:]), tuple(ids), tuple(ids)]
    assert [done[f"r{number}"].prompt_truncated for number in range(3)] == [True, False, False]


def test_prompt_ids_are_the_prompt_encoded(
    engine: Engine, loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> None:
    has_tokens = isinstance(engine, TransformersEngine | VLLMEngine)
    asked = [ask(number) for number in range(3)]
    for each in asked:
        engine.submit(each)
    done = collect(engine, 3)
    for each in asked:
        ids = (
            tuple(encode_prompt(loaded[1], each.prompt, PromptStyle.PLAIN)) if has_tokens else None
        )  # both models have one tokenizer
        assert done[each.id].prompt_ids == ids
        assert ids is None or done[each.id].prompt_tokens == len(ids)


def test_logprobs_belong_to_tokens(engine: Engine) -> None:
    engine.submit(ask(0))
    done = collect(engine, 1)["r0"]
    assert (done.token_ids is None) == (done.logprobs is None)
    if done.token_ids is not None and done.logprobs is not None:
        assert len(done.token_ids) == len(done.logprobs) == done.completion_tokens
        assert all(logprob <= 0 for logprob in done.logprobs)


def test_sampling_logprobs_are_there_where_tokens_are(engine: Engine) -> None:
    engine.submit(ask(0, temperature=1.0, min_new_tokens=0))
    done = collect(engine, 1)["r0"]
    assert (done.token_ids is None) == (done.sampling_logprobs is None)
    if done.sampling_logprobs is not None and done.logprobs is not None:  # nothing banned but padding
        assert all(drawn >= raw for drawn, raw in zip(done.sampling_logprobs, done.logprobs, strict=True))
    engine.submit(ask(0, temperature=0.0))
    greedy = collect(engine, 1)["r0"]
    assert greedy.sampling_logprobs is None or set(greedy.sampling_logprobs) == {0.0}


@pytest.mark.parametrize("make_engine", MODELS, indirect=True)
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "min_new_tokens": 0},
        {"temperature": 1.5, "min_new_tokens": 0},
        {"temperature": 0.8, "top_k": 12, "min_new_tokens": 0},
        {"temperature": 1.2, "top_p": 0.7, "min_new_tokens": 0},
        {"temperature": 1.3, "top_p": 0.8, "top_k": 40, "min_new_tokens": 6},
    ],
    ids=str,
)
def test_sampling_logprobs_are_those_of_the_distribution_drawn_from(
    engine: Engine,
    model: PreTrainedModel,
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    sampling: dict[str, Any],
) -> None:
    requests = [ask(number, **sampling) for number in range(5)]
    for request in requests:
        engine.submit(request)
    done = collect(engine, len(requests))
    stop = loaded[1].eos_token_id  # both models have one tokenizer
    for request in requests:
        answer = done[request.id]
        assert answer.prompt_ids is not None and answer.token_ids is not None and answer.logprobs is not None
        with torch.inference_mode():
            logits = model(torch.tensor([answer.prompt_ids + answer.token_ids])).logits[
                0, len(answer.prompt_ids) - 1 : -1
            ]
        at = torch.arange(len(answer.token_ids)), torch.tensor(answer.token_ids)
        assert answer.logprobs == pytest.approx(logits.log_softmax(-1)[at].tolist(), abs=1e-3)
        allowed = torch.where(torch.arange(logits.shape[1]) < token_count(loaded[1]), logits, -torch.inf)
        bans = [stop if position < request.sampling.min_new_tokens else None for position in range(len(logits))]
        expected = torch.stack([drawn_from(row, request.sampling, ban) for row, ban in zip(allowed, bans, strict=True)])
        assert answer.sampling_logprobs == pytest.approx(expected[at].tolist(), abs=1e-3)


def drawn_from(logits: torch.Tensor, sampling: SamplingConfig, banned: int | None) -> torch.Tensor:
    """Return the log-probabilities, (V,), that a token is drawn with: after a ban, at the temperature, by top-k, of
    these by top-p.
    """
    if banned is not None:
        logits = logits.index_fill(0, torch.tensor([banned]), -torch.inf)
    probabilities, tokens = (logits / sampling.temperature).softmax(-1).sort(descending=True)
    if sampling.top_k:
        probabilities[sampling.top_k :] = 0.0
        probabilities /= probabilities.sum()
    probabilities[probabilities.cumsum(0) - probabilities >= sampling.top_p] = 0.0
    return torch.empty_like(probabilities).scatter(0, tokens, probabilities / probabilities.sum()).log()


@pytest.mark.parametrize("make_engine", MODELS, indirect=True)
def test_tokens_outside_the_tokenizer_are_never_sampled(
    engine: Engine, model: PreTrainedModel, loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> None:
    """At temperature 2 each of the 300 logits is about as likely as the others, and 42 of them are no tokens."""
    known = token_count(loaded[1])
    assert len(model.get_input_embeddings().weight) == known + 42
    for number in range(20):
        engine.submit(ask(number, temperature=2.0 if number < 15 else 0.0, top_k=0 if number % 2 else 200))
    for done in collect(engine, 20).values():
        assert max(done.token_ids or ()) < known
        assert not done.unknown_token


@pytest.mark.parametrize("make_engine", MODELS, indirect=True)
def test_new_weights_give_the_tokens_of_a_fresh_engine(
    engine: Engine, model: PreTrainedModel, loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> None:
    old = {name: value.detach().clone() for name, value in model.named_parameters()}
    torch.manual_seed(3)
    new = {name: value + 0.05 * torch.randn_like(value) for name, value in old.items()}
    fresh_model = copy.deepcopy(model)
    fresh_model.load_state_dict(new, strict=False)  # tied weights have one name
    expected, before = answers(TransformersEngine(fresh_model, loaded[1])), answers(engine)
    assert not any(one.token_ids == other.token_ids for one, other in zip(before, expected, strict=True))
    try:
        engine.update_weights(new)
        for one, other in zip(answers(engine), expected, strict=True):
            assert one.token_ids == other.token_ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
    finally:
        engine.update_weights(old)
    assert [one.token_ids for one in answers(engine)] == [one.token_ids for one in before]


def answers(engine: Engine) -> list[Completion]:
    """Return greedy answers; the prompts begin alike, for longer than vLLM's blocks on CPUs, so that engines keep keys
    and values of it.
    """
    for number in range(4):
        request = ask(number, temperature=0.0)
        engine.submit(replace(request, prompt="All games have these rules. " * 8 + request.prompt))
    done = collect(engine, 4)
    return [done[f"r{number}"] for number in range(4)]


@pytest.mark.parametrize("make_engine", MODELS, indirect=True)
def test_weights_that_do_not_fit_and_weights_in_flight_are_refused(engine: Engine, model: PreTrainedModel) -> None:
    before = answers(engine)
    name = next(name for name, _ in model.named_parameters())
    for wrong in ({"model.nothing": torch.zeros(1)}, {name: torch.zeros(1)}):
        with pytest.raises(EngineError, match=f"^{next(iter(wrong))}: the model has no weight of this name and shape$"):
            engine.update_weights(wrong)
    engine.submit(ask(0))
    with pytest.raises(EngineError, match="weights change only between requests"):
        engine.update_weights({})
    collect(engine, 1)
    assert [one.token_ids for one in answers(engine)] == [one.token_ids for one in before]


@pytest.mark.slow
@pytest.mark.parametrize("make_engine", MODELS, indirect=True)
def test_a_text_is_shown_as_it_grows_and_others_join_it(make_engine: EngineFactory) -> None:
    thread = ModelThread(lambda: make_engine(2))
    for _ in range(20):  # on a busy machine this thread may look too late
        long, seen = thread.ask(ask(0, min_new_tokens=400, max_new_tokens=400)), list[str]()
        while not (seen and seen[-1]) and not long.future.done():
            seen.append(long.text_so_far)
            time.sleep(0.01)
        thread.ask(ask(1, temperature=0.0)).wait(300)
        seen.append(long.text_so_far)
        joined = not long.future.done()
        whole = long.wait(300).text.strip()
        assert all(whole.startswith(text.rstrip(BROKEN)) for text in seen)  # the last character may lack bytes
        if joined and len(seen[-2]) < len(seen[-1]) < len(whole):
            break
    else:
        pytest.fail("no request joined another, or none was seen to grow")
    thread.close()


def test_closing_with_requests_in_flight_and_twice(make_engine: EngineFactory) -> None:
    engine = make_engine(2)
    engine.submit(ask(0))
    collect(engine, 1)  # the next ones are taken up together
    for number in range(1, 6):
        engine.submit(ask(number, max_new_tokens=2 if number == 1 else 16))
    while not engine.poll():  # when the short one is done, others stand in the middle
        pass
    for number in range(6, 8):
        engine.submit(ask(number))
    engine.close()
    engine.close()
    try:
        left = engine.poll()
    except EngineError as error:
        assert "closed" in str(error)
    else:
        assert left == []
    other = make_engine(2)  # what the closed one used, or the server that it asked, still works
    other.submit(ask(0))
    assert set(collect(other, 1)) == {"r0"}
    other.close()
