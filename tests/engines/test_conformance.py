"""What every engine must do, whatever generates its text.

To add an engine: write a fixture that returns an ``EngineFactory`` and put its name into ``ENGINES`` (with a mark where it is slow).
"""

import random
from collections.abc import Callable, Iterator

import pytest
from openai_stub import Answer, Call, StubServer, completion
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spag.core.errors import EngineError
from spag.engines.base import Completion, Engine, FinishReason, Request, Sampling
from spag.engines.openai.engine import OpenAIEngine
from spag.engines.scripted import ScriptedEngine
from spag.engines.transformers.engine import TransformersEngine
from spag.engines.vllm.engine import VLLMEngine
from spag.models.tokens import PromptStyle, encode_prompt

EngineFactory = Callable[[int], Engine]
"""Concurrency -> a fresh engine. The tests close it; the fixture cleans up what lies behind it."""

ENGINES = ["scripted", "openai", "transformers", pytest.param("vllm", marks=pytest.mark.vllm)]


def babble(prompt: str, seed: int, temperature: float) -> str:
    """A stand-in for a model: eight words drawn from the prompt and the seed, or from the prompt alone when greedy."""
    draw = random.Random(f"{prompt}/{seed if temperature else 'greedy'}")
    return " " + " ".join(draw.choice(["red", "round", "sweet", "a fruit", "small", "on a tree"]) for _ in range(8)) + "\n"


@pytest.fixture
def scripted() -> EngineFactory:
    return lambda concurrency: ScriptedEngine(
        lambda request: babble(request.prompt, request.seed, request.sampling.temperature), concurrency=concurrency, latency_s=0.01
    )


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineFactory]:
    def answer(call: Call) -> Answer:
        words = babble(call.prompt, call.body["seed"], call.body["temperature"]).split(" ")
        kept = words[: call.body["max_tokens"] + 1]  # the text starts with a space
        reason = "length" if len(kept) < len(words) else "stop"
        body = completion(" ".join(kept), reason, prompt_tokens=len(call.prompt.split()), completion_tokens=len(kept) - 1)
        return Answer(body, delay_s=0.01)

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with StubServer(answer) as server:
        yield lambda concurrency: OpenAIEngine("stub", base_url=server.base_url, concurrency=concurrency)


@pytest.fixture
def transformers(loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> EngineFactory:
    model, tokenizer = loaded
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


def ask(number: int, *, seed: int | None = None, stop: tuple[str, ...] = (), **sampling: float) -> Request:
    settings = Sampling(**{"max_new_tokens": 16, **sampling})  # type: ignore[arg-type]
    return Request(f"r{number}", f"Describe thing {number} in a few words.", settings, number if seed is None else seed, stop)


def collect(engine: Engine, count: int) -> dict[str, Completion]:
    done: list[Completion] = []
    while len(done) < count:
        done += engine.poll()
    assert len({completion.id for completion in done}) == len(done) == count
    return {completion.id: completion for completion in done}


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


def test_seeds_differ_unless_greedy(engine: Engine) -> None:
    def texts(temperature: float) -> set[str]:
        found = set()
        for seed in range(6):
            engine.submit(ask(0, seed=seed, temperature=temperature))
            found.add(collect(engine, 1)["r0"].text)
        return found

    assert len(texts(1.2)) > 1
    assert len(texts(0.0)) == 1


def test_text_is_stripped_and_counted(engine: Engine) -> None:
    for number in range(4):
        engine.submit(ask(number))
    for done in collect(engine, 4).values():
        assert done.text == done.text.strip() != ""
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
    assert done.text == free[: free.index(stop)].strip()


def test_prompt_ids_are_the_prompt_encoded(engine: Engine, loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> None:
    has_tokens = isinstance(engine, TransformersEngine | VLLMEngine)
    asked = [ask(number) for number in range(3)]
    for each in asked:
        engine.submit(each)
    done = collect(engine, 3)
    for each in asked:
        ids = tuple(encode_prompt(loaded[1], each.prompt, PromptStyle.PLAIN)) if has_tokens else None  # both models have one tokenizer
        assert done[each.id].prompt_ids == ids
        assert ids is None or done[each.id].prompt_tokens == len(ids)


def test_logprobs_belong_to_tokens(engine: Engine) -> None:
    engine.submit(ask(0))
    done = collect(engine, 1)["r0"]
    assert (done.token_ids is None) == (done.logprobs is None)
    if done.token_ids is not None and done.logprobs is not None:
        assert len(done.token_ids) == len(done.logprobs) == done.completion_tokens
        assert all(logprob <= 0 for logprob in done.logprobs)


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
