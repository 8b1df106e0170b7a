"""Recorded games, judged again and explained."""

from dataclasses import dataclass

from spag.core.episodes import Episode
from spag.core.errors import DataError
from spag.core.types import Outcome, Result
from spag.games.base import Game


@dataclass(frozen=True, slots=True)
class Explanation:
    """A result explained. ``decisive``: the position of the deciding utterance, from 0; ``span``: its deciding
    characters; ``disputed``: the judge's present ruling if it differs from the recorded outcome.
    """

    outcome: Outcome
    reason: str
    decisive: int | None = None
    span: tuple[int, int] | None = None
    disputed: str | None = None


def replay(game: Game, episode: Episode) -> Result:
    """Return how ``episode`` ends under ``game``, ignoring its record. Raises ``DataError`` for another game's."""
    if episode.game != game.name:
        found = f"the game {episode.id!r} is {episode.game}, not {game.name}"
        fix = f'grep \'"game":"{game.name}"\' FILE > NEW'  # our rows have no spaces there
        raise DataError(f"{found}; keep only one kind of games in a file: {fix}")
    try:
        return game.replay(episode.task, episode.history, episode.seed or 0)
    except DataError as error:
        raise DataError(f"the game {episode.id!r}: {error}") from error


def explain(game: Game, episode: Episode) -> Explanation:
    """Explain the recorded outcome of ``episode``, else the judge's. Raises ``DataError`` for one of another game."""
    found = replay(game, episode)
    recorded = episode.outcome or found.outcome
    if recorded not in game.outcomes:
        known = ", ".join(game.outcomes)
        raise DataError(f"game {episode.id!r}: {game.name} has no outcome {recorded!r}; it has {known}")
    outcome, reason = game.outcomes[recorded], episode.reason or found.reason
    reason = f"{reason[:1].upper()}{reason[1:]}."
    if recorded != found.outcome:
        ruling = f"the judge would say: {game.outcomes[found.outcome].label}, because {found.reason}"
        return Explanation(outcome, reason, disputed=ruling)
    decisive = None if outcome.is_draw or not found.length else found.length - 1
    span = game.explain(episode.task, episode.history[: found.length], found) if decisive is not None else None
    return Explanation(outcome, reason, decisive, span)
