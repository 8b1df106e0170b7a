"""Prompts imported from upstream's source: what is read, how it is rendered, and that play and training use it.

``golden/upstream_prompts.json`` holds a source of upstream's shape with texts of our own, and what upstream's code
renders with it.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spag
from spag.algorithms.winners import RewardSettings
from spag.cli import main
from spag.core.errors import DataError
from spag.core.options import SamplingConfig
from spag.core.seeds import derive_seed
from spag.core.types import Observation, Utterance
from spag.engines.base import Request
from spag.engines.scripted import ScriptedEngine
from spag.games.registry import get
from spag.games.taboo.promptfile import import_upstream_prompts, load_prompts, save_prompts
from spag.games.taboo.types import Role
from spag.games.taboo.upstream import Draws, PromptType, UpstreamPrompts
from spag.rollout.runner import GameSpec, Player
from taboo_games import ROLES, episode_of, task_of

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "upstream_prompts.json").read_text(encoding="utf-8")
)
UPSTREAM = '''
import os
os.mkdir("this file was run")
GAME_RULE_PROMPTS = [
    """Rules one.
At most {max_turns} turns, say `I know the word! It is {{the word}}!`.""",
    "Rules two, " "in {max_turns} turns.",
]
INSTRUCT_PROMPTS: dict = {
    "attacker": "\\n\\nYou attack with {target_word}.\\nGo on:",
    'defender': """ You defend:""",
}
PLAYER_INSTRUCT_PROMPTS = dict_of = {"attacker": "Attack with {target_word}!", "defender": "Defend…"}
'''


@pytest.fixture
def imported(tmp_path: Path) -> str:
    """Return the prompt file that ``spag import prompts`` makes of the golden source."""
    (tmp_path / "utils.py").write_text(GOLDEN["source"], encoding="utf-8")
    output = tmp_path / "prompts.json"
    result = CliRunner().invoke(main, ["import", "prompts", str(tmp_path / "utils.py"), "--output", str(output)])
    assert (result.exit_code, result.stderr) == (
        0,
        f"8 paraphrases of the rules, instructions for play and for training -> {output}\n",
    )
    return str(output)


def imported_from(source: str, folder: Path) -> UpstreamPrompts:
    (folder / "u.py").write_text(source)
    return import_upstream_prompts(folder / "u.py")


def as_history(said: Sequence[Utterance]) -> list[dict[str, str]]:
    return [{"role": one.role, "content": one.content} for one in said]


def as_golden(draws: Draws) -> dict[str, Any]:
    """Return draws under the keys of the golden file."""
    names = {"next_player": draws.next_player, "other": draws.other}
    coins = {"system_prefix_shown": draws.system_prefix_shown, "instruction_is_cue": draws.instruction_is_cue}
    one = {"dialog_prefix": draws.dialog_prefix, "names": names, "prompt_type": str(draws.prompt_type)}
    return {**one, "system_prefix": draws.system_prefix, "rules": draws.rules, "below_0.2": coins}


def test_prompts_of_play_are_upstreams(imported: str) -> None:
    assert len(GOLDEN["play"]) == 10
    for case in GOLDEN["play"]:
        assert (
            spag.upstream_prompt(imported, case["history"], case["target_word"], case["max_turns"]) == case["expected"]
        )


def test_training_prompts_are_upstreams(imported: str) -> None:
    assert len(GOLDEN["training"]) == 60
    for case in GOLDEN["training"]:
        prompt = spag.upstream_prompt(imported, case["history"], case["target_word"], case["max_turns"], case["draws"])
        assert prompt == case["expected"], case["draws"]


@pytest.mark.parametrize("role", ROLES)
def test_draws_are_those_that_upstream_makes(role: str) -> None:
    drawn = [Draws.draw(random.Random(seed), Role(role), 8) for seed in range(4000)]
    wanted = [case["draws"] for case in GOLDEN["training"] if (len(case["history"]) % 2 == 0) == (role == "attacker")]
    found = [as_golden(draws) for draws in drawn]
    for key, values in (("dialog_prefix", 7), ("names", 5), ("prompt_type", 3), ("system_prefix", 3), ("rules", 8)):
        counts = Counter(json.dumps(one[key]) for one in found)
        assert {json.dumps(one[key]) for one in wanted} <= set(counts) and len(counts) == values
        assert all(abs(count - 4000 / values) < 5 * (4000 / values) ** 0.5 for count in counts.values()), (
            key,
            counts,
        )  # 5 deviations
    alpaca = [one for one in drawn if one.prompt_type is PromptType.ALPACA]
    for coins in ([one.system_prefix_shown for one in alpaca], [one.instruction_is_cue for one in alpaca]):
        assert 0.15 < sum(coins) / len(coins) < 0.25  # 0.2, of some 1,333 tosses: 0.011 is one deviation
    both = sum(one.system_prefix_shown and one.instruction_is_cue for one in alpaca)
    assert 0.02 < both / len(alpaca) < 0.06  # two coins: 0.04
    assert not any(
        one.system_prefix_shown or one.instruction_is_cue for one in drawn if one.prompt_type is not PromptType.ALPACA
    )


@pytest.mark.parametrize("strip", [True, False])
def test_games_are_played_with_upstreams_prompts(imported: str, strip: bool) -> None:
    asked: list[Request] = []
    lines = [" First line.\n  - defender: A lamp, perhaps.", "No idea.\n", "  Go on. ", "What next?"]

    def reply(request: Request) -> str:
        asked.append(request)
        return lines[len(asked) - 1]

    player = Player(ScriptedEngine(reply), "scripted", SamplingConfig(published=not strip))
    game = get("adversarial_taboo", prompts=imported, max_turns=2)
    (episode,) = spag.play([GameSpec("g", task_of("river", 2), 0)], dict.fromkeys(ROLES, player), game=game)
    assert [said.content for said in episode.history] == [
        line.strip() if strip else line for line in lines
    ]  # several lines stay
    for turn, request in enumerate(asked):
        assert request.prompt == spag.upstream_prompt(imported, as_history(episode.history[:turn]), "river", 2)
        assert request.stop == ()
    space = "" if strip else " "
    assert f"\n  - attacker: {space}First line.\n  - defender: A lamp, perhaps." in asked[1].prompt
    assert ("\n  - defender: No idea.\n\n\n" in asked[2].prompt) is not strip  # two breaks begin the instruction


GAME = episode_of("river", "Alpha.\nBeta.", "  Gamma  ", "Delta.", "A river.", id="won")
"""The attacker wins with two utterances."""


def test_samples_are_trained_with_upstreams_prompts_drawn_for_each(imported: str) -> None:
    game = get("adversarial_taboo", prompts=imported)
    seen = set()
    for seed in range(10):
        samples = spag.assign_rewards([GAME], settings=RewardSettings(seed=seed), game=game)
        assert (
            samples
            == spag.assign_rewards([replace(GAME, id="lost"), GAME], settings=RewardSettings(seed=seed), game=game)[2:]
        )
        draws = [Draws.draw(random.Random(derive_seed(seed, "won", at)), Role.ATTACKER, 8) for at in (0, 2)]
        for sample, at, drawn in zip(samples, (0, 2), draws, strict=True):
            assert sample.prompt == spag.upstream_prompt(
                imported, as_history(GAME.history[:at]), "river", 5, as_golden(drawn)
            )
        assert draws[0] != draws[1]
        seen.add(samples[1].prompt)
    assert len(seen) == 10
    played = spag.assign_rewards([GAME], settings=RewardSettings(template="play"), game=game)
    assert [one.prompt for one in played] == [
        spag.upstream_prompt(imported, as_history(GAME.history[:at]), "river", 5) for at in (0, 2)
    ]


def test_the_rewards_command_trains_with_the_imported_file(imported: str, tmp_path: Path) -> None:
    games = [{"history": as_history(GAME.history), "target_word": "river", "max_turns": 5}]
    (tmp_path / "games.json").write_text(json.dumps(games))
    output = tmp_path / "samples.jsonl"
    options = ["--set", f"game.prompts={imported}", "--set", "spag.completions=text", "--output", str(output)]
    result = CliRunner().invoke(main, ["rewards", str(tmp_path / "games.json"), *options])
    assert result.exit_code == 0, result.output
    prompts = [sample.prompt for sample in spag.read_samples(output)]
    assert len(prompts) == 2
    for at, prompt in zip((0, 2), prompts, strict=True):
        draws = as_golden(
            Draws.draw(random.Random(derive_seed(0, "river", at)), Role.ATTACKER, 8)
        )  # the game has no id: its word
        assert prompt == spag.upstream_prompt(imported, as_history(GAME.history[:at]), "river", 5, draws)


def test_an_instruction_that_is_the_cue_loses_its_last_character(tmp_path: Path) -> None:
    prompts = imported_from(UPSTREAM, tmp_path)
    draws = Draws("\n - ", "A", "Q", PromptType.ALPACA, "System", 1, system_prefix_shown=True, instruction_is_cue=True)
    for role, facts, ending in (
        (Role.ATTACKER, {"target_word": "river"}, "Attack with river: "),
        (Role.DEFENDER, {}, "Defend: "),
    ):
        observation = Observation(role, (Utterance("attacker", "Hi."),), {"max_turns": 3, **facts})
        written = prompts.drawn(observation, draws)
        assert written.startswith("System: Rules two, in 3 turns.\n\n - Game History:\n\n - ") and written.endswith(
            f"Hi.\n\n{ending}"
        )


def test_import_reads_the_literals_without_running_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "utils.py").write_text(UPSTREAM)
    prompts = import_upstream_prompts(tmp_path / "utils.py")
    assert not (tmp_path / "this file was run").exists()
    assert prompts.rules[1] == "Rules two, in {max_turns} turns."
    assert [prompts.player_instructions[role] for role in Role] == ["Attack with {target_word}!", "Defend…"]
    save_prompts(prompts, tmp_path / "prompts.json")
    assert load_prompts(tmp_path / "prompts.json") == prompts
    assert spag.upstream_prompt(tmp_path / "prompts.json", [], "river", 3) == (
        "Rules one.\nAt most 3 turns, say `I know the word! It is {the word}!`.The game is just initialized."
        "\n\nYou attack with river.\nGo on:"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("GAME_RULE_PROMPTS", "OTHER"), "u.py: no assignment to GAME_RULE_PROMPTS"),
        (("PLAYER_INSTRUCT_PROMPTS", "OTHER"), "u.py: no assignment to PLAYER_INSTRUCT_PROMPTS"),
        (("= [", "= ("), "u.py:8: not Python: closing"),
        (("= [", "= [name, "), "u.py:4: GAME_RULE_PROMPTS is not made of plain literals"),
        (('"Rules two, "', 'f"Rules {os}"'), "u.py:4: GAME_RULE_PROMPTS is not made of plain literals"),
        (
            ('"Rules two, " "in {max_turns} turns."', "2"),
            r"u.py:4: GAME_RULE_PROMPTS: rules.1: input should be a valid string, got 2",
        ),
        (("attack with {target_word}", "attack"), r"u.py:9: INSTRUCT_PROMPTS: instructions.attacker: it lacks"),
        (("'defender'", "'judge'"), "u.py:9: INSTRUCT_PROMPTS: instructions.defender: field required"),
        (
            ("Defend…", "Guess {target_word}"),
            r"u.py:13: PLAYER_INSTRUCT_PROMPTS: player_instructions.defender: it uses",
        ),
    ],
)
def test_faults_of_upstream_sources(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in UPSTREAM
    with pytest.raises(DataError, match=message):
        imported_from(UPSTREAM.replace(*change), tmp_path)


HOSTILE = {
    "null byte": "x = 1\0",
    "unary minus": "-" * 100_000 + "1",
    "names": "a" + ".a" * 100_000,
    "deep target": "a" + ".a" * 2000 + " = 1",
    "lists": "[" * 100_000,
    "sums": "GAME_RULE_PROMPTS = " + "1+" * 50_000 + "1",
    "digits": "GAME_RULE_PROMPTS = " + "1" * 5000,
    "repeated text": 'GAME_RULE_PROMPTS = "a" * 10**12',
    "unknown escape": "x = '\\d'",
    "half a character": (
        'GAME_RULE_PROMPTS = ["\\ud83d"]\n'
        'INSTRUCT_PROMPTS = PLAYER_INSTRUCT_PROMPTS = {"attacker": "{target_word}", "defender": "d"}'
    ),
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_hostile_sources_are_one_line(tmp_path: Path, source: str) -> None:
    with pytest.raises(DataError, match=rf"^{re.escape(str(tmp_path))}/u\.py(:\d+)?: ") as caught:
        imported_from(source, tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300 + len(str(tmp_path))


def test_rules_that_are_no_list_and_an_empty_source(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"u.py:1: GAME_RULE_PROMPTS: rules: input should be a valid tuple, got 3"):
        imported_from("GAME_RULE_PROMPTS = 3\nINSTRUCT_PROMPTS = PLAYER_INSTRUCT_PROMPTS = {}", tmp_path)
    with pytest.raises(DataError, match="no assignment to GAME_RULE_PROMPTS"):
        imported_from("", tmp_path)


def test_faults_of_an_imported_file(imported: str, tmp_path: Path) -> None:
    data = json.loads(Path(imported).read_text(encoding="utf-8"))
    path = tmp_path / "other.json"
    for change, message in (
        ({"format": "downstream"}, r"format: input should be 'upstream', got 'downstream'"),
        ({"cue": ""}, "unknown field cue; docs/prompts.md lists the fields"),
        ({"player_instructions": {"attacker": "a {target_word}"}}, "player_instructions.defender: field required"),
    ):
        path.write_text(json.dumps({**data, **change}))
        with pytest.raises(DataError, match=message) as caught:
            load_prompts(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_faults_of_a_call(imported: str, tmp_path: Path) -> None:
    draws = GOLDEN["training"][0]["draws"]
    said = [{"role": "attacker", "content": "Hi."}]
    for changed, message in (
        ({"rules": 8}, "rules is 8; the prompt file has paraphrases 0 to 7"),
        ({"rules": -1}, "rules is -1"),
        ({"prompt_type": "prose"}, r"draws\.prompt_type: input should be 'chat', 'chat_inverse' or 'alpaca', got"),
        ({"names": {"next_player": "A"}}, r"draws\.names\.other: field required"),
        ({"names": "A"}, r"draws\.names\.next_player: field required"),
        ({"rules": None}, r"draws\.rules: input should be a valid integer, got None"),
        ({"below_0.2": {"system_prefix_shown": 2}}, r"draws\.below_0\.2\.system_prefix_shown: input should be"),
    ):
        with pytest.raises(DataError, match=message):
            spag.upstream_prompt(imported, said, "river", 5, {**draws, **changed})
    with pytest.raises(DataError, match=r"draws\.names\.next_player: field required"):
        spag.upstream_prompt(imported, said, "river", 5, {"dialog_prefix": "\n\n"})
    with pytest.raises(DataError, match="history has the role 'judge'; the roles are attacker, defender"):
        spag.upstream_prompt(imported, [{"role": "judge", "content": ""}], "river", 5)
    (tmp_path / "own.json").write_text(
        json.dumps({"rules": ["r"], "instructions": {"attacker": "a {target_word}", "defender": "d"}})
    )
    with pytest.raises(DataError, match=r"own.json: not upstream's prompts; make the file with spag import prompts"):
        spag.upstream_prompt(tmp_path / "own.json", said, "river", 5)
