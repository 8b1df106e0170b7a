"""Our games as environments of TextArena: ``register()``, then ``textarena.make("Spag-Taboo-v0")`` (extra ``textarena``).

A player's observation is the whole prompt of its turn, not messages that add up. So the default wrapper passes the last one on, and
``Spag-Taboo-v0-raw`` gives it as a list of one message. Player 0 is the game's first role.
"""

import random
from typing import Any

import textarena
from textarena.envs.registration import ENV_REGISTRY, register_with_versions

from spag.core.types import Split, State, Utterance
from spag.games.base import Game
from spag.games.registry import get, names

WRAPPERS = {"default": [textarena.wrappers.SingleTurnObservationWrapper], "-train": [textarena.wrappers.SingleTurnObservationWrapper]}


def env_id(game: str) -> str:
    """Return the id of a game's environment: ``adversarial_taboo`` is ``Spag-Taboo-v0``, ``kuhn_poker`` is ``Spag-KuhnPoker-v0``."""
    return f"Spag-{''.join(part.title() for part in game.removeprefix('adversarial_').split('_'))}-v0"


def register() -> list[str]:
    """Register every installed game with TextArena, once, and return the ids."""
    ids = {env_id(name): name for name in names()}
    for id, name in ids.items():
        if id not in ENV_REGISTRY:
            register_with_versions(id, entry_point=SpagEnv, wrappers=WRAPPERS, game=name)
    return list(ids)


class SpagEnv(textarena.Env):
    """A game for two players. ``settings`` are the game's; ``split`` says whether its tasks are those of training or held out."""

    def __init__(self, game: str, split: str = Split.TRAIN, **settings: Any) -> None:
        self.game: Game = get(game, **settings)
        self._tasks = self.game.tasks(Split(split), None, 0)

    def reset(self, num_players: int, seed: int | None = None) -> None:
        """Begin the game on the task that ``seed`` draws; the global random state is neither used nor changed."""
        rng = random.Random(seed)
        self._position: State = self.game.start(rng.choice(self._tasks), rng.getrandbits(32))
        self.state = textarena.TwoPlayerState(num_players=num_players)  # given a seed, it would seed the whole process
        self.state.reset(game_state={}, secret_roles=dict(enumerate(self.game.roles)))
        self._next()

    def get_observation(self) -> tuple[int, list[tuple[int, str, textarena.ObservationType]]]:
        """Return the player to move and its prompt."""
        player = self.state.current_player_id
        seen = self.game.observe(self._position, self.game.roles[player])
        return player, [(textarena.GAME_ID, self.game.prompt(seen), textarena.ObservationType.PROMPT)]

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        """Say ``action``; an illegal move ends the game, as the game's own rules have it."""
        role = self.game.roles[self.state.current_player_id]
        self._position = self.game.apply(self._position, Utterance(role, action.strip()))
        if self._position.result is not None:
            self._end()
        done, info = self.state.step(rotate_player=False)
        self._next()
        return done, info

    def _next(self) -> None:
        role = self.game.to_move(self._position)
        if role is not None:
            self.state.manually_set_current_player_id(self.game.roles.index(role))

    def _end(self) -> None:
        result = self.game.result(self._position)
        fault = self.game.outcomes[result.outcome].fault
        self.state.done = True
        self.state.rewards = {player: result.rewards[role] for player, role in enumerate(self.game.roles)}
        for player, role in enumerate(self.game.roles):
            self.state.game_info[player] |= {"reason": result.reason, "invalid_move": role == fault, "outcome": result.outcome}
