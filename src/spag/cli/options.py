"""Options shared by several commands.

One rule (docs/cli.md): a config is the argument ``CONFIG`` if it is the main one, else ``--config``. ``--set`` and
``--seed`` change it, as do ``--words``, ``--prompts``, ``--game`` and ``--ray`` where they apply.
``--json`` prints results and lists for programs. Every command takes ``-q`` and ``-v``.
"""

import json
import os
import shutil
import textwrap
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from spag.config.presets import PRESETS
from spag.core.errors import ConfigError

if TYPE_CHECKING:
    from spag.config.schema import RunConfig
    from spag.core.progress import Reporter

Command = TypeVar("Command", bound=Callable[..., Any])


class _InputFile(click.Path):
    """A file to read. Commands read files more than once, so a pipe is kept in a file while the command runs."""

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
        from spag.storage.disk import storage_errors

        with storage_errors(Path(value)), suppress(FileNotFoundError, NotADirectoryError):
            Path(value).stat()  # names that are too long, circular links
        return super().convert(value, param, ctx)


def _spooled(pipe: Path, ctx: click.Context) -> Path:
    """Copy a pipe into a temporary file, removed with the command, and return its path."""
    from spag.storage.disk import storage_errors
    from spag.storage.jsonfile import reading

    copy = Path(ctx.with_resource(TemporaryDirectory(prefix="spag-"))) / pipe.name
    with reading(pipe) as stream, storage_errors(copy), copy.open("wb") as kept:
        shutil.copyfileobj(stream, kept)
    return copy


def refuse_input(output: Path | None, *inputs: Path | str | None) -> None:
    """Raise ``ConfigError`` if a command would overwrite a file or folder that it reads, or reads from."""
    for path in inputs:
        with suppress(OSError, ValueError):  # no such file, which is reported elsewhere
            if output is None or path is None:
                continue
            if output.samefile(path) or Path(path).resolve().is_relative_to(output.resolve()):
                what = f"{output}: would be overwritten, but this command reads {path}"
                raise ConfigError(f"{what}; choose another --output")


EXISTING = _InputFile(exists=True, dir_okay=False, path_type=Path)
ANY_PATH = _Output(path_type=Path)
_CONFIGS = f"CONFIG is a preset or a YAML file. Presets: {', '.join(PRESETS)}."
CONFIG_EPILOG = "\b\n" + textwrap.fill(_CONFIGS, 76, break_on_hyphens=False)
"""The end of the help of every command that takes a config."""
_OVERRIDES = "spag.overrides"
_VERBOSITY = "spag.verbosity"


def complete_config(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the presets for shell completion, else ask the shell for files."""
    found = [CompletionItem(name) for name in PRESETS if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


config_argument = click.argument("config_name", metavar="CONFIG", shell_complete=complete_config)


def quoted(text: object) -> str:
    """Return a text quoted for YAML, which would read ``2024`` or ``a #1`` differently; an empty one is null."""
    return json.dumps(str(text), ensure_ascii=False) if str(text) else ""


def setting(
    flag: str, override: str, metavar: str, text: str, as_yaml: Callable[[str], str] = quoted
) -> Callable[[Command], Command]:
    """Return an option short for ``--set OVERRIDE``, its value in place of ``{}``; ``read_config`` applies it."""

    def keep(context: click.Context, _: click.Parameter, values: tuple[str, ...]) -> None:
        context.meta.setdefault(_OVERRIDES, []).extend(override.format(as_yaml(one)) for one in values)

    return click.option(flag, metavar=metavar, help=text, multiple=True, expose_value=False, callback=keep)


set_option = setting("--set", "{}", "A.B=VALUE", "Change one option of the config; may be repeated.", str)
seed_option = setting("--seed", "seed={}", "NUMBER", "Short for --set seed=NUMBER.", str)
game_option = setting("--game", "game.name={}", "NAME", "Short for --set game.name=NAME; spag games lists them.")
words_option = setting(
    "--words", "game.words={}", "shipped|frequency|FILE", "Target words of Taboo; short for --set game.words=..."
)
prompts_option = setting("--prompts", "game.prompts={}", "FILE", "Prompt file; short for --set game.prompts=FILE.")
ray_option = setting(
    "--ray", "cluster.address={}", "auto|local|ADDRESS",
    "Play and train on this Ray cluster; short for --set cluster.address=...",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def _keep_verbosity(context: click.Context, option: click.Parameter, given: bool) -> None:
    if given:
        context.meta[_VERBOSITY] = 1 if option.name == "verbose" else -1


_VERBOSITY_OPTIONS = [
    click.Option(flags, is_flag=True, expose_value=False, callback=_keep_verbosity, help=text)
    for flags, text in (
        (("-q", "--quiet"), "Show only warnings and results."),
        (("-v", "--verbose"), "Also show messages of libraries and tracebacks of errors."),
    )
]


def config_options(command: Command) -> Command:
    """Add ``--config``, ``--set`` and ``--seed``."""
    option = click.option(
        "--config",
        "config_name",
        metavar="CONFIG",
        shell_complete=complete_config,
        help="Preset or YAML file.",
    )
    return option(set_option(seed_option(command)))


def task_options(command: Command) -> Command:
    """Add ``--set``, ``--seed``, ``--words`` and ``--prompts``."""
    return set_option(seed_option(words_option(prompts_option(command))))


def complete_help(command: click.Command) -> None:
    """Give every command ``-q`` and ``-v``, its first sentence as summary, however narrow the terminal, and the names
    of all presets in its help if it takes a config.
    """
    command.short_help = command.get_short_help_str(limit=400)
    if isinstance(command, click.Group):
        for one in command.commands.values():
            complete_help(one)
        return
    command.params += _VERBOSITY_OPTIONS
    if any(one.name in ("config_name", "config_names") for one in command.params):
        command.epilog = CONFIG_EPILOG


def read_config(config_name: str | None, overrides: tuple[str, ...] = (), *, defaults: str = "") -> "RunConfig":
    """Return the config changed by ``overrides``, then by the command's options; without a name, start from
    ``defaults``, which is YAML.
    """
    from spag.config.files import load_config, parse_config

    given = (*overrides, *click.get_current_context().meta.get(_OVERRIDES, ()))
    return parse_config(defaults, "command line", given) if config_name is None else load_config(config_name, given)


def asks_for_game() -> bool:
    """Whether one of the command's options is about the config's game."""
    return any(one.startswith("game") for one in click.get_current_context().meta.get(_OVERRIDES, ()))


def print_json(result: object) -> None:
    """Print a result, in which dataclasses become objects."""
    click.echo(json.dumps(result, indent=2, default=asdict))


def verbosity(context: click.Context) -> int:
    """Return -1 after ``--quiet``, 1 after ``--verbose``, else 0."""
    level: int = context.meta.get(_VERBOSITY, 0)
    return level


def open_reporter() -> "Reporter":
    """Return the reporter on standard error; results go to standard output."""
    from rich.console import Console

    from spag.cli.console import make_reporter

    return make_reporter(Console(stderr=True), verbosity(click.get_current_context()))


def entrants(texts: Iterable[str]) -> dict[str, str]:
    """Return models by name, from ``NAME=MODEL``, or from ``MODEL``, which is then also the name.

    What exists is a model: sweeps have folders like ``runs/lr=1e-5``. Raises ``click.UsageError`` for a name that is
    given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, model = text.partition("=")
        if not name or not model or os.path.lexists(text):
            name = model = text
        if name in found:
            raise click.UsageError(f"two models are called {name}; give them different names as NAME=MODEL")
        found[name] = model
    return found
