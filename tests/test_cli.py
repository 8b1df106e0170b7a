"""The commands as a user calls them: on files, in temporary folders, with their errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spag.cli import main
from spag.core.disk import FileLock
from spag.core.episodes import read_episodes, read_samples
from spag.games.registry import names
from spag.games.taboo.promptfile import upstream_prompt
from spag.rollout.runner import prompt_digest
from spag.runs.stages import teacher_path
from taboo_games import TABOO

UPSTREAM = [
    {
        "target_word": "river",
        "max_turns": 5,
        "history": [{"role": "attacker", "content": "Where do you paddle?"}, {"role": "defender", "content": "On a river."}],
    },
    {
        "target_word": "bread",
        "max_turns": 5,
        "history": [{"role": "attacker", "content": "Toast it."}, {"role": "defender", "content": "I know the word! It is `bread`!"}],
    },
]
TINY_PLAY = "game.max_turns=1", "selfplay.sampling.max_new_tokens=4", "model.dtype=float32"


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


def test_published_games_give_published_figures(tmp_path: Path) -> None:
    """What upstream's assign_rewards.py prints for a file of its own: decided games by role, samples with empty ones, both weights."""
    long = [(" What is round?\n", " A ball."), ("", " \n"), (" And red?", " An apple, in a category of its own.")]
    said = {
        "cat": [text for turn in long for text in turn],  # "category" counts in paper mode: the attacker wins, with 3 utterances
        "moon": [" ", "  I know the word! It is `sun`! "],  # a wrong guess: the attacker wins, with one empty utterance
        "lamp": ["What glows?", "I know the word! It is `lamp`!", "never judged"],
        "tree": ["A tree!", "Yes."],  # the attacker breaks a rule
        "sea": ["Hm."] * 10,  # a tie
    }
    sides = ("attacker", "defender")
    rows = [
        {"history": [{"role": sides[n % 2], "content": text} for n, text in enumerate(texts)], "target_word": word, "max_turns": 5}
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
        "with the 2 empty utterances that training leaves out: 5 samples",
    ):
        assert line in lines
    assert "attacker 1 0 1.000" in [" ".join(line.split()) for line in spag("judge", path).output.splitlines()]  # strict: no cat there


