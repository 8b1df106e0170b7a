"""The texts of tic-tac-toe, and what tables, plots, report and page show of it."""

from spag.core.types import Outcome
from spag.games.base import Figure, outcome_map

ROLES = ("player_0", "player_1")
MARKS = {"player_0": "X", "player_1": "O"}

RULES = """\
This is tic-tac-toe, for two players: player_0 plays X, player_1 plays O. The squares of the board are numbered 1 to 9, row by row, \
and the players mark free squares in turn. Three marks in a row, a column or a diagonal win; a full board without them is a draw. Write \
the number of your square in square brackets, as in [5]. A player whose text does not name exactly one free square in square brackets \
loses."""

ROLE_HELP = {role: f"You play {mark}. Name a free square in square brackets, as in [5]." for role, mark in MARKS.items()}

_WIN = "Three marks in a row, a column or a diagonal win."
_ILLEGAL = "A player who does not name exactly one free square loses."
OUTCOMES = outcome_map(
    Outcome("player_0_wins", "player_0 (X) wins", "#0072b2", winners=("player_0",), rule=_WIN),
    Outcome("player_1_wins", "player_1 (O) wins", "#e69f00", winners=("player_1",), rule=_WIN),
    Outcome("draw", "draw", "#a3a9b6", rule="A full board without three in a row is a draw, and so is a game that was cut short."),
    Outcome("player_0_illegal", "player_0 (X) breaks a rule", "#56b4e9", fault="player_0", rule=_ILLEGAL),
    Outcome("player_1_illegal", "player_1 (O) breaks a rule", "#d55e00", fault="player_1", rule=_ILLEGAL),
)

FIGURES = (
    Figure("illegal", "illegal or unreadable moves", limit=0.05, warning="of games end with an illegal or unreadable move"),
    *(Figure(f"{role}_moves", f"{mark}: legal moves", role, is_count=True) for role, mark in MARKS.items()),
    *(Figure(f"{role}_optimal", f"{mark}: optimal moves", role, of=f"{role}_moves") for role, mark in MARKS.items()),
)
