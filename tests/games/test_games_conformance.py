"""Every game that ships passes the suite of ``spag.games.conformance``."""

import random
from functools import cache
from pathlib import Path

import pytest

from outside import install
from spag import games
from spag.core.errors import ConfigError
from spag.core.types import Observation, Split, Task
from spag.games.base import Game, bracketed
from spag.games.conformance import CHECKS, Check
from spag.games.conformance.declarations import check_settings_make_the_same_game
from spag.games.registry import SHIPPED
from spag.games.taboo.words import shipped_words
from spag.text.evasions import find_evasion
from spag.text.matching import find_form

SLOW = {"guess_my_city": pytest.mark.slow}  # one long list of names, which every check goes through
SETTINGS = {"adversarial_taboo": {"words": "shipped"}}  # the frequency list takes a while to load


# as a file from elsewhere may have them: a word in another form and case, a hand beyond ``hands``, and ids that tell
# nothing
HELD_OUT = {
    "adversarial_taboo": Task("7", {"target_word": " Breads"}),
    "kuhn_poker": Task("held_out-9999-QK", {"player_0": "Q", "player_1": "K"}),
    "tic_tac_toe": Task("7", {"opening": [4]}),
    "twenty_questions": Task("7", {"thing": "Horse"}),
    "guess_my_city": Task("7", {"city": "london"}),
}


@cache
def game_of(name: str) -> Game:
    return games.get(name, **SETTINGS.get(name, {}))


def test_the_suite_is_large() -> None:
    assert len(set(CHECKS)) >= 24


@pytest.mark.parametrize("name", HELD_OUT)
def test_a_task_from_elsewhere_is_known_for_held_out(name: str) -> None:
    assert game_of(name).split_of(HELD_OUT[name]) is Split.HELD_OUT


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("judge", ["strict", "paper"])
def test_taboo_as_upstream_plays_it_conforms(judge: str, check: Check) -> None:
    check(games.get("adversarial_taboo", words="shipped", judge=judge, stop="announced"), 0)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in SHIPPED])
def test_conformance(name: str, check: Check) -> None:
    check(game_of(name), 0)


FOREIGN = """
from dataclasses import dataclass
from spag.games.base import Game

@dataclass(frozen=True)
class Odd(Game):
    low: int = 1

    def __post_init__(self):
        if self.low > 2:
            raise ValueError("low is above 2")
"""


def test_faults_of_a_foreign_game_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"odd": "odd_game:Odd", "gone": "nowhere:Gone", "typo": "typo_game:Typo", "torn": "torn_game:Torn"}
    entries["trio"] = "trio_game:Trio"
    files = {
        "trio_game.py": "from spag.games.nim.nim import Nim\nclass Trio(Nim):\n    roles = ('a', 'b', 'c')\n",
        "odd_game.py": FOREIGN,
        "typo_game.py": "from math import pi\nTypo = pie\n",
        "torn_game.py": "class Torn(:\n",
    }
    install(tmp_path, "odd-games", "spag.games", entries, files)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"^game: low is above 2, got \{'low': 3\}$"):
        games.get("odd", low=3)
    for name, fault in {
        "gone": "nowhere:Gone cannot be loaded: ModuleNotFoundError: No module named 'nowhere'",
        "typo": "typo_game:Typo cannot be loaded: NameError: name 'pie' is not defined",
        "torn": r"torn_game:Torn cannot be loaded: SyntaxError: .*\(torn_game\.py, line 1\)",
    }.items():
        with pytest.raises(ConfigError, match=rf"^{name}: {fault}; fix or uninstall the package odd-games$"):
            games.get(name)
    with pytest.raises(ConfigError, match=r"^trio: has the roles a, b, c; spag plays games of two roles$"):
        games.get("trio")


LISTED = """
from dataclasses import dataclass
from spag.core.options import FileName
from spag.games.nim.nim import Nim

@dataclass(frozen=True)
class Listed(Nim):
    name = "listed"
    judged_by = ("take", "moves")
    moves: FileName | None = None
"""


def test_no_game_is_judged_by_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "listed-game", "spag.games", {"listed": "listed_game:Listed"}, {"listed_game.py": LISTED})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AssertionError, match="judged_by must name settings, not files"):
        check_settings_make_the_same_game(games.get("listed"), 0)  # by its type, not by the default


def test_a_move_in_brackets_may_be_long() -> None:
    moves = ("move the knight from b1 to c3", "resign")
    assert bracketed("I see. [Move the knight from b1 to c3]", moves) == moves[0]
    assert bracketed("[move the knight from b1 to c3] or [resign]", moves) is None
    assert bracketed(f"[{'x' * 100_000}[resign]" + "[" * 100_000, moves) == "resign"


@pytest.mark.slow
@pytest.mark.parametrize("role", game_of("adversarial_taboo").roles)
def test_taboos_constant_bot_says_no_word(role: str) -> None:
    said = game_of("adversarial_taboo").bots["constant"](Observation(role, ()), random.Random(0))
    assert not any(find_form(said, word) or find_evasion(said, word) for word in shipped_words())
