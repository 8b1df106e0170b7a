"""The vocabulary of Adversarial Taboo: its two roles, its outcomes, and the judge's verdict."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """The role of a player."""

    ATTACKER = "attacker"
    DEFENDER = "defender"


class TabooOutcome(StrEnum):
    """How a finished game ended. Ties and rule violations have no winner (a violation earns the defender nothing)."""

    ATTACKER_WINS = "attacker_wins"
    DEFENDER_WINS = "defender_wins"
    ATTACKER_VIOLATION = "attacker_violation"
    TIE = "tie"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's ruling: the outcome, how many utterances count up to the judged end, and why in one sentence."""

    outcome: TabooOutcome
    length: int
    reason: str
