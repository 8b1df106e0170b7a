"""The whole loop: complete, resumable, killed anywhere with nothing lost, and honest about changed settings."""

import hashlib
import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripted_run import CONFIG, FIRST, IMITATION, MOMENTS, SECOND, WORDS, config_for, run_until, scripted
from spag import judge_episode
from spag.config.files import load_config
from spag.config.schema import ModelConfig, RunConfig
from spag.core.episodes import SampleType
from spag.core.errors import ConfigError, DataError, RunError, SpagError
from spag.core.progress import SilentReporter
from spag.core.types import Split, Task
from spag.engines.base import Engine
from spag.engines.opening import OpenModels
from spag.engines.scripted import ScriptedEngine
from spag.rollout.matchmaking import draw_opponents, spread
from spag.rollout.runner import game_specs
from spag.runs.execute import preview_run, run
from spag.runs.layout import planned_models, trained_models
from spag.runs.reading import RunFolder
from spag.storage.disk import lock_folder
from spag.storage.episodes import read_episodes, read_samples
from spag.storage.manifest import Manifest
from spag.storage.store import write_rows
from spag.text.words import split_of
from taboo_games import ROLES, TABOO, episode_of

CANDIDATES = [
    "apple",
    "bridge",
    "candle",
    "desert",
    "eagle",
    "forest",
    "guitar",
    "hammer",
    "island",
    "jacket",
    "kitchen",
    "lemon",
]
CANDIDATES += [
    "mirror",
    "needle",
    "orange",
    "pepper",
    "rabbit",
    "saddle",
    "temple",
    "umbrella",
    "valley",
    "whistle",
    "yellow",
    "zebra",
]


PHASES = yaml.safe_load(CONFIG)["phases"]
IMITATION_ALONE = [f"phases={json.dumps(PHASES[:1])}", "arena.entrants=[base, imitation]"]
SPAG_ALONE = [f"phases={json.dumps(PHASES[1:])}", "arena.entrants=[base, spag-1]"]
LONGER = ["spag.iterations=2", "arena.entrants=[base, imitation, spag-1, spag-2]"]


@pytest.fixture(scope="module")
def words_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "words.txt"
    held_out = [word for word in CANDIDATES if split_of(word) is Split.HELD_OUT][:4]
    path.write_text("".join(f"{word}\n" for word in [*WORDS, *held_out]))
    return path


