"""The endpoint: OpenAI's routes for models, completions and chat, behind ``ApiGuard``.

Limits: 1 MiB and five minutes per request, ``MOST_WAITING`` texts in progress. A streamed response is one server-sent
event per text, once all are complete. Errors have OpenAI's format, and one line.
"""

import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from spag.core.errors import SpagError, first_line
from spag.core.thinking import OPEN, split_thought
from spag.engines.base import Completion, FinishReason
from spag.models.tokens import BROKEN, token_texts
from spag.serve.models import EndpointModel
from spag.serve.requests import Asked, ChatAsked, CompletionAsked, RefusedError, engine_requests, read_request
from spag.web.security import Access, ApiGuard

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_BYTES = 1 << 20  # size of a request
MOST_WAITING = 256  # unfinished texts over all requests
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Answer:
    """The result of a request, in OpenAI's format. ``done`` holds the choices of the first prompt, then those of the
    next. ``opening``: the mark of a thought, if the prompt ends with it.
    """

    asked: Asked
    name: str
    created: int
    done: Sequence[Completion]
    tokenizer: "PreTrainedTokenizerBase"
    opening: str = ""

    def whole(self) -> Json:
        return self._frame(self._choices("message")) | {"usage": self._usage()}

    def events(self) -> str:
        """Return the response as server-sent events."""
        chunks = [self._frame([choice], ".chunk") for choice in self._choices("delta")]
        if self.asked.stream_options.include_usage:
            chunks.append(self._frame([], ".chunk") | {"usage": self._usage()})
        return "".join(f"data: {data}\n\n" for data in (*map(json.dumps, chunks), "[DONE]"))

    def _frame(self, choices: list[Json], suffix: str = "") -> Json:
        kind = f"chat.completion{suffix}" if isinstance(self.asked, ChatAsked) else "text_completion"
        return {"id": self.name, "object": kind, "created": self.created, "model": self.asked.model, "choices": choices}

    def _choices(self, key: str) -> list[Json]:
        """Return the choices; in a chat, texts are under ``key``."""
        choices = []
        for index, one in enumerate(self.done):
            text: Json = {"text": one.text}
            if isinstance(self.asked, ChatAsked):
                text = {key: {"role": "assistant", **self._spoken(one.text)}}
            reason = "length" if one.finish_reason is FinishReason.LENGTH else "stop"
            choices.append({"index": index, **text, "logprobs": self._logprobs(one), "finish_reason": reason})
        return choices

    def _spoken(self, text: str) -> Json:
        """Return the spoken part of a chat reply, and its thought if requested, as vLLM's ``reasoning_content``."""
        if not (isinstance(self.asked, ChatAsked) and self.asked.thinking):
            return {"content": text}
        thought, speech, is_cut = split_thought(self.opening + text)
        return {"content": None if is_cut else speech, "reasoning_content": thought or None}

    def _logprobs(self, one: Completion) -> Json | None:
        """Return the sampled tokens with their log-probabilities under the model's own distribution."""
        if not self.asked.wants_logprobs or one.token_ids is None or one.logprobs is None:
            return None
        shown = len(one.token_ids) - (one.finish_reason is FinishReason.EOS)
        texts = token_texts(self.tokenizer, one.prompt_ids or (), one.token_ids[:shown])
        values = list(one.logprobs[:shown])
        if isinstance(self.asked, CompletionAsked):
            offsets = list(accumulate(map(len, texts[:-1]), initial=0)) if texts else []
            return {"tokens": texts, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}
        described = [
            {"token": text, "logprob": value, "bytes": None if BROKEN in text else list(text.encode())}
            for text, value in zip(texts, values, strict=True)
        ]
        return {"content": [{**token, "top_logprobs": []} for token in described]}

    def _usage(self) -> Json:
        prompts = sum(one.prompt_tokens for one in self.done[:: self.asked.n])
        generated = sum(one.completion_tokens for one in self.done)
        return {"prompt_tokens": prompts, "completion_tokens": generated, "total_tokens": prompts + generated}


def _find(models: Mapping[str, EndpointModel], name: str) -> EndpointModel:
    if name not in models:
        says = f"model: there is no {name[:200]!r}; there are: {', '.join(models)}"
        raise RefusedError(says, field="model", status=404)
    return models[name]


async def _answer(models: Mapping[str, EndpointModel], request: Request, kind: type[Asked]) -> Response:
    """Answer a request for text. Raises ``SpagError``."""
    asked = read_request(await request.body(), kind)
    model = _find(models, asked.model)
    name = f"{'chatcmpl' if kind is ChatAsked else 'cmpl'}-{secrets.token_hex(12)}"
    prompts, most = model.prompts(asked)
    requests = engine_requests(asked, prompts, most, name)
    # including those of requests that were cancelled: the engines still generate them
    waiting = sum(one.unfinished for one in models.values())
    if waiting + len(requests) > MOST_WAITING:
        raise RefusedError(f"{waiting} texts are already waiting; try again in a moment", status=429)
    done = await model.answer(requests)
    opening = OPEN if prompts[0].rstrip().endswith(OPEN) else ""
    answer = _Answer(asked, name, int(time.time()), done, model.tokenizer, opening)
    if asked.stream:
        return Response(answer.events(), media_type="text/event-stream")
    return JSONResponse(answer.whole())


def create_app(models: Sequence[EndpointModel], access: Access) -> FastAPI:
    """Return the application that serves ``models`` by name."""
    by_name, started = {model.name: model for model in models}, int(time.time())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for model in models:
            model.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    def described(model: EndpointModel) -> Json:
        about = {"owned_by": "spag", "max_model_len": model.longest}
        return {"id": model.name, "object": "model", "created": started, **about}

    @app.get("/v1/models")
    def listing() -> Json:
        return {"object": "list", "data": [described(model) for model in models]}

    @app.get("/v1/models/{name:path}")
    def one(name: str) -> Json:
        return described(_find(by_name, name))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _answer(by_name, request, CompletionAsked)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _answer(by_name, request, ChatAsked)

    for kind in (SpagError, HTTPException):
        app.add_exception_handler(kind, _on_error)
    app.add_middleware(ApiGuard, access=access, most_bytes=MOST_BYTES)
    return app


async def _on_error(_: Request, error: Exception) -> Response:
    status, field, code, says = 400, None, None, first_line(error)
    if isinstance(error, RefusedError):
        status, field, code = error.status, error.field, error.code
    elif isinstance(error, HTTPException):
        status, says = error.status_code, str(error.detail)
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    body = {"error": {"message": says, "type": kind, "param": field, "code": code}}
    return JSONResponse(body, status, {"retry-after": "1"} if status == 429 else None)
