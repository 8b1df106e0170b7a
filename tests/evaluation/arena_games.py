"""Short episodes for the tests of this folder: of Adversarial Taboo, and of a small game in which players win
together.
"""

from dataclasses import dataclass

from spag.core.episodes import Episode, PlayerInfo
from spag.core.types import Outcome, Result, State, Task, Utterance
from spag.games.base import Figure, Game, outcome_map
from taboo_games import ROLES, TABOO, episode_of

GUESS = "I know the word! It is `{}`!"
WIN, LOSS, FOUL, TIE = TABOO.outcomes  # as the attacker sees them


def game(attacker: str, defender: str, *lines: str, word: str = "river", max_turns: int = 1) -> Episode:
    """A game of ``lines``, attacker first."""
    players = dict(zip(ROLES, map(PlayerInfo, (attacker, defender)), strict=True))
    return episode_of(word, *lines, max_turns=max_turns, players=players)


def ending(attacker: str, defender: str, word: str, outcome: str) -> Episode:
    """A game on ``word`` that ends in ``outcome``."""
    lines = {WIN: ("Hi", f"A {word}."), LOSS: ("Hi", GUESS.format(word)), TIE: ("Hi", "Hello"), FOUL: (f"The {word}!",)}
    return game(attacker, defender, *lines[outcome], word=word)


@dataclass(frozen=True)
class Handshake(Game):
    """``ask`` names a number, ``tell`` answers: with the task's, and both win; ``tell`` alone wins by "mine"; ``ask``
    is paid for "?".
    """

    name = "handshake"
    title = "Handshake"
    roles = ("ask", "tell")
    outcomes = outcome_map(
        Outcome("together", "both win", "#111111", winners=("ask", "tell")),
        Outcome("mine", "tell wins", "#222222", winners=("tell",)),
        Outcome("nothing", "nothing", "#333333"),
        Outcome("fault", "tell breaks a rule", "#444444", fault="tell"),
    )
    figures = (
        Figure("numbers", "numbers", role="ask", is_count=True),
        Figure("even", "of these even", role="ask", of="numbers", limit=0.5, warning="of numbers are even"),
    )
    fixed_form = ("tell",)

    def rule(self, state: State) -> Result | None:
        if len(state.history) < 2:
            return None
        said, rewards = state.history[1].content, {"ask": 0.0, "tell": 0.0}
        if said == "?":
            return self.end(state, "fault", {"ask": 1.0, "tell": -1.0}, "no number")
        outcome = "mine" if said == "mine" else "together" if said == state.task.id else "nothing"
        return self.end(state, outcome, rewards, said)

    def measure(self, task: Task, history: tuple[Utterance, ...], result: Result) -> dict[str, int]:
        numbers = [int(part) for part in history[0].content.split() if part.isdigit()]
        return {"numbers": len(numbers), "even": sum(number % 2 == 0 for number in numbers)}


HANDSHAKE = Handshake()


def shake(ask: str, tell: str, task: str, numbers: str, answer: str) -> Episode:
    """A game of Handshake."""
    history = (Utterance("ask", numbers), Utterance("tell", answer))
    players = {"ask": PlayerInfo(ask), "tell": PlayerInfo(tell)}
    return Episode(game="handshake", task=Task(task), history=history, players=players)
