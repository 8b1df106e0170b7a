"""Recorded games, judged again."""

from spag.core.episodes import Episode
from spag.core.errors import DataError
from spag.core.types import Result
from spag.games.base import Game


def replay(game: Game, episode: Episode) -> Result:
    """Return how ``episode`` ends under ``game``, ignoring its record. Raises ``DataError`` for another game's."""
    if episode.game != game.name:
        found = f"the game {episode.id!r} is {episode.game}, not {game.name}"
        fix = f'grep \'"game":"{game.name}"\' FILE > NEW'  # our rows have no spaces there
        raise DataError(f"{found}; keep the games of one kind in a file: {fix}")
    try:
        return game.replay(episode.task, episode.history, episode.seed or 0)
    except DataError as error:
        raise DataError(f"the game {episode.id!r}: {error}") from error
