"""Games between a visitor and a model or bot, with the rules, prompts and verdicts of self-play.

A visitor's games belong to a session: an unguessable name in a cookie, kept in memory, limited in number and age. A
few models are open at once, shared by all sessions. Everything here runs in the server's event loop, one call at a
time, so nothing needs a lock. The visitor sees a game in progress only through ``observe``.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from spag.core.errors import ConfigError, DataError, EngineError, SpagError
from spag.core.options import SamplingConfig
from spag.core.types import Split, State, Task, Utterance
from spag.engines.base import Engine, RequestError
from spag.engines.thread import REPLY_LIMIT_S, ModelThread, Reply
from spag.games.base import Game
from spag.rollout.runner import next_request, utterance_of

LONGEST_UTTERANCE = 2000
MOST_OPEN = 2  # models
MOST_SESSIONS = 256
MOST_GAMES = 20  # games per session
SESSION_S = 12 * 3600.0  # seconds without a visit

OpenModel = Callable[[str], Engine]


class ModelPool:
    """The open models, at most ``most_open``; a new one replaces the least recently used.

    ``stamp`` returns what distinguishes a model from the one that a redo trains in its place.
    """

    def __init__(
        self, open_model: OpenModel, stamp: Callable[[str], object] = lambda name: None, *, most_open: int = MOST_OPEN
    ) -> None:
        self._open_model, self._stamp, self._most_open = open_model, stamp, most_open
        self._threads: OrderedDict[tuple[str, object], ModelThread] = OrderedDict()

    def get(self, name: str) -> ModelThread:
        """Return the model ``name``, opened in the background. Raises ``EngineError`` if all others are busy, and the
        errors of ``stamp``.
        """
        key = name, self._stamp(name)
        known = self._threads.get(key)
        if known is not None and known.problem is None:
            self._threads.move_to_end(key)
            return known
        self._threads.pop(key, None)
        while len(self._threads) >= self._most_open:
            idle = next((other for other, thread in self._threads.items() if thread.problem or not thread.asked), None)
            if idle is None:
                raise EngineError(f"{self._most_open} other models are answering right now; try again in a moment")
            self._threads.pop(idle).close()
        thread = self._threads[key] = ModelThread(lambda: self._open_model(name))
        return thread

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()
        self._threads.clear()


@dataclass(slots=True)
class WebMatch:
    """A game of a visitor, in the role ``human``, against ``opponent``, one of ``models``."""

    game: Game
    state: State
    human: str
    opponent: str
    models: ModelPool
    sampling: SamplingConfig
    reply_limit_s: float = REPLY_LIMIT_S
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    attempt: int = 0
    reply: Reply | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        self._request_reply()

    @property
    def is_over(self) -> bool:
        return self.state.result is not None

    @property
    def is_humans_move(self) -> bool:
        return self.game.to_move(self.state) == self.human

    @property
    def other(self) -> str:
        """The opponent's role."""
        first, second = self.game.roles
        return second if self.human == first else first

    @property
    def task(self) -> str | None:
        """The task in words, if the visitor may see all of it."""
        may_know = self.is_over or not self.game.hidden.get(self.human)
        return self.game.describe_task(self.state.task) if may_know else None

    @property
    def view(self) -> str:
        """What the visitor knows besides the history."""
        return self.game.describe_view(self.game.observe(self.state, self.human))

    @property
    def history(self) -> tuple[Utterance, ...]:
        """The history as the visitor sees it; in full once the game is over."""
        return self.state.history if self.is_over else self.game.observe(self.state, self.human).history

    @property
    def reply_so_far(self) -> str:
        """The reply so far, if the visitor may see it verbatim."""
        text = self.reply.text_so_far if self.reply else ""
        state = replace(self.state, history=(*self.state.history, Utterance(self.other, text)))
        heard = self.game.observe(state, self.human).history
        return text if len(heard) == len(state.history) and heard[-1].content == text else ""

    def say(self, text: str, after: str | None = None) -> None:
        """Take the visitor's utterance; ``after``: how many there were in the page. Raises ``DataError``."""
        if after is not None and after != str(len(self.state.history)):
            raise DataError("the game has continued in another tab; read the new turns, then answer")
        if self.is_over:
            raise DataError("this game is over; start another one")
        if not self.is_humans_move:
            raise DataError("it is not your move; wait for the reply")
        if not text.strip():
            raise DataError("your utterance is empty; write something")
        if len(text) > LONGEST_UTTERANCE:
            raise DataError(f"your utterance has {len(text):,} characters; at most {LONGEST_UTTERANCE:,} are allowed")
        self.state = self.game.apply(self.state, Utterance(self.human, text.strip()))
        self._request_reply()

    def advance(self) -> None:
        """Take the opponent's reply once it is complete, or record why it failed."""
        if self.reply is None:
            return
        self.reply.fail_when_late(self.reply_limit_s)
        completion, self.error = self.reply.completion, self.reply.error
        if self.error is not None:
            self.reply = None
        elif completion is not None:
            request, self.reply = self.reply.request, None
            try:
                said = utterance_of(completion, request, self.state, self.attempt)
            except RequestError as error:
                self.error = str(error)
                return
            if said is None:
                self.attempt += 1
            else:
                self.attempt = 0
                self.state = self.game.apply(self.state, said)
            self._request_reply()

    def retry(self) -> None:
        """Ask again for a reply that failed."""
        if self.error is not None:
            self.attempt += 1
            self._request_reply()

    def _request_reply(self) -> None:
        """Ask the opponent for its utterance if it is to move."""
        self.error = None
        if self.is_over or self.is_humans_move or self.reply is not None:
            return
        name = f"{self.id}-{len(self.state.history)}-{self.attempt}"
        request = next_request(name, self.game, self.state, self.attempt, self.sampling)
        try:
            self.reply = self.models.get(self.opponent).ask(request)
        except SpagError as error:
            self.error = str(error)


