"""OpenAIEngine over real HTTP against a server that behaves, stalls, refuses, lies and hangs up. Waits before retries
are cut to milliseconds; how long they are otherwise is the ``openai`` package's affair."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import openai._base_client
import pytest
from openai_stub import Answer, Call, Handler, StubServer, completion, error

from samplings import sampling_with
from spag.core.errors import ConfigError, EngineError
from spag.engines.base import Completion, FinishReason, Request
from spag.engines.openai import client
from spag.engines.openai.engine import OpenAIEngine
from spag.engines.thread import ModelThread
from spag.rollout.runner import without_thought

KEY = "sk-secret-0123456789"
Open = Callable[..., tuple[OpenAIEngine, StubServer]]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.04)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # must not be used for an endpoint on this machine


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens a stub server with the given handler and an engine on it."""
    opened: list[tuple[OpenAIEngine, StubServer]] = []

    def start(handler: Handler, **settings: object) -> tuple[OpenAIEngine, StubServer]:
        server = StubServer(handler).__enter__()
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        engine = OpenAIEngine("tiny", **{"max_retries": 3, **settings})  # type: ignore[arg-type]
        opened.append((engine, server))
        return opened[-1]

    yield start
    for engine, server in opened:
        engine.close()
        server.__exit__(None, None, None)


def ask(
    id_: str = "a", prompt: str = "Say a word.", *, seed: int = 1, stop: tuple[str, ...] = (), **sampling: float
) -> Request:
    return Request(id_, prompt, sampling_with(**sampling), seed, stop)  # type: ignore[arg-type]


def answered(message: Mapping[str, str | None], reason: str = "stop") -> Answer:
    """An answer with other fields of its message."""
    body = json.loads(completion(""))
    body["choices"][0] |= {"message": {"role": "assistant", **message}, "finish_reason": reason}
    return Answer(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "<think>a\nb</think>c\nd"}, "<think>a\nb</think>c"),
        ({"content": "c\nd", "reasoning_content": "a\nb"}, "<think>a\nb</think>c"),  # the server took it out
        ({"content": "c", "reasoning": "a"}, "<think>a</think>c"),
        ({"content": "", "reasoning": "a"}, "<think>a"),
    ],
)
def test_a_thought_comes_before_the_text(start: Open, message: dict[str, str], text: str) -> None:
    sent: list[dict[str, Any]] = []

    def handler(call: Call) -> Answer:
        sent.append(call.body)
        return answered(message)

    engine, _ = start(handler)
    engine.submit(ask(stop=("\n",), max_new_tokens=8, thought_tokens=100))
    assert collect(engine)[0].text == text
    assert sent[0]["max_tokens"] == 108 and "stop" not in sent[0]  # a thought may hold a line break


@pytest.mark.slow
def test_a_hidden_thought_that_is_cut_counts_as_one(start: Open) -> None:
    """OpenAI's own models do not show their thoughts."""
    for message in ({"content": ""}, {"content": None}, {"content": "", "reasoning": ""}):
        engine, _ = start(answers(answered(message, "length")))
        engine.submit(ask(thought_tokens=100))
        [done] = collect(engine)
        assert without_thought(done, ask(thought_tokens=100).sampling).finish_reason is FinishReason.THOUGHT


@pytest.mark.parametrize(
    ("message", "ended", "text", "reason"),
    [
        ({"content": "c", "reasoning": "a"}, "stop", "c", FinishReason.EOS),
        ({"content": "<think>a\nb</think>c\nd"}, "stop", "c", FinishReason.STOP),
        ({"content": "<think>a"}, "length", "", FinishReason.THOUGHT),
        ({"content": None, "reasoning_content": "a"}, "length", "", FinishReason.THOUGHT),
        ({"content": None}, "length", "", FinishReason.THOUGHT),
    ],
)
def test_a_thought_that_nobody_asked_for_is_not_said(
    start: Open, message: dict[str, str | None], ended: str, text: str, reason: FinishReason
) -> None:
    engine, _ = start(lambda _: answered(message, ended))
    engine.submit(ask(stop=("\n",)))
    [done] = collect(engine)
    assert (done.text, done.finish_reason) == (text, reason)


