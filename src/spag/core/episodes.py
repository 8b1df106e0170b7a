"""Episodes and training samples: one finished game, and one (prompt, completion) pair. ``spag.storage`` reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from spag.core.types import State, Task, Utterance

SCHEMA_VERSION = 2
TABOO = "adversarial_taboo"
TABOO_ROLES = ("attacker", "defender")


class SampleType(StrEnum):
    """The kinds of training samples: offline RL, the SFT mix and imitation."""

    RL = "rl"
    SFT = "sft"
    IMITATION = "imitation"


@dataclass(frozen=True, slots=True)
class PlayerInfo:
    """The player of a role: the model's name or path, its sampling, and hashes that tell apart models of one name."""

    model: str
    sampling: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One game. ``outcome``, ``rewards``, ``reason`` and ``length`` (utterances up to the judged end) record the
    judge's ruling at play time; upstream's files have none of them.

    ``settings`` are the game's. They and a player's identity are ``None`` in upstream's files and in unsaved games.
    """

    task: Task
    history: tuple[Utterance, ...]
    id: str = ""
    game: str = TABOO
    outcome: str | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    length: int | None = None
    seed: int | None = None
    players: Mapping[str, PlayerInfo] = field(default_factory=dict)
    settings: Mapping[str, Any] | None = None
    schema_version: int = SCHEMA_VERSION

    def before(self, at: int) -> State:
        """Return the position before the utterance ``at``."""
        return State(self.task, self.seed or 0, tuple(self.history[:at]))

    def spoken_by(self, role: str, length: int | None = None) -> list[int]:
        """Return the positions of the utterances of ``role`` among the first ``length``; ``None``: all."""
        return [at for at, said in enumerate(self.history[:length]) if said.role == role]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One (prompt, completion) pair.

    ``turn`` is the 1-based turn in which the completion was spoken; SFT rows have no role, episode or turn.
    ``completion_ids`` are the tokens as they were sampled, an end token included when one was, ``logprobs`` their
    log-probabilities under the distribution that they were drawn from, ``raw_logprobs`` those at temperature 1 without
    filters, if they differ, and ``prompt_ids`` the prompt's tokens; all are ``None`` if only the text is known.
    ``truncated``: the completion ran into the token limit, so it has no end token. ``thinking``: the prompt asked for a
    thought, and ``completion_ids`` begin with it; ``completion`` never holds it.
    """

    prompt: str
    completion: str
    reward: float = 1.0
    weight: float = 1.0
    role: str | None = None
    type: SampleType = SampleType.RL
    episode_id: str = ""
    turn: int | None = None
    prompt_ids: tuple[int, ...] | None = None
    completion_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    raw_logprobs: tuple[float, ...] | None = None
    truncated: bool = False
    thinking: bool = False
