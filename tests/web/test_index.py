"""The index: every filter against the same question asked in Python, full text, and files that grow, tear and are
replaced.
"""

import json
import os
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import msgspec
import pytest
from web_fixtures import bot_games, broken, episode, index_all, make_run, said, tied, won

from spag.config.files import dump_config
from spag.config.schema import RunConfig
from spag.core.episodes import Episode
from spag.core.errors import DataError, RunError
from spag.games.base import Game
from spag.games.registry import get
from spag.runs import reading
from spag.runs.reading import RunFolder
from spag.runs.records import GameFile
from spag.storage.episodes import JsonlStore, read_episodes
from spag.storage.store import write_json, write_rows
from spag.web.app import create_app
from spag.web.index import BATCH, GameIndex
from spag.web.queries import (
    PAGE_SIZE,
    GameFilter,
    find_games,
    match_expression,
    neighbours,
    outcome_counts,
)
from spag.web.security import Access
from taboo_games import TABOO

GAMES = {TABOO.name: TABOO}


@pytest.fixture
def games() -> list[Episode]:
    words = ["river", "bread", "garden", "piano"]
    kinds = [won, said, broken, tied]
    return [
        kinds[number % 4](words[number // 4 % 4], name=f"model-{number % 2}", ident=f"g{number}")
        for number in range(100)
    ]


@pytest.fixture
def file(tmp_path: Path, games: list[Episode]) -> Path:
    write_rows(tmp_path / "games.jsonl", games)
    return tmp_path / "games.jsonl"


def index_of(path: Path, game: Game = TABOO) -> GameIndex:
    index = GameIndex(lambda: [GameFile("games", path)], lambda: {game.name: game})
    return index_all(index)


def find(index: GameIndex, **asked: Any) -> Any:
    return find_games(index, GameFilter(**asked))


@pytest.mark.parametrize(
    ("asked", "matches"),
    [
        ({}, lambda game: True),
        ({"source": "games"}, lambda game: True),
        ({"source": "elsewhere"}, lambda game: False),
        ({"outcome": "tie"}, lambda game: game.outcome == "tie"),
        ({"task": " River "}, lambda game: game.task.id == "river"),
        ({"first": "model-1"}, lambda game: game.players["attacker"].model == "model-1"),
        ({"text": "supp"}, lambda game: any("suppose" in said.content for said in game.history)),
        ({"text": '"the sea" runs'}, lambda game: any("runs to the sea" in said.content for said in game.history)),
        ({"text": "PIANO", "outcome": "attacker_wins"},
        lambda game: game.reason == 'the defender said "piano"'),
    ],
)  # fmt: skip
def test_a_filter_finds_what_python_finds(
    file: Path, games: list[Episode], asked: dict[str, str], matches: Any
) -> None:
    index = index_of(file)
    wanted = [game for game in games if matches(game)]
    seen = []
    for page in range(1, 6):
        found = find(index, **asked, page=page)
        assert found.total == len(wanted)
        if page == found.page:
            seen += found.rows
    assert [index.episode("games", row["number"]) for row in seen] == wanted[::-1]
    assert all(len(page) <= PAGE_SIZE for page in (seen[:PAGE_SIZE],))


def test_a_page_beyond_the_last_is_the_last(file: Path) -> None:
    found = find(index_of(file), page=10**9)
    assert (found.page, found.pages, len(found.rows)) == (4, 4, 10)  # 100 games, 30 a page


@pytest.mark.parametrize(
    "text",
    ['"', '" OR "', "NEAR(a b)", "a*", "-", "^x", "text:x", "a AND", ")(", "\0", "'; DROP TABLE games", "💥", "***"],
)
def test_nothing_typed_is_search_syntax(file: Path, text: str) -> None:
    index = index_of(file)
    find(index, text=text)
    assert find(index).total == 100


def test_punctuation_alone_filters_nothing(file: Path) -> None:
    index = index_of(file)
    assert find(index, text="suppose !").total == find(index, text="suppose").total > 0
    assert find(index, text="?!").total == 100


def test_search_terms() -> None:
    assert match_expression('tell "the sea" riv') == '"tell" AND "the sea" AND "riv"*'
    assert match_expression("of a") == '"of" AND "a"'  # too short to match as a beginning
    assert match_expression("- river ?") == '"river"*'  # no game holds the other words
    assert match_expression('?! "…"') == ""


def test_a_growing_file_is_followed_and_a_torn_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    path.write_bytes(b"")
    index = index_of(path)
    with JsonlStore(path) as store:
        store.append(won("river"))
    assert not index.sync()
    whole = msgspec.json.encode(msgspec.to_builtins(said("bread"))) + b"\n"
    with path.open("ab") as stream:
        stream.write(whole[:50])
        stream.flush()
        index.sync()
        assert find(index).total == 1
        stream.write(whole[50:])
    index.sync()
    assert [row["task"] for row in find(index).rows] == ["bread", "river"]
    assert not index.faults


def test_a_last_game_without_its_line_break_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    write_rows(path, [won("river"), said("bread")])
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    index = index_of(path)
    assert [(row["number"], row["task"]) for row in find(index).rows] == [(2, "bread"), (1, "river")]
    with JsonlStore(path) as store:  # writes the line break, and goes on
        store.append(won("garden"))
    index_all(index)
    assert [(row["number"], row["task"]) for row in find(index).rows] == [(3, "garden"), (2, "bread"), (1, "river")]
    assert index.episode("games", 3) == won("garden")
    path.write_bytes(path.read_bytes() + b'{"hello": 1}')
    index_all(index)
    assert find(index).total == 3 and not index.faults


def test_a_byte_order_mark_is_dropped(file: Path, games: list[Episode]) -> None:
    file.write_bytes(BOM_UTF8 + file.read_bytes())
    index = index_of(file)
    assert (find(index).total, index.faults) == (100, [])
    assert index.episode("games", 1) == games[0]


def test_neighbours_are_games(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    write_rows(path, [{"hello": 1}, won("river"), {"hello": 2}, {"hello": 3}, said("bread")])
    index = index_of(path)
    assert [neighbours(index, "games", number) for number in (2, 5)] == [(None, 5), (2, None)]


def test_a_replaced_file_is_read_anew_and_its_old_texts_are_gone(file: Path) -> None:
    index = index_of(file)
    file.unlink()
    write_rows(file, [episode("ocean", "Deep and blue.", "A whale?", ident=f"n{number}") for number in range(200)])
    index_all(index)
    assert outcome_counts(index) == {TABOO.name: {("games", "", None): {"tie": 200}}}
    assert find(index, text="suppose").total == 0
    assert find(index, text="whale").total == 200
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:100]))  # the same beginning, cut short
    index_all(index)
    assert find(index).total == 100


