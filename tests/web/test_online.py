"""Online steps on the page: figures while the run goes, and the games of any step."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from test_pages import Reader, assert_inert
from web_fixtures import bot_games, make_two_online, site, visitor

from online_files import CONFIG, KUHN, SIGN, evaluation, games, write_online
from spag.storage.store import write_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_online(tmp_path_factory.mktemp("online") / "run", finished=False)


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with visitor(site(folder)) as made:
        yield made


def text_of(client: TestClient, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    assert_inert(answer.text)
    return " ".join(Reader(answer.text).text.split())


def test_the_overview_shows_a_run_at_work(client: TestClient) -> None:
    page = text_of(client, "/")
    assert "12 of 12 steps done" in page and "Kuhn poker · no-such-model · imitation · reinforce" in page
    assert f"from step 8 on: {SIGN}" in page and "steps 9 to 10: player_0 of kuhn_poker: has 97 %" in page
    assert re.search(r"exploitability ?0\.030", page) and re.search(
        r"entropy, nats per token ?player 0 ?0\.087", page
    )  # 0.3 / sqrt(12)
    assert re.search(r"share of draws, % ?bot:random ?1,200 ?0.75 ?−191 ?20 ?snapshot-8 ?96 ?0.40 ?\+70 ?30", page)
    assert re.search(r"start, step 12 ?player 0 ?6 ?67 30–90 ?0 0–39 ?start, step 12 ?player 1 ?6 ?33 10–70", page)
    assert re.search(r"policy against ?games ?score ?p ?start ?12 ?0 \[−24, \+24\] ?1\.00", page)
    assert "iteration" not in page
    # 12 steps in at most 8 bars: two steps a bar; 6 games a step and 6 more of step 2's second process
    assert re.search(r"reinforce steps 1–2 [^–]*?\b18 games", page) and re.search(
        r"reinforce steps 11–12 [^–]*?\b12 games", page
    )
    assert re.search(r"reinforce evaluations [^–]*?\b12 games", page)


def test_tables_can_be_read_by_ear_and_scrolled_by_keyboard(client: TestClient) -> None:
    tags = Reader(client.get("/").text).tags
    boxes = [attrs for _, attrs in tags if attrs.get("class") == "scroll"]
    assert boxes and all(box["role"] == "region" and box["aria-label"] and box["tabindex"] == "0" for box in boxes)
    assert all(attrs.get("scope") == "col" for tag, attrs in tags if tag == "th")


def test_curves_of_both_roles_share_a_scale(client: TestClient) -> None:
    [figure] = re.findall(r'aria-label="reward by step.*?</svg>', client.get("/").text, re.DOTALL)
    lines = re.findall(r'<polyline class="(\w+)" points="([^"]+)"', figure)
    assert [name for name, _ in lines] == ["first", "second"]
    first, second = ([float(point.split(",")[1]) for point in points.split()] for _, points in lines)
    assert (min(first), max(second)) == (
        2.0,
        46.0,
    )  # the best reward of one at the top, the worst of the other at the bottom
    assert max(first) < min(second)


@pytest.mark.slow
def test_an_exact_curve_has_a_point_for_each_evaluated_step(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run", finished=False)
    rows = [evaluation(step) | {"opponent": name} for step in (4, 12) for name in ("start", "bot:random")]
    write_rows(folder / "2-reinforce" / "evaluations.jsonl", rows)
    with visitor(site(folder)) as client:
        [figure] = re.findall(r'aria-label="exploitability by step.*?</svg>', client.get("/").text, re.DOTALL)
    assert re.findall(r'points="([^"]+)"', figure) == ["0.0,2.0 240.0,46.0"]


def test_a_role_that_fell_silent_has_no_latest_value(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run", finished=False)
    metrics, key = folder / "2-reinforce" / "metrics.jsonl", "kuhn_poker/player_1/length"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    write_rows(metrics, [*rows[:-1], {name: value for name, value in rows[-1].items() if name != key}])
    with visitor(site(folder)) as client:
        page = client.get("/").text
    [label] = re.findall(r'aria-label="tokens per utterance by step, ([^"]+)"', page)
    assert re.fullmatch(r"player 0 now [\d.]+, player 1 now –", label)


def test_cards_of_a_mix_name_their_game(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run", finished=False)
    both = CONFIG.replace("games: 6}", "games: 6, mix: [{name: kuhn_poker}, {name: nim}]}")
    (folder / "config.yaml").write_text(both)
    with visitor(site(folder)) as client:
        page = text_of(client, "/")
    assert "Kuhn poker: reward" in page and "Kuhn poker: exploitability" in page


def test_players_who_win_together_have_no_score(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run", finished=False)
    both = CONFIG.replace("games: 6}", "games: 6, mix: [{name: kuhn_poker}, {name: twenty_questions}]}")
    (folder / "config.yaml").write_text(both)
    met = [{"opponent": "start", "games": 40, "score": 0.5, "rating": 9.0, "share": 0.3}]
    rows = [{"game": game, **one} for game in ("kuhn_poker", "twenty_questions") for one in met]
    write_rows(folder / "2-reinforce" / "opponents.jsonl", [{"step": 12, "opponents": rows}])
    with visitor(site(folder)) as client:
        page = text_of(client, "/")
    assert re.search(r"share of draws, % start ?40 ?0.50 ?\+9 ?30 20 Questions ?Opponents", page)
    assert re.search(r"share of draws, % start ?40 ?– ?– ?30 Latest games", page)


def test_exact_figures_say_that_thinking_is_off_where_players_think(tmp_path: Path) -> None:
    folder, says = write_online(tmp_path / "run", finished=False), "exploitability, with thinking disabled"
    thinking = CONFIG.replace("games: 6}", "games: 6, sampling: {thinking: {enabled: true}}}")
    for config, thinks in ((CONFIG, False), (thinking, True)):
        (folder / "config.yaml").write_text(config)
        with visitor(site(folder)) as client:
            assert (says in text_of(client, "/")) == thinks


def test_the_games_of_any_step_can_be_opened(client: TestClient, folder: Path) -> None:
    page = client.get("/").text  # a bar of two steps leads to the games of both
    linked = re.findall(r'href="/games\?phase=reinforce&amp;step=(\d+)&amp;until=(\d+)"', page)
    assert [(int(first), int(last)) for first, last in linked] == [(step, step + 1) for step in range(1, 12, 2)]
    assert "<b>18 games</b>" in client.get("/games?phase=reinforce&step=1&until=2").text
    # 6 of each step, 6 of step 2's second process, 12 of evaluations
    assert "<b>90 games</b>" in client.get("/games?phase=reinforce").text
    assert "<b>12 games</b>" in client.get("/games?step=2").text  # of both processes
    assert "<b>6 games</b>" in client.get("/games?step=1").text  # and not of 10, 11, 12
    assert "No game matches" in client.get("/games?step=40").text
    assert "<b>12 games</b>" in client.get("/games?source=evaluation-step-00012-kuhn_poker-start").text
    found = client.get("/games/online-step-00002.part1/3")
    assert found.status_code == 200 and KUHN.describe_task(games(102)[2].task) in Reader(found.text).text
    listed = client.get("/games?source=online-step-00003").text
    assert '<option value="online-step-00003" selected>' in listed and '<option value="online-step-00004"' not in listed
    assert 'name="step"' in listed and '<option value="evaluation-step-00012-kuhn_poker-start">' in listed


def test_a_step_at_work_and_a_torn_row(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run", finished=False)
    write_rows(folder / "2-reinforce" / "episodes" / "step-00013.jsonl", games(13, 4))
    with (folder / "2-reinforce" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "samp')
    with visitor(site(folder)) as client:
        page = text_of(client, "/")
    assert "12 of 12 steps done" in page and re.search(r"reinforce step 13 [^–]*?\b4 games", page)


RATELESS = evaluation(12)
del RATELESS["roles"][0]["win"]["low"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "row", "says"),
    [
        ("metrics", {"loss": 1}, "object missing required field `step`"),
        ("evaluations", {"step": 3}, "object missing required field `game`"),
        ("evaluations", RATELESS, "roles[0].win: object missing required field `low`"),
        ("warnings", {"step": 3, "warnings": []}, "warnings: expected `object`, got `array`"),
        ("opponents", {"step": 3, "opponents": [{}]}, "opponents[0]: object missing required field `game`"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_shown(tmp_path: Path, file: str, row: dict[str, Any], says: str) -> None:
    folder = write_online(tmp_path / "run", finished=False)
    (folder / "2-reinforce" / f"{file}.jsonl").write_text(json.dumps(row) + "\n")
    line = f"2-reinforce/{file}.jsonl:1: {says}"
    with visitor(site(folder)) as client:
        page = Reader(client.get("/").text).text
    assert line in page and str(folder) not in page and "reinforce steps 1–2" in page and "1-imitation" in page
    assert ("entropy, nats per token" in page) == (file != "metrics")  # the curves need no other file


@pytest.mark.slow
def test_games_that_no_phase_plays_are_left_out_with_one_note(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run", finished=False)
    other = bot_games("tic_tac_toe", tmp_path / "other.jsonl").read_text()
    for step in (1, 2, 3):
        with (folder / "2-reinforce" / "episodes" / f"step-{step:05d}.jsonl").open("a") as file:
            file.write(other)
    with visitor(site(folder)) as client:
        page = client.get("/").text
        assert page.count("games of tic_tac_toe are not shown") == 1 and "not an episode" not in page
        assert "<b>6 games</b>" in client.get("/games?step=3").text


def test_the_games_of_a_mix_are_shown_each_by_itself(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run", finished=False)
    other = bot_games("tic_tac_toe", tmp_path / "other.jsonl").read_text()
    with (folder / "2-reinforce" / "episodes" / "step-00003.jsonl").open("a") as file:
        file.write(other)
    mixed = CONFIG.replace("games: 6}", "games: 6, mix: [{name: kuhn_poker}, {name: tic_tac_toe}]}")
    (folder / "config.yaml").write_text(mixed)
    with visitor(site(folder)) as client:
        page, listed = (client.get(address).text for address in ("/", "/games?step=3"))
        assert "not shown" not in page and "<h3>Tic-tac-toe</h3>" in page
        assert "<b>18 games</b>" in listed  # 6 of Kuhn poker, 12 of tic-tac-toe
        assert [listed.count(f'class="bar game-{name}"') for name in ("kuhn_poker", "tic_tac_toe")] == [1, 1]
        assert "<b>12 games</b>" in client.get("/games?step=3&game=tic_tac_toe").text


@pytest.mark.slow
def test_each_online_phase_has_its_figures_steps_and_games(tmp_path: Path) -> None:
    with visitor(site(make_two_online(tmp_path / "run"))) as client:
        page = text_of(client, "/")
        # phases in order, each with its own steps; a bar holds two of the first phase's 12 steps, one of the other's 4
        assert re.search(r"2\. reinforce .*12 of 12 steps done.*3\. group .*4 of 10 steps done", page)
        assert page.index("reinforce steps 11–12") < page.index("reinforce evaluations") < page.index("group step 1 ")
        for phase, games in (("reinforce", 6), ("group", 4)):  # step 3 of each
            assert f"<b>{games} games</b>" in client.get(f"/games?phase={phase}&step=3").text
        assert "<b>10 games</b>" in client.get("/games?step=3").text
        assert '<option value="group">' in client.get("/games").text


def test_steps_that_wait_for_a_redo_are_not_shown(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["stages"]["2-reinforce/train"]["status"] = "waiting"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with visitor(site(folder)) as client:
        assert "All its games" not in client.get("/").text


def test_runs_without_online_steps_show_none(client: TestClient, tmp_path: Path) -> None:
    assert 'name="step"' in client.get("/games").text
    with visitor(site(bot_games("kuhn_poker", tmp_path / "games.jsonl"))) as other:
        assert 'name="step"' not in other.get("/games").text
