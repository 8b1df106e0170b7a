"""Options that several commands share."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spag.core.errors import ConfigError, DataError, SpagError

if TYPE_CHECKING:
    from spag.config.schema import RunConfig
    from spag.core.progress import Reporter

Command = TypeVar("Command", bound=Callable[..., Any])
LONGEST_PIPE = 2**34
"""Bytes that are taken from a pipe."""


class _InputFile(click.Path):
    """A file to read. What comes from a pipe is kept in a file while the command runs, because commands read their files more than once."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.is_char_device() or path.is_block_device():
            raise ConfigError(f"{path}: is a device; name a file")
        return _spooled(path, ctx) if path.is_fifo() and ctx else path


class _Output(click.Path):
    """A file or folder to write."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            raise ConfigError("--output: the name is empty; give one")
        from spag.core.disk import storage_errors

        with storage_errors(Path(value)), suppress(FileNotFoundError, NotADirectoryError):
            Path(value).stat()  # names that are too long, links that lead to themselves
        return super().convert(value, param, ctx)


def _spooled(pipe: Path, ctx: click.Context) -> Path:
    """Copy a pipe into a temporary file that goes with the command, and return its path."""
    from spag.core.disk import storage_errors
    from spag.core.jsonfile import reading

    copy = Path(ctx.with_resource(TemporaryDirectory(prefix="spag-"))) / pipe.name
    with reading(pipe) as stream, storage_errors(copy), copy.open("wb") as kept:
        while block := stream.read(2**20):
            kept.write(block)
            if kept.tell() > LONGEST_PIPE:
                raise DataError(f"{pipe}: more than {LONGEST_PIPE:,} bytes from a pipe; save them to a file")
    return copy


def refuse_input(output: Path | None, *inputs: Path | str | None) -> None:
    """Raise ``ConfigError`` when a command would write over a file that it reads."""
    for path in inputs:
        with suppress(OSError, ValueError):  # no such file, which others say
            if output is not None and path is not None and output.samefile(path):
                raise ConfigError(f"--output {output}: is a file that this command reads; choose another output")


EXISTING = _InputFile(exists=True, dir_okay=False, path_type=Path)
ANY_PATH = _Output(path_type=Path)
_OVERRIDES = "spag.overrides"
_ON_STOP = "spag.on_stop"


def setting(flag: str, override: str, metavar: str, text: str, *, multiple: bool = False) -> Callable[[Command], Command]:
    """Return an option that is short for ``--set OVERRIDE``, its value in place of ``{}``; ``read_config`` applies it."""

    def keep(context: click.Context, _: click.Parameter, value: Any) -> None:
        values = value if multiple else [value]
        context.meta.setdefault(_OVERRIDES, []).extend(override.format(one) for one in values if one is not None)

    return click.option(flag, metavar=metavar, help=text, multiple=multiple, expose_value=False, callback=keep)


set_option = setting("--set", "{}", "A.B=VALUE", "Override one option; may be repeated.", multiple=True)
seed_option = setting("--seed", "seed={}", "NUMBER", "Overrides the config's seed.")
game_option = setting("--game", "game.name={}", "NAME", "The game (short for --set game.name=NAME); spag games lists them.")
prompts_option = setting("--prompts", "game.prompts={}", "FILE", "Prompt file (short for --set game.prompts=FILE).")
ray_option = setting(
    "--ray", "cluster.address={}", "auto|local|ADDRESS", "Play and train on this Ray cluster (short for --set cluster.address=...)."
)


def config_options(command: Command) -> Command:
    """Add ``--config``, ``--set`` and ``--seed``."""
    option = click.option("--config", "config_name", metavar="PRESET|FILE", help="Preset or YAML file with the settings.")
    return option(set_option(seed_option(command)))


def on_stop(describe: Callable[[], str]) -> None:
    """Say what ``describe`` returns when the command is stopped by Ctrl-C: what is on disk, and how to go on."""
    click.get_current_context().meta[_ON_STOP] = describe


def what_stays(context: click.Context) -> str:
    """Return what the running command said with ``on_stop``; for one that said nothing, that it begins anew."""
    describe: Callable[[], str] = context.meta.get(_ON_STOP, lambda: "nothing was left half written; the same command begins anew")
    try:
        return describe()
    except (SpagError, OSError) as error:
        return f"the same command goes on ({error})"


def read_config(config_name: str | None, overrides: tuple[str, ...] = ()) -> "RunConfig":
    """Return the config that ``overrides`` and then the command's options describe; without a name, of the defaults."""
    from spag.config.files import load_config, parse_config

    given = (*overrides, *click.get_current_context().meta.get(_OVERRIDES, ()))
    return load_config(config_name, given) if config_name else parse_config("", "defaults", given)


def open_reporter() -> "Reporter":
    """Return the reporter on standard error; results go to standard output."""
    from rich.console import Console

    from spag.cli.console import make_reporter

    return make_reporter(Console(stderr=True))


def entrant(text: str) -> tuple[str, str]:
    """Return name and model of ``NAME=MODEL``, or of ``MODEL``, which is its own name."""
    name, equals, model = text.partition("=")
    return (name, model) if equals else (text, text)
