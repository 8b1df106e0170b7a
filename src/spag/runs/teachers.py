"""Teacher play: games shipped with a game, files, and games of bots."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from spag.algorithms.settings import IterationSettings
from spag.config.files import phase_option
from spag.config.schema import RunConfig
from spag.core.episodes import Episode
from spag.core.errors import ConfigError
from spag.core.options import SamplingConfig
from spag.core.seeds import derive_seed
from spag.engines.base import Player
from spag.engines.bot import BotEngine
from spag.engines.players import Kind, bot_names, bot_of, kind_of
from spag.games.base import Game
from spag.rollout.matchmaking import games_of_iteration, training_specs
from spag.rollout.runner import play
from spag.storage.episodes import read_episodes

TEACHER = "teacher"
BOT_GAMES = 200
"""Games of a bot if ``max_episodes`` is not set."""
_FEW = (
    "only the {games:,} shipped games (the paper: 23,354 games of GPT-4, of which about 5,000 suffice). Self-play of "
    "{plays:,} games then gives little to learn from. Download gpt4_game_top30k_results.json, or the samples "
    "train_imitation_gpt4.json, by the links in data/README.md of github.com/Linear95/SPAG, and add "
    "{option}=[gpt4_game_top30k_results.json]. Or let a model of your choice play: spag play openai:MODEL openai:MODEL "
    "--count 5000 --output games.jsonl, then add {option}=[games.jsonl]"
)
"""GPT-4 won 20,067 games as attacker and 3,287 as defender; how many suffice: upstream's issue 5."""


def teacher_path(game: Game) -> Path:
    """Return the file of teacher games shipped in the game's package. Raises ``ConfigError`` if there is none."""
    module = sys.modules[type(game).__module__]  # may be a single file, without a package
    path = Path(module.__file__ or "").parent / "data" / "teacher_games.jsonl"
    if not path.is_file():
        bots = ", ".join(bot_names(game)) or "none"
        raise ConfigError(f"episodes: {game.name} ships no teacher games; name files of games, or its bots: {bots}")
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


def few_games(config: RunConfig) -> str:
    """Return what a run's imitation lacks if it has the shipped games alone, and self-play more than ten times as many;
    else nothing.
    """
    plays, found = 0, ""
    for phase in config.phases:
        if isinstance(settings := phase.settings, IterationSettings):
            plays = max(plays, games_of_iteration(config.game_of(phase).build(), settings))
    for at, phase in enumerate(config.phases):
        settings = phase.settings
        if getattr(settings, "episodes", None) == [TEACHER]:
            game = config.game_of(phase).build()
            own = sum(game.split_of(one.task) in settings.splits for one in read_episodes(teacher_path(game)))
            games = min(own, settings.max_episodes or own)
            if plays > 10 * games:
                found = _FEW.format(games=games, plays=plays, option=f"--set {phase_option(config, at)}.episodes")
    return found
