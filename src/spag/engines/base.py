"""The engine protocol: text in, text out, asynchronous. Every engine passes the same conformance test
(tests/engines/test_conformance.py).

An engine takes requests one at a time with ``submit`` and hands back whatever has finished with ``poll``, in any order.
The caller keeps as many requests in flight as ``concurrency`` suggests; an engine must accept more and queue them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from spag.core.thinking import OPEN, find_answer, speech_start
from spag.core.types import Observation

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. ``temperature`` 0 is greedy; ``top_p`` 1 and ``top_k`` 0 switch those filters off.

    ``max_prompt_tokens`` is the longest prompt, in tokens: a longer one loses its beginning; 0 keeps all. ``strip``
    drops white space around the text. The runner samples an empty utterance up to ``empty_retries`` more times.
    ``thought_tokens`` is the longest thought before the utterance, in tokens; 0 switches thinking off. With
    ``retry_cut`` an utterance that is empty because its thought was cut is sampled again, too.
    """

    temperature: float = 1.2
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 256
    min_new_tokens: int = 2
    max_prompt_tokens: int = 0
    strip: bool = True
    empty_retries: int = 2
    thought_tokens: int = 0
    retry_cut: bool = False

    @property
    def most_tokens(self) -> int:
        """The longest reply, in tokens: thought and utterance."""
        return self.thought_tokens + self.max_new_tokens

    def trim(self, text: str) -> str:
        """Return ``text`` as ``strip`` wants it."""
        return text.strip() if self.strip else text


class FinishReason(StrEnum):
    """Why a completion ended: an end-of-sequence token, a stop string, or the token limit. The runner's ``THOUGHT``:
    in a thought that never closed, whatever ended it.
    """

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    THOUGHT = "thought"


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one completion.

    ``prompt`` is plain text; the engine wraps it in the model's chat template when it was opened with
    ``PromptStyle.CHAT``. Generation ends before the first occurrence of any ``stop`` string (never part of the text);
    thoughts may hold them.
    ``seed`` alone decides what is sampled, whatever else is in flight.
    """

    id: str
    prompt: str
    sampling: Sampling
    seed: int
    stop: tuple[str, ...] = ()
    observation: Observation | None = None
    """What the player knows, for players made of code; models read the prompt alone."""
    role: str = ""
    """Whose utterance it is, as ``GAME/ROLE``, for models with an adapter for each role."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request. ``text`` is stripped of white space around it, unless the request's sampling keeps it.

    ``prompt_ids`` are the prompt's tokens as the model saw them, BOS and chat template included; ``token_ids`` the
    sampled tokens (with the end-of-sequence token when one ended it), ``logprobs`` their log-probabilities under the
    model's raw distribution (temperature 1, no filter), and ``sampling_logprobs`` those under the distribution that
    they were drawn from (temperature, filters and banned tokens counted; 0 for greedy tokens). All of them are ``None``
    where the engine cannot tell. ``prompt_truncated``: the prompt lost its beginning to ``max_prompt_tokens``.

    A token outside the tokenizer is never part of a completion: engines ban it where they can, and else end the
    completion before it, with ``FinishReason.LENGTH`` and ``unknown_token`` set.

    With thinking, the ``text`` of an engine has the thought between its marks, the opening one even where it is the end
    of the prompt; the runner moves it to ``thought``.
    """

    id: str
    text: str
    finish_reason: FinishReason
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    sampling_logprobs: tuple[float, ...] | None = None
    prompt_truncated: bool = False
    unknown_token: bool = False
    thought: str | None = None


def text_before_stop(text: str, stop: tuple[str, ...], *, thinking: bool = False, tagged: bool = False) -> str | None:
    """Return what comes before the first of the ``stop`` strings in ``text``, ``None`` where there is none.

    ``thinking``: only what follows the last thought can hold one. ``tagged``: only the answer can, and where it is
    complete, the text ends with it.
    """
    start = speech_start(text) if thinking or tagged else 0
    if start is None:
        return None
    cuts = []
    if tagged:
        if (answer := find_answer(text, start)) is None:
            return None
        start, cuts = answer.start, [] if answer.after is None else [answer.end]
    cuts += [at for string in stop if (at := text.find(string, start)) >= 0]
    return text[: min(cuts)] if cuts else None


def token_limit(sampling: Sampling, text: str, closed_at: int | None) -> int:
    """Return how many tokens a reply may have, by its ``text`` so far and the tokens up to the mark that closed its
    thought.
    """
    if not sampling.thought_tokens:
        return sampling.max_new_tokens
    if closed_at is not None:
        return closed_at + sampling.max_new_tokens
    in_thought = OPEN in text or OPEN.startswith(text.lstrip())  # or in the mark that opens it
    return sampling.thought_tokens if in_thought else sampling.max_new_tokens


class Engine(Protocol):
    """Generates completions for one model."""

    concurrency: int
    """How many requests it can work on at once; a hint for the caller."""

    def submit(self, request: Request) -> None:
        """Queue a request. Returns at once; the work may happen in ``poll``."""

    def poll(self) -> list[Completion]:
        """Return the completions finished since the last call.

        May block for a while, but returns an empty list at once when nothing is in flight. Raises ``EngineError`` when
        the engine cannot go on.
        """

    def close(self) -> None:
        """Free the model, connections and processes. Further calls are errors; closing twice is fine."""


@dataclass(frozen=True, slots=True)
class Player:
    """The player of a role: the engine that generates for it, its model's name for the record, and its sampling."""

    engine: Engine
    model: str
    sampling: Sampling


@runtime_checkable
class UpdatableEngine(Engine, Protocol):
    """An engine whose model can learn while it is open."""

    def update_weights(self, weights: "Mapping[str, Tensor]") -> None:
        """Replace weights, by the names that ``named_parameters`` of the loaded model has, and drop everything cached
        of the old ones.

        Call it while nothing is in flight. Weights that are not named stay; an engine may ask for all of a whole
        model's. Raises ``EngineError`` for names or shapes that do not fit.
        """


@runtime_checkable
class RestingEngine(Engine, Protocol):
    """An engine that may give up memory of the GPU while nobody plays."""

    def rest(self) -> bool:
        """Give up memory, if it was opened to; the next request, or new weights, take it again. Nothing may be in
        flight. Returns whether weights that it was given are lost, and must be given again before the next request.
        """


@runtime_checkable
class SharingEngine(UpdatableEngine, Protocol):
    """An engine in the process that trains its model, where it can do without memory of its own."""

    def share_weights(self, weights: "Mapping[str, Tensor]") -> None:
        """As ``update_weights``, but compute with the tensors themselves, of any shape, where type and device are the
        model's own.

        They may change while nothing is in flight; before the next request, hand them over again.
        """

    def forget(self) -> None:
        """Free what is kept of earlier requests: keys, values and logits. Nothing may be in flight."""
