"""Each adapter is tested with the real package: where that is not installed, its tests are not collected.

``make test`` installs the packages that go together with constraints.txt, ``make test-adapters`` the others.
"""

from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("openenv", "pettingzoo", "textarena", "trl", "verifiers")

collect_ignore = [
    path.name
    for package in PACKAGES
    if find_spec(package) is None
    for path in Path(__file__).parent.glob(f"test_{package}*.py")
]