def test_stop_strings_are_not_sent_to_a_model_that_thinks_unasked(start: Open) -> None:
    """The server would end its thought at one."""

    def handler(call: Call) -> Answer:
        reply = "<think>a\nb</think>\n\nA: c\nA: d"
        return answered({"content": reply.partition("\n")[0] if "stop" in call.body else reply})

    engine, server = start(handler)
    for id_ in ("1", "2"):
        engine.submit(ask(id_, stop=("\nA:",)))
        [done] = collect(engine)
        assert (done.text, done.finish_reason) == ("A: c", FinishReason.STOP)
    assert ["stop" in call.body for call in server.calls] == [True, False, False]


def collect(engine: OpenAIEngine, count: int = 1) -> list[Completion]:
    done: list[Completion] = []
    while len(done) < count:
        finished = engine.poll()
        assert finished
        done += finished
    return done


def answers(*bodies: Answer) -> Handler:
    """The given answers in turn, the last one for ever."""
    return lambda call: bodies[min(call.number, len(bodies) - 1)]


GOOD = Answer(completion("yes"))
NEVER = Answer(GOOD.body, delay_s=3600.0)


def test_the_request_on_the_wire(start: Open) -> None:
    engine, server = start(answers(GOOD))
    engine.submit(ask(seed=2**40 + 5, temperature=0.7, top_p=0.9, max_new_tokens=33, stop=("A", "B", "C", "D", "E")))
    collect(engine)
    assert server.calls[0].path == "/v1/chat/completions"
    assert server.calls[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.calls[0].body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Say a word."}],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 33,
        "seed": 5,  # 31 bits: the others are lost on servers with 32-bit seeds
        "stop": ["A", "B", "C", "D"],
        "n": 1,
    }


def test_no_stop_field_without_stop_strings(start: Open) -> None:
    engine, server = start(answers(GOOD))
    engine.submit(ask())
    collect(engine)
    assert "stop" not in server.calls[0].body


@pytest.mark.parametrize(
    ("body", "stop", "text", "reason"),
    [
        (completion(" a pear \n"), (), " a pear \n", FinishReason.EOS),
        (completion("a pear", "length"), (), "a pear", FinishReason.LENGTH),
        (completion("a pe", "content_filter"), (), "a pe", FinishReason.STOP),
        (completion("a pear", stop_reason="\n"), ("\n",), "a pear", FinishReason.STOP),
        (completion("a pear", stop_reason=128001), ("\n",), "a pear", FinishReason.EOS),
        (completion("a pear\nmore#", "length"), ("1", "2", "3", "4", "#", "\n"), "a pear", FinishReason.STOP),
        (completion(""), (), "", FinishReason.EOS),
        (completion(None, "content_filter"), (), "", FinishReason.STOP),
        (completion("x" * 1_000_000), (), "x" * 64 * 256, FinishReason.LENGTH),
        (completion("x" * 1_000_000 + "#"), ("#",), "x" * 64 * 256, FinishReason.LENGTH),
    ],
)
def test_text_and_finish_reason(
    start: Open, body: bytes, stop: tuple[str, ...], text: str, reason: FinishReason
) -> None:
    engine, _ = start(answers(Answer(body)))
    engine.submit(ask(stop=stop))
    assert collect(engine) == [Completion("a", text, reason, prompt_tokens=7, completion_tokens=5)]


def test_half_a_character_becomes_a_question_mark(start: Open) -> None:
    """It could be neither stored nor sent back in the next prompt."""
    engine, _ = start(answers(answered({"content": "Hi \ud83d!", "reasoning_content": "\ude00"})))
    engine.submit(ask(thought_tokens=8))
    assert [done.text for done in collect(engine)] == ["<think>?</think>Hi ?!"]


def test_a_server_that_reports_no_usage(start: Open) -> None:
    body = json.loads(GOOD.body)
    del body["usage"]
    free, _ = start(answers(Answer(json.dumps(body).encode())))
    free.submit(ask())
    assert collect(free)[0].prompt_tokens == 0