def test_a_vanished_source_is_forgotten(file: Path) -> None:
    sources = [GameFile("games", file)]
    index = GameIndex(lambda: sources, lambda: GAMES)
    index_all(index)
    sources.clear()
    index.sync()
    assert find(index).total == 0
    assert index.episode("games", 1) is None


def test_an_unreadable_source_is_named_until_it_vanishes(tmp_path: Path) -> None:
    sources = [GameFile("games", tmp_path)]
    index = index_all(GameIndex(lambda: sources, lambda: GAMES))
    assert index.faults == [f"{tmp_path}: cannot be read: Is a directory"]
    sources.clear()
    index.sync()
    assert index.faults == []


def test_many_games_come_in_batches(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    write_rows(path, [won("river", ident=str(number)) for number in range(BATCH + 1)])
    index = GameIndex(lambda: [GameFile("games", path)], lambda: GAMES)
    assert index.sync()
    assert find(index).total == BATCH
    assert not index.sync()
    assert find(index).total == BATCH + 1


def test_a_line_that_is_no_game_is_named_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    write_rows(path, [won("river"), {"hello": 1}, said("bread")])
    path.write_bytes(path.read_bytes() + b"not json\n\xff\n")
    index = index_of(path)
    assert [row["number"] for row in find(index).rows] == [3, 1]
    [fault] = index.faults
    assert fault.startswith(f"{path}:2: not an episode: ") and fault.endswith("; more lines without a game: 2")


def test_games_without_an_outcome_are_judged(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    row = {"target_word": "river", "max_turns": 5, "history": [{"role": "attacker", "content": "A river!"}]}
    write_rows(path, [row, {"history": [], "outcome": "tie"}])  # as upstream writes them, and one without a task
    index = index_of(path)
    assert find(index).outcomes == {TABOO.name: {"attacker_violation": 1}}
    assert index.faults == [f"{path}:2: not an episode: object missing required field `target_word`"]


def test_a_game_whose_line_changed_is_an_error_that_names_it(file: Path) -> None:
    index = index_of(file)
    file.write_bytes(b"#" * file.stat().st_size)
    with pytest.raises(DataError, match=rf"{file}:1: not an episode"):
        index.episode("games", 1)


def test_the_run_folder_tells_stages_sources_and_checkpoints(tmp_path: Path) -> None:
    folder = RunFolder(make_run(tmp_path / "run"))
    assert [(stage.name, stage.status) for stage in folder.progress()][2:] == [
        ("2-spag/iteration-1/train", "done"), ("2-spag/iteration-2/play", "started"),
        ("2-spag/iteration-2/train", "waiting"), ("arena", "waiting"),
    ]  # fmt: skip
    assert [source.name for source in folder.sources()] == ["spag-1", "spag-2"]
    assert list(folder.checkpoints()) == ["base", "imitation", "spag-1"]
    assert [row["step"] for row in folder.metrics(folder.models[0])] == [1, 2, 3, 4, 5]


def test_games_of_several_phases_have_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (2, 3):
        write_rows(tmp_path / f"{number}-reinforce" / "episodes" / "step-00001.jsonl", [won("river")])
    monkeypatch.setattr(reading, "teacher_path", lambda game: Path(game.name))
    taught = [
        {"algorithm": "imitation", "episodes": ["teacher"], "game": {"name": name}} for name in ("nim", TABOO.name)
    ]
    online = [{"algorithm": "reinforce"}] * 2
    config = {"model": {"name": "no-such-model"}, "phases": [taught[0], *online, taught[1]]}
    (tmp_path / "config.yaml").write_text(dump_config(RunConfig.model_validate(config)))
    assert {source.name: source.phase for source in RunFolder(tmp_path).sources()} == {
        "teacher-nim": "",
        "reinforce-2-online-step-00001": "reinforce-2",
        "reinforce-3-online-step-00001": "reinforce-3",
        "teacher": "",
    }


def test_games_and_figures_of_a_stage_that_waits_for_a_redo_are_not_shown(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    assert {"spag-1"} < {source.name for source in RunFolder(path).sources()}
    manifest = json.loads((path / "manifest.json").read_text())
    for stage in ("play", "train"):
        manifest["stages"][f"2-spag/iteration-1/{stage}"]["status"] = "waiting"
    write_json(path / "manifest.json", manifest)
    folder = RunFolder(path)
    assert [source.name for source in folder.sources()] == ["spag-2"] and "spag-1" not in folder.training


def test_a_file_that_vanishes_while_it_is_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "2-spag" / "iteration-2" / ".health.json.new").symlink_to("gone")
    monkeypatch.setattr(Path, "is_file", lambda path: True)  # as it was a moment ago
    idle = RunFolder(folder).progress()[3].idle_s
    assert idle is not None and idle < 3600


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such run folder"):
        create_app(tmp_path / "nothing", Access())
    with pytest.raises(RunError, match="neither a manifest"):
        create_app(tmp_path, Access())
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "list.json").write_text("[{}]", encoding)
        with pytest.raises(RunError, match="spag import episodes"):
            create_app(tmp_path / "list.json", Access())


def test_a_plain_file_of_episodes_will_do(file: Path) -> None:
    folder = RunFolder(file)
    assert [source.name for source in folder.sources()] == ["games"]
    assert folder.progress() == []
    assert folder.checkpoints() == {}
    assert folder.game == TABOO.__class__()
    assert index_of(file).episode("games", 1) == next(iter(read_episodes(file)))


def test_the_name_of_a_file_need_not_be_utf8(tmp_path: Path) -> None:
    run = RunFolder(bot_games("kuhn_poker", tmp_path / os.fsdecode(b"bad\xff.jsonl")))
    index = index_all(GameIndex(run.sources, lambda: run.games))
    assert index.episode("bad?", 1) == next(iter(read_episodes(run.folder)))


def test_games_that_join_the_settings_later_are_read_then(tmp_path: Path) -> None:
    path, other = (bot_games(name, tmp_path / f"{name}.jsonl") for name in ("kuhn_poker", "tic_tac_toe"))
    path.write_text(path.read_text() + other.read_text())
    shown = {"kuhn_poker": get("kuhn_poker")}
    index = index_all(GameIndex(lambda: [GameFile("games", path)], lambda: shown))
    assert len(index.faults) == 1 and not index.holds("tic_tac_toe")
    shown["tic_tac_toe"] = get("tic_tac_toe")
    index_all(index)
    assert not index.faults and find(index).total == len(path.read_text().splitlines())


def test_the_game_is_that_of_the_settings_or_of_the_first_episode(tmp_path: Path) -> None:
    folder = RunFolder(bot_games("tic_tac_toe", tmp_path / "games.jsonl"))
    assert folder.game.name == "tic_tac_toe"
    index = index_of(folder.folder, folder.game)
    found = find_games(index, GameFilter(outcome="player_0_wins"))
    assert found.total and set(found.outcomes["tic_tac_toe"]) == {"player_0_wins"}
    [fault] = index_of(folder.folder).faults
    assert fault == "games of tic_tac_toe are not shown; open their file separately: spag web FILE"
    write_json(tmp_path / "config.yaml", {"game": {"name": "kuhn_poker"}})
    assert RunFolder(tmp_path).game.name == "kuhn_poker"
