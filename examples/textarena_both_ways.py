"""TextArena and spag, both ways: its loop plays a game of spag, and spag plays one of its environments.

pip install '.[textarena]'
python examples/textarena_both_ways.py
"""

import random
import re

import textarena

from spag.adapters.textarena.ours import register
from spag.core.options import SamplingConfig
from spag.core.types import Split
from spag.engines.base import Player
from spag.engines.scripted import ScriptedEngine
from spag.games.registry import get
from spag.rollout.runner import game_specs, play


def any_move(prompt: str, rng: random.Random) -> str:
    """Return one of the moves that the last line names, as in "[check] or [bet]?"."""
    return rng.choice(re.findall(r"\[[a-z]+\]", prompt.strip().splitlines()[-1]) or ["[check]"])


class AnyMove(textarena.Agent):
    """A TextArena agent. TextArena's own agents for models and endpoints also work."""

    def __call__(self, observation: str) -> str:
        return any_move(observation, random.Random(observation))


def our_game_there() -> None:
    print("TextArena knows", ", ".join(register()))
    agent, env = AnyMove(), textarena.make("Spag-KuhnPoker-v0")
    env.reset(num_players=2, seed=1)
    done = False
    while not done:
        _, observation = env.get_observation()
        done, _ = env.step(agent(observation))
    rewards, info = env.close()
    print("Spag-KuhnPoker-v0:", rewards, info[0]["reason"])


def their_game_here() -> None:
    game = get("textarena:KuhnPoker-v0", options={"max_rounds": 1})
    engine = ScriptedEngine(lambda request: any_move(request.prompt, random.Random(request.seed)))
    players = {role: Player(engine, "any move", SamplingConfig()) for role in game.roles}
    for episode in play(game_specs(game.tasks(Split.TRAIN, 3, seed=0), 1, seed=0), players, game=game):
        moves = " ".join(said.content for said in episode.history)
        print(f"{episode.game}: {moves}: {episode.outcome}, {dict(episode.rewards)}")


if __name__ == "__main__":
    our_game_there()
    their_game_here()