Session = OrderedDict[str, WebMatch]


def informed_roles(game: Game) -> list[str]:
    """Return the roles whose player may choose the task: those that know all of it, in games with custom tasks."""
    takes_tasks = type(game).custom_task is not Game.custom_task
    return [role for role in game.roles if takes_tasks and not game.hidden.get(role)]


def draw_task(game: Game) -> Task:
    """Return a held-out task, or any task of a game without a held-out split. Loading tasks may be slow."""
    seed = secrets.randbits(62)
    try:
        return game.tasks(Split.HELD_OUT, 1, seed)[0]
    except ConfigError:
        return game.tasks(Split.TRAIN, 1, seed)[0]


class Sessions:
    """Visitors' games by session and id; expired sessions and the least recently used above ``most`` are dropped."""

    def __init__(self, most: int = MOST_SESSIONS, lifetime_s: float = SESSION_S) -> None:
        self._most, self._lifetime_s = most, lifetime_s
        self._sessions: OrderedDict[str, tuple[float, Session]] = OrderedDict()  # with the time of its last use

    def find(self, name: str) -> Session | None:
        """Return the games of a session, oldest first."""
        now = time.monotonic()
        while self._sessions and next(iter(self._sessions.values()))[0] < now - self._lifetime_s:
            self._sessions.popitem(last=False)
        if name not in self._sessions:
            return None
        _, session = self._sessions.pop(name)
        self._sessions[name] = now, session
        return session

    def add(self, name: str, match: WebMatch) -> str:
        """Add a game to session ``name``, or to a new one if there is none; return the session's name."""
        session = self.find(name)
        if session is None:
            name, session = secrets.token_urlsafe(24), OrderedDict()
            self._sessions[name] = time.monotonic(), session
        session[match.id] = match
        while len(session) > MOST_GAMES:
            session.popitem(last=False)
        while len(self._sessions) > self._most:
            self._sessions.popitem(last=False)
        return name