def run_here(config: RunConfig, folder: Path, *, force: bool = False, open_models: OpenModels = scripted) -> None:
    run(config, folder, SilentReporter(), force=force, open_models=open_models)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, words_file: Path) -> Path:
    """A whole run, which tests only look at; those that change one take ``folder``, a copy."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    run_here(config_for(model_folder, words_file, []), folder)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def digest_of(folder: Path) -> dict[str, str]:
    """What a run came to, without times: games by id, samples and metrics as they are, weights by hash."""
    parts = {}
    for path in sorted(folder.rglob("episodes.jsonl")):
        parts[str(path.relative_to(folder))] = "".join(sorted(path.read_text().splitlines()))
    for path in sorted([*folder.rglob("samples.jsonl"), *folder.rglob("*.safetensors"), *folder.rglob("results.json")]):
        data = path.read_bytes()
        parts[str(path.relative_to(folder))] = hashlib.sha256(
            b"".join(sorted(data.splitlines())) if path.suffix == ".jsonl" else data
        ).hexdigest()
    return parts


def word_of(task: Task) -> str:
    return str(task.data["target_word"])


@pytest.mark.slow
def test_a_run_leaves_everything_a_person_needs(finished: Path) -> None:
    expected = [
        f"{IMITATION}/samples.jsonl",
        f"{IMITATION}/metrics.jsonl",
        f"{FIRST}/episodes.jsonl",
        f"{FIRST}/samples.jsonl",
    ]
    expected += [
        f"{IMITATION}/checkpoint/model.safetensors",
        f"{FIRST}/checkpoint/tokenizer.json",
        "arena/results.json",
        "manifest.json",
    ]
    assert all((finished / name).exists() for name in expected)
    assert yaml.safe_load((finished / "config.yaml").read_text())["phases"][1]["tasks"] == 8
    games = list(read_episodes(finished / FIRST / "episodes.jsonl"))
    assert len({game.id for game in games}) == len(games) == 16
    assert all(split_of(word_of(game.task)) is Split.TRAIN for game in games)
    arena = list(read_episodes(finished / "arena" / "episodes.jsonl"))
    assert len(arena) == 3 * 2 * 2  # pairs, role assignments, words
    assert all(split_of(word_of(game.task)) is Split.HELD_OUT for game in arena)
    assert RunFolder.open(finished).trained_on_held_out == 0
    trained = {sample.episode_id for sample in read_samples(finished / FIRST / "samples.jsonl")}
    assert trained <= {game.id for game in games}


@pytest.mark.slow
def test_a_second_run_does_nothing(folder: Path, model_folder: Path, words_file: Path) -> None:
    before = {
        path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != "config.yaml"
    }

    def fail(*_: object) -> list[Engine]:
        raise AssertionError("an engine was opened")

    run_here(config_for(model_folder, words_file, []), folder, open_models=fail)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
def test_changed_settings_are_refused_by_name_and_forced_from_there_on(
    folder: Path, tmp_path: Path, model_folder: Path, words_file: Path
) -> None:
    imitation = digest_of(folder / IMITATION)
    changed = config_for(model_folder, words_file, ["spag.repeats=1"])
    with pytest.raises(
        RunError, match=r"2-spag/iteration-1/play was begun with other settings \(play.repeats was 2, is 1\)"
    ):
        run_here(changed, folder)
    assert len(list(read_episodes(folder / FIRST / "episodes.jsonl"))) == 16
    run_here(changed, folder, force=True)
    assert len(list(read_episodes(folder / FIRST / "episodes.jsonl"))) == 8
    assert digest_of(folder / IMITATION) == imitation
    fresh = tmp_path / "fresh"
    run_here(changed, fresh)
    assert digest_of(folder) == digest_of(fresh)


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_finished_run_can_be_made_longer_and_shorter(
    folder: Path, tmp_path: Path, model_folder: Path, words_file: Path
) -> None:
    """It ends as a run that was longer from the start; only the arena is played again, but for games between those who
    stay in it.
    """
    opened: list[tuple[str, ...]] = []

    def watch(models: Sequence[ModelConfig], *rest: Any) -> list[ScriptedEngine]:
        opened.append(tuple(Path(model.name).parent.name for model in models))
        return scripted(models, *rest)

    before = {name: written(folder / name) for name in (IMITATION, FIRST)}
    played = folder / "arena" / "episodes.jsonl"
    short, games = digest_of(folder), set(played.read_text().splitlines())
    longer = config_for(model_folder, words_file, LONGER)
    run_here(longer, folder, open_models=watch)
    assert {name: written(folder / name) for name in before} == before
    base = model_folder.parent.name
    assert opened[0] == ("iteration-1",)  # the self-play of iteration 2
    pairs = [{name, "iteration-2"} for name in (base, IMITATION, "iteration-1")]  # the others have met before
    assert list(map(set, opened[1:])) == pairs  # once for both assignments of roles
    run_here(longer, tmp_path / "fresh")
    assert digest_of(folder) == digest_of(tmp_path / "fresh")
    opened.clear()
    run_here(config_for(model_folder, words_file, []), folder, open_models=watch)
    assert games < set(played.read_text().splitlines())  # those of the one that left stay, uncounted
    parts = {name: part for name, part in digest_of(folder).items() if not name.startswith(SECOND)}
    assert parts | {"arena/episodes.jsonl": short["arena/episodes.jsonl"]} == short
    run_here(longer, folder, open_models=watch)
    assert digest_of(folder) == digest_of(tmp_path / "fresh") and not opened


@pytest.mark.slow
def test_a_longer_run_is_refused_at_once_for_what_its_arena_would_refuse(
    folder: Path, model_folder: Path, words_file: Path
) -> None:
    before = json.loads((folder / "manifest.json").read_text())
    with pytest.raises(RunError, match=r"arena was begun with other settings \(arena.tasks was 2, is 3\)"):
        run_here(config_for(model_folder, words_file, [*LONGER, "arena.tasks=3"]), folder)
    assert not (folder / SECOND).exists()
    assert json.loads((folder / "manifest.json").read_text()) == before


@pytest.mark.slow
def test_entrants_of_the_arena_are_chosen_and_may_change(folder: Path, model_folder: Path, words_file: Path) -> None:
    chosen = config_for(model_folder, words_file, ["arena.entrants=[spag-1, imitation]"])
    run_here(chosen, folder)
    results = json.loads((folder / "arena" / "results.json").read_text())
    assert [pair["players"] for pair in results["pairs"]] == [["spag-1", "imitation"]]
    assert results["pairs"][0]["games"] == 2 * 2  # role assignments, words
    assert results["subjects"] == ["imitation", "spag-1"]  # of the trained models, the last is the report's subject


@pytest.mark.parametrize(
    ("entrants", "message"),
    [
        ("[imitation, spag-2]", "no model 'spag-2'; it has base, imitation, spag-1"),
        ("[imitation]", "name two or more"),
        ("[base, base]", "name two or more"),
    ],
)
def test_entrants_that_a_run_does_not_have_are_refused_at_once(
    tmp_path: Path, model_folder: Path, words_file: Path, entrants: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_here(config_for(model_folder, words_file, [f"arena.entrants={entrants}"]), tmp_path / "run")
    assert not (tmp_path / "run" / IMITATION).exists()


@pytest.mark.slow
def test_a_changed_input_file_counts_as_a_changed_setting(folder: Path, model_folder: Path, words_file: Path) -> None:
    before = words_file.read_text()
    words_file.write_text(before + "harbour\n")
    try:
        with pytest.raises(RunError, match=r"1-imitation/train was begun with other settings \(files.words was"):
            run_here(config_for(model_folder, words_file, []), folder)
    finally:
        words_file.write_text(before)


def test_a_locked_folder_is_refused(tmp_path: Path, model_folder: Path, words_file: Path) -> None:
    folder = tmp_path / "run"
    with lock_folder(folder), pytest.raises(RunError, match="is working in this run folder"):
        run_here(config_for(model_folder, words_file, []), folder)


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json:1: not JSON: it ends in the middle"):
        Manifest.open(tmp_path)


def test_opponents_are_drawn_by_game_and_weight() -> None:
    specs = game_specs([Task(f"word{number}") for number in range(4000)], 1, seed=5)
    weights = spread({"self": 2.0, "earlier": 1.0, "base": 1.0}, {"earlier": ["imitation", "spag-1"]})
    matches = draw_opponents(specs, "now", weights)
    assert sorted(spec.id for games in matches.values() for spec in games) == sorted(spec.id for spec in specs)
    counts = {match.players: len(games) for match, games in matches.items()}
    # Of 4000: 2000 against itself; 1000 against base, and 500 against each of two earlier ones, half of each in either
    # role. 5 sigma: 150.
    assert counts.pop(("now", "now")) == pytest.approx(2000, abs=160)
    assert counts.keys() == {
        pair for name in ("base", "imitation", "spag-1") for pair in (("now", name), (name, "now"))
    }
    for (attacker, defender), games in counts.items():
        assert games == pytest.approx(500 if "base" in (attacker, defender) else 250, abs=105)
    other_order = dict(reversed(weights.items()))
    few = draw_opponents(specs[::7], "now", other_order)
    assert all(
        {game.id for game in games} <= {game.id for game in matches[match]} for match, games in few.items()
    )  # neither other games nor the order of names matter
    alone = draw_opponents(specs, "now", spread({"earlier": 1.0}, {"earlier": []}))
    assert [(match.title, len(games)) for match, games in alone.items()] == [("now vs now", 4000)]


@pytest.mark.slow
def test_frozen_opponents_play_and_only_the_current_policy_is_trained(
    tmp_path: Path, model_folder: Path, words_file: Path
) -> None:
    folder = tmp_path / "run"
    options = [*LONGER, "spag.repeats=4", "spag.opponents={self: 1, base: 1, earlier: 1}"]
    options += ["arena.entrants=[spag-1, spag-2]", "imitation.max_steps=1"]
    run_here(config_for(model_folder, words_file, options), folder)
    for name, learner, others in (
        (FIRST, "imitation", {"base"}),
        (SECOND, "spag-1", {"base", "imitation"}),
    ):
        games = {game.id: game for game in read_episodes(folder / name / "episodes.jsonl")}
        assert len(games) == 32
        players = [{info.model for info in game.players.values()} for game in games.values()]
        assert all(learner in names for names in players)
        assert {model for names in players for model in names} == {learner, *others}
        samples = list(read_samples(folder / name / "samples.jsonl"))
        won = {game.id: TABOO.outcomes[judge_episode(game).outcome].winners for game in games.values()}
        trained = {
            name for name, winners in won.items() for winner in winners if games[name].players[winner].model == learner
        }
        assert {sample.episode_id for sample in samples} == trained
        assert all(games[sample.episode_id].players[sample.role].model == learner for sample in samples if sample.role)
        assert trained < {name for name, winners in won.items() if winners}  # a frozen opponent has won, too
        assert Manifest.open(folder).stages[f"{name}/play"]["results"]["games"] == 32

    torn = folder / SECOND / "episodes.jsonl"
    before = digest_of(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for stage in ("play", "train"):
        manifest["stages"][f"{SECOND}/{stage}"]["status"] = "started"
    del manifest["stages"]["arena"]  # as a run has it that is killed in its last iteration
    (folder / "manifest.json").write_text(json.dumps(manifest))
    torn.write_text("".join(line + "\n" for line in torn.read_text().splitlines()[:5]) + '{"id": "ri')
    run_here(config_for(model_folder, words_file, options), folder)
    assert digest_of(folder) == before


@pytest.mark.parametrize(
    ("opponents", "message"),
    [
        (
            "{self: 1, spag-1: 1}",
            "there is no opponent spag-1 (known: self, base, start, earlier, or a model: ORG/NAME",
        ),
        ("{self: 0}", "phases.1.opponents.self: input should be greater than 0, got 0"),
        ("{self: .inf}", "spag.opponents.self: input should be a finite number, got inf"),
        ("{}", "phases.1.opponents: dictionary should have at least 1 item"),
    ],
)
def test_opponents_that_cannot_be_are_one_clear_line(
    model_folder: Path, words_file: Path, opponents: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config_for(model_folder, words_file, [f"spag.opponents={opponents}"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def sft_file(folder: Path) -> Path:
    path = folder / "alpaca.json"
    path.write_text(
        json.dumps([{"instruction": f"Count to {n}.", "input": "", "output": f"One, then {n}."} for n in range(6)])
    )
    return path


def steps_of(folder: Path, name: str) -> int:
    return len((folder / name / "metrics.jsonl").read_text().splitlines())


@pytest.mark.slow
def test_sft_alone_and_imitation_with_sft(tmp_path: Path, model_folder: Path, words_file: Path) -> None:
    mix = [*IMITATION_ALONE, f"imitation.sft_data={sft_file(tmp_path)}", "imitation.sft_samples=5"]
    mix += ["imitation.max_steps=3"]
    run_here(config_for(model_folder, words_file, [*mix, "imitation.episodes=[]"]), tmp_path / "sft")
    rows = list(read_samples(tmp_path / "sft" / IMITATION / "samples.jsonl"))
    assert [row.type for row in rows] == [SampleType.SFT] * 5
    assert steps_of(tmp_path / "sft", IMITATION) == 3  # 5 rows in batches of 4 would be 2
    run_here(config_for(model_folder, words_file, mix), tmp_path / "both")
    both = [row.type for row in read_samples(tmp_path / "both" / IMITATION / "samples.jsonl")]
    assert sorted(both)[-5:] == [SampleType.SFT] * 5
    assert sorted(both) == [SampleType.IMITATION] * (len(both) - 5) + [SampleType.SFT] * 5
    assert steps_of(tmp_path / "both", IMITATION) == 3


def test_a_phase_without_anything_to_learn_from_is_refused(
    tmp_path: Path, model_folder: Path, words_file: Path
) -> None:
    with pytest.raises(ConfigError, match="episodes and sft_data are empty, so there is nothing to learn"):
        run_here(config_for(model_folder, words_file, ["imitation.episodes=[]"]), tmp_path / "run")
    assert not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.slow
def test_a_run_that_imitates_held_out_games_records_how_many(
    tmp_path: Path, model_folder: Path, words_file: Path
) -> None:
    held_out, other = next(word for word in CANDIDATES if split_of(word) is Split.HELD_OUT), "river"
    games = [episode_of(word, "Guess.", f"I know the word! It is `{word}`!", id=word) for word in (other, held_out)]
    write_rows(tmp_path / "games.jsonl", games)
    options = [*IMITATION_ALONE, f"imitation.episodes=[{tmp_path / 'games.jsonl'}]"]
    run_here(config_for(model_folder, words_file, [*options, "imitation.keep_held_out=true"]), tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").trained_on_held_out == 1
    message = r"1-imitation/train was begun with other settings \(options.keep_held_out was True, is False\)"
    with pytest.raises(RunError, match=message):
        run_here(config_for(model_folder, words_file, options), tmp_path / "run")


@pytest.mark.slow
def test_self_play_of_the_base_model_may_have_held_out_words(
    tmp_path: Path, model_folder: Path, words_file: Path
) -> None:
    options = [*SPAG_ALONE, "spag.tasks=null", "spag.keep_held_out=true", "spag.max_steps=1"]
    config = config_for(model_folder, words_file, options)
    run_here(config, tmp_path)
    assert list(trained_models(config, tmp_path)) == ["spag-1"]
    games = list(read_episodes(tmp_path / "1-spag" / "iteration-1" / "episodes.jsonl"))
    assert {info.model for game in games for info in game.players.values()} == {"base"}
    assert sorted(word_of(game.task) for game in games) == sorted(2 * words_file.read_text().split())
    held_out = sum(split_of(word_of(game.task)) is Split.HELD_OUT for game in games)
    assert RunFolder.open(tmp_path).trained_on_held_out == held_out > 0


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_one_roles_rewards(folder: Path, model_folder: Path, words_file: Path, role: str) -> None:
    options = [f"spag.roles={role}", "spag.loser_reward=-1", "spag.max_steps=2"]
    run_here(config_for(model_folder, words_file, options), folder, force=True)
    assert {sample.role for sample in read_samples(folder / FIRST / "samples.jsonl")} == {role}
    assert {sample.role for sample in read_samples(folder / IMITATION / "samples.jsonl")} == set(ROLES)
    assert steps_of(folder, FIRST) == 2


@pytest.mark.slow
def test_settings_that_change_no_result_may_change(folder: Path, model_folder: Path, words_file: Path) -> None:
    before = digest_of(folder)
    free = ["spag.micro_batch_size=2", "spag.save_steps=9", "report_to=[tensorboard]"]
    run_here(config_for(model_folder, words_file, free), folder)
    assert digest_of(folder) == before
    message = r"iteration-1/train was begun with other settings \(options.objective was 'offline_rl', is 'sft'\)"
    with pytest.raises(RunError, match=message):
        run_here(config_for(model_folder, words_file, ["spag.objective=sft"]), folder)


@pytest.mark.slow
def test_every_ablation_of_the_page_is_a_valid_config_of_as_many_steps() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ablations.md").read_text().replace("\\\n", " ")
    commands = [shlex.split(line) for line in page.splitlines() if line.startswith("spag run ")]
    assert len({words[words.index("--output") + 1] for words in commands}) == len(commands) == 8
    for words in commands:
        config = load_config(words[2], [words[at + 1] for at, word in enumerate(words) if word == "--set"])
        steps = [model.phase.settings.max_steps for model in planned_models(config)]
        assert sum(count or 0 for count in steps) == 2000


@pytest.mark.slow
@pytest.mark.long
def test_killed_again_and_again_a_run_ends_as_if_undisturbed(
    tmp_path: Path, model_folder: Path, words_file: Path
) -> None:
    """kill -9 at moments spread over samples, play, training, checkpointing and the arena; each time the same command
    resumes.
    """
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    config = config_for(model_folder, words_file, ["imitation.save_steps=1", "spag.save_steps=1"])
    assert not run_until(None, config, whole)
    assert all(run_until(moment, config, killed) for moment in MOMENTS)
    assert not run_until(None, config, killed)
    assert digest_of(killed) == digest_of(whole)
    manifest = Manifest.open(killed)
    assert all(manifest.is_done(stage) for stage in manifest.stages)


@pytest.mark.slow
def test_a_replaced_checkpoint_is_noticed(folder: Path, model_folder: Path, words_file: Path) -> None:
    shutil.copy(model_folder / "model.safetensors", folder / IMITATION / "checkpoint")
    with pytest.raises(
        RunError, match=r"1-imitation/train is done, but 1-imitation/checkpoint/model.safetensors is not what it wrote"
    ):
        run_here(config_for(model_folder, words_file, []), folder)


@pytest.mark.slow
def test_a_deleted_checkpoint_is_named_when_it_is_needed_and_made_again_by_force(
    folder: Path, model_folder: Path, words_file: Path
) -> None:
    before = digest_of(folder)
    shutil.rmtree(folder / FIRST / "checkpoint")
    run_here(config_for(model_folder, words_file, []), folder)  # nothing needs it
    longer = config_for(model_folder, words_file, LONGER)
    message = r"2-spag/iteration-2/play needs 2-spag/iteration-1/\S+, which is gone; restore it, or let --force"
    with pytest.raises(RunError, match=message):
        run_here(longer, folder)
    run_here(config_for(model_folder, words_file, []), folder, force=True)
    assert digest_of(folder) == before


@pytest.mark.slow
def test_a_dry_run_says_what_a_run_would_do_and_does_nothing(
    folder: Path, model_folder: Path, words_file: Path
) -> None:
    before = written(folder)

    def states(*options: str, force: bool = False) -> dict[str, str]:
        return dict(
            preview_run(config_for(model_folder, words_file, list(options)), folder, SilentReporter(), force=force)
        )

    assert set(states().values()) == {"done before"}
    longer = states(*LONGER)
    assert [name for name, state in longer.items() if state == "due"] == [
        f"{SECOND}/play", f"{SECOND}/train", "arena",
    ]  # fmt: skip
    with pytest.raises(
        RunError, match=r"2-spag/iteration-1/play was begun with other settings \(play.repeats was 2, is 1\)"
    ):
        states("spag.repeats=1")
    redone = [name for name, state in states("spag.repeats=1", force=True).items() if state == "redone"]
    assert redone == [f"{FIRST}/play", f"{FIRST}/train", "arena"]
    with lock_folder(folder), pytest.raises(RunError, match="is working in this run folder"):
        states()
    assert written(folder) == before
    absent = folder.parent / "absent"
    config = config_for(model_folder, words_file, [])
    assert {state for _, state in preview_run(config, absent, SilentReporter())} == {"due"}
    assert not absent.exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("arena.tasks=99999", "arena.tasks: 99,999 words asked for"),
        ("spag.tasks=99999", "phases.1.tasks: 99,999 words asked for, but "),
        ("game.words=/nope", "/nope: cannot be read: No such file"),
        ("spag.sft_data=/nope", "/nope: cannot be read: No such file"),
        ("imitation.episodes=[/nope]", "/nope: cannot be read: No such file"),
        ("model.dtype=float16", "phases.0 (imitation): model.dtype=float16: training on the CPU needs"),
        (
            "phases.1={algorithm: spag, parallel: fsdp, optimizer: adamw_8bit}",
            "phases.1 (spag): parallel=fsdp with optimizer=adamw_8bit: moments in 8 bits are not sharded",
        ),
        ("spag.processes=1000000", "phases.1.processes=1,000,000: this machine has"),
        ("imitation.processes=1000000", "phases.0.processes=1,000,000: this machine has"),
        ("engine.data_parallel=1000000", "engine.data_parallel=1,000,000: this machine has"),
        ("engine.tensor_parallel=1000000", "engine.tensor_parallel=1,000,000: this machine has"),
        ("engine.concurrency=1000000000", "engine.concurrency: 1,000,000,000 concurrent utterances take"),
        ("model.device=banana", "model.device=banana: no such device"),
        ("spag.opponents={./nowhere: 1}", "./nowhere"),
        ("spag.opponents={bot:best: 1}", "bot:best: adversarial_taboo has no such bot"),
        ("spag.opponents={openai:m: 1}", "nothing answers there"),
        ("arena.entrants=[base, openai:m]", "nothing answers there"),
        (
            'phases.1={algorithm: spag, opponents: {"openai:m": 1}, sampling: {top_k: 5}}',
            "phases.1.sampling.top_k=5: openai:m plays with it, and its protocol does not have it; omit it",
        ),
    ],
)
def test_what_a_late_stage_would_refuse_is_refused_before_the_first(
    tmp_path: Path, model_folder: Path, words_file: Path, monkeypatch: pytest.MonkeyPatch, option: str, message: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(SpagError) as caught:
        run_here(config_for(model_folder, words_file, [option]), tmp_path / "run")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_sft_on_the_losers_utterances_is_refused(model_folder: Path, words_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"objective=sft would imitate samples with negative rewards"):
        config_for(model_folder, words_file, ["spag.objective=sft", "spag.loser_reward=-1"])
