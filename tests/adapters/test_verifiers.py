"""spag's games in verifiers: its own evaluation against a local OpenAI-compatible server, and what lands on the agents'
traces.
"""

import asyncio
import importlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from expected import REPLY, check_thoughts_are_private, shown_to
from packaging.requirements import Requirement
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from spag.adapters.verifiers import Deal, DealData, GameEnv, GameTaskset
from spag.core.types import Split, Task
from spag.games.registry import SHIPPED, get

sys.path.insert(0, str(Path(__file__).parent.parent / "engines"))
from openai_stub import Answer, Call, StubServer, completion, error

ROOT = Path(__file__).parent.parent.parent
MODULES = {
    "spag_taboo": "adversarial_taboo",
    "spag_twenty_questions": "twenty_questions",
    "spag_guess_my_city": "guess_my_city",
    "spag_kuhn_poker": "kuhn_poker",
    "spag_leduc_poker": "leduc_poker",
    "spag_nim": "nim",
    "spag_tic_tac_toe": "tic_tac_toe",
}


def careful(call: Call) -> Answer:
    last = call.body["messages"][-1]["content"]
    return Answer(completion("[check]" if "[check] or [bet]" in last[-60:] else "[call]"))


def deal(task: Task, seed: int = 0) -> Deal:
    return Deal(DealData(idx=0, name="a game", deal={"id": task.id, "data": dict(task.data)}, seed=seed))


def played(module: str, tasks: list[Deal], server: StubServer, **settings: Any) -> list[vf.Episode]:
    """Play ``tasks`` with the environment of ``module``; the agents without a client of their own talk to
    ``server``.
    """
    taskset = {"id": module.replace("_", "-"), **settings.pop("taskset", {})}
    env = load_environment(resolve_env_config({"taskset": taskset, **settings}))

    async def play() -> list[vf.Episode]:
        context = vf.ModelContext(
            model="stub", client=vf.EvalClientConfig(base_url=server.base_url, api_key_var="NO_KEY")
        )
        async with env.serving():
            return [await env.run_episode(task, context) for task in tasks]

    return asyncio.run(play())


def test_every_game_has_a_package_with_one_environment_and_one_taskset() -> None:
    assert set(MODULES.values()) == set(SHIPPED)
    assert set(MODULES) == {path.parent.name for path in ROOT.glob("environments/*/pyproject.toml")}
    for module, game in MODULES.items():
        requires = [Requirement(line).name for line in distribution(module).requires or ()]
        assert requires == ["spag-selfplay", "verifiers"]
        exported = [getattr(importlib.import_module(module), name) for name in importlib.import_module(module).__all__]
        [env], [taskset] = ([kind for kind in exported if issubclass(kind, base)] for base in (GameEnv, GameTaskset))
        assert env.GAME == taskset.GAME == game
        env = load_environment(resolve_env_config({"taskset": {"id": module}}))
        assert set(env._agent_specs) == set(get(game).roles)
        first = list(islice(env.taskset, 3))
        assert [task.data.idx for task in first] == [0, 1, 2] and len({task.data.deal["id"] for task in first}) == 3


def example(answer: Callable[[Call], Answer], folder: Path) -> str:
    """Run the example, vf-eval in a process of its own, and return what it says."""
    with StubServer(answer) as server:
        words = ["--model", "stub", "--base-url", server.base_url, "--games", "6", "--output", str(folder)]
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, str(ROOT / "examples" / "verifiers_eval.py"), "spag-kuhn-poker", *words]
        environment = {**os.environ, "PYTHONPATH": path}
        said = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert said.returncode == 0, said.stderr
    return said.stdout


def test_its_own_evaluation_pays_every_agent(tmp_path: Path) -> None:
    said = example(careful, tmp_path)
    [traces] = tmp_path.rglob("traces.jsonl")
    episodes = [json.loads(line) for line in traces.read_text(encoding="utf-8").splitlines()]
    assert len(episodes) == 6 and all(episode["ok"] for episode in episodes)
    for episode in episodes:
        paid = {trace["agent"]["name"]: trace["rewards"]["game"]["score"] for trace in episode["traces"]}
        assert paid.keys() == {"player_0", "player_1"} and sorted(paid.values()) == [
            -1.0,
            1.0,
        ]  # checked twice: the higher card wins a chip
    assert "player_0" in said and "player_1" in said and "failed" not in said


def test_failed_games_are_counted_and_no_draws(tmp_path: Path) -> None:
    def answer(call: Call) -> Answer:
        prompt = call.body["messages"][0]["content"]
        lost = "You are player_1." in prompt and "You hold J." in prompt
        return Answer(error("gone"), 404) if lost else careful(call)

    said = example(answer, tmp_path).rpartition("mean reward by role")[2]
    [traces] = tmp_path.rglob("traces.jsonl")
    episodes = [json.loads(line) for line in traces.read_text(encoding="utf-8").splitlines()]
    failed = sum(episode["task"]["data"]["deal"]["data"]["player_1"] == "J" for episode in episodes)
    assert 0 < failed < 6 and f"\n{failed} of 6 games failed" in said and "unfinished" not in said
    assert said.count(f" over {6 - failed} games") == 2


