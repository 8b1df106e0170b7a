"""Every game that is installed passes the suite of ``spag.games.conformance``."""

from functools import cache

import pytest

from spag import games
from spag.games.base import Game
from spag.games.conformance import CHECKS, Check

SETTINGS = {"adversarial_taboo": {"words": "shipped"}}  # the frequency list takes a while to load


@cache
def game_of(name: str) -> Game:
    return games.get(name, **SETTINGS.get(name, {}))


def test_the_suite_is_large() -> None:
    assert len(set(CHECKS)) >= 24


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", games.names())
def test_conformance(name: str, check: Check) -> None:
    check(game_of(name), 0)
