"""The commands as a user calls them: on files, in temporary folders, with their errors."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from outside import install
from spag.cli import main
from spag.cli.console import make_reporter
from spag.cli.eval import players_of
from spag.cli.run import _report
from spag.config.files import load_config, parse_config
from spag.config.presets import PRESETS
from spag.games.registry import get, names
from spag.games.taboo.promptfile import upstream_prompt
from spag.rollout.runner import prompt_digest
from spag.runs.reading import RunFolder
from spag.runs.teachers import teacher_path
from spag.storage.disk import lock_file
from spag.storage.episodes import read_episodes, read_samples
from taboo_games import TABOO

UPSTREAM = [
    {
        "target_word": "river",
        "max_turns": 5,
        "history": [
            {"role": "attacker", "content": "Where do you paddle?"},
            {"role": "defender", "content": "On a river."},
        ],
    },
    {
        "target_word": "bread",
        "max_turns": 5,
        "history": [
            {"role": "attacker", "content": "Toast it."},
            {"role": "defender", "content": "I know the word! It is `bread`!"},
        ],
    },
]
TINY_PLAY = "game.max_turns=1", "spag.sampling.max_new_tokens=4", "model.dtype=float32"


def spag(*arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == status, f"{result.output}\n{result.exception!r}"
    return result


@pytest.fixture
def games(tmp_path: Path) -> Path:
    path = tmp_path / "upstream.json"
    path.write_text(json.dumps(UPSTREAM))
    return path


def settings(*pairs: str) -> list[str]:
    return [part for pair in pairs for part in ("--set", pair)]


def test_judge_counts_shows_and_rewrites(games: Path, tmp_path: Path) -> None:
    out = tmp_path / "judged.jsonl"
    text = spag("judge", games, "--show", 1, "--output", out).output
    assert "2 games, 2.0 utterances on average" in text
    assert 'attacker wins: the defender said "river"' in text
    assert [str(episode.outcome) for episode in read_episodes(out)] == ["attacker_wins", "defender_wins"]


def test_other_rules_are_recorded_with_their_outcomes(tmp_path: Path) -> None:
    """A file judged in another mode is judged alike when it is read again."""
    played, papers, again = (tmp_path / f"{name}.jsonl" for name in ("played", "papers", "again"))
    spag("play", "bot:constant", "--count", 2, "--words", "shipped", "--output", played)
    spag("judge", played, "--mode", "paper", "--output", papers)
    assert {(one.settings or {})["judge"] for one in read_episodes(played)} == {"strict"}
    assert {(one.settings or {})["judge"] for one in read_episodes(papers)} == {"paper"}
    spag("judge", papers, "--output", again)
    assert again.read_text() == papers.read_text()


def test_published_games_give_published_figures(tmp_path: Path) -> None:
    """What upstream's assign_rewards.py prints for a file of its own: decided games by role, samples with empty ones,
    both weights.
    """
    long = [(" What is round?\n", " A ball."), ("", " \n"), (" And red?", " An apple, in a category of its own.")]
    said = {
        "cat": [
            text for turn in long for text in turn
        ],  # "category" counts in paper mode: the attacker wins, with 3 utterances
        "moon": [" ", "  I know the word! It is `sun`! "],  # a wrong guess: the attacker wins, with one empty utterance
        "lamp": ["What glows?", "I know the word! It is `lamp`!", "never judged"],
        "tree": ["A tree!", "Yes."],  # the attacker breaks a rule
        "sea": ["Hm."] * 10,  # a tie
    }
    sides = ("attacker", "defender")
    rows = [
        {
            "history": [{"role": sides[n % 2], "content": text} for n, text in enumerate(texts)],
            "target_word": word,
            "max_turns": 5,
        }
        for word, texts in said.items()
    ]
    path = tmp_path / "im_llama2_sampling_all_words_results.json"
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=2))
    lines = [" ".join(line.split()) for line in spag("judge", path, "--mode", "paper").output.splitlines()]
    for line in (
        "5 games, 4.2 utterances on average",  # (6 + 2 + 2 + 1 + 10) / 5
        "attacker wins 2 40.0 %",
        "defender wins 1 20.0 %",
        "attacker breaks a rule 1 20.0 %",
        "tie 1 20.0 %",
        "3 samples of 3 games",
        "attacker 2 2 0.750",  # games won, samples, 3 / (2 * 2)
        "defender 1 1 1.500",  # 3 / (2 * 1)
        "including 2 empty utterances, which training skips: 5 samples",
    ):
        assert line in lines
    assert "attacker 1 0 1.000" in [
        " ".join(line.split()) for line in spag("judge", path).output.splitlines()
    ]  # strict: no cat there


def test_games_go_there_and_back(games: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.json"
    spag("import", "episodes", games, "--output", ours)
    assert [episode.id for episode in read_episodes(ours)] == ["river-0", "bread-1"]
    spag("export", "episodes", ours, "--output", theirs)
    assert json.loads(theirs.read_text()) == UPSTREAM


@pytest.mark.slow
def test_rewards_and_their_export(games: Path, tmp_path: Path) -> None:
    sft, samples, exported = tmp_path / "sft.json", tmp_path / "samples.jsonl", tmp_path / "samples.json"
    sft.write_text(json.dumps([{"instruction": "Say hi.", "input": "", "output": said} for said in ("hi", "")]))
    text = spag("rewards", games, "--sft", sft, "--output", samples).output
    assert "2 games, 2 samples, 2 SFT rows" in text
    assert [str(sample.type) for sample in read_samples(samples)] == ["rl", "rl", "sft", "sft"]
    spag("export", "samples", samples, "--output", exported)
    written = json.loads(exported.read_text())
    assert [row.get("type") for row in written] == [None, None, "sft", "sft"]
    assert [row["target"] for row in written[2:]] == ["hi", ""]  # trains its end token
    imitation = ("--algorithm", "imitation", "--set", "imitation.keep_held_out=true")
    spag("rewards", games, *imitation, "--set", f"imitation.sft_data={sft}", "--output", samples)
    assert [str(sample.type) for sample in read_samples(samples)] == ["imitation", "imitation", "sft", "sft"]


def test_rewards_judge_again_whatever_a_file_says(games: Path, tmp_path: Path) -> None:
    judged, samples = tmp_path / "judged.jsonl", tmp_path / "samples.jsonl"
    spag("judge", games, "--output", judged)
    judged.write_text(judged.read_text().replace('"attacker_wins"', '"tie"'))
    counts = json.loads(spag("rewards", judged, "--json", "--output", samples).stdout)
    assert counts["outcomes"] == {"attacker_wins": 1, "defender_wins": 1}
    assert counts["samples"] == {"attacker": 1, "defender": 1} and counts["sft"] == 0


def test_recorded_games_are_judged_by_the_rules_of_play(tmp_path: Path) -> None:
    fives, fours, samples = (tmp_path / f"{name}.jsonl" for name in ("fives", "fours", "samples"))
    for path, take in ((fives, 5), (fours, 4)):  # with the default, 3, most of these games would break a rule
        spag("play", "bot:random", "--game", "nim", "--count", 20, *settings(f"game.take={take}"), "--output", path)
    ends = json.loads(spag("judge", fives, "--json").stdout)["outcomes"]
    assert ends.keys() == {"player_0_wins", "player_1_wins"}
    assert json.loads(spag("rewards", fives, "--json", "--output", samples).stdout)["outcomes"] == ends
    assert RunFolder(fives).game == get("nim", take=5)
    both = tmp_path / "both.jsonl"
    rows = fives.read_text().splitlines(keepends=True) + [
        line.replace('"id":"', '"id":"four-') for line in fours.read_text().splitlines(keepends=True)
    ]
    counts = []
    for lines in (rows, rows[::-1]):  # each by its own rules, whatever comes first
        both.write_text("".join(lines))
        counts.append(json.loads(spag("judge", both, "--json").stdout)["outcomes"])
    assert counts[0] == counts[1] and counts[0].keys() == {"player_0_wins", "player_1_wins"}
    asked = ("train", "spag", fives, fours, "--output", tmp_path / "out")
    assert "the files hold games with game.take 5 and 4; train on one at a time" in spag(*asked, status=2).output


def test_games_are_judged_by_the_judge_of_play_unless_another_is_asked_for(tmp_path: Path) -> None:
    history = [{"role": "attacker", "content": "Hi"}, {"role": "defender", "content": "Which category?"}]
    rows = [{"history": history, "target_word": "cat", "max_turns": 3}]
    (tmp_path / "theirs.json").write_text(json.dumps(rows))
    spag("judge", tmp_path / "theirs.json", "--mode", "paper", "--output", tmp_path / "paper.jsonl")

    def outcomes(*options: str) -> list[str]:
        return [*json.loads(spag("judge", tmp_path / "paper.jsonl", "--json", *options).stdout)["outcomes"]]

    assert (outcomes(), outcomes("--mode", "strict")) == (["attacker_wins"], ["tie"])


def test_rewards_do_not_overwrite_their_config(games: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("phases: [{algorithm: spag}]")
    refused = spag("rewards", games, "--config", config, "--output", config, status=2).output
    assert f"{config}: would be overwritten, but this command reads {config};" in refused
    assert config.read_text() == "phases: [{algorithm: spag}]"


def test_rewards_have_the_options_of_their_phase(games: Path, tmp_path: Path) -> None:
    samples, config = tmp_path / "samples.jsonl", tmp_path / "config.yaml"
    config.write_text("phases: [{algorithm: reinforce}, {algorithm: spag, loser_reward: -1}]")
    spag("rewards", games, "--config", config, "--output", samples)
    assert [(row.role, row.reward) for row in read_samples(samples)] == [
        ("attacker", 1.0), ("defender", -1.0), ("defender", 1.0), ("attacker", -1.0),
    ]  # fmt: skip
    refused = spag("rewards", games, "--algorithm", "imitation", "--config", config, "--output", samples, status=2)
    assert f"{config}: no phase with algorithm imitation, only reinforce, spag" in refused.output


def test_imitation_samples_leave_held_out_words_out(games: Path, tmp_path: Path) -> None:
    samples, imitation = tmp_path / "samples.jsonl", ("--algorithm", "imitation")
    text = spag("rewards", games, *imitation, "--output", samples).output  # bread is held out, river is not
    assert f"{games}: 1 of 2 games skipped, because their tasks are held out" in text
    assert [(sample.type, sample.completion) for sample in read_samples(samples)] == [
        ("imitation", "Where do you paddle?")
    ]
    kept = spag("rewards", games, *imitation, "--set", "imitation.keep_held_out=true", "--output", samples).output
    for text in (kept, spag("rewards", games, "--output", samples).output):
        assert "1 of these games are on held-out tasks" in text
        assert len(list(read_samples(samples))) == 2
    most = settings("imitation.keep_held_out=true", "imitation.max_episodes=1")
    spag("rewards", games, *imitation, *most, "--output", samples)
    assert len(list(read_samples(samples))) == 1
    games.write_text(json.dumps(UPSTREAM[1:]))
    refused = spag("rewards", games, *imitation, "--output", samples, status=2).output
    assert f"{games}: all 1 games are on held-out tasks, which are skipped; name games on other tasks" in refused


def test_games_are_listed_and_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    listed = spag("games").output
    assert all(name in listed for name in names())
    assert "player_0, player_1" in listed and "its equilibria are known" in listed
    described = spag("games", "kuhn_poker").output
    for text in (
        "player_1",
        "You move second.",
        "player_0_illegal",
        "player_0 breaks a rule",
        "game.hands",
        "600",
        "bot:equilibrium",
        "First prompt, to player_0, of one game",
    ):
        assert text in described
    assert re.search(r"You hold [QJK]\. \[check\] or \[bet\]\?\s*$", described)
    told = json.loads(spag("games", "kuhn_poker", "--json").output)
    assert described.rstrip().endswith(told["prompt"].splitlines()[-1]) and told["bots"] == list(get("kuhn_poker").bots)
    assert "there is no game called 'kuhn'; did you mean" in spag("games", "kuhn", status=2).output
    without_config = spag("arena", "bot:random", "--game", "kuhn", "--output", "arena", status=2)
    assert "error: command line: there is no game called 'kuhn'" in without_config.output


BROKEN_GAMES = """
from dataclasses import dataclass
from spag.core.errors import DataError
from spag.games.base import Game

