"""A game of spag in PettingZoo's loop: agents are roles, observations and actions are texts.

pip install '.[pettingzoo]'
python examples/pettingzoo_aec.py twenty_questions
"""

import sys

from spag.adapters.pettingzoo import env


def policy(agent: str, observation: str) -> str:
    """Put your model here: ``observation`` is the prompt of the agent's turn."""
    return "Yes." if agent == "answerer" else "Is it alive?"


def main(game: str) -> None:
    games = env(game)
    games.reset(seed=1)
    for agent in games.agent_iter():
        observation, reward, terminated, _, info = games.last()
        if terminated:
            print(f"{agent}: {reward:+.0f}, {info['outcome']}: {info['reason']}")
            games.step(None)
        else:
            action = policy(agent, observation)
            print(f"{agent}: {action}")
            games.step(action)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "twenty_questions")
