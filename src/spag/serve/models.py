"""A served model: its engine in a thread, and its prompts."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import EngineError, ModelError
from spag.engines.base import Completion, Engine, Request, RequestError
from spag.engines.prompts import context_length
from spag.engines.thread import ModelThread
from spag.models.tokens import PromptStyle, chat_text, encode_prompt
from spag.serve.requests import NO_ROOM, Asked, ChatAsked, CompletionAsked, RefusedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(slots=True)
class EndpointModel:
    """A model under its ``name``. ``style``: plain for completions, rendered for conversations. ``open_engine`` is
    called again after a failure. ``longest``: the most tokens of a prompt and its text together.
    """

    name: str
    style: PromptStyle
    tokenizer: "PreTrainedTokenizerBase"
    longest: int
    open_engine: Callable[[], Engine]
    _thread: ModelThread | None = field(default=None, init=False)

    def prompts(self, asked: Asked) -> tuple[list[str], int]:
        """Return the texts to continue, and the most tokens of each reply: without ``max_tokens`` a chat's has its
        default, or what room is left. Raises ``RefusedError``.
        """
        texts, most = self._texts(asked), asked.max_tokens
        for text in texts:
            length = len(encode_prompt(self.tokenizer, text, self.style))
            if not length:
                raise RefusedError("prompt: it is empty, and the model has no token to start from", field="prompt")
            if isinstance(asked, ChatAsked) and "max_tokens" not in asked.model_fields_set:
                most = max(1, min(most, self.longest - length))
            if length + most > self.longest:
                both = f"{most:,} and a prompt of {length:,} tokens"
                says = f"max_tokens: {both} are more than the {self.longest:,} that {self.name} is served with"
                raise RefusedError(says, field="max_tokens", code=NO_ROOM)
        return texts, most

    def _texts(self, asked: Asked) -> list[str]:
        plain = self.style is PromptStyle.PLAIN
        if isinstance(asked, CompletionAsked):
            if not plain:
                fix = "send messages, or serve it with --set model.prompt_style=plain"
                raise RefusedError(f"prompt: {self.name} is served with prompt_style chat; {fix}", field="prompt")
            return asked.prompt
        messages = [message.plain() for message in asked.messages]
        if not plain:
            try:
                return [chat_text(self.tokenizer, messages, reply_follows=True, thinking=asked.thinking)]
            except ModelError as error:  # templates refuse unsupported messages: a system message, two of one role
                raise RefusedError(f"messages: {error}", field="messages") from error
        if len(messages) > 1 or messages[0]["role"] != "user":
            fix = "send one user message, or serve it with --set model.prompt_style=chat"
            raise RefusedError(f"messages: {self.name} is served with prompt_style plain; {fix}", field="messages")
        if asked.thinking:
            what = f"chat_template_kwargs: {self.name} is served with prompt_style plain, which has no thoughts"
            raise RefusedError(f"{what}; serve it with --set model.prompt_style=chat", field="chat_template_kwargs")
        return [messages[0]["content"]]

    async def answer(self, requests: Sequence[Request]) -> list[Completion]:
        """Return the completions in the order of ``requests``. Raises ``RefusedError`` if the model fails."""
        if self._thread is None or self._thread.problem is not None:
            self._thread = ModelThread(self.open_engine)
        replies = [self._thread.ask(request) for request in requests]
        try:
            answers = await asyncio.gather(*(asyncio.wrap_future(reply.future) for reply in replies))
        except EngineError as error:
            raise RefusedError(str(error), status=400 if isinstance(error, RequestError) else 503) from error
        for one in answers:
            if one.refusal:  # the engine may know a smaller limit
                raise RefusedError(one.refusal, field="max_tokens", code=NO_ROOM)
        return answers

    @property
    def unfinished(self) -> int:
        """How many texts its engine has yet to finish."""
        return 0 if self._thread is None else len(self._thread.asked)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()


def open_model(name: str, model: ModelConfig, engine: EngineConfig) -> EndpointModel:
    """Load a model for the transformers engine, to be served as ``name``. Raises ``ModelError``."""
    from spag.engines.transformers.engine import TransformersEngine  # noqa: PLC0415 - imports torch
    from spag.engines.transformers.forward import positions_of  # noqa: PLC0415
    from spag.models.loading import load_model, load_tokenizer  # noqa: PLC0415

    tokenizer = load_tokenizer(model.name, trust_remote_code=model.trust_remote_code)
    style = PromptStyle.RENDERED if model.prompt_style == "chat" else PromptStyle.PLAIN
    if style is PromptStyle.RENDERED:  # a model without a template fails here, not at the first request
        chat_text(tokenizer, [{"role": "user", "content": "Hello"}], reply_follows=True)
    weights = load_model(model.name, dtype=model.dtype, device=model.device, trust_remote_code=model.trust_remote_code)
    longest = context_length(engine.max_length, positions_of(weights.config))

    def opened() -> Engine:
        return TransformersEngine(weights, tokenizer, style=style, concurrency=engine.concurrency)

    return EndpointModel(name, style, tokenizer, longest, opened)