@dataclass(frozen=True)
class Needy(Game):
    stake: int

class Blank(Game):
    pass

@dataclass(frozen=True)
class Files(Game):
    def __post_init__(self):
        open("no such file")

@dataclass(frozen=True)
class Words(Game):
    def __post_init__(self):
        raise DataError("words.txt:1: empty")

@dataclass(frozen=True)
class Share(Game):
    def __post_init__(self):
        1 / 0

def function():
    pass
"""


def test_a_game_that_cannot_be_made_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(str(tmp_path))
    entries = {
        "needy": "bad_games:Needy",
        "blank": "bad_games:Blank",
        "files": "bad_games:Files",
        "words": "bad_games:Words",
        "share": "bad_games:Share",
        "call": "bad_games:function",
        "gone": "nowhere:Gone",
    }
    install(tmp_path, "bad-games", "spag.games", entries, {"bad_games.py": BROKEN_GAMES})
    listed = spag("games").output
    assert all(name in listed for name in names()) and "its equilibria are known" in listed
    faults = {row["name"]: row["error"] for row in json.loads(spag("games", "--json").output) if "error" in row}
    assert faults.keys() == entries.keys() and all(fault in listed for fault in faults.values())
    assert faults["needy"].startswith("game.stake: field required") and "fix or uninstall" in faults["gone"]
    assert faults["files"] == "FileNotFoundError: [Errno 2] No such file or directory: 'no such file'"
    assert (faults["words"], faults["share"]) == ("words.txt:1: empty", "ZeroDivisionError: division by zero")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_an_output_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "spag", "games"]
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    fault = "error: output cannot be written: No space left on device; free some space, or redirect it\n"
    assert (done.returncode, done.stderr) == (2, fault)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape"])  # the second as in the C locale
def test_games_are_read_from_a_pipe_and_characters_that_an_encoding_lacks_are_escaped(
    encoding: str, games: Path, tmp_path: Path
) -> None:
    judged = tmp_path / "judged.jsonl"
    read = games.read_bytes().replace(b"river", "rivière".encode())
    command = [sys.executable, "-m", "spag", "judge", "/dev/stdin", "--show", "1", "--output", str(judged)]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, check=False, input=read, env=environment, capture_output=True)
    assert (done.returncode, rb"Adversarial Taboo: rivi\xe8re" in done.stdout) == (0, True), done.stderr
    assert [episode.task.id for episode in read_episodes(judged)] == ["rivière", "bread"]


@pytest.mark.slow
def test_a_bot_plays_and_its_games_become_samples(tmp_path: Path) -> None:
    games, samples, judged = tmp_path / "games.jsonl", tmp_path / "samples.jsonl", tmp_path / "judged.jsonl"
    spag("play", "bot:random", "--game", "kuhn_poker", "--count", 6, "--output", games)
    episodes = list(read_episodes(games))
    assert len(episodes) == 6  # a round of all deals
    assert len({tuple(episode.task.data.values()) for episode in episodes}) == 6
    assert {info.model for episode in episodes for info in episode.players.values()} == {"bot:random"}
    text = spag("judge", games, "--show", 1, "--output", judged).output
    assert "6 games, " in text and "player_0 wins the pot" in text and " against " in text
    assert list(read_episodes(judged)) == episodes
    assert "6 games, " in spag("rewards", games, "--set", "spag.template=play", "--output", samples).output
    winners = {episode.id: (episode.outcome or "").removesuffix("_wins") for episode in episodes}
    rows = list(read_samples(samples))
    assert {row.episode_id: row.role for row in rows} == winners
    assert all(row.prompt.splitlines()[-1].startswith("You hold ") for row in rows)
    spag("rewards", games, "--set", "spag.roles=player_0", "--output", samples)
    assert {row.role for row in read_samples(samples)} == {"player_0"}


def test_words_by_source_and_split(tmp_path: Path) -> None:
    out = tmp_path / "words.txt"
    everything = spag("words", "--source", "shipped", "--top", 500).output.split()
    spag("words", "--source", "shipped", "--top", 500, "--split", "held_out", "--output", out)
    held_out = out.read_text().split()
    train = spag("words", "--source", "shipped", "--top", 500, "--split", "train").output.split()
    assert len(everything) == 500
    assert set(train) | set(held_out) == set(everything)
    assert not set(train) & set(held_out)


@pytest.mark.slow
def test_import_prompts_and_play_with_them(tmp_path: Path, model_folder: Path) -> None:
    source, prompts, words = tmp_path / "utils.py", tmp_path / "prompts.json", tmp_path / "words.txt"
    source.write_text(
        "import missing_module\n"
        'GAME_RULE_PROMPTS = ["Rules, {max_turns} turns.\\n", "Other rules."]\n'
        'INSTRUCT_PROMPTS = {"attacker": "Word: `{target_word}`.", "defender": "You defend."}\n'
        'PLAYER_INSTRUCT_PROMPTS = {"attacker": "Your word: {target_word}.", "defender": "Defend."}\n'
    )
    spag("import", "prompts", source, "--output", prompts)
    words.write_text("river\nbread\npiano\n")
    out = tmp_path / "games.jsonl"
    spag(
        "play",
        model_folder,
        "--words",
        words,
        "--prompts",
        prompts,
        *settings(*TINY_PLAY),
        "--count",
        2,
        "--output",
        out,
    )
    games = list(read_episodes(out))
    assert len(games) == 2
    for game in games:
        opening = upstream_prompt(prompts, [], game.task.data["target_word"], 1)
        assert game.history[0].prompt_digest == prompt_digest(opening)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "played"),
    [
        ((), "nim"),
        (("--set", "phases=[{algorithm: group, mix: [{name: tic_tac_toe}, {name: nim}]}]"), "tic_tac_toe"),
        (("--game", "tic_tac_toe"), "tic_tac_toe"),
        (("--set", "game.hands=6"), "kuhn_poker"),
    ],
)
def test_play_plays_the_game_of_the_phase_unless_asked_for_another(
    tmp_path: Path, more: tuple[str, ...], played: str
) -> None:
    config, out = tmp_path / "run.yaml", tmp_path / "games.jsonl"
    config.write_text("game: {name: kuhn_poker}\nphases: [{algorithm: spag, tasks: 2, game: {name: nim}}]\n")
    spag("play", "bot:random", "--config", config, "--count", 2, *more, "--output", out)
    assert {game.game for game in read_episodes(out)} == {played}


def test_play_says_how_many_games_the_config_asks_for(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("game: {name: nim}\nphases: [{algorithm: spag, tasks: 3}]\n")
    play = "play", "bot:random", "--config", config, "--output"
    assert "3 games to play; --count plays fewer" in spag(*play, tmp_path / "all.jsonl").output
    assert "--count" not in spag(*play, tmp_path / "two.jsonl", "--count", 2).output


@pytest.mark.slow
def test_play_resumes_and_refuses_another_seed(tmp_path: Path, model_folder: Path) -> None:
    words, out = tmp_path / "words.txt", tmp_path / "games.jsonl"
    words.write_text("river\nbread\npiano\n")
    command = (
        "play",
        model_folder,
        "--words",
        words,
        *settings(*TINY_PLAY),
        "--count",
        2,
        "--testing",
        "--output",
        out,
    )
    assert "2 games in the file, 2 played now" in spag(*command).output
    assert "2 games in the file, 0 played now: attacker wins " in spag(*command).output
    assert "2 of its 2 games differ from the requested games" in spag(*command, "--seed", 5, status=2).output


@pytest.mark.slow
def test_train_and_arena_on_their_own(games: Path, tmp_path: Path, model_folder: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    spag("rewards", games, "--output", samples)
    common = settings("model.dtype=float32", "spag.global_batch_size=2", "spag.gradient_checkpointing=false")
    train = ("train", "spag", samples, "--model", model_folder, *common, "--output", tmp_path / "trained")
    assert "1 step on 2 samples" in spag(*train).output
    checkpoint = tmp_path / "trained" / "checkpoint"
    written = (checkpoint / "model.safetensors").stat().st_mtime_ns
    again = json.loads(spag(*train, "--json", "-q").stdout)
    assert (again["steps"], again["trained_samples"]) == (1, 2)
    assert (checkpoint / "model.safetensors").stat().st_mtime_ns == written  # it was complete
    quick = settings("model.dtype=float32", "arena.tasks=2", "arena.sampling.max_new_tokens=4", "game.max_turns=1")
    arena = ("arena", f"before={model_folder}", f"after={checkpoint}", *quick, "--words", "shipped")
    assert "after – before" in spag(*arena, "--output", tmp_path / "arena").output
    results = json.loads(spag(*arena, "--json", "--output", tmp_path / "arena").stdout)
    assert results["pairs"][0]["games"] == 4
    assert {row["name"] for row in results["roles"]} == {"before", "after", "bot:constant"}


def test_training_never_overwrites_what_it_reads(games: Path, tmp_path: Path) -> None:
    output = tmp_path / "trained"
    samples = output / "samples.jsonl"
    output.mkdir()
    spag("rewards", games, "--output", samples)
    before = samples.read_bytes()
    refused = spag("train", "spag", samples, "--output", output, status=2).output
    what = f"{samples}: would be overwritten, but this command reads {samples}"
    assert refused == f"error: {what}; choose another --output\n"
    assert samples.read_bytes() == before
    kept = output / "checkpoint" / "games.jsonl"
    kept.parent.mkdir()
    kept.write_bytes(games.read_bytes())
    for reads in ((kept,), (games, "--model", kept.parent)):
        refused = spag("train", "spag", *reads, "--output", output, status=2).output
        assert f"{kept.parent}: would be overwritten, but this command reads {reads[-1]};" in refused


@pytest.mark.slow
def test_games_are_trained_on_as_they_are(tmp_path: Path, model_folder: Path) -> None:
    games, other, output = tmp_path / "games.jsonl", tmp_path / "other.jsonl", tmp_path / "trained"
    spag("play", "bot:random", "--game", "kuhn_poker", "--count", 6, "--output", games)
    spag("play", "bot:constant", "--game", "nim", "--count", 2, "--output", other)
    common = settings("model.dtype=float32", "imitation.utterances=all", "imitation.gradient_checkpointing=false")
    train = ("train", "imitation", games, "--model", model_folder, *common)
    result = json.loads(spag(*train, "--json", "--output", output).stdout)
    utterances = [said for episode in read_episodes(games) for said in episode.history]
    assert result["trained_samples"] == len(utterances) == len(list(read_samples(output / "samples.jsonl")))
    refused = spag("train", "spag", games, other, "--output", output, status=2).output
    assert "the files hold games of kuhn_poker and nim; train on one game at a time" in refused


def test_only_offline_algorithms_train_on_files(games: Path, tmp_path: Path) -> None:
    for command in (("train", "reinforce"), ("rewards", "--algorithm", "reinforce")):
        result = spag(*command, games, "--output", tmp_path / "x", status=2)
        assert "reinforce trains online: its credit needs the running policy's games and baselines" in result.output
        assert "; use spag run; offline algorithms are imitation, spag" in result.output
    result = spag("train", "imitatoin", games, "--output", tmp_path / "x", status=2)
    assert "there is no algorithm 'imitatoin'; did you mean imitation?" in result.output


@pytest.mark.slow
def test_play_samples_as_the_first_phase_that_plays(tmp_path: Path) -> None:
    config, out = tmp_path / "config.yaml", tmp_path / "games.jsonl"
    config.write_text(
        "game: {name: kuhn_poker}\n"
        "phases: [{algorithm: imitation}, {algorithm: reinforce, sampling: {temperature: 0.5}}, {algorithm: spag}]\n"
    )
    spag("play", "bot:random", "--config", config, "--count", 6, "--output", out)
    sampling = {info.sampling["temperature"] for game in read_episodes(out) for info in game.players.values()}
    assert sampling == {0.5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nothing.yaml"), "nothing.yaml: no such config file, and no preset of that name"),
        (
            ("run", "demo", "--set", "spag.taks=3"),
            "--set spag.taks=3: unknown option phases.1.taks; did you mean phases.1.tasks?",
        ),
        (
            ("play", "/no/such/model", "--output", "x.jsonl", "--count", "1", "--words", "shipped"),
            "'/no/such/model': no such file or folder",
        ),
        (
            ("play", "~nosuchuser/x", "--output", "x.jsonl", "--count", "1", "--words", "shipped"),
            "error: '~nosuchuser/x': there is no home folder '~nosuchuser' here; write the full path\n",
        ),
        (
            ("plan", "demo", "--set", "model.name=~nosuchuser/x"),
            "error: '~nosuchuser/x': there is no home folder '~nosuchuser' here; write the full path\n",
        ),
        (
            ("export", "model", "~nosuchuser/x", "--output", "x"),
            "error: '~nosuchuser/x': there is no home folder '~nosuchuser' here; write the full path\n",
        ),
        (
            ("play", "m", "--output", "x.jsonl", "--count", "9000", "--words", "shipped"),
            "9,000 words asked for, but shipped has",
        ),
        (("run", "", "--dry-run"), "'': no such config file, and no preset of that name"),
        (("config",), "config [OPTIONS] COMMAND [ARGS]...\n\n  Show a config with every option"),
        (("eval", "m", "--temperature", "nan", "--output", "x"), "should be a finite number, got nan"),
        (("eval", "m", "--temperature", "inf", "--output", "x"), "should be a finite number, got inf"),
        (("eval", "m", "--temperature", "-1", "--output", "x"), "should be greater than or equal to 0, got -1.0"),
        (("eval", "m", "--temperature", "1e-6", "--output", "x"), "should be 0 (greedy) or from 0.01 to 100"),
        (("arena", "one", "--no-constant", "--output", "x"), "give at least two models of different names"),
        (
            ("arena", "bot:random", "bot:constant", "--game", "guess_my_city", "--output", "x"),
            "error: arena.tasks: 100 tasks asked for, but guess_my_city has 21",
        ),
        (("arena", "a=bot:constant", "a=bot:random", "--output", "x"), "two models are called a; give them different"),
        (("judge", "x=y", "--show", "1", "--json"), "--show prints text; it cannot be combined with --json"),
        (("arena", "x=y", "bot:constant", "--output", "x"), "error: x=y: "),  # a file of that name, no model y
        (
            ("play", "bot:best", "--game", "kuhn_poker", "--output", "x.jsonl"),
            "bot:best: kuhn_poker has no such bot (bots: bot:random, ",
        ),
        (
            ("play", "bot:random", "--output", "x.jsonl", "--words", "shipped"),
            "adversarial_taboo has no such bot (bots: bot:constant)",
        ),
    ],
)
def test_errors_are_one_line_and_status_two(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x=y").touch()
    result = spag(*arguments, status=2)
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    result = spag("play", tmp_path, "--count", 1, "--words", "shipped", "--output", tmp_path / "x.jsonl", status=2)
    assert "has no config.json and no adapter_config.json, so it is not a model" in result.output


def test_an_output_that_is_a_folder_is_one_line(tmp_path: Path, model_folder: Path) -> None:
    result = spag("play", model_folder, "--count", 1, "--words", "shipped", "--output", tmp_path, status=2)
    assert result.output == f"error: {tmp_path}: is a folder; choose the name of a file\n"


FOREIGN = {
    "a list of games in one line": json.dumps(UPSTREAM * 48).encode(),
    "text": b"Dear Ada,\nyesterday",
    "a picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "JSON that ends too early": b'{"name": [1, 2, 3',
    "lines of other JSON": b'{"a": 1}\n{"a": 2',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_games_are_never_added_to_a_foreign_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    result = spag("play", "bot:random", "--game", "kuhn_poker", "--count", 6, "--output", path, status=2)
    assert result.output.startswith(f"error: {path}") and result.output.count("\n") == 1
    assert path.read_bytes() == content


@pytest.mark.slow
def test_a_torn_game_is_played_again_and_a_whole_one_kept(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    command = ("play", "bot:random", "--game", "kuhn_poker", "--count", 6, "--output", path)
    spag(*command)
    lines = path.read_bytes().splitlines(keepends=True)
    for cut, played in ((1, 0), (2, 1), (len(lines[-1]), 1)):
        path.write_bytes(b"".join(lines)[:-cut])
        assert f"6 games in the file, {played} played now" in spag(*command).output
        assert path.read_bytes().splitlines() == b"".join(lines).splitlines()


@pytest.mark.slow
def test_a_second_play_on_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "arena" / "episodes.jsonl"
    play = ("play", "bot:random", "--game", "kuhn_poker", "--count", 6, "--output", path)
    arena = ("arena", "bot:random", "bot:equilibrium", "--game", "kuhn_poker", "--output", path.parent)
    with lock_file(path):
        for command in (play, arena):
            assert spag(*command, status=2).output.startswith(
                f"error: {path}: another process (pid {os.getpid()}) is writing this file"
            )
    assert list(path.parent.iterdir()) == []
    spag(*play)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "command",
    [
        "judge {file} --output {link}", "rewards {file} --output {file}", "words --source {file} --output {file}",
        "rewards {other} --sft {file} --output {file}", "import prompts {file} --output {file}",
        "import episodes {file} --output {file}", "export episodes {file} --output {link}",
        "export samples {file} --output {file}",
    ],
)  # fmt: skip
def test_an_output_is_never_an_input(games: Path, tmp_path: Path, command: str) -> None:
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(games)
    other.write_bytes(games.read_bytes())
    before = games.read_bytes()
    text = spag(*command.format(file=games, link=link, other=other).split(), status=2).output
    assert text.endswith(f": would be overwritten, but this command reads {games}; choose another --output\n")
    assert text.count("\n") == 1
    assert games.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("x" * 300, "cannot be written: File name too long; choose another output"),
        ("loop", "cannot be written: Too many levels of symbolic links; choose another output"),
        ("file", "cannot be written: File exists; choose another output"),
        ("file/below", "cannot be written: Not a directory; choose another output"),
        ("/dev/full", "cannot be written: File exists; choose another output"),
    ],
)
@pytest.mark.parametrize("command", ["train spag samples --model {model}", "run config.yaml"])
def test_a_folder_that_cannot_be_is_one_line(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, output: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples").write_text('{"prompt": "p", "completion": "c"}\n')
    (tmp_path / "config.yaml").write_text(f"model: {{name: {model_folder}}}\ngame: {{words: shipped}}\n")
    (tmp_path / "file").write_text("a file")
    (tmp_path / "loop").symlink_to("loop")
    result = spag(*command.format(model=model_folder).split(), "--output", output, status=2)
    assert result.output.startswith(f"error: {output}") and result.output.endswith(f": {message}\n")
    assert (tmp_path / "file").read_text() == "a file"


def test_an_empty_name_and_a_device_are_refused() -> None:
    assert (
        spag("words", "--source", "shipped", "--output", "", status=2).output
        == "error: --output: the name is empty; give one\n"
    )
    assert spag("judge", "/dev/zero", status=2).output == "error: /dev/zero: is a device; name a file\n"


@pytest.mark.slow
def test_a_learner_that_plays_no_game_is_named(games: Path, tmp_path: Path) -> None:
    played, samples = tmp_path / "played.jsonl", tmp_path / "samples.jsonl"
    spag("play", "bot:random", "bot:equilibrium", "--game", "kuhn_poker", "--count", 6, "--output", played)
    for path, known in ((played, "bot:equilibrium, bot:random"), (games, "not named")):
        result = spag("rewards", path, "--learner", "nobody", "--output", samples, status=2)
        assert result.output == f"error: --learner: 'nobody' plays no game of {path}; its players are {known}\n"
    spag("rewards", played, "--learner", "bot:random", "--output", samples)
    output = tmp_path / "trained"
    result = spag("train", "spag", played, "--learner", "nobody", "--output", output, status=2)
    assert result.output.startswith(f"error: --learner: 'nobody' plays no game of {played}; ")
    result = spag("train", "spag", samples, "--learner", "bot:random", "--output", output, status=2)
    assert result.output == f"error: --learner: {samples} holds samples, which do not name their players; omit it\n"


def test_corrupt_episodes_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    path.write_text(teacher_path(TABOO).read_text().splitlines()[0] + "\nnonsense\n")
    assert "games.jsonl:2: not JSON" in spag("judge", path, status=2).output


JOBS = ("Run:", "Play and judge:", "Train:", "Evaluate:", "Look:", "Share:", "Plan:")


def test_help_lists_all_commands_by_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = spag("--help").output
    lines = text.splitlines()
    assert [line for line in lines if line in JOBS] == list(JOBS)
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2:3].isalpha()]
    assert set(main.commands) <= set(listed)
    assert "..." not in text.partition("Run:")[2] and all(len(line) <= 80 for line in lines)  # no summary is cut


def leaves(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


def options_of(command: click.Command) -> set[str]:
    return {text for one in command.params for text in one.opts}


def test_help_of_groups_cuts_no_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("import", "export", "config"):
        text = spag(name, "--help").output
        assert "..." not in text.partition("Commands:")[2] and all(len(line) <= 80 for line in text.splitlines())


def test_help_names_the_presets_where_there_is_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    takes = []
    for path, _ in leaves():
        text = " ".join(spag(*path, "--help").output.split())
        if "CONFIG" in text:
            takes.append(" ".join(path))
            assert all(name in text for name in PRESETS), path
    assert sorted(takes) == [
        "arena", "config show", "config validate", "doctor", "eval", "plan", "play", "rewards", "run", "serve", "train",
    ]  # fmt: skip


def test_options_have_one_rule() -> None:
    for path, command in leaves():
        options = options_of(command)
        assert {"-q", "-v"} <= options, path
        named = bool({"config_name", "--config"} & options)
        assert ("--set" in options, "--seed" in options) == (named, named), path
    figures = {path for path, command in leaves() if "--json" in options_of(command)}
    assert figures == {
        (name,)
        for name in ("run", "presets", "games", "judge", "play", "rewards", "train", "arena", "eval", "plan", "doctor")
    }


def test_options_of_the_model_apply_to_the_models_of_a_run_too(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {name: tiny, dtype: float32, prompt_style: chat}\n")
    chosen = parse_config("", "test", ["model.device=cpu", "model.dtype=bfloat16"])
    [base] = players_of((str(tmp_path),), chosen).values()
    assert (base.name, base.prompt_style, base.device, base.dtype) == ("tiny", "chat", "cpu", "bfloat16")


def test_a_dry_run_as_json(model_folder: Path, tmp_path: Path) -> None:
    chosen = settings(f"model.name={model_folder}", "model.dtype=float32")
    found = json.loads(spag("run", "kuhn", *chosen, "--dry-run", "--json", "--output", tmp_path / "run").stdout)
    assert found["fits"] is True and found["doubts"] == []
    assert [stage["name"] for stage in found["stages"]][-1] == "arena"


def test_help_answers_at_once() -> None:
    """What takes seconds to import is not imported; in time that would depend on what else the machine does."""
    code = "import sys; from spag.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in result.stdout.splitlines()[-1].split()}
    heavy = {"torch", "transformers", "accelerate", "peft", "vllm", "ray", "matplotlib", "scipy", "openai", "lm_eval"}
    assert loaded.isdisjoint(heavy)


@pytest.mark.slow
def test_a_preset_whose_name_holds_a_dot_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[Path] = []
    monkeypatch.setattr("spag.runs.execute.run", lambda config, folder, *_, **__: places.append(folder))
    monkeypatch.setattr("spag.cli.tables.print_run", lambda folder: None)
    monkeypatch.setattr("spag.cli.run._report", lambda folder: "none")
    for name in ("taboo-qwen3-1.7b", "taboo-qwen3-1.7b-lora"):
        spag("run", name)
    assert places == [Path("runs/taboo-qwen3-1.7b"), Path("runs/taboo-qwen3-1.7b-lora")]


def test_presets_are_listed_and_printed() -> None:
    text = spag("presets").output
    assert all(f"\n{name} " in f"\n{text}" for name in PRESETS)
    assert "smollm2-135m (Q4_1, dequantised), 2 CPU cores" in text
    rows = json.loads(spag("presets", "--json").stdout)
    assert [row["name"] for row in rows] == list(PRESETS)
    assert {row["model"] for row in rows if row["name"] == "kuhn"} == {"smollm2-135m"}
    printed = spag("presets", "demo").output
    assert parse_config(printed, "printed") == load_config("demo")
    assert "'dmo' is not one of 'demo'" in spag("presets", "dmo", status=2).output


def test_a_config_is_shown_resolved_and_validated(tmp_path: Path) -> None:
    shown = spag("config", "show", "kuhn", "--set", "reinforce.steps=7", "--seed", 3).output
    assert parse_config(shown, "shown") == load_config("kuhn", ["reinforce.steps=7", "seed=3"])
    path = tmp_path / "mine.yaml"
    path.write_text(shown)
    assert "2. reinforce: 7 online steps of 256 games of kuhn_poker" in spag("config", "validate", path).output
    path.write_text("phases: [{algorithm: reinforce, stpes: 3}]")
    result = spag("config", "validate", path, status=2)
    assert result.output == f"error: {path}: unknown option phases.0.stpes; did you mean phases.0.steps?\n"


def test_names_of_files_are_taken_as_they_are(games: Path, tmp_path: Path) -> None:
    for name in ("words #2.txt", "a: b", "2024", "[x]", "été \N{SEEDLING}", "null"):
        for flag, option in (("--words", "words"), ("--prompts", "prompts")):
            shown = parse_config(spag("config", "show", "demo", flag, name).stdout, "shown")
            assert (shown.game.model_extra or {})[option] == name
    sft = tmp_path / "mine #1.json"
    sft.write_text(json.dumps([{"instruction": "Say hi.", "input": "", "output": "hi"}]))
    assert (
        "2 samples, 1 SFT row " in spag("rewards", games, "--sft", sft, "--output", tmp_path / "samples.jsonl").output
    )


@pytest.mark.parametrize("command", ["report {}", "web {}", "eval {} --output x", "export model {} --output x"])
def test_a_name_that_no_file_can_have_is_one_line(command: str) -> None:
    name = "x" * 300
    assert spag(*command.format(name).split(), status=2).output.startswith(f"error: {name}")


def test_a_model_with_half_a_name_is_that_model(tmp_path: Path) -> None:
    for text in ("=bot:random", "bot:random="):
        result = spag("arena", text, "bot:random", "--game", "kuhn_poker", "--output", tmp_path / "arena", status=2)
        assert result.output.startswith(f"error: {text}: ")


def test_a_report_without_its_extra_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "spag.report."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    lacking = "spag report: matplotlib is not installed; pip install '.[report]'"
    assert spag("report", tmp_path, status=2).output == f"error: {lacking}\n"
    assert _report(tmp_path) == f"skipped: {lacking}"  # the end of spag run


@pytest.mark.slow
def test_the_shell_completes_commands_presets_and_options() -> None:
    """By click's own mechanism; the shell's script itself is click's."""

    def completed(words: str) -> list[str]:
        variables = {"_SPAG_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        command = [sys.executable, "-c", "from spag.cli import main; main(prog_name='spag')"]
        result = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
        return [line.partition(",")[2] for line in result.stdout.splitlines()]

    assert completed("spag pla") == ["plan", "play"]
    assert completed("spag run dem") == ["demo"]
    assert completed("spag presets taboo-o") == ["taboo-online"]
    assert "--dry-run" in completed("spag run --dr")
    assert completed("spag train im") == ["imitation"]
    assert completed("spag doctor ku") == completed("spag config validate ku") == ["kuhn"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_shells_get_their_scripts(shell: str) -> None:
    variables = {**os.environ, "_SPAG_COMPLETE": f"{shell}_source"}
    command = [sys.executable, "-c", "from spag.cli import main; main(prog_name='spag')"]
    script = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
    assert f"_SPAG_COMPLETE={shell}_complete" in script


def test_the_page_of_the_command_line_names_every_command_and_status() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert all(f"`spag {' '.join(path)}" in page for path, _ in leaves())
    assert all(f"| {status} |" in page for status in (0, 1, 2, 3, 130, 143))
    for shell in ("bash", "zsh", "fish"):
        assert f"_SPAG_COMPLETE={shell}_source" in page


@pytest.mark.slow
def test_quiet_says_only_the_result_and_verbose_shows_tracebacks(tmp_path: Path) -> None:
    play = ("play", "bot:random", "--game", "kuhn_poker", "--count", 6)
    loud, quiet = (spag(*play, *flag, "--output", tmp_path / f"{len(flag)}.jsonl") for flag in ((), ("-q",)))
    assert quiet.stdout.startswith("6 games in the file") and not quiet.stderr
    assert "6/6" in loud.stderr and "\r" not in loud.stderr
    wrong = ("play", "bot:best", "--game", "kuhn_poker", "--output", tmp_path / "x.jsonl")
    assert "Traceback" not in spag(*wrong, status=2).output
    assert "Traceback" in spag(*wrong, "-v", status=2).output


def test_a_bar_without_a_terminal_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    log, clock = io.StringIO(), [0.0]
    monkeypatch.setattr("spag.cli.console.time", SimpleNamespace(monotonic=lambda: clock[0]))
    reporter = make_reporter(Console(file=log))
    with reporter.track("play", 1000) as bar:
        for done in range(1, 1001):  # a minute and a half
            clock[0] += 0.1
            bar.update(done)
        bar.update(1000)
    shown = [int(line.partition("play: ")[2].partition("/")[0]) for line in log.getvalue().splitlines()]
    assert len(shown) == 4 and shown[-1] == 1000
    assert all(300 <= later - earlier <= 301 for earlier, later in zip([0, *shown], shown[:-1], strict=False))
    assert "\r" not in log.getvalue() and "\x1b" not in log.getvalue()


def test_a_narrow_terminal_cuts_the_figures_behind_a_bar() -> None:
    shown = io.StringIO()
    reporter = make_reporter(Console(file=shown, force_terminal=True, color_system=None, width=80))
    with reporter.track("turnwise training: steps", 60, 12) as bar:
        bar.update(30, "70.63 samples/s  loss 0.433  player_0 [+0.03]  player_1 [-0.07]")
    *_, last = [line for line in shown.getvalue().splitlines() if "turnwise" in line]
    assert re.search(r"turnwise training: steps ━+ +30/60 [-\d]:[-\d:]+ [-\d]:[-\d:]+ 70[.\d]*…", last), last


@pytest.mark.slow
def test_libraries_draw_no_bars_into_a_log() -> None:
    code = (
        "from click.testing import CliRunner; from spag.cli import main\n"
        "assert CliRunner().invoke(main, ['presets']).exit_code == 0\n"
        "from tqdm.auto import tqdm\n"
        "from huggingface_hub.utils import tqdm as hub\n"
        "for kind in (tqdm, hub):\n    for _ in kind(range(3)): pass\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr == ""


def test_a_run_that_does_not_fit_ends_with_status_three(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"model: {{name: {model_folder}, dtype: float32}}\ngame: {{name: kuhn_poker}}\n"
        "phases: [{algorithm: reinforce, steps: 2, games: 4, evaluate_every: null}]\narena: {tasks: 2}\n"
    )
    dry = ("run", config, "--dry-run", "--output", tmp_path / "run")
    text = spag(*dry).output
    assert "1. reinforce: 2 online steps of 4 games of kuhn_poker" in text
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert "error: " in spag(*dry, status=3).stderr
    assert not (tmp_path / "run").exists()
