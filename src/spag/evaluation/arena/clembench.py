"""clembench's metrics for an arena's games (arXiv 2305.13455; clemcore, ``clemgame/metrics.py``).

In clembench, a game is aborted if a player breaks its rules, otherwise a success or lost. The main score, 0 to 100, is
the mean over games that were not aborted. The request success ratio is the share of a game's utterances that follow the
rules. Here a role succeeds in games that it wins, and a game without a winner is lost for both. clembench's own Taboo
counts a clue that contains the word as lost, not as aborted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from spag.core.types import Result
from spag.evaluation.arena.grid import Results
from spag.games.base import Game


@dataclass(frozen=True, slots=True)
class ClembenchRow:
    """One player in one role. As shares of ``games``: success, lose and aborted, which sum to 1; and
    request_success_ratio, a mean over games.

    ``main_score``: 0 to 100, ``None`` if every game was aborted. ``request_success_ratio`` is ``None`` if nobody spoke.
    """

    name: str
    role: str
    games: int
    success: float
    lose: float
    aborted: float
    main_score: float | None
    request_success_ratio: float | None


def clembench_rows(results: Results, game: Game, names: Sequence[str]) -> list[ClembenchRow]:
    """Return a row per role and name; ``results`` are keyed by first player, second player and task."""
    found = []
    for place, role in enumerate(game.roles):
        for name in names:
            if own := [result for key, result in results.items() if key[place] == name]:
                found.append(_row(name, role, own, game))
    return found


def _row(name: str, role: str, results: Sequence[Result], game: Game) -> ClembenchRow:
    games, outcomes = len(results), [game.outcomes[result.outcome] for result in results]
    won = sum(role in one.winners for one in outcomes)
    broken = [one.fault is not None for one in outcomes]
    played = games - sum(broken)
    spoken = [(fault, result.length) for fault, result in zip(broken, results, strict=True) if result.length]
    return ClembenchRow(
        name=name,
        role=role,
        games=games,
        success=won / games,
        lose=(played - won) / games,
        aborted=sum(broken) / games,
        main_score=100 * won / played if played else None,
        request_success_ratio=fmean(1 - fault / length for fault, length in spoken) if spoken else None,
    )
