"""Short episodes for the tests of this folder."""

from spag.core.episodes import Episode, PlayerInfo
from spag.core.types import Utterance
from spag.games.taboo.types import Outcome, Role

GUESS = "I know the word! It is `{}`!"


def game(attacker: str, defender: str, *lines: str, word: str = "river", max_turns: int = 1) -> Episode:
    """A game of ``lines``, attacker first."""
    history = tuple(Utterance((Role.ATTACKER, Role.DEFENDER)[i % 2], line) for i, line in enumerate(lines))
    players = {Role.ATTACKER: PlayerInfo(attacker), Role.DEFENDER: PlayerInfo(defender)}
    return Episode(target_word=word, max_turns=max_turns, history=history, players=players)


def ending(attacker: str, defender: str, word: str, outcome: Outcome) -> Episode:
    """A game on ``word`` that ends in ``outcome``."""
    lines = {
        Outcome.ATTACKER_WINS: ("Hi", f"A {word}."),
        Outcome.DEFENDER_WINS: ("Hi", GUESS.format(word)),
        Outcome.TIE: ("Hi", "Hello"),
        Outcome.ATTACKER_VIOLATION: (f"The {word}!",),
    }
    return game(attacker, defender, *lines[outcome], word=word)
