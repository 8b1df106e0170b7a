"""clembench's metrics for an arena's games (arXiv 2305.13455; clemcore, ``clemgame/metrics.py``).

In clembench, a game is aborted if a player breaks its rules, otherwise a success or lost. The main score, 0 to 100, is
the mean over games that were not aborted. The request success ratio is the share of a game's utterances that follow the
rules. Here a role succeeds in games that it wins, and a game without a winner is lost for both. clembench's own Taboo
counts a clue that contains the word as lost, not as aborted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spag.core.types import Result
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


def clembench_rows(
    results: Mapping[tuple[str, str, str], Result], game: Game, names: Sequence[str]
) -> list[ClembenchRow]:
    """Return a row per role and name; ``results`` are keyed by first player, second player and task."""
    found = []
    for place, role in enumerate(game.roles):
        for name in names:
            own = [result for key, result in results.items() if key[place] == name]
            if own:
                found.append(_row(name, role, own, game))
    return found


def _row(name: str, role: str, results: Sequence[Result], game: Game) -> ClembenchRow:
    outcomes = [game.outcomes[result.outcome] for result in results]
    won = sum(role in one.winners for one in outcomes)
    aborted = sum(one.fault is not None for one in outcomes)
    ratios = [
        1 - (one.fault is not None) / result.length
        for one, result in zip(outcomes, results, strict=True)
        if result.length
    ]
    count, played = len(results), len(results) - aborted
    return ClembenchRow(
        name=name,
        role=role,
        games=count,
        success=won / count,
        lose=(played - won) / count,
        aborted=aborted / count,
        main_score=100 * won / played if played else None,
        request_success_ratio=sum(ratios) / len(ratios) if ratios else None,
    )
