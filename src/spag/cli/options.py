"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

    from spag.config.schema import RunConfig
    from spag.core.progress import Reporter

Command = TypeVar("Command", bound=Callable[..., Any])
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
ANY_PATH = click.Path(path_type=Path)


def config_options(command: Command) -> Command:
    """Add ``--config``, ``--set`` and ``--seed``."""
    command = click.option("--seed", type=int, help="Overrides the config's seed.")(command)
    command = click.option("--set", "overrides", multiple=True, metavar="A.B=VALUE", help="Override one option; may be repeated.")(command)
    return click.option("--config", "config_name", metavar="PRESET|FILE", help="Preset or YAML file with the settings.")(command)


def ray_option(command: Command) -> Command:
    """Add ``--ray``."""
    text = "Play and train on this Ray cluster (short for --set cluster.address=...)."
    return click.option("--ray", "cluster", metavar="auto|local|ADDRESS", help=text)(command)


def game_option(command: Command) -> Command:
    """Add ``--game``."""
    return click.option("--game", "game_name", metavar="NAME", help="The game (short for --set game.name=NAME); spag games lists them.")(
        command
    )


def read_config(
    config_name: str | None, overrides: tuple[str, ...], seed: int | None, cluster: str | None = None, game: str | None = None
) -> "RunConfig":
    """Return the config that the shared options describe; without ``--config``, the defaults."""
    from spag.config.files import load_config, parse_config

    short = {"seed": seed, "cluster.address": cluster}
    extra = (*overrides, *(f"{name}={value}" for name, value in short.items() if value is not None))
    extra = (f"game.name={game}", *extra) if game else extra
    return load_config(config_name, extra) if config_name else parse_config("", "defaults", extra)


def open_console() -> "tuple[Console, Reporter]":
    """Return standard error as a console (results go to standard output) and the reporter on it."""
    from rich.console import Console

    from spag.cli.console import make_reporter

    console = Console(stderr=True)
    return console, make_reporter(console)


def entrant(text: str) -> tuple[str, str]:
    """Return name and model of ``NAME=MODEL``, or of ``MODEL``, which is its own name."""
    name, equals, model = text.partition("=")
    return (name, model) if equals else (text, text)
