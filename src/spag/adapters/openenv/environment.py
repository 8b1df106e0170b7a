"""A game as an OpenEnv environment: the client plays one role by text, an ``Opponent`` the other. OpenEnv 0.10.

An observation is the prompt of the client's next turn. Neither it nor the state has anything else of the task before the game is over.
A seed decides task, role and every draw of the opponent; it is never sent back, because it would tell the task.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from pydantic import Field

from spag.adapters.opponent import Opponent
from spag.core.errors import DataError
from spag.core.seeds import derive_seed
from spag.core.types import State as Position
from spag.core.types import Task, Utterance
from spag.games.base import Game
from spag.web.matches import LONGEST_UTTERANCE

_LONGEST_ID = 255


class Say(Action):
    """What the client says in its turn."""

    text: str = Field(max_length=LONGEST_UTTERANCE, description="the utterance")


class Seen(Observation):
    """What the client's role sees. ``prompt`` is empty once the game is over; then ``outcome`` and ``reason`` say how it ended."""

    role: str = Field(description="the role that the client plays")
    prompt: str = Field(default="", description="what the client's next utterance answers")
    outcome: str | None = None
    reason: str | None = None


class GameState(State):
    """The state that the server tells: none of the task."""

    game: str = ""
    role: str | None = None
    outcome: str | None = None


@dataclass(frozen=True)
class Venue:
    """What all sessions share: the game, the tasks to draw from, and the other side. ``role`` is the client's, any when ``None``."""

    game: Game
    tasks: Sequence[Task]
    opponent: Opponent
    role: str | None = None


class GameEnvironment(Environment[Say, Seen, GameState]):
    """One session. Each ``reset`` begins a new game."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, venue: Venue) -> None:
        super().__init__()
        self._venue, self._role, self._episode_id, self._steps = venue, "", "", 0
        self._position: Position | None = None

    def reset(self, seed: int | None = None, episode_id: str | None = None, role: str | None = None, **_: Any) -> Seen:
        """Begin a game. Raises ``DataError`` for a seed, id or role that cannot be."""
        venue = self._venue
        if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
            raise DataError(f"seed {str(seed)[:40]!r}: a seed is a whole number from 0 to 2^63 - 1")
        if episode_id is not None and not (isinstance(episode_id, str) and 0 < len(episode_id) <= _LONGEST_ID):
            raise DataError(f"episode_id {str(episode_id)[:40]!r}: an id has 1 to {_LONGEST_ID} characters")
        allowed = (venue.role,) if venue.role else venue.game.roles
        if role is not None and role not in allowed:
            raise DataError(f"role {str(role)[:40]!r}: the roles to play here are {', '.join(allowed)}")
        seed = secrets.randbits(62) if seed is None else seed
        task = venue.tasks[derive_seed(seed, "task") % len(venue.tasks)]
        role = role or allowed[derive_seed(seed, "role") % len(allowed)]
        position = self._until_turn_of(role, venue.game.start(task, derive_seed(seed, task.id, 0)))
        self._role, self._steps, self._position = role, 0, position
        self._episode_id = episode_id or secrets.token_hex(8)
        return self._seen()

    def step(self, action: Say, timeout_s: float | None = None, **_: Any) -> Seen:
        """Say something, and return what the client sees at its next turn. A failing opponent leaves the game where it was."""
        if self._position is None or self._position.result is not None:
            raise DataError("there is no game to go on with in this session; reset it first")
        said = Utterance(self._role, action.text.strip())
        self._position = self._until_turn_of(self._role, self._venue.game.apply(self._position, said))
        self._steps += 1
        return self._seen()

    @property
    def state(self) -> GameState:
        result = self._position.result if self._position else None
        return GameState(
            episode_id=self._episode_id or None,
            step_count=self._steps,
            game=self._venue.game.name,
            role=self._role or None,
            outcome=result.outcome if result else None,
        )

    def get_metadata(self) -> EnvironmentMetadata:
        game = self._venue.game
        return EnvironmentMetadata(name=f"spag-{game.name}", description=f"{game.title}: {game.summary}")

    def _until_turn_of(self, role: str, position: Position) -> Position:
        game = self._venue.game
        while position.result is None and game.to_move(position) != role:
            position = game.apply(position, self._venue.opponent.replies([position])[0])
        return position

    def _seen(self) -> Seen:
        position, game = self._position, self._venue.game
        assert position is not None
        result = position.result
        if result is None:
            return Seen(role=self._role, prompt=game.prompt(game.observe(position, self._role)), reward=0.0)
        return Seen(role=self._role, done=True, reward=result.rewards[self._role], outcome=result.outcome, reason=result.reason)


class GameClient(EnvClient[Say, Seen, GameState]):
    """The client, with types; ``GenericEnvClient`` works too."""

    def _step_payload(self, action: Say) -> dict[str, Any]:
        return {"text": action.text}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Seen]:
        done, reward = payload.get("done", False), payload.get("reward")
        return StepResult(Seen(**payload["observation"], done=done, reward=reward), reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> GameState:
        return GameState(**payload)
