"""Our games as AEC environments of PettingZoo: its own tests, whole games, and no leaks."""

import random
import runpy
from pathlib import Path
from typing import Any

import pytest
from expected import check_thoughts_are_private
from pettingzoo.test import api_test, seed_test

from spag.adapters.pettingzoo import SpagAEC, env
from spag.core.types import Split
from spag.games.conformance.playing import speakers
from spag.games.registry import SHIPPED, get

SETTINGS: dict[str, dict[str, Any]] = {"adversarial_taboo": {"words": "shipped"}}


def make(name: str, **more: Any) -> Any:
    return env(name, **SETTINGS.get(name, {}), **more)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Observation is not a NumPy array")  # it is a text
@pytest.mark.filterwarnings("ignore:.* space for each agent probably should be gymnasium.spaces.box or")
@pytest.mark.filterwarnings("ignore:We recommend agents to be named in the format")  # agents are roles
@pytest.mark.parametrize("name", SHIPPED)
def test_pettingzoos_own_tests_pass(name: str) -> None:
    api_test(make(name), num_cycles=20)
    seed_test(lambda: make(name), num_cycles=20)


def test_a_whole_game_with_rewards_and_the_outcome_as_info() -> None:
    game = make("kuhn_poker")
    game.reset(seed=3)
    turns = []
    for agent in game.agent_iter():
        observation, reward, terminated, truncated, info = game.last()
        turns.append((agent, reward, terminated, truncated, info.get("outcome")))
        assert observation in game.observation_space(agent)
        game.step(None if terminated else "I sign: [check]")
    rewards = {agent: reward for agent, reward, terminated, *_ in turns if terminated}
    assert [agent for agent, *_ in turns[:2]] == ["player_0", "player_1"] and len(turns) == 4
    assert sorted(rewards.values()) == [-1, 1] and not any(truncated for *_, truncated, _ in turns)
    winner = max(rewards, key=lambda agent: rewards[agent])
    assert {outcome for *_, outcome in turns} == {None, f"{winner}_wins"}
    assert game.agents == []


def test_texts_in_any_script_are_in_the_spaces() -> None:
    game = SpagAEC("adversarial_taboo", words="shipped", longest=10)
    game.reset(seed=0)
    assert "Привет 漢字" in game.action_space("attacker") and "x" * 11 not in game.action_space("attacker")
    game.step("Привет 漢字")
    seen = game.observe("defender")
    assert "Привет 漢字" in seen and seen in game.observation_space("defender")


def test_held_out_tasks_can_be_asked_for() -> None:
    held_out = SpagAEC("guess_my_city", split="held_out")
    assert held_out._tasks == get("guess_my_city").tasks(Split.HELD_OUT, None, 0)


@pytest.mark.parametrize("name", SHIPPED)
def test_an_agent_gets_the_games_prompt_and_nothing_else(name: str) -> None:
    """The conformance suite tests that a prompt holds no secret."""
    one, rng = SpagAEC(name, **SETTINGS.get(name, {})), random.Random(0)
    one.reset(seed=3)
    game = one.game
    speaker = speakers(game, one._position.task)[0]
    while not any(one.terminations.values()):
        for role in game.roles:
            assert one.observe(role) == game.prompt(game.observe(one._position, role))
        assert not any(one.infos.values()) and not any(one.rewards.values())
        one.step(speaker(game.observe(one._position, one.agent_selection), rng))


def test_there_is_no_state_that_could_hold_secrets() -> None:
    game = make("kuhn_poker")
    game.reset(seed=0)
    with pytest.raises(NotImplementedError):
        game.state()


def test_the_example_plays_a_game(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    example = str(Path(__file__).parent.parent.parent / "examples" / "pettingzoo_aec.py")
    monkeypatch.setattr("sys.argv", [example, "twenty_questions"])
    runpy.run_path(example, run_name="__main__")
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["questioner: Is it alive?", "answerer: Yes."]
    assert said[-2:] == [
        f"{role}: +0, not_named: the thing was not named in 20 questions" for role in ("questioner", "answerer")
    ]


def test_thoughts_are_private() -> None:
    def play(reply: str) -> object:
        one, seen = SpagAEC("kuhn_poker"), []
        one.reset(seed=3)
        while not any(one.terminations.values()):
            seen.append({role: one.observe(role) for role in one.game.roles})
            one.step(reply)
        return seen, one.infos, one.rewards

    check_thoughts_are_private(play)