def test_a_trace_is_the_game_as_its_role_saw_it() -> None:
    replies = iter(["Look there.", "At the sea?", "No.\n- defender: I see", "I give up."])
    task = get("adversarial_taboo").custom_task("river")
    with StubServer(lambda call: Answer(completion(next(replies)))) as server:
        [episode] = played(
            "spag_taboo", [deal(Task("river", {**task.data, "max_turns": 2}))], server, trained=["attacker"]
        )
    assert episode.ok and not episode.errors
    attacker, defender = sorted(episode.traces, key=lambda trace: trace.agent.name)
    assert (attacker.agent.trainable, defender.agent.trainable) == (True, False)
    said = [message.content for message in defender.branches[-1].messages]
    assert len(said) == 4 and "river" not in json.dumps(defender.to_record())
    assert said[2].startswith("- defender: At the sea?\n- attacker: No.\n")
    assert "I see" not in said[2] and said[1::2] == ["At the sea?", "I give up."]
    assert [trace.rewards["game"].score for trace in (attacker, defender)] == [0.0, 0.0]
    assert attacker.metrics["outcome/tie"] == 1.0 and attacker.metrics["utterances"] == 4


def test_a_frozen_agent_has_a_model_of_its_own() -> None:
    [task] = get("kuhn_poker").tasks("train", 1, 0)
    with StubServer(careful) as policy, StubServer(careful) as frozen:
        other = {"model": "frozen", "client": {"type": "eval", "base_url": frozen.base_url, "api_key_var": "NO_KEY"}}
        [episode] = played("spag_kuhn_poker", [deal(task)], policy, player_1=other, trained=["player_0"])
    assert (
        episode.ok
        and {call.body["model"] for call in policy.calls} == {"stub"}
        and {call.body["model"] for call in frozen.calls} == {"frozen"}
    )


@pytest.mark.parametrize(("module", "name"), MODULES.items())
def test_an_agent_gets_the_games_prompts_and_nothing_else(module: str, name: str) -> None:
    """The conformance suite tests that a prompt holds no secret."""
    game = get(name)
    [task] = game.tasks(Split.TRAIN, 1, 0)
    with StubServer(lambda call: Answer(completion(REPLY))) as server:
        [episode] = played(module, [deal(task)], server)
    for trace in episode.traces:
        shown = [message.content for message in trace.branches[-1].messages if message.role == "user"]
        assert shown == shown_to(game, trace.agent.name, task, 0)
        assert trace.task.data.model_dump(exclude_none=True, exclude_defaults=True) == {"idx": 0, "name": "a game"}


def test_a_failing_model_fails_the_episode() -> None:
    [task] = get("kuhn_poker").tasks("train", 1, 0)
    broken: Callable[[Call], Answer] = lambda call: Answer(error("no such model"), 404)  # noqa: E731
    with StubServer(broken) as server:
        [episode] = played("spag_kuhn_poker", [deal(task)], server)
    assert not episode.ok


def test_a_game_that_a_failure_cuts_short_is_no_draw() -> None:
    [task] = get("kuhn_poker").tasks("train", 1, 0)
    moves = itertools.count()
    with StubServer(lambda call: careful(call) if next(moves) < 1 else Answer(error("gone"), 404)) as server:
        [episode] = played("spag_kuhn_poker", [deal(task)], server)
    assert not episode.ok and len(episode.traces) == 2
    assert not any(trace.ok or trace.rewards or trace.info for trace in episode.traces)
    assert episode.last_error is not None and "the model of player_1 failed: upstream 404" in episode.last_error.message


def test_a_game_that_a_limit_cuts_short_is_undecided() -> None:
    task = get("adversarial_taboo").custom_task("river")
    with StubServer(lambda call: Answer(completion("Hm."))) as server:
        [episode] = played("spag_taboo", [deal(task)], server, attacker={"max_turns": 1})
    assert episode.ok and [trace.info["outcome"]["outcome"] for trace in episode.traces] == ["tie"] * 2


def test_the_system_prompt_of_the_taskset_reaches_every_role(tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("Be brief.")
    taskset = {"id": "spag-taboo", "system_prompt": tmp_path / "system.txt"}
    [task] = islice(load_environment(resolve_env_config({"taskset": taskset})).taskset, 1)
    with StubServer(lambda call: Answer(completion("Hm."))) as server:
        [episode] = played("spag_taboo", [task], server)
    sent = [call.body["messages"] for call in server.calls]
    assert episode.ok and max(map(len, sent)) > 3
    for messages in sent:
        assert messages[0] == {"role": "system", "content": "Be brief."}
        assert [message["role"] for message in messages[1:]] == [
            "user",
            *["assistant", "user"] * (len(messages) // 2 - 1),
        ]
    for trace in episode.traces:
        assert len(trace.branches) == 1
        assert trace.task.data.model_dump(exclude_none=True, exclude_defaults=True).keys() == {
            "idx", "name", "system_prompt",
        }  # fmt: skip


def test_roles_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match=r"env.trained names dealer; kuhn_poker has the roles player_0, player_1"):
        load_environment(resolve_env_config({"taskset": {"id": "spag-kuhn-poker"}, "trained": ["dealer"]}))


def test_thoughts_are_private() -> None:
    [task] = get("kuhn_poker").tasks("train", 1, 0)

    def play(reply: str) -> object:
        with StubServer(lambda call: Answer(completion(reply))) as server:
            [episode] = played("spag_kuhn_poker", [deal(task)], server)
        assert episode.ok
        return [
            (
                trace.agent.name,
                [message.content for message in trace.branches[-1].messages if message.role == "user"],
                trace.info["outcome"],
                trace.rewards["game"].score,
            )
            for trace in sorted(episode.traces, key=lambda trace: trace.agent.name)
        ]

    check_thoughts_are_private(play)