def test_requests_join_those_in_flight_in_a_thread_and_closing_it_waits_for_none(start: Open) -> None:
    engine, server = start(answers(NEVER, GOOD))
    thread = ModelThread(lambda: engine)
    long = thread.ask(ask("long"))
    server.wait_for_calls(1)
    assert thread.ask(ask("short")).wait(300).text == "yes"
    thread.close()
    with pytest.raises(EngineError, match="the model was closed"):
        long.wait(300)


@pytest.mark.slow
def test_no_more_than_concurrency_on_the_wire(start: Open) -> None:
    # the first twenty are answered when all of them are there, and a while later, so that one too many would be there
    # too
    engine, server = start(lambda call: Answer(completion(call.prompt), delay_s=0.1, after_calls=20), concurrency=20)
    for number in range(70):
        engine.submit(ask(str(number), f"prompt {number}"))
    done = collect(engine, 70)
    assert {completion.id: completion.text for completion in done} == {
        str(number): f"prompt {number}" for number in range(70)
    }
    assert server.peak == 20
    assert engine.poll() == []


class ClockOf:
    """In the place of ``asyncio.timeout``: the seconds of an attempt count from when ``server`` has its call, and the
    third one may take as long as a busy machine does.
    """

    def __init__(self, server: StubServer) -> None:
        self.server, self.attempts = server, 0

    @asynccontextmanager
    async def __call__(self, seconds: float) -> AsyncIterator[None]:
        self.attempts += 1
        async with asyncio.timeout(None) as limit:
            starting = asyncio.create_task(self.start(limit, seconds if self.attempts < 3 else 300.0))
            try:
                yield
            finally:
                starting.cancel()

    async def start(self, limit: asyncio.Timeout, seconds: float) -> None:
        await asyncio.to_thread(self.server.wait_for_calls, self.attempts)
        limit.reschedule(asyncio.get_running_loop().time() + seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bad",
    [
        Answer(error("slow down"), 429),
        Answer(error("oops"), 500),
        Answer(b"<html>bad gateway</html>", 502),
        Answer(error("overloaded"), 503),
        Answer(error("request timeout"), 408),
        Answer(b"", drop_after=0),
        Answer(GOOD.body, drop_after=10),
        Answer(GOOD.body, delay_s=2.0),
        Answer(GOOD.body, trickle_s=0.02),
    ],
    ids=["429", "500", "502 html", "503", "408", "dropped", "cut short", "silent", "trickling"],
)
def test_temporary_trouble_is_retried_until_it_ends_or_is_too_much(
    start: Open, bad: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_late = bool(bad.delay_s or bad.trickle_s)  # only those two are ended by the clock
    timeout_s = 0.5 if is_late else 60.0
    engine, server = start(answers(bad, bad, GOOD), timeout_s=timeout_s, max_retries=2)
    if is_late:
        monkeypatch.setattr(client, "asyncio", SimpleNamespace(timeout=ClockOf(server)))
    engine.submit(ask())
    assert collect(engine)[0].text == "yes"
    assert len(server.calls) == 3
    engine, server = start(answers(bad, bad, GOOD), timeout_s=timeout_s, max_retries=1)
    if is_late:
        monkeypatch.setattr(client, "asyncio", SimpleNamespace(timeout=ClockOf(server)))
    engine.submit(ask())
    with pytest.raises(EngineError, match=r"127\.0\.0\.1.*model tiny.*after 2 attempts"):
        engine.poll()
    assert len(server.calls) == 2


@pytest.mark.slow
def test_a_long_reply_may_take_longer(start: Open) -> None:
    engine, _ = start(answers(Answer(GOOD.body, delay_s=0.5)), timeout_s=0.2, max_retries=0)
    engine.submit(ask(thought_tokens=200_000))
    assert collect(engine)[0].text == "yes"


@pytest.mark.slow
@pytest.mark.parametrize("headers", [{"retry-after": "0.3"}, {"retry-after-ms": "300"}])
def test_the_wait_that_the_server_asks_for(start: Open, headers: dict[str, str]) -> None:
    engine, server = start(answers(Answer(error("slow down"), 429, headers), GOOD))
    engine.submit(ask())
    collect(engine)
    assert server.calls[1].at - server.calls[0].at >= 0.3  # our own waits are 0.04 s at most


@pytest.mark.slow
def test_a_rate_limit_with_progress_does_not_use_up_retries(start: Open) -> None:
    """One request of twelve passes, of the first 144: 12 are answered, and 132 refusals fall on 24 requests, so some
    have five or more.
    """

    def handler(call: Call) -> Answer:
        return GOOD if call.number % 12 == 11 or call.number >= 144 else Answer(error("slow down"), 429)

    engine, server = start(handler, concurrency=12, max_retries=4)
    for number in range(24):
        engine.submit(ask(str(number)))
    collect(engine, 24)
    assert len(server.calls) == 144 + 12


def test_other_trouble_uses_up_retries_whatever_the_progress(start: Open) -> None:
    engine, server = start(
        lambda call: Answer(error("oops"), 500) if call.prompt == "bad" else Answer(GOOD.body, delay_s=0.01),
        concurrency=2,
    )
    engine.submit(ask("bad", "bad"))
    with pytest.raises(EngineError, match=r"HTTP 500: oops \(after 4 attempts\)"):
        for number in range(300):
            engine.submit(ask(str(number), "good"))
            engine.poll()
    assert sum(call.prompt == "bad" for call in server.calls) == 4


def test_a_prompt_that_the_servers_filter_stops_ends_no_other_game(start: Open) -> None:
    """It would do so again after every resume: the same game has the same prompt."""
    filtered = Answer(error("The prompt triggered our content policy.", code="content_filter"), 400)
    engine, server = start(lambda call: filtered if call.prompt == "bad" else GOOD)
    engine.submit(ask("bad", "bad"))
    engine.submit(ask("good"))
    done = {one.id: (one.text, one.finish_reason) for one in collect(engine, 2)}
    assert done == {"bad": ("", FinishReason.STOP), "good": ("yes", FinishReason.EOS)}
    assert len(server.calls) == 2


@pytest.mark.parametrize(
    "refusal",
    [
        error("Your messages are too long.", code="context_length_exceeded"),
        error("This model's maximum context length is 64 tokens. However, your prompt contains 90.", code=400),
        error("the request exceeds the available context size. try increasing it", code=400),
        error("max_tokens must be at least 1, got 0.", code=400),
    ],
)
def test_a_prompt_that_outgrows_the_context_ends_no_other_game(start: Open, refusal: bytes) -> None:
    engine, server = start(lambda call: Answer(refusal, 400) if call.prompt == "long" else GOOD)
    engine.submit(ask("long", "long"))
    engine.submit(ask("short"))
    done = {one.id: one for one in collect(engine, 2)}
    assert (done["long"].text, done["long"].finish_reason) == ("", FinishReason.CONTEXT)
    assert json.loads(refusal)["error"]["message"] in done["long"].refusal
    assert (done["short"].text, done["short"].refusal) == ("yes", "")
    assert len(server.calls) == 2


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({}, (0, 0)),
        ({"total_tokens": 7}, (0, 0)),
        ({"prompt_tokens": 7, "total_tokens": 7}, (7, 0)),
        ({"prompt_tokens": 7, "completion_tokens": None}, (7, 0)),
        (None, (0, 0)),
    ],
)
def test_a_reply_may_lack_counts(start: Open, usage: object, tokens: tuple[int, int]) -> None:
    engine, _ = start(answers(Answer(json.dumps({**json.loads(GOOD.body), "usage": usage}).encode())))
    engine.submit(ask())
    [done] = collect(engine)
    assert (done.text, done.prompt_tokens, done.completion_tokens) == ("yes", *tokens)


