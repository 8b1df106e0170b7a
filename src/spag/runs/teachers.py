"""Teacher play: games shipped with a game, files, and games of bots."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from spag.core.episodes import Episode
from spag.core.errors import ConfigError
from spag.core.options import SamplingConfig
from spag.core.seeds import derive_seed
from spag.engines.base import Player
from spag.engines.bot import BotEngine
from spag.engines.players import Kind, bot_names, bot_of, kind_of
from spag.games.base import Game
from spag.rollout.matchmaking import training_specs
from spag.rollout.runner import play

TEACHER = "teacher"
BOT_GAMES = 200
"""Games of a bot if ``max_episodes`` is not set."""


def teacher_path(game: Game) -> Path:
    """Return the file of teacher games shipped in the game's package. Raises ``ConfigError`` if there is none."""
    module = sys.modules[type(game).__module__]  # may be a single file, without a package
    path = Path(module.__file__ or "").parent / "data" / "teacher_games.jsonl"
    if not path.is_file():
        bots = ", ".join(bot_names(game)) or "none"
        raise ConfigError(f"episodes: {game.name} ships no teacher games; name files of games, or a bot of it: {bots}")
    return path


def teacher_file(source: str, game: Game) -> Path | None:
    """Return the file of a source of teacher play; ``None`` for a bot. Raises ``ConfigError`` for an unknown bot."""
    if kind_of(source) is Kind.BOT:
        bot_of(game, source)
        return None
    return teacher_path(game) if source == TEACHER else Path(source)


def bot_games(name: str, limit: int | None, seed: int, game: Game) -> Iterator[Episode]:
    """Play games of a bot against itself; each task is played once before any is repeated.

    Their ids begin with the bot's name, because the games of several bots are in one file.
    """
    specs = training_specs(game, limit or BOT_GAMES, derive_seed(seed, name))
    player = Player(BotEngine(bot_of(game, name)), name, SamplingConfig())
    named = [replace(spec, id=f"{name}/{spec.id}") for spec in specs]
    return play(named, dict.fromkeys(game.roles, player), game=game)
