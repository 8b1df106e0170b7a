"""Our games in TextArena: ``register()``, then ``textarena.make("Spag-Taboo-v0")`` (extra ``textarena``).

A player's observation is the whole prompt of its turn, not accumulated messages: the default wrapper passes on only the
last message, and ``Spag-Taboo-v0-raw`` gives it as a list of one. Player 0 is the game's first role.
"""

from typing import Any

import textarena
from textarena.envs.registration import ENV_REGISTRY, register_with_versions

from spag.adapters.turns import after, begin
from spag.core.types import Result, Split, State
from spag.games.base import Game
from spag.games.registry import get, names

WRAPPERS = {version: [textarena.wrappers.SingleTurnObservationWrapper] for version in ("default", "-train")}


def env_id(game: str) -> str:
    """Return the id of a game's environment: ``kuhn_poker`` is ``Spag-KuhnPoker-v0``, Taboo is ``Spag-Taboo-v0``."""
    return f"Spag-{''.join(part.title() for part in game.removeprefix('adversarial_').split('_'))}-v0"


def register() -> list[str]:
    """Register every installed game with TextArena, once, and return the ids."""
    ids = {env_id(name): name for name in names()}
    for id, name in ids.items():
        if id not in ENV_REGISTRY:
            register_with_versions(id, entry_point=SpagEnv, wrappers=WRAPPERS, game=name)
    return list(ids)


class SpagEnv(textarena.Env):
    """A two-player game on the tasks of ``split``; ``settings`` are the game's."""

    def __init__(self, game: str, split: str = Split.TRAIN, **settings: Any) -> None:
        self.game: Game = get(game, **settings)
        self._tasks = self.game.tasks(Split(split), None, 0)

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self._position: State = begin(self.game, self._tasks, seed)
        self.state = textarena.TwoPlayerState(num_players=num_players)  # with a seed, it would seed the whole process
        self.state.reset(game_state={}, secret_roles=dict(enumerate(self.game.roles)))
        self._select_player()

    def get_observation(self) -> tuple[int, list[tuple[int, str, textarena.ObservationType]]]:
        player = self.state.current_player_id
        prompt = self.game.prompt(self.game.observe(self._position, self.game.roles[player]))
        return player, [(textarena.GAME_ID, prompt, textarena.ObservationType.PROMPT)]

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self._position = after(self.game, self._position, action)
        if self._position.result is not None:
            self._end(self._position.result)
        done, info = self.state.step(rotate_player=False)
        self._select_player()
        return done, info

    def _select_player(self) -> None:
        role = self.game.to_move(self._position)
        if role is not None:
            self.state.manually_set_current_player_id(self.game.roles.index(role))

    def _end(self, result: Result) -> None:
        fault = self.game.outcomes[result.outcome].fault
        self.state.done = True
        self.state.rewards = {player: result.rewards[role] for player, role in enumerate(self.game.roles)}
        for player, role in enumerate(self.game.roles):
            known = {"reason": result.reason, "invalid_move": role == fault, "outcome": result.outcome}
            self.state.game_info[player] |= known
