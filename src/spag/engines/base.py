"""The interface of engines: text in, text out, asynchronous. Every engine passes the same conformance test
(tests/engines/test_conformance.py).

An engine takes requests one at a time with ``submit`` and returns whatever has finished with ``poll``, in any order.
The caller keeps as many requests in flight as ``concurrency`` suggests; an engine must accept more and queue them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from spag.core.errors import EngineError
from spag.core.options import SamplingConfig
from spag.core.thinking import OPEN, find_answer, speech_spans
from spag.core.types import Observation

if TYPE_CHECKING:
    from torch import Size, Tensor


class FinishReason(StrEnum):
    """Why a completion ended: an end-of-sequence token, a stop string, or the token limit. ``THOUGHT``: it ended inside
    an unclosed thought, for any reason; the runner sets this if players are asked to think. ``CONTEXT``: nothing was
    sampled, because the prompt leaves no room for the longest reply.
    """

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    THOUGHT = "thought"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one completion.

    ``prompt`` is plain text; the engine wraps it in the model's chat template if it was opened with
    ``PromptStyle.CHAT``. Generation ends before the first occurrence of any ``stop`` string, outside thoughts; the text
    never contains it. ``seed`` alone determines the sample, whatever else is in flight.
    """

    id: str
    prompt: str
    sampling: SamplingConfig
    seed: int
    stop: tuple[str, ...] = ()
    observation: Observation | None = None
    """The player's knowledge, for scripted players; models read only the prompt."""
    role: str = ""
    """The speaker, as ``GAME/ROLE``, for models with an adapter for each role."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request. ``text`` includes the white space around it.

    ``prompt_ids`` are the prompt's tokens as the model saw them, BOS and chat template included; ``token_ids`` the
    sampled tokens (including an end-of-sequence token), ``logprobs`` their log-probabilities under the model's raw
    distribution (temperature 1, no filter), and ``sampling_logprobs`` those under the distribution they were sampled
    from (after temperature, filters and banned tokens; 0 for greedy tokens). All are ``None`` if the engine does not
    report them. ``prompt_truncated``: the prompt lost its beginning because of ``max_prompt_tokens``.

    A token outside the tokenizer is never part of a completion: engines ban it if they can, and otherwise end the
    completion before it, with ``FinishReason.LENGTH`` and ``unknown_token`` set.

    With thinking, an engine's ``text`` includes the thought and its tags, the opening one too if it is in the prompt;
    the runner moves the thought to ``thought``.

    ``refusal``: with ``FinishReason.CONTEXT``, how long the prompt is and what to change.
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
    refusal: str = ""


def text_before_stop(text: str, stop: tuple[str, ...], *, thinking: bool = False, tagged: bool = False) -> str | None:
    """Return the text before the first of the ``stop`` strings in ``text``, ``None`` if there is none.

    ``thinking``: stop strings in thoughts do not count. ``tagged``: they count only in the answer, and a complete
    answer ends the text. Anything after the first stop, even another thought, is ignored: an engine may have generated
    more.
    """
    for start, end in speech_spans(text) if thinking or tagged else [(0, len(text))]:
        after_thought = end - len(text[start:end].lstrip())  # no stop string begins in the white space before
        spoken, first, cuts = text[:end], after_thought if start else 0, list[int]()
        if tagged:
            if (answer := find_answer(spoken, start)) is None:
                continue
            first, cuts = answer.start, [] if answer.after is None else [answer.end]
        cuts += [at for string in stop if (at := spoken.find(string, first)) >= 0]
        if cuts:
            return text[: min(cuts)]
    return None


def token_limit(sampling: SamplingConfig, text: str, closed_at: int | None) -> int:
    """Return a reply's token limit, given its ``text`` so far and the number of tokens up to the end of its thought."""
    if not sampling.thinks:
        return sampling.max_new_tokens
    if closed_at is not None:
        return closed_at + sampling.max_new_tokens
    in_thought = OPEN in text or OPEN.startswith(text.lstrip())  # or in the mark that opens it
    return sampling.thought_tokens if in_thought else sampling.max_new_tokens


class RequestError(EngineError):
    """A request that an engine cannot answer. The engine continues with others."""


class Engine(ABC):
    """Generates completions for one model. By default, optional operations do nothing or are refused."""

    concurrency: int
    """How many requests it can process at once; a hint for the caller."""
    trains_here: ClassVar[bool] = False
    """Whether it is in the process that trains its model and can share its weights: cheap to reopen."""

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Queue a request. Returns at once; the work may happen in ``poll``. Raises ``RequestError``."""

    @abstractmethod
    def poll(self) -> list[Completion]:
        """Return the completions finished since the last call. May block, but not if nothing is in flight.

        Raises ``EngineError`` if the engine cannot continue.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the model, connections and processes. Further calls are errors; closing twice is fine."""

    def wake(self) -> None:  # noqa: B027 - most need not
        """Let ``poll``, in another thread, return soon, so that new requests join those in flight at once."""

    def partial(self, request_id: str) -> str | None:
        """Return a request's text so far, ``None`` if unknown. Other threads may call this while ``poll`` runs."""
        return None

    # Nothing may be in flight during the following.

    def update_weights(self, weights: "Mapping[str, Tensor]") -> None:
        """Replace weights, named as in the loaded model's ``named_parameters``, and drop all caches of the old ones.

        Weights that are not given stay; for whole models, an engine may require all of them. Raises ``EngineError`` for
        names or shapes that do not match.
        """
        raise EngineError(f"{type(self).__name__} accepts no new weights; train a model that is loaded here")

    def share_weights(self, weights: "Mapping[str, Tensor]") -> None:
        """Like ``update_weights``, but the engine may use the tensors themselves, of any shape, if their type and
        device match the model's. They may change while nothing is in flight; pass them again before the next request.
        """
        self.update_weights(weights)

    def rest(self) -> bool:
        """Release GPU memory, if opened for this; the next request or new weights reclaim it. Returns whether updated
        weights are lost and must be passed again before the next request.
        """
        return False

    def forget(self) -> None:  # noqa: B027 - most keep none
        """Free the caches of earlier requests: keys, values and logits."""


@dataclass(frozen=True, slots=True)
class Player:
    """The player of a role: its engine, its model's recorded name, and its sampling."""

    engine: Engine
    model: str
    sampling: SamplingConfig


def check_shapes(weights: "Mapping[str, Tensor]", shapes: "Mapping[str, Size]") -> None:
    """Raise ``EngineError`` if the name or shape of a weight is not in ``shapes``."""
    for name, value in weights.items():
        if shapes.get(name) != value.shape:
            raise EngineError(f"{name}: the model has no weight of this name and shape")
