"""Games between a visitor and a checkpoint. Rules, prompts and verdicts are those of self-play; nothing is written to disk.

A visitor's games belong to a session: an unguessable name in a cookie, kept in memory, limited in number and age. Everything here runs in
the server's event loop, one call at a time, so a game needs no lock.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spag.core.errors import DataError, EngineError
from spag.core.types import GameState, Utterance
from spag.engines.base import Sampling
from spag.games.taboo.prompts import PromptSet, stop_strings
from spag.games.taboo.rules import AdversarialTaboo
from spag.games.taboo.types import Role
from spag.games.taboo.words import parse_words
from spag.rollout.runner import deserves_another, next_request
from spag.web.speakers import REPLY_LIMIT_S, Reply, Speakers

LONGEST_UTTERANCE = 2000
MOST_SESSIONS = 256
MOST_GAMES = 20  # a session
SESSION_S = 12 * 3600.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What all games share. ``draw_word`` returns a held-out word."""

    game: AdversarialTaboo
    prompts: PromptSet
    max_turns: int
    sampling: Mapping[Role, Sampling]
    draw_word: Callable[[], str]


@dataclass(slots=True)
class HumanGame:
    """A game of a visitor, who plays ``human``, against ``checkpoint``."""

    id: str
    checkpoint: str
    human: Role
    state: GameState
    seed: int
    attempt: int = 0
    reply: Reply | None = None
    error: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state.verdict is not None

    @property
    def is_humans_move(self) -> bool:
        return not self.is_over and self.state.role_to_move is self.human

    @property
    def known_word(self) -> str | None:
        """The target word, where the visitor may see it."""
        return self.state.target_word if self.is_over or self.human is Role.ATTACKER else None


@dataclass(slots=True)
class Session:
    """The games of one visitor, oldest first."""

    games: OrderedDict[str, HumanGame] = field(default_factory=OrderedDict)
    used: float = field(default_factory=time.monotonic)


class Sessions:
    """Sessions by name, the least recently used first; old ones and those above ``most`` are dropped."""

    def __init__(self, *, most: int = MOST_SESSIONS, lifetime_s: float = SESSION_S) -> None:
        self._most, self._lifetime_s = most, lifetime_s
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def find(self, name: str | None) -> Session | None:
        self._drop_old()
        session = self._sessions.get(name or "")
        if session is not None and name is not None:
            session.used = time.monotonic()
            self._sessions.move_to_end(name)
        return session

    def create(self) -> tuple[str, Session]:
        name = secrets.token_urlsafe(24)
        self._sessions[name] = session = Session()
        self._drop_old()
        return name, session

    def _drop_old(self) -> None:
        limit = time.monotonic() - self._lifetime_s
        while self._sessions and (len(self._sessions) > self._most or next(iter(self._sessions.values())).used < limit):
            self._sessions.popitem(last=False)


@dataclass(frozen=True, slots=True)
class GameRoom:
    """Starts games and moves them on."""

    rules: Rules
    speakers: Speakers
    reply_limit_s: float = REPLY_LIMIT_S

    def start(self, session: Session, checkpoint: str, human: Role, target_word: str) -> HumanGame:
        """Begin a game."""
        state = self.rules.game.initial_state(target_word, self.rules.max_turns)
        game = HumanGame(secrets.token_urlsafe(9), checkpoint, human, state, secrets.randbits(62))
        session.games[game.id] = game
        while len(session.games) > MOST_GAMES:
            session.games.popitem(last=False)
        self._ask_if_due(game)
        return game

    def say(self, game: HumanGame, text: str) -> None:
        """Take the visitor's utterance. Raises ``DataError`` for one that cannot be taken."""
        if not game.is_humans_move:
            raise DataError("it is not your move; wait for the reply")
        if not text.strip():
            raise DataError("your utterance is empty; write something")
        if len(text) > LONGEST_UTTERANCE:
            raise DataError(f"your utterance has {len(text):,} characters; at most {LONGEST_UTTERANCE:,} are allowed")
        game.state = self.rules.game.apply(game.state, Utterance(game.human, text.strip()))
        self._ask_if_due(game)

    def advance(self, game: HumanGame) -> None:
        """Take the model's reply when it is there, or note why it is not."""
        reply = game.reply
        if reply is None:
            return
        if not reply.is_done:
            reply.speaker.check(reply, self.reply_limit_s)
        if reply.error is not None:
            game.error, game.reply = reply.error, None
        elif reply.completion is not None:
            game.reply = None
            if deserves_another(reply.completion, game.attempt, self.rules.sampling[game.human.opponent]):
                game.attempt += 1
            else:
                game.attempt = 0
                game.state = self.rules.game.apply(game.state, Utterance(game.human.opponent, reply.completion.text))
            self._ask_if_due(game)

    def retry(self, game: HumanGame) -> None:
        """Ask again for a reply that failed."""
        if game.error is not None:
            game.attempt += 1
            self._ask_if_due(game)

    def _ask_if_due(self, game: HumanGame) -> None:
        game.error = None
        if game.is_over or game.is_humans_move or game.reply is not None:
            return
        rules, moment = self.rules, len(game.state.history)
        request = next_request(
            f"{game.id}-{moment}-{game.attempt}",
            game.seed,
            game.state,
            game.attempt,
            game=rules.game,
            prompts=rules.prompts,
            sampling=rules.sampling[game.state.role_to_move],
            stop=stop_strings(rules.prompts),
        )
        try:
            game.reply = self.speakers.get(game.checkpoint).ask(request)
        except EngineError as error:
            game.error = str(error)


def checked_word(word: str) -> str:
    """Return a visitor's target word. Raises ``DataError`` for a text that one cannot play with."""
    return parse_words([word], "your word")[0]
