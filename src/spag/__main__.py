"""``python -m spag`` is ``spag``."""

from spag.cli import main

if __name__ == "__main__":
    main()
