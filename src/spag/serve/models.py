"""The served models: weights and tokenizer, the thread that generates, and prompts as the model reads them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import ModelError
from spag.engines.base import Completion, Engine, Request
from spag.models.tokens import PromptStyle, chat_text, encode_prompt
from spag.serve.requests import Asked, ChatAsked, CompletionAsked, RefusedError
from spag.web.models import ModelThread, Reply

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LOOK_S = 0.01


@dataclass(slots=True)
class ServedModel:
    """A model under its ``name``.

    ``engine`` opens an engine for plain text, or for conversations that the chat template rendered; after a failure it is opened anew.
    ``longest``: tokens that a prompt and its text may have together.
    """

    name: str
    style: PromptStyle
    tokenizer: "PreTrainedTokenizerBase"
    longest: int
    engine: Callable[[PromptStyle], Engine]
    _threads: dict[PromptStyle, ModelThread] = field(default_factory=dict)

    def prompts(self, asked: Asked) -> tuple[list[str], PromptStyle]:
        """Return the texts to continue, and how the engine is to read them. Raises ``RefusedError``."""
        style = PromptStyle.PLAIN
        if isinstance(asked, CompletionAsked):
            texts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        else:
            texts, style = [self._conversation(asked)], PromptStyle.RENDERED if self.style is PromptStyle.CHAT else style
        for text in texts:
            length = len(encode_prompt(self.tokenizer, text, style))
            if not length:
                raise RefusedError("prompt: it is empty, and the model has no token to start from", field="prompt")
            if length + asked.tokens > self.longest:
                says = f"max_tokens: {asked.tokens:,} and a prompt of {length:,} tokens are more than the {self.longest:,}"
                raise RefusedError(f"{says} that {self.name} is served with", field="max_tokens")
        return texts, style

    def _conversation(self, asked: ChatAsked) -> str:
        messages = [message.plain() for message in asked.messages]
        if self.style is PromptStyle.CHAT:
            try:
                return chat_text(self.tokenizer, messages, reply_follows=True)
            except ModelError as error:  # templates refuse what they do not know: two messages of one role, a system message
                raise RefusedError(f"messages: {error}", field="messages") from error
        if len(messages) > 1 or messages[0]["role"] != "user":
            fix = "send one user message, or serve it with --set model.prompt_style=chat"
            raise RefusedError(f"messages: {self.name} is served with prompt_style plain; {fix}", field="messages")
        return messages[0]["content"]

    async def answer(self, requests: Sequence[Request], style: PromptStyle) -> list[Completion]:
        """Return the completions in the order of ``requests``. Raises ``RefusedError`` with status 503 when the model fails."""
        thread = self._threads.get(style)
        if thread is None or thread.problem is not None:
            thread = self._threads[style] = ModelThread(lambda: self.engine(style))
        replies = [thread.ask(request) for request in requests]
        while any(_is_due(reply) for reply in replies):
            await asyncio.sleep(_LOOK_S)
        if failed := next((reply.error for reply in replies if reply.error is not None), None):
            raise RefusedError(failed, status=503)
        return [reply.completion for reply in replies if reply.completion is not None]

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()


def _is_due(reply: Reply) -> bool:
    return reply.completion is None and reply.error is None


def open_model(name: str, model: ModelConfig, engine: EngineConfig) -> ServedModel:
    """Load a model for the transformers engine, to be served as ``name``. Raises ``ModelError``."""
    from spag.engines.transformers.engine import TransformersEngine  # noqa: PLC0415 - imports torch
    from spag.models.loading import load_model, load_tokenizer  # noqa: PLC0415

    tokenizer = load_tokenizer(model.name, trust_remote_code=model.trust_remote_code)
    if (style := PromptStyle(model.prompt_style)) is PromptStyle.CHAT:
        chat_text(tokenizer, [{"role": "user", "content": "Hello"}], reply_follows=True)  # a model without a template is told now
    weights = load_model(model.name, dtype=model.dtype, device=model.device, trust_remote_code=model.trust_remote_code)
    positions = getattr(weights.config.get_text_config(decoder=True), "max_position_embeddings", None)
    longest = min(engine.max_length, positions or engine.max_length)

    def opened(reads: PromptStyle) -> Engine:
        return TransformersEngine(weights, tokenizer, style=reads, concurrency=engine.concurrency)

    return ServedModel(name, style, tokenizer, longest, opened)
