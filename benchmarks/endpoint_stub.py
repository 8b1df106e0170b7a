"""A chat-completions server that costs next to nothing: it answers every request alike, whatever it asks.

python -m benchmarks.endpoint_stub    prints its base URL and serves until standard input ends
"""

import asyncio
import json
import sys

_TEXT = "I would say that it is something you can find in most kitchens, though not in mine."
_MESSAGE = {"index": 0, "message": {"role": "assistant", "content": _TEXT}, "finish_reason": "stop"}
_USAGE = {"prompt_tokens": 200, "completion_tokens": 18, "total_tokens": 218}
_BODY = json.dumps(
    {"id": "stub", "object": "chat.completion", "created": 0, "model": "stub", "choices": [_MESSAGE], "usage": _USAGE}
).encode()
_REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)


class _Connection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._received = transport, b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            at = self._received[:end].lower().find(b"content-length:")
            size = end + 4 + int(self._received[at + 15 : end].split(b"\r\n", 1)[0])
            if len(self._received) < size:
                return
            self._received = self._received[size:]
            self._transport.write(_REPLY)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve())