@pytest.mark.parametrize("message", [{}, {"message": None}], ids=["missing", "null"])
@pytest.mark.parametrize("ended", ["content_filter", "length"])
@pytest.mark.parametrize("thought_tokens", [0, 9])
def test_a_reply_that_ended_may_lack_its_message(
    start: Open, message: dict[str, None], ended: str, thought_tokens: int
) -> None:
    body = {"choices": [{"index": 0, "finish_reason": ended, **message}]}
    engine, _ = start(answers(Answer(json.dumps(body).encode())))
    engine.submit(ask(thought_tokens=thought_tokens))
    [done] = collect(engine)
    is_cut = ended == "length"
    assert done.text == ("<think>" if thought_tokens and is_cut else "")
    cut = FinishReason.LENGTH if thought_tokens else FinishReason.THOUGHT  # the runner finds asked thoughts
    assert done.finish_reason is (cut if is_cut else FinishReason.STOP)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            Answer(error(f"Incorrect API key provided: {KEY}"), 401),
            r"HTTP 401: Incorrect API key provided: \*\*\*; check OPENAI_API_KEY",
        ),
        (Answer(error("x" * 290 + KEY + "x" * 900), 401), r"HTTP 401: x+[*.]+; check OPENAI_API_KEY"),
        (Answer(b"x" * 290 + KEY.encode()), r"not a chat completion.*x+[*.]+"),
        (Answer(error("not yours"), 403), "HTTP 403: not yours; check what OPENAI_API_KEY may use"),
        (Answer(error("no model tiny"), 404), "HTTP 404: no model tiny; check the model's name and OPENAI_BASE_URL"),
        (Answer(error("prompt too\n long " + "x" * 5000), 400), "HTTP 400: prompt too long x+"),
        (Answer(b'{"error": "no such model"}', 400), "HTTP 400: no such model$"),
        (Answer(b'{"object": "error", "message": "too long", "code": 400}', 400), "HTTP 400: too long$"),
        (Answer(b'{"detail": "unknown route"}', 405), r"HTTP 405: \{.detail.: .unknown route.\}$"),
        (Answer(b"<html>forbidden</html>", 403), "HTTP 403: <html>forbidden</html>; check what"),
        (Answer(b"", 400), "HTTP 400: no reason given$"),
        (Answer(b"[" * 100_000, 400), r"HTTP 400: \[+"),
        (Answer(b"", 304), "HTTP 304: no reason given$"),
        (Answer(error("no money", code="insufficient_quota"), 429), "HTTP 429: no money"),
        (Answer(error("never again"), 500, {"x-should-retry": "false"}), "HTTP 500: never again"),
        (Answer(error("tomorrow"), 429, {"retry-after": "80000"}), r"HTTP 429: tomorrow \(it asks to wait 80000 s\)"),
        (
            Answer(error("later"), 503, {"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}),
            r"later \(.* until Wed, 21 Oct",
        ),
        (Answer(b"<html>hello</html>"), "not a chat completion.*<html>hello"),
        (Answer(b'{"choices": []}'), "not a chat completion"),
        (Answer(b'{"choices": ' + b"[" * 100_000), "not a chat completion"),
        (Answer(b'{"id": ' + b"[" * 100_000), "not a chat completion"),
        (Answer(b'{"choices": [{"index": 0}]}'), "not a chat completion"),
        (Answer(b'{"error": {"message": "upstream died"}}'), "not a chat completion.*upstream died"),
        (Answer(b'{"choices": [{"message": {"content": ["y", "e", "s"]}}]}'), "not a chat completion"),
        (Answer(completion("yes", completion_tokens=-1)), "not a chat completion"),
        (Answer(GOOD.body.replace(b"yes", b"\xff")), "not a chat completion"),
    ],
)
def test_final_errors_are_one_clear_line_and_not_retried(start: Open, answer: Answer, words: str) -> None:
    engine, server = start(answers(answer))
    engine.submit(ask())
    for _ in range(2):  # and so for ever
        with pytest.raises(EngineError, match=rf"^{server.base_url}, model tiny: .*{words}") as caught:
            engine.poll()
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    assert KEY[:6] not in str(caught.value)
    assert len(server.calls) == 1


