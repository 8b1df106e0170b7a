"""A chat-completions server for tests and benchmarks: real HTTP/1.1 on the loopback interface, as well-behaved as its
handler.

A handler is a function from a ``Call`` (what the client sent) to an ``Answer`` (what goes back, when, and how broken).
In a test::

    with StubServer(lambda call: Answer(completion("hello"))) as server:
        OpenAIEngine("any", base_url=server.base_url)

In a process of its own: ``python tests/engines/openai_stub.py --delay 0.2`` prints the base URL and serves until
standard input ends.
"""

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Call:
    """One request as received. Header names are in lower case; ``at`` is in seconds of ``time.monotonic``."""

    number: int
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float

    @property
    def prompt(self) -> str:
        return str(self.body["messages"][0]["content"])


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply. ``drop_after`` closes the connection after that many body bytes (0: before the first byte of the
    reply); ``trickle_s`` passes between body bytes. The reply waits until ``after_calls`` requests have come in, and
    then ``delay_s``."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    trickle_s: float = 0.0
    after_calls: int = 0
    drop_after: int | None = None


Handler = Callable[[Call], Answer]


def completion(
    text: str | None,
    finish_reason: str = "stop",
    *,
    prompt_tokens: int = 7,
    completion_tokens: int = 5,
    **choice: object,
) -> bytes:
    """A well-formed reply body; ``choice`` adds fields to its only choice."""
    message = {"role": "assistant", "content": text}
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    choices = [{"index": 0, "message": message, "finish_reason": finish_reason, **choice}]
    return json.dumps(
        {"id": "stub", "object": "chat.completion", "created": 0, "model": "stub", "choices": choices, "usage": usage}
    ).encode()


def error(message: str, *, code: str | int | None = None, param: str | None = None) -> bytes:
    """An error body as the protocol has it."""
    return json.dumps({"error": {"message": message, "type": "stub_error", "param": param, "code": code}}).encode()


class StubServer:
    """Serves ``handler`` on a free loopback port in a ``with`` block.

    ``calls`` are the requests so far, ``peak`` the most at once; ``answered`` counts the replies that were sent whole.
    """

    def __init__(self, handler: Handler) -> None:
        self.calls: list[Call] = []
        self.peak = 0
        self.answered = 0
        self.port = 0
        self._handler = handler
        self._open_calls = 0
        self._came_in = threading.Condition()
        self._enough_came_in = asyncio.Condition()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="openai-stub", daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def wait_for_calls(self, count: int) -> None:
        """Wait until ``count`` requests have come in."""
        with self._came_in:
            assert self._came_in.wait_for(lambda: len(self.calls) >= count, timeout=300), (
                f"{len(self.calls)} requests came in, not {count}"
            )

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        async with server:
            await self._stop.wait()
            server.close()
            await asyncio.sleep(0.01)  # connections that were just accepted become tasks
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections)
            await asyncio.sleep(0)  # transports close their sockets

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client went away, or the server is stopping
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read one request and answer it; whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"{}")
        call = Call(len(self.calls), head[0].split(" ")[1], headers, body, time.monotonic())
        with self._came_in:
            self.calls.append(call)
            self._came_in.notify_all()
        async with self._enough_came_in:
            self._enough_came_in.notify_all()
        self._open_calls += 1
        self.peak = max(self.peak, self._open_calls)
        try:
            return await self._answer(self._handler(call), writer)
        finally:
            self._open_calls -= 1

    async def _answer(self, answer: Answer, writer: asyncio.StreamWriter) -> bool:
        async with self._enough_came_in:
            await self._enough_came_in.wait_for(lambda: len(self.calls) >= answer.after_calls)
        await asyncio.sleep(answer.delay_s)
        if answer.drop_after == 0:
            return False
        fields = {"content-type": "application/json", "content-length": str(len(answer.body)), **answer.headers}
        head = (
            f"HTTP/1.1 {answer.status} Stub\r\n"
            + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            + "\r\n"
        )
        body = answer.body[: answer.drop_after]
        if answer.trickle_s:
            writer.write(head.encode())
            for at in range(len(body)):
                writer.write(body[at : at + 1])
                await asyncio.sleep(answer.trickle_s)
        else:
            writer.write(head.encode() + body)
        await writer.drain()
        self.answered += answer.drop_after is None
        return answer.drop_after is None


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Serve chat completions on the loopback interface until standard input ends."
    )
    parser.add_argument(
        "--delay", type=float, default=0.0, metavar="SECONDS", help="time before each reply (default 0)"
    )
    parser.add_argument(
        "--reply",
        default="I would say that it is something you can find in most kitchens.",
        help="the text of each reply",
    )
    options = parser.parse_args()
    answer = Answer(completion(options.reply), delay_s=options.delay)
    with StubServer(lambda call: answer) as server:
        print(server.base_url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
