"""The vocabulary of a two-player language game: roles, utterances, states, verdicts, and the protocol a game implements.

Everything here is immutable and pure: no I/O, no clock, no global randomness, no torch. A *turn* is one attacker utterance plus one
defender utterance (arXiv 2404.10642, section 3), so an episode of ``max_turns`` turns holds at most ``2 * max_turns`` utterances.
"""

from dataclasses import dataclass
from typing import Protocol

from spag.games.taboo.types import Role, Verdict


@dataclass(frozen=True, slots=True)
class Utterance:
    """One message of one player.

    ``token_ids`` and ``logprobs`` (same length; natural log under the sampling policy's raw, temperature-1 distribution) are present
    where the engine reports them.
    """

    role: Role
    content: str
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class GameState:
    """A position of the game. ``verdict`` is ``None`` while the game goes on."""

    target_word: str
    max_turns: int
    history: tuple[Utterance, ...] = ()
    verdict: Verdict | None = None

    @property
    def role_to_move(self) -> Role:
        """The attacker speaks first; roles alternate."""
        return Role.ATTACKER if len(self.history) % 2 == 0 else Role.DEFENDER


@dataclass(frozen=True, slots=True)
class Observation:
    """What one role may see of a state: the defender's ``target_word`` is ``None``."""

    role: Role
    history: tuple[Utterance, ...]
    max_turns: int
    target_word: str | None


class Game(Protocol):
    """A two-player, turn-based language game with hidden information."""

    @property
    def name(self) -> str:
        """What episodes of this game call it."""

    def initial_state(self, target_word: str, max_turns: int) -> GameState:
        """Return the position before the first utterance."""

    def observe(self, state: GameState, role: Role) -> Observation:
        """Return what ``role`` may see of ``state``."""

    def apply(self, state: GameState, utterance: Utterance) -> GameState:
        """Return the position after ``utterance``; raises ``ValueError`` when it is not that role's move or the game is over."""
