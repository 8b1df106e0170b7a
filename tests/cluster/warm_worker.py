"""What a node starts in place of Ray's ``setup_worker.py``: a fork of a server becomes the worker."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from warm import become

ADDRESS = "SPAG_TESTS_WARM"
"""Environment variable: the address of the server."""
_CONTEXT = "--serialized-runtime-env-context="


def main() -> None:
    context = next((one.removeprefix(_CONTEXT) for one in sys.argv if one.startswith(_CONTEXT)), "{}")
    program = [one for one in sys.argv[1:] if not one.startswith((_CONTEXT, "--language="))]
    become(os.environ[ADDRESS], program, {**os.environ, **json.loads(context).get("env_vars", {})})


if __name__ == "__main__":
    main()
