"""Our games as TextArena's environments, with the real package and its own agents."""

import random
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textarena
from expected import check_thoughts_are_private

from spag.adapters.textarena.ours import SpagEnv, env_id, register
from spag.core.types import Split
from spag.games.conformance.playing import speakers
from spag.games.registry import SHIPPED, get, names

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SETTINGS = {"adversarial_taboo": {"words": "shipped"}}


def make(name: str, **more: Any) -> Any:
    register()
    return textarena.make(env_id(name), **SETTINGS.get(name, {}), **more)


def play(env: Any, seed: int, say: Any) -> tuple[list[tuple[int, str]], Any]:
    env.reset(num_players=2, seed=seed)
    shown, done = [], False
    while not done:
        player, seen = env.get_observation()
        shown.append((player, seen))
        done, info = env.step(say(seen))
        assert info == {}
    return shown, env.close()


def test_every_game_has_an_environment() -> None:
    assert register() == register() == [env_id(name) for name in names()]
    assert {"Spag-Taboo-v0", "Spag-KuhnPoker-v0", "Spag-TwentyQuestions-v0"} <= set(register())


@pytest.mark.parametrize("name", SHIPPED)
def test_games_follow_the_seed_and_leave_the_global_random_state_alone(name: str) -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    first, again = (play(make(name), 7, lambda seen: "[check] [5] Yes.") for _ in range(2))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert first == again
    assert len({str(play(make(name), seed, lambda seen: "Yes.")) for seed in range(5)}) > 1


def test_rewards_and_info_are_the_games() -> None:
    env = make("kuhn_poker")
    env.reset(num_players=2, seed=0)
    env.step("[bet]")
    done, _ = env.step("I take the pot.")
    rewards, info = env.close()
    assert done and rewards == {0: 2.0, 1: -2.0}
    assert [info[player]["invalid_move"] for player in (0, 1)] == [False, True]
    assert (info[1]["role"], info[1]["outcome"], info[1]["turn_count"]) == ("player_1", "player_1_illegal", 1)


def test_held_out_tasks_and_raw_messages_can_be_asked_for() -> None:
    held_out = SpagEnv("adversarial_taboo", split="held_out", words="shipped", top_words=60)
    game = get("adversarial_taboo", words="shipped", top_words=60)
    assert held_out._tasks == game.tasks(Split.HELD_OUT, None, 0)
    register()
    raw = textarena.make("Spag-Taboo-v0-raw", words="shipped")
    raw.reset(num_players=2, seed=0)
    player, [(sender, prompt, kind)] = raw.get_observation()
    assert (player, sender, kind) == (0, textarena.GAME_ID, textarena.ObservationType.PROMPT)
    assert prompt == make("adversarial_taboo").env.game.prompt(raw.game.observe(raw._position, "attacker"))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_player_gets_the_games_prompt_and_nothing_else(name: str) -> None:
    """The conformance suite tests that a prompt holds no secret."""
    env, rng = SpagEnv(name, **SETTINGS.get(name, {})), random.Random(0)
    env.reset(num_players=2, seed=3)
    game, kind = env.game, textarena.ObservationType.PROMPT
    speaker = speakers(game, env._position.task)[0]
    while not env.state.done:
        player, shown = env.get_observation()
        seen = game.observe(env._position, game.roles[player])
        assert shown == [(textarena.GAME_ID, game.prompt(seen), kind)]
        state = env.state
        assert (state.game_state, state.logs, state.rewards, state.step_info) == ({}, [], None, {})
        env.step(speaker(seen, rng))


@pytest.mark.slow
def test_textarenas_own_agent_plays(model_folder: Path) -> None:
    """Its agent for local models, with a tiny random one: whatever it says is a game with rewards."""
    agent = textarena.agents.HFLocalAgent(str(model_folder), device="cpu", max_new_tokens=8, hf_kwargs={})
    shown, (rewards, info) = play(make("kuhn_poker"), 0, agent)
    assert {player for player, _ in shown} <= {0, 1} and sum(rewards.values()) == 0
    assert info[0]["reason"]


def test_the_example_plays_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "textarena_both_ways.py"), run_name="__main__")
    known, ours, *theirs = capsys.readouterr().out.splitlines()
    assert "Spag-Taboo-v0" in known and ours.startswith("Spag-KuhnPoker-v0: {0: ")
    assert len(theirs) == 3 and all(line.startswith("textarena:KuhnPoker-v0: [") and "_wins" in line for line in theirs)


def test_thoughts_are_private() -> None:
    check_thoughts_are_private(lambda reply: play(make("kuhn_poker"), 7, lambda seen: reply))