def test_a_wait_that_is_too_long_is_not_called_a_retry(start: Open, caplog: pytest.LogCaptureFixture) -> None:
    engine, server = start(answers(Answer(error("tomorrow"), 429, {"retry-after": "80000"})))
    engine.submit(ask())
    with pytest.raises(EngineError, match="it asks to wait 80000 s"):
        engine.poll()
    [line] = [record.getMessage() for record in caplog.records if record.name == "spag.engines.openai.client"]
    assert line == f"{server.base_url}: HTTP 429, Retry-After: 80000 (attempt 1 of 4)"


def test_an_unreachable_endpoint_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 3600)  # a retry would end in the test's timeout
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 3600)
    with socket.socket() as held:  # nobody listens, and nobody else gets the port
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        engine = OpenAIEngine("tiny")
        engine.submit(ask())
        said = rf"^{url}, model tiny: no connection: .*; check OPENAI_BASE_URL and that the server runs$"
        with pytest.raises(EngineError, match=said):
            engine.poll()
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "what"), [(Answer(error("oops"), 500), "HTTP 500"), (Answer(b"", drop_after=0), "no connection: ")]
)
def test_what_is_tried_again_is_told_meanwhile(
    start: Open, caplog: pytest.LogCaptureFixture, bad: Answer, what: str
) -> None:
    """Retries take up to a minute, in which a person should know what the wait is for; one line for all requests that
    fail now.
    """
    engine, server = start(answers(bad), max_retries=2)
    engine.submit(ask())
    with pytest.raises(EngineError, match="after 3 attempts"):
        engine.poll()
    [line] = [record.getMessage() for record in caplog.records if record.name == "spag.engines.openai.client"]
    assert line.startswith(f"{server.base_url}: {what}") and line.endswith(" (attempt 1 of 3)")
    caplog.clear()
    engine, _ = start(answers(bad), max_retries=0)
    engine.submit(ask())
    with pytest.raises(EngineError):
        engine.poll()
    assert not [record for record in caplog.records if record.name == "spag.engines.openai.client"]


