"""``spag`` and ``python -m spag``: the command line, imported where Ctrl-C already ends in one line."""

import sys


def main() -> None:
    """Run the command line. Exit status 130: stopped by Ctrl-C, here while Python still imports."""
    try:
        from spag.cli import main as command  # noqa: PLC0415 - takes a moment, in which a stop is one line, too
    except KeyboardInterrupt:
        sys.stderr.write("stopped; nothing was begun\n")
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
