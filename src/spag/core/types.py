"""The vocabulary of a turn-based language game: tasks, utterances, states, observations, results and outcomes.

Everything here is immutable and pure: no I/O, no clock, no global randomness, no torch. A role is a plain string that
the game names (``attacker``, ``defender``). A *turn* is one utterance of each role (arXiv 2404.10642, section 3).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Split(StrEnum):
    """The use of a task: self-play and training, or evaluation only."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class Task:
    """The subject of one game: a word, a deal. ``id`` is unique among a game's tasks; ``data`` is plain JSON."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Utterance:
    """One message of one player.

    ``token_ids`` and ``logprobs`` (same length; natural log under the policy's raw, temperature-1 distribution) are
    present if the engine reports them. ``sampling_logprobs`` are the log-probabilities under the distribution that the
    tokens were drawn from (after temperature, filters and banned tokens), if it differs. ``prompt_digest`` identifies
    the prompt that the utterance answered; ``prompt_ids`` are its tokens if the engine truncated its beginning,
    ``None`` if it saw the whole prompt. ``thought`` is the player's private reasoning, empty if it had none and
    ``None`` if it was not asked to think; the tokens cover thought and content together. ``unknown_token``: it ended
    before a token that the tokenizer does not know.
    """

    role: str
    content: str
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    prompt_digest: str | None = None
    sampling_logprobs: tuple[float, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None
    thought: str | None = None
    unknown_token: bool | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way a game can end, with its label and color in tables, plots, the report and the web UI.

    ``winners``: the roles that win; none in a draw, all of them where players cooperate. ``fault``: the role that broke
    a rule. ``color`` is ``#rrggbb``; ``rule`` explains the outcome in one sentence.
    """

    name: str
    label: str
    color: str
    winners: tuple[str, ...] = ()
    fault: str | None = None
    rule: str = ""

    @property
    def is_draw(self) -> bool:
        """Nobody won and nobody broke a rule."""
        return not self.winners and self.fault is None


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a game. ``rewards`` by role need not sum to zero; ``length`` counts utterances up to the end."""

    outcome: str
    rewards: Mapping[str, float]
    length: int
    reason: str


@dataclass(frozen=True, slots=True)
class State:
    """A position, determined by task, seed and history. ``result`` is ``None`` until the game is over."""

    task: Task
    seed: int = 0
    history: tuple[Utterance, ...] = ()
    result: Result | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """The knowledge of one role: the utterances it heard, as it heard them, and private facts (a secret word, a card).

    Only an utterance's role and content are heard: thoughts and their tokens are never included.
    """

    role: str
    history: tuple[Utterance, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        heard = tuple(Utterance(said.role, said.content) for said in self.history)
        object.__setattr__(self, "history", heard)