def test_an_endpoint_that_goes_away_is_tried_again(start: Open) -> None:
    engine, server = start(answers(GOOD), max_retries=2)
    engine.submit(ask())
    collect(engine)
    server.__exit__(None, None, None)
    engine.submit(ask("b"))
    with pytest.raises(EngineError, match=r"no connection: .*\(after 3 attempts\); check OPENAI_BASE_URL"):
        engine.poll()


def test_an_error_comes_after_what_is_finished_and_stops_the_queue(start: Open) -> None:
    engine, server = start(lambda call: Answer(error("bad"), 400) if call.prompt == "bad" else GOOD, concurrency=1)
    for id_, prompt in (("a", "good"), ("b", "good"), ("c", "bad"), ("d", "good")):
        engine.submit(ask(id_, prompt))
    arrived = [engine._done.get() for _ in range(4)]  # all have ended, and nothing was polled yet
    for future in arrived:
        engine._done.put(future)
    assert [completion.id for completion in engine.poll()] == ["a", "b"]
    with pytest.raises(EngineError, match="HTTP 400: bad"):
        engine.poll()
    assert len(server.calls) == 3


def test_a_model_that_wants_max_completion_tokens(start: Open) -> None:
    words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."

    def handler(call: Call) -> Answer:
        return (
            Answer(error(words, code="unsupported_parameter", param="max_tokens"), 400)
            if "max_tokens" in call.body
            else GOOD
        )

    engine, server = start(handler, max_retries=0)
    for id_ in "ab":
        engine.submit(ask(id_, max_new_tokens=9))
        found = collect(engine)
        assert (found[0].prompt_tokens, found[0].completion_tokens) == (7, 5)
    assert [call.body.get("max_completion_tokens") for call in server.calls] == [None, 9, 9]


