"""The words of Adversarial Taboo: its two roles, how a game can end, and what a judge rules."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """The side a player takes."""

    ATTACKER = "attacker"
    DEFENDER = "defender"

    @property
    def opponent(self) -> "Role":
        return Role.DEFENDER if self is Role.ATTACKER else Role.ATTACKER


class Outcome(StrEnum):
    """How a finished episode ended."""

    ATTACKER_WINS = "attacker_wins"
    DEFENDER_WINS = "defender_wins"
    ATTACKER_VIOLATION = "attacker_violation"
    TIE = "tie"

    @property
    def winner(self) -> Role | None:
        """The role that won; ties and rule violations have no winner (a violation earns the defender nothing)."""
        return _WINNERS.get(self)


_WINNERS = {Outcome.ATTACKER_WINS: Role.ATTACKER, Outcome.DEFENDER_WINS: Role.DEFENDER}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's ruling: the outcome, how many utterances count up to the judged end, and why in one sentence."""

    outcome: Outcome
    length: int
    reason: str
