"""The endpoint: OpenAI's routes for models, completions and chat, behind ``ApiGuard``.

Bounds: 1 MiB and five minutes a request, ``MOST_WAITING`` texts in the works. Streamed answers come as server-sent events, one chunk for
each text once it is complete, then its end. Errors have OpenAI's shape, and one line.
"""

import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse

from spag.adapters.guard import ApiGuard
from spag.core.errors import SpagError, first_line
from spag.engines.base import Completion, FinishReason
from spag.serve.models import ServedModel
from spag.serve.requests import Asked, ChatAsked, CompletionAsked, RefusedError, engine_requests, read_request
from spag.web.security import Access

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_BYTES = 1 << 20  # of a request
MOST_WAITING = 256  # texts of all requests together that are not finished
Json = dict[str, Any]


@dataclass(slots=True)
class _Endpoint:
    models: dict[str, ServedModel]
    started: int
    waiting: int = 0

    async def answer(self, request: Request, kind: type[CompletionAsked] | type[ChatAsked]) -> Response:
        """Answer a request for text. Raises ``SpagError``."""
        asked = read_request(await request.body(), kind)
        model = self.models.get(asked.model)
        if model is None:
            raise RefusedError(f"model: there is no {asked.model[:200]!r}; there are: {', '.join(self.models)}", field="model", status=404)
        prompts, style = model.prompts(asked)
        name = f"{'chatcmpl' if kind is ChatAsked else 'cmpl'}-{secrets.token_hex(12)}"
        requests = engine_requests(asked, prompts, name)
        if self.waiting + len(requests) > MOST_WAITING:
            raise RefusedError(f"{self.waiting} texts are waiting already; try again in a moment", status=429)
        self.waiting += len(requests)
        try:
            done = await model.answer(requests, style)
        finally:
            self.waiting -= len(requests)
        answer = _Answer(asked, name, int(time.time()), done, model.tokenizer)
        if not asked.stream:
            return JSONResponse(answer.whole())
        return StreamingResponse(answer.events(), media_type="text/event-stream")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was generated for a request, in OpenAI's shapes. ``done`` holds the choices of the first prompt, then those of the next."""

    asked: Asked
    name: str
    created: int
    done: Sequence[Completion]
    tokenizer: "PreTrainedTokenizerBase"

    @property
    def is_chat(self) -> bool:
        return isinstance(self.asked, ChatAsked)

    def whole(self) -> Json:
        return self._frame("", [self._choice(index, one) for index, one in enumerate(self.done)]) | {"usage": self._usage()}

    async def events(self) -> AsyncIterator[str]:
        """Yield the answer as server-sent events."""
        options = self.asked.stream_options
        usage: Json = {"usage": None} if options and options.include_usage else {}
        for index, one in enumerate(self.done):
            for choice in self._chunks(index, one):
                yield _event(self._frame(".chunk", [choice]) | usage)
        if usage:
            yield _event(self._frame(".chunk", []) | {"usage": self._usage()})
        yield "data: [DONE]\n\n"

    def _frame(self, suffix: str, choices: list[Json]) -> Json:
        kind = f"chat.completion{suffix}" if self.is_chat else "text_completion"
        return {"id": self.name, "object": kind, "created": self.created, "model": self.asked.model, "choices": choices}

    def _choice(self, index: int, one: Completion) -> Json:
        said: Json = {"message": {"role": "assistant", "content": one.text, "refusal": None}} if self.is_chat else {"text": one.text}
        return {"index": index, **said, "logprobs": self._logprobs(one), "finish_reason": _reason(one)}

    def _chunks(self, index: int, one: Completion) -> list[Json]:
        if not self.is_chat:
            return [self._choice(index, one)]
        text = {"index": index, "delta": {"role": "assistant", "content": one.text}, "logprobs": self._logprobs(one), "finish_reason": None}
        return [text, {"index": index, "delta": {}, "logprobs": None, "finish_reason": _reason(one)}]

    def _logprobs(self, one: Completion) -> Json | None:
        """Return the sampled tokens with their log-probabilities under the model's own distribution: temperature 1, nothing cut off."""
        if not self.asked.wants_logprobs or one.token_ids is None or one.logprobs is None:
            return None
        shown = len(one.token_ids) - (one.finish_reason is FinishReason.EOS)
        texts = [str(self.tokenizer.decode([token])) for token in one.token_ids[:shown]]
        values = list(one.logprobs[:shown])
        if self.is_chat:
            tokens = zip(texts, values, strict=True)
            content = [{"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []} for text, value in tokens]
            return {"content": content, "refusal": None}
        offsets = [sum(map(len, texts[:index])) for index in range(shown)]
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}

    def _usage(self) -> Json:
        prompts = sum(one.prompt_tokens for one in self.done[:: self.asked.n or 1])
        said = sum(one.completion_tokens for one in self.done)
        return {"prompt_tokens": prompts, "completion_tokens": said, "total_tokens": prompts + said}


def create_app(models: Sequence[ServedModel], access: Access) -> FastAPI:
    """Return the application that serves ``models`` by their names."""
    endpoint = _Endpoint({model.name: model for model in models}, int(time.time()))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for model in models:
            model.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/v1/models")
    def listing() -> Json:
        return {"object": "list", "data": [_described(model, endpoint.started) for model in models]}

    @app.get("/v1/models/{name:path}")
    def one(name: str) -> Json:
        if name not in endpoint.models:
            raise RefusedError(f"model: there is no {name[:200]!r}", field="model", status=404)
        return _described(endpoint.models[name], endpoint.started)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await endpoint.answer(request, CompletionAsked)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await endpoint.answer(request, ChatAsked)

    for kind in (SpagError, HTTPException):
        app.add_exception_handler(kind, _on_error)
    app.add_middleware(ApiGuard, access=access, most_bytes=MOST_BYTES)
    return app


def _described(model: ServedModel, started: int) -> Json:
    return {"id": model.name, "object": "model", "created": started, "owned_by": "spag", "max_model_len": model.longest}


def _reason(one: Completion) -> str:
    return "length" if one.finish_reason is FinishReason.LENGTH else "stop"


def _event(value: Json) -> str:
    return f"data: {json.dumps(value)}\n\n"


async def _on_error(_: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, RefusedError) else error.status_code if isinstance(error, HTTPException) else 400
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    says = str(error.detail) if isinstance(error, HTTPException) else first_line(error)
    body = {"message": says, "type": kind, "param": error.field if isinstance(error, RefusedError) else None, "code": None}
    return JSONResponse({"error": body}, status, {"retry-after": "1"} if status == 429 else None)