def test_games_go_there_and_back(games: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.json"
    spag("import", "episodes", games, "--output", ours)
    assert [episode.id for episode in read_episodes(ours)] == ["river-0", "bread-1"]
    spag("export", "episodes", ours, "--output", theirs)
    assert json.loads(theirs.read_text()) == UPSTREAM


def test_rewards_and_their_export(games: Path, tmp_path: Path) -> None:
    sft, samples, exported = tmp_path / "sft.json", tmp_path / "samples.jsonl", tmp_path / "samples.json"
    sft.write_text('[{"instruction": "Say hi.", "input": "", "output": "hi"}]')
    text = spag("rewards", games, "--sft", sft, "--output", samples).output
    assert "2 games, 2 samples, 1 SFT rows" in text
    assert [str(sample.type) for sample in read_samples(samples)] == ["rl", "rl", "sft"]
    spag("export", "samples", samples, "--output", exported)
    assert [row.get("type") for row in json.loads(exported.read_text())] == [None, None, "sft"]
    keep = ("--set", "imitation.keep_held_out=true")
    spag("rewards", games, "--imitation", *keep, "--sft", sft, "--output", samples)
    assert [str(sample.type) for sample in read_samples(samples)] == ["imitation", "imitation", "sft"]
    spag("rewards", games, "--set", f"imitation.training.sft_data={sft}", "--output", samples)
    assert [str(sample.type) for sample in read_samples(samples)] == ["rl", "rl"]  # the other stage's


def test_imitation_samples_leave_held_out_words_out(games: Path, tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    text = spag("rewards", games, "--imitation", "--output", samples).output  # bread is held out, river is not
    assert f"{games}: 1 of 2 games left out, because their tasks are held out" in text.splitlines()
    assert [(sample.type, sample.completion) for sample in read_samples(samples)] == [("imitation", "Where do you paddle?")]
    kept = spag("rewards", games, "--imitation", "--set", "imitation.keep_held_out=true", "--output", samples).output
    for text in (kept, spag("rewards", games, "--output", samples).output):
        assert "1 of these games are on held-out tasks" in text
        assert len(list(read_samples(samples))) == 2
    games.write_text(json.dumps(UPSTREAM[1:]))
    refused = spag("rewards", games, "--imitation", "--output", samples, status=2).output
    assert f"{games}: all 1 games are on held-out tasks, which imitation leaves out; name games on other tasks" in refused


def test_games_are_listed_and_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    listed = spag("games").output
    assert all(name in listed for name in names())
    assert "player_0, player_1" in listed and "its equilibria are known" in listed
    described = spag("games", "kuhn_poker").output
    for text in ("player_1", "You move second.", "player_0_illegal", "player_0 breaks a rule", "game.hands", "600", "bot:equilibrium"):
        assert text in described
    assert "there is no game called 'kuhn'; did you mean" in spag("games", "kuhn", status=2).output


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
    assert "6 games, " in spag("rewards", games, "--set", "rewards.template=play", "--output", samples).output
    winners = {episode.id: (episode.outcome or "").removesuffix("_wins") for episode in episodes}
    rows = list(read_samples(samples))
    assert {row.episode_id: row.role for row in rows} == winners
    assert all(row.prompt.splitlines()[-1].startswith("You hold ") for row in rows)
    spag("rewards", games, "--set", "rewards.roles=player_0", "--output", samples)
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
    spag("play", model_folder, "--words", words, "--prompts", prompts, *settings(*TINY_PLAY), "--count", 2, "--output", out)
    games = list(read_episodes(out))
    assert len(games) == 2
    for game in games:
        opening = upstream_prompt(prompts, [], game.task.data["target_word"], 1)
        assert game.history[0].prompt_digest == prompt_digest(opening)


def test_play_resumes_and_refuses_another_seed(tmp_path: Path, model_folder: Path) -> None:
    words, out = tmp_path / "words.txt", tmp_path / "games.jsonl"
    words.write_text("river\nbread\npiano\n")
    command = ("play", model_folder, "--words", words, *settings(*TINY_PLAY), "--count", 2, "--testing", "--output", out)
    assert "2 games in the file, 2 played now" in spag(*command).output
    assert "2 games in the file, 0 played now" in spag(*command).output
    assert "2 of its 2 games are others than those asked for" in spag(*command, "--seed", 5, status=2).output


def test_train_and_arena_on_their_own(games: Path, tmp_path: Path, model_folder: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    spag("rewards", games, "--output", samples)
    common = settings("model.dtype=float32", "offline_rl.global_batch_size=2", "offline_rl.gradient_checkpointing=false")
    text = spag("train", "offline-rl", samples, "--model", model_folder, *common, "--output", tmp_path / "trained").output
    assert "1 steps on 2 samples" in text
    checkpoint = tmp_path / "trained" / "checkpoint"
    assert (checkpoint / "model.safetensors").exists()
    quick = settings("model.dtype=float32", "arena.tasks=2", "arena.sampling.max_new_tokens=4", "game.max_turns=1", "game.words=shipped")
    text = spag("arena", f"before={model_folder}", f"after={checkpoint}", *quick, "--output", tmp_path / "arena").output
    assert "after – before" in text
    results = json.loads((tmp_path / "arena" / "results.json").read_text())
    assert results["pairs"][0]["games"] == 4
    assert {row["name"] for row in results["roles"]} == {"before", "after"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nothing.yaml"), "nothing.yaml: no such config file, and no preset of that name"),
        (("run", "demo", "--set", "selfplay.taks=3"), "preset demo: unknown option selfplay.taks; did you mean selfplay.tasks?"),
        (
            ("play", "/no/such/model", "--output", "x.jsonl", "--count", "1", "--words", "shipped"),
            "'/no/such/model': no such file or folder",
        ),
        (("play", "m", "--output", "x.jsonl", "--count", "9000", "--words", "shipped"), "9000 words asked for, but shipped has"),
        (("arena", "one", "--output", "x"), "name at least two different models"),
        (("play", "bot:best", "--game", "kuhn_poker", "--output", "x.jsonl"), "bot:best: kuhn_poker has no such bot (bots: bot:random, "),
        (("play", "bot:random", "--output", "x.jsonl", "--words", "shipped"), "adversarial_taboo has no such bot (bots: none)"),
    ],
)
def test_errors_are_one_line_and_status_two(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = spag(*arguments, status=2)
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    result = spag("play", tmp_path, "--count", 1, "--words", "shipped", "--output", tmp_path / "x.jsonl", status=2)
    assert "holds no config.json and no adapter_config.json, so it is not a model" in result.output


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


def test_a_torn_game_is_played_again_and_a_whole_one_kept(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    command = ("play", "bot:random", "--game", "kuhn_poker", "--count", 6, "--output", path)
    spag(*command)
    lines = path.read_bytes().splitlines(keepends=True)
    for cut, played in ((1, 0), (2, 1), (len(lines[-1]), 1)):
        path.write_bytes(b"".join(lines)[:-cut])
        assert f"6 games in the file, {played} played now" in spag(*command).output
        assert path.read_bytes().splitlines() == b"".join(lines).splitlines()


def test_a_second_play_on_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "arena" / "episodes.jsonl"
    play = ("play", "bot:random", "--game", "kuhn_poker", "--count", 6, "--output", path)
    arena = ("arena", "bot:random", "bot:equilibrium", "--game", "kuhn_poker", "--output", path.parent)
    with FileLock(path):
        for command in (play, arena):
            assert spag(*command, status=2).output.startswith(f"error: {path}: another process (pid {os.getpid()}) is writing this file")
    assert list(path.parent.iterdir()) == []
    spag(*play)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "command",
    [
        "judge {file} --output {link}", "rewards {file} --output {file}", "rewards {other} --sft {file} --output {file}",
        "import episodes {file} --output {file}", "export episodes {file} --output {link}", "export samples {file} --output {file}",
        "import prompts {file} --output {file}", "words --source {file} --output {file}",
    ],
)  # fmt: skip
def test_an_output_is_never_an_input(games: Path, tmp_path: Path, command: str) -> None:
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(games)
    other.write_bytes(games.read_bytes())
    before = games.read_bytes()
    text = spag(*command.format(file=games, link=link, other=other).split(), status=2).output
    assert text.endswith(": is a file that this command reads; choose another output\n") and text.count("\n") == 1
    assert games.read_bytes() == before


def test_games_are_read_from_a_pipe(games: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from spag.cli import main; main()", "judge", "/dev/stdin", "--output", tmp_path / "judged.jsonl"]
    subprocess.run(command, input=games.read_bytes(), check=True, stdout=subprocess.DEVNULL)
    assert [episode.task.id for episode in read_episodes(tmp_path / "judged.jsonl")] == ["river", "bread"]


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
@pytest.mark.parametrize("command", ["train offline-rl samples --model {model}", "run config.yaml"])
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
    assert spag("words", "--source", "shipped", "--output", "", status=2).output == "error: --output: the name is empty; give one\n"
    assert spag("judge", "/dev/zero", status=2).output == "error: /dev/zero: is a device; name a file\n"


def test_a_learner_that_plays_no_game_is_named(games: Path, tmp_path: Path) -> None:
    played, samples = tmp_path / "played.jsonl", tmp_path / "samples.jsonl"
    spag("play", "bot:random", "bot:equilibrium", "--game", "kuhn_poker", "--count", 6, "--output", played)
    for path, known in ((played, "bot:equilibrium, bot:random"), (games, "not named")):
        result = spag("rewards", path, "--learner", "nobody", "--output", samples, status=2)
        assert result.output == f"error: --learner: 'nobody' plays no game of {path}; its players are {known}\n"
    spag("rewards", played, "--learner", "bot:random", "--output", samples)


def test_corrupt_episodes_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    path.write_text(teacher_path(TABOO).read_text().splitlines()[0] + "\nnonsense\n")
    assert "games.jsonl:2: not JSON" in spag("judge", path, status=2).output
