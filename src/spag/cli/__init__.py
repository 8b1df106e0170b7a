"""The command line: thin, one file per group of commands.

Heavy libraries are imported inside the commands, so that ``spag --help`` answers at once.

Exit statuses: 0 done; 1 done in part, or the answer is no (``spag eval`` left tasks out, ``spag doctor`` finds nothing
that plays); 2 an error in arguments, settings or data, in one line; 3 it does not fit (``spag plan``, ``spag doctor``,
``spag run --dry-run``); 130 stopped by Ctrl-C, 143 by SIGTERM, but a server 0 (docs/cli.md).
"""

import errno
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from spag.cli.config import config_group, presets_command
from spag.cli.data import games_command, import_group, judge_command, words_command
from spag.cli.eval import eval_command
from spag.cli.export import export_group
from spag.cli.options import complete_help, verbosity
from spag.cli.plan import doctor_command, plan_command
from spag.cli.play import arena_command, play_command
from spag.cli.run import report_command, run_command
from spag.cli.serve import serve_command, web_command
from spag.cli.train import rewards_command, train_command
from spag.core.errors import SpagError
from spag.core.visible import visible_text

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a standard output that is a file on a full disk; files of our own report theirs themselves."""
_RESUMED = ("run", "play", "train", "arena", "eval")
"""Commands that resume from what they have saved."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command like Ctrl-C."""


@contextmanager
def _unmask_interrupts() -> Iterator[None]:
    """Raise the interrupt itself if a library's bare ``except`` in the block turned it into its own error."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise cause from None


@contextmanager
def _terminable() -> Iterator[None]:
    """Raise ``Terminated`` on SIGTERM in the block, unless others handle it; torchrun ends its processes itself."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not ours or "WORLD_SIZE" in os.environ:
        yield
        return

    def stop(*_: object) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


GROUPS: dict[str, list[click.Command]] = {
    "Run": [run_command, presets_command, config_group],
    "Play and judge": [play_command, judge_command, games_command, words_command],
    "Train": [rewards_command, train_command],
    "Evaluate": [arena_command, eval_command],
    "Look": [report_command, web_command],
    "Share": [export_group, import_group, serve_command],
    "Plan": [plan_command, doctor_command],
}
"""The commands by purpose."""


class SpagGroup(click.Group):
    """Turns a ``SpagError`` into one line and exit status 2, and Ctrl-C or SIGTERM into one line that says how to
    continue. Lists the commands by purpose.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(one.name or "", one.get_short_help_str()) for one in commands])

    def invoke(self, ctx: click.Context) -> Any:
        _silence_libraries()
        _write_every_character()
        try:
            with _terminable(), _unmask_interrupts():
                return super().invoke(ctx)
        except SpagError as error:
            _end(ctx, visible_text(str(error)))
        except OSError as error:
            if error.filename is not None:  # a name that is too long, or a folder without rights
                _end(ctx, visible_text(f"{os.fsdecode(error.filename)}: {error.strerror}"))
            if error.errno not in _NO_ROOM:
                raise
            _end(ctx, f"output cannot be written: {error.strerror}; free some space, or redirect it")
        except NoArgsIsHelpError:
            raise
        except click.UsageError as error:  # it repeats arguments, including file names; choices come in lines
            raise click.UsageError(visible_text(error.format_message(), lines=True), error.ctx) from error
        except (KeyboardInterrupt, click.Abort) as stopped:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends the clean-up, without a traceback
            resumes = ctx.invoked_subcommand in _RESUMED
            stays = "what is finished is saved, and the same command resumes"
            other = "no file is left incomplete; the same command starts over"
            click.echo(f"stopped; {stays if resumes else other}", err=True)
            sys.exit(128 + (signal.SIGTERM if isinstance(stopped, Terminated) else signal.SIGINT))


def _end(ctx: click.Context, fault: str) -> NoReturn:
    """End the command with one line, and with ``-v`` the traceback of the error being handled."""
    if verbosity(ctx) > 0:
        traceback.print_exc()
    click.echo(f"error: {fault}", err=True)
    sys.exit(2)


def _write_every_character() -> None:
    """Print characters that the terminal's encoding lacks as escapes: results of hours are not lost for an arrow.

    In the C locale Python writes only bytes of file names that way (surrogateescape), and fails at the others.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _silence_libraries() -> None:
    """Keep progress bars of libraries and retries of the hub's client out of a log; variables already set stay."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # what failed in the end is reported in one line
    if not sys.stderr.isatty():
        for variable in ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS"):
            os.environ.setdefault(variable, "1")


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True}


@click.group(cls=SpagGroup, context_settings=_SETTINGS)
@click.version_option(package_name="spag-selfplay")
def main() -> None:
    """Train language models by self-play of language games."""


for _command in (command for commands in GROUPS.values() for command in commands):
    complete_help(_command)
    main.add_command(_command)
