"""The texts of Kuhn poker, and what tables, plots, report and page show of it."""

from spag.core.types import Outcome
from spag.games.base import Figure, outcome_map

ROLES = ("player_0", "player_1")

RULES = """\
This is Kuhn poker, for two players, player_0 and player_1. The deck has three cards: K is the highest, Q is next, J is the lowest. \
Each player pays one chip into the pot and gets one card, which only that player sees. player_0 moves first. While nobody has bet, a \
player may [check] or [bet]; to bet is to pay one more chip into the pot. After a bet the other player may [call], by paying one more \
chip too, or [fold], which gives the pot away. When both have checked, or a bet was called, the higher card wins the pot. A player whose \
text does not name exactly one legal move in square brackets pays the other two chips, and the hand is over."""

ROLE_HELP = {
    "player_0": "You move first. Say [check] or [bet]; if you checked and the other bet, say [call] or [fold].",
    "player_1": "You move second. Say [check] or [bet] after a check, [call] or [fold] after a bet.",
}

_WIN = "The higher card wins the pot, unless its holder folded."
_ILLEGAL = "A player who does not name exactly one legal move pays the other two chips."
OUTCOMES = outcome_map(
    Outcome("player_0_wins", "player_0 wins the pot", "#0072b2", winners=("player_0",), rule=_WIN),
    Outcome("player_1_wins", "player_1 wins the pot", "#e69f00", winners=("player_1",), rule=_WIN),
    Outcome("player_0_illegal", "player_0 breaks a rule", "#56b4e9", fault="player_0", rule=_ILLEGAL),
    Outcome("player_1_illegal", "player_1 breaks a rule", "#d55e00", fault="player_1", rule=_ILLEGAL),
    Outcome("unfinished", "unfinished", "#a3a9b6", rule="A hand that was cut short is void: both take their chips back."),
)

FIGURES = (
    Figure("illegal", "illegal or unreadable moves", limit=0.05, warning="of hands end with an illegal or unreadable move"),
    Figure("bets", "hands with a bet"),
    *(Figure(f"{role}_moves", f"{role}: legal moves", role, is_count=True) for role in ROLES),
    *(Figure(f"{role}_blunders", f"{role}: folds a K, calls with a J", role, of=f"{role}_moves") for role in ROLES),
)
