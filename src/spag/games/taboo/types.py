"""The vocabulary of Adversarial Taboo: its two roles, its outcomes, and their rewards."""

from enum import StrEnum

from spag.core.types import Result


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


_REWARDS = {
    TabooOutcome.ATTACKER_WINS: {"attacker": 1.0, "defender": -1.0},
    TabooOutcome.DEFENDER_WINS: {"attacker": -1.0, "defender": 1.0},
    TabooOutcome.ATTACKER_VIOLATION: {"attacker": -1.0, "defender": 0.0},
    TabooOutcome.TIE: {"attacker": 0.0, "defender": 0.0},
}


def result_of(outcome: TabooOutcome, length: int, reason: str) -> Result:
    """Return the result of a game that ``outcome`` ends after ``length`` utterances."""
    return Result(outcome, _REWARDS[outcome], length, reason)