def refusing(*names: str) -> Callable[[Call], Answer]:
    """Answer as a reasoning model of OpenAI's: of ``temperature`` it refuses other values than 1."""

    def handler(call: Call) -> Answer:
        given = next((name for name in names if name in call.body), None)
        if given is not None:
            words = f"Unsupported parameter: '{given}' is not supported with this model."
            return Answer(error(words, code="unsupported_parameter", param=given), 400)
        if (value := call.body.get("temperature", 1)) != 1:
            words = f"Unsupported value: 'temperature' does not support {value} with this model."
            return Answer(error(words, code="unsupported_value", param="temperature"), 400)
        return Answer(completion("Guess.\nNext line"))

    return handler


def test_what_a_model_refuses_is_left_out_if_replies_stay_the_same(start: Open) -> None:
    engine, server = start(refusing("stop", "top_p"), max_retries=0)
    for id_ in "ab":
        engine.submit(ask(id_, stop=("\n",), temperature=1.0, top_p=1.0))
        assert [one.text for one in collect(engine)] == ["Guess."]
    sent = [{"stop", "top_p", "temperature"} & call.body.keys() for call in server.calls]
    assert sent == [{"stop", "top_p", "temperature"}, {"top_p", "temperature"}, {"temperature"}, {"temperature"}]


def test_a_temperature_that_a_model_refuses_is_named(start: Open) -> None:
    engine, _ = start(refusing("stop"), max_retries=0)
    engine.submit(ask(temperature=1.2, stop=("\n",)))
    with pytest.raises(
        EngineError, match=r"'temperature' does not support 1\.2 .*; set temperature=1 in the sampling of .*"
    ):
        engine.poll()


def test_close_abandons_what_is_in_flight(start: Open, caplog: pytest.LogCaptureFixture) -> None:
    threads = {*threading.enumerate()}  # of which others' may end meanwhile
    engine, server = start(answers(NEVER))
    engine.submit(ask())
    server.wait_for_calls(1)
    engine.close()
    engine.close()
    assert server.answered == 0
    assert {*threading.enumerate()} <= {*threads, server._thread}
    assert "attempt" not in caplog.text
    for call in (engine.poll, lambda: engine.submit(ask())):
        with pytest.raises(EngineError, match="closed"):
            call()


class Watched(SimpleQueue[Any]):
    """A queue that says when somebody comes to wait at it."""

    def __init__(self) -> None:
        self.waited_at = threading.Event()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.waited_at.set()
        return super().get(block, timeout)


def test_close_wakes_a_waiting_poll(start: Open) -> None:
    engine, server = start(answers(NEVER))
    engine._done = queue = Watched()
    engine.submit(ask())

    def close_when_polled() -> None:
        queue.waited_at.wait()
        server.wait_for_calls(1)
        engine.close()

    closer = threading.Thread(target=close_when_polled)
    closer.start()
    with pytest.raises(EngineError, match="closed"):
        engine.poll()
    closer.join()


def test_a_prompt_that_is_no_text_is_an_error(start: Open) -> None:
    engine, _ = start(answers(GOOD))
    engine.submit(ask(prompt="\ud800"))  # no UTF-8 for half a surrogate pair
    for _ in range(2):
        with pytest.raises(EngineError, match=r"surrogates not allowed"):
            engine.poll()
    engine.submit(ask())


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"top_k": 40}, r"top_k is 40.*set top_k=0 in the sampling of .*as spag\.sampling\.top_k=0$"),
        ({"published": True}, r"max_prompt_tokens is 2048.*set published=false in .*spag\.sampling\.published=false$"),
    ],
)
def test_what_the_protocol_does_not_have_is_refused(start: Open, setting: dict[str, int], says: str) -> None:
    engine, _ = start(answers(GOOD))
    with pytest.raises(ConfigError, match=says):
        engine.submit(ask(**setting))
    assert engine.poll() == []


def test_the_key_is_not_shown(caplog: pytest.LogCaptureFixture, start: Open) -> None:
    with caplog.at_level("DEBUG"):
        engine, _ = start(answers(Answer(error(f"busy with {KEY}"), 500), GOOD))
        engine.submit(ask())
        collect(engine)
    assert caplog.records
    assert KEY not in caplog.text + repr(engine)
