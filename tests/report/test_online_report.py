"""The report's section of online training, and the block that ``spag run`` prints of it."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from markupsafe import Markup
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from run_fixtures import leave_undrawn, write_run
from test_page import Page

from online_files import CONFIG, DRIFT, KUHN, SIGN, evaluation, metrics, write_online
from spag.cli.tables import print_run
from spag.config.files import dump_config, parse_config
from spag.core.options import SamplingConfig
from spag.core.types import Split
from spag.engines.bot import BotEngine
from spag.evaluation.arena.standings import arena_report
from spag.games import get
from spag.report import curves
from spag.report.page import write_report
from spag.report.plot_files import plot_style
from spag.report.run_tables import evaluation_tables, time_table
from spag.rollout.runner import Player, game_specs, play
from spag.runs.reading import RunFolder
from spag.storage.store import write_json, write_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_online(tmp_path_factory.mktemp("online") / "run")
    write_report(folder)
    return folder


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what a page says beside plots that others draw."""
    leave_undrawn(monkeypatch)


def text_of(folder: Path) -> str:
    return Page((folder / "report" / "index.html").read_text(encoding="utf-8")).text


def test_the_section_says_what_the_steps_came_to(folder: Path) -> None:
    text = text_of(folder)
    assert "Kuhn poker · no-such-model · imitation · reinforce · seed 0" in text
    assert f"from step 8 on: {SIGN}" in text and f"steps 9 to 10: {DRIFT}" in text
    assert "start, step 12 player 0 6 67 30–90" in text
    assert "imitation 0.370 – step 4 0.090 0.980 step 12 0.030 0.980 reinforce (final) 0.040 –" in text
    assert "bot:random 1,200 0.75 −191 20 snapshot-8 96 0.40 +70 30" in text
    # 2 + 0.25 + 2.5 + 0.05 of 5 seconds leave 0.2; the evaluation after step 12 took 30 s
    assert (
        "play 2.00 40.0 log-probabilities 0.25 5.0 training 2.50 50.0 weight update 0.05 1.0 rest 0.20 4.0 "
        "total 5.00 100.0" in text
    )
    assert "without evaluations, which took 30 s in all" in text
    assert "Games of online-step-00012" in text
    assert "held-out tasks (36 games)" in text  # online steps are known to draw none of them
    assert "Exploitability, computed exactly: 0.500 for base, 0.370 for imitation, 0.040 for reinforce." in text
    title = "Exact metrics of the policy policy exploitability"  # of the arena's players, then of the phase
    assert f"{title} base 0.500 imitation 0.370 reinforce 0.040" in text
    ends = "step 4 0.090 0.980 step 12 0.030 0.980 reinforce (final) 0.040"
    assert f"{title} legal mass imitation 0.370 – {ends}" in text
    assert "No self-play has finished" not in text and "Stopped at" not in text
    assert "2-reinforce/train 60 s 12 steps" in text


def test_the_plots_are_files_too(folder: Path) -> None:
    names = {path.stem for path in (folder / "report" / "plots").iterdir() if path.stem.startswith("online")}
    assert names == {"online-kuhn_poker", "online-kuhn_poker-evaluations", "online-kuhn_poker-exact", "online-training"}


@pytest.mark.usefixtures("_undrawn")
def test_a_run_that_stopped_says_why(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["stages"]["2-reinforce/train"]["results"]["stopped"] = "step 12: <b>all is lost</b>"
    write_json(folder / "manifest.json", manifest)
    write_report(folder)
    assert "Stopped at a collapse warning: step 12: <b>all is lost</b>." in text_of(folder)


@pytest.mark.usefixtures("_undrawn")
def test_a_run_without_online_steps_has_no_such_section(tmp_path: Path) -> None:
    text = Page(write_report(write_run(tmp_path / "run")).read_text(encoding="utf-8")).text
    assert "Online steps" not in text and "imitation · spag · seed 0" in text


@pytest.mark.usefixtures("_undrawn")
def test_a_run_at_work_needs_no_evaluation_and_no_arena(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run", finished=False)
    (folder / "2-reinforce" / "evaluations.jsonl").unlink()
    (folder / "2-reinforce" / "warnings.jsonl").unlink()
    (folder / "2-reinforce" / "opponents.jsonl").unlink()
    write_report(folder)
    text = text_of(folder)
    assert "12 steps, each a batch" in text and "Exact metrics" not in text and "Evaluations on held-out" not in text
    assert "Collapse warnings" not in text
    write_rows(folder / "2-reinforce" / "metrics.jsonl", [metrics(1)])
    write_report(folder)
    assert "1 step, each a batch" in text_of(folder)


@pytest.mark.usefixtures("_undrawn")
def test_a_game_of_the_mix_that_no_step_has_played_has_no_plot(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run", finished=False)
    mix = "mix: [{name: kuhn_poker}, {name: nim, weight: 0.01}]"
    (folder / "config.yaml").write_text(CONFIG.replace("games: 6}", f"games: 6, {mix}}}"))
    html = write_report(folder).read_text()  # matplotlib would warn of a legend without lines
    assert "<h3>Nim</h3>" in html and "<h3>Kuhn poker</h3>" in html


@pytest.mark.usefixtures("_undrawn")
def test_the_games_of_the_last_phase_that_has_begun_are_shown(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run", finished=False)
    waiting = "- {algorithm: group, steps: 2, games: 4, group_size: 2}\n"
    (folder / "config.yaml").write_text(CONFIG + waiting)
    write_report(folder)
    assert "Games of reinforce-online-step-00012" in text_of(folder)


@pytest.mark.usefixtures("_undrawn")
def test_steps_without_advantage_are_named_with_the_model_that_they_trained_only(tmp_path: Path) -> None:
    folder, idle = write_online(tmp_path / "run"), "100 % of its last training samples had no advantage"
    dead = {f"kuhn_poker/{role}/{name}": 1 for role in KUHN.roles for name in ("no_advantage", "samples")}
    write_rows(folder / "2-reinforce" / "metrics.jsonl", [metrics(step) | dead for step in range(1, 13)])
    write_report(folder)
    assert idle in text_of(folder)
    arena = folder / "arena" / "results.json"
    arena.write_text(arena.read_text().replace('"reinforce"', '"spag-1"'))  # trained after the online phase
    write_report(folder)
    assert idle not in text_of(folder)


def test_exact_figures_are_of_the_arena_with_its_settings(tmp_path: Path) -> None:
    """In a curriculum the last phase may play larger heaps than the arena: its figures are of other positions."""
    config = parse_config("game: {name: nim, largest_heap: 12}\nphases: [{algorithm: reinforce}]", "test")
    (tmp_path / "config.yaml").write_text(dump_config(config))
    nim = config.game.build()
    players = {role: Player(BotEngine(nim.bots["perfect"]), role, SamplingConfig()) for role in nim.roles}
    arena = arena_report(play(game_specs(nim.tasks(Split.HELD_OUT, 1, 0), 1, 0), players, game=nim), nim)
    exact = {"base": {"winning_moves": 0.4}}
    write_json(tmp_path / "arena" / "results.json", {**arena, "exact_metrics": exact})
    run = RunFolder(tmp_path)
    assert run.exact_figures(run.game) == exact
    assert run.exact_figures(get("nim", largest_heap=30)) == {}


@pytest.mark.usefixtures("_undrawn")
def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run")
    write_rows(folder / "2-reinforce" / "evaluations.jsonl", [{**evaluation(3), "exact": None}])
    said: list[str] = []
    write_report(folder, said.append)
    assert len(said) == 1 and "evaluations.jsonl:1: object missing required field `exact`" in said[0]
    assert "12 steps, each a batch" in text_of(folder) and "Evaluations on held-out" not in text_of(folder)


@pytest.mark.usefixtures("_undrawn")
def test_a_damaged_arena_is_not_called_unplayed(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run")
    (folder / "arena").mkdir(exist_ok=True)
    (folder / "arena" / "results.json").write_text("{")
    write_report(folder)
    shown = text_of(folder)
    assert "No arena results could be read." in shown and "has not been played yet" not in shown


def test_curves_are_the_figures_in_per_cent_with_their_means() -> None:
    rows = [metrics(step) for step in range(1, 13)]
    with plot_style():
        figure = curves.role_curves(rows, KUHN)
    by_title = {axes.get_title(loc="left"): axes for axes in figure.axes}
    raw, mean = by_title["breaks the rules, %"].lines[:2]
    assert list(raw.get_xdata()) == [*range(1, 13)] and raw.get_ydata()[0] == pytest.approx(20.0)
    assert mean.get_ydata()[0] == pytest.approx(
        (20 + 10 + 20 / 3) / 3
    )  # two steps to either side, of which the first has none before
    assert mean.get_ydata()[4] == pytest.approx(20 * (1 / 3 + 1 / 4 + 1 / 5 + 1 / 6 + 1 / 7) / 5)
    assert [to_hex(line.get_color()) for line in by_title["reward"].lines[1::2]] == ["#0072b2", "#e69f00"]


def test_the_exact_curve_stands_beside_the_model_that_it_began_with() -> None:
    known = {
        "imitation": {"exploitability": 0.37},
        "reinforce": {"exploitability": 0.04},
        "base": {"exploitability": 0.5},
    }
    with plot_style():
        axes = curves.exact_curves([evaluation(4), evaluation(12)], KUHN, known, phase_of([])).axes[0]
    policy, line, final = axes.lines
    assert list(policy.get_ydata()) == pytest.approx([0.09, 0.03])
    assert set(line.get_ydata()) == {0.37} and list(final.get_xydata()[0]) == [12.0, 0.04]


def test_noise_of_exact_figures_is_no_curve() -> None:
    rows = [evaluation(4) | {"exact": {"exploitability": 0.366 + noise}} for noise in (0.0, 1e-12)]
    with plot_style():
        axes = curves.exact_curves(rows, KUHN, {"imitation": {"exploitability": 0.366 - 1e-12}}, phase_of([])).axes[0]
    assert {value for line in axes.lines for value in line.get_ydata()} == {0.366}


def phase_of(evaluations: list[dict[str, Any]], opponents: Sequence[dict[str, Any]] = ()) -> Any:
    """Return what tables and curves read of an online phase."""
    model = SimpleNamespace(start="imitation")
    return SimpleNamespace(model=model, name="reinforce", thinks=False, evaluations=evaluations, opponents=opponents)


def test_tables_compare_the_first_with_the_last_evaluation_of_each_opponent() -> None:
    evaluations = [{**evaluation(step), "opponent": opponent} for step in (2, 4, 6) for opponent in ("start", "bot:x")]
    evaluations.append({**evaluation(9), "game": "other", "exact": {"exploitability": 9.0}})
    by_role, scores, exact = evaluation_tables(phase_of(evaluations), KUHN, {})
    assert [row[:2] for row in by_role.rows[:4]] == [
        (f"start, step {step}", f"player {one}") for step in (2, 6) for one in (0, 1)
    ]
    assert len(by_role.rows) == 8 and [row[0] for row in scores.rows] == ["start", "bot:x"]
    assert [row[:2] for row in exact.rows] == [("step 2", "0.180"), ("step 6", "0.060")]
    assert len(evaluation_tables(phase_of(evaluations[:1]), KUHN, {})[0].rows) == 2  # the first is the last
    assert evaluation_tables(phase_of([]), KUHN, {}) == [] and time_table([{"step": 1}]).rows[-1] == (
        "total",
        "0.00",
        "100.0",
    )


def write_two(folder: Path) -> Path:
    """Write a run whose first online phase stopped at a warning of collapse."""
    write_online(folder)
    shutil.copytree(folder / "2-reinforce", folder / "3-reinforce")
    (folder / "3-reinforce" / "warnings.jsonl").unlink()
    again = "- {algorithm: reinforce, steps: 12, games: 6}\n"
    (folder / "config.yaml").write_text(CONFIG + again)
    manifest = json.loads((folder / "manifest.json").read_text())
    stages = manifest["stages"]
    stages["3-reinforce/train"] = stages["2-reinforce/train"]
    stages["2-reinforce/train"] = {**stages["3-reinforce/train"], "results": {"stopped": "step 12: all is lost"}}
    write_json(folder / "manifest.json", manifest)
    arena = json.loads((folder / "arena" / "results.json").read_text())
    exact = {"imitation": 0.37, "reinforce-2": 0.04, "reinforce-3": 0.02}
    arena["exact_metrics"] = {name: {"exploitability": value} for name, value in exact.items()}
    write_json(folder / "arena" / "results.json", arena)
    return folder


def test_every_online_phase_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plots = write_two(tmp_path / "run"), set[str]()

    def save_plot(_: Figure, name: str, *__: object) -> Markup:
        plots.add(name)
        return Markup()

    monkeypatch.setattr("spag.report.page.save_plot", save_plot)
    html = write_report(folder).read_text()
    assert html.count("12 steps, each a batch") == 2
    assert "<h3>reinforce-2</h3>" in html and "<h3>reinforce-3</h3>" in html
    parts = html.partition("<h3>reinforce-2</h3>")[2].partition("<h3>reinforce-3</h3>")[::2]
    first, second = (" ".join(re.sub("<[^>]*>", " ", part).split()) for part in parts)
    assert "reinforce-2 (final) 0.040" in first and "reinforce-3 0.020" not in first
    assert "reinforce-2 0.040" in second and "reinforce-3 (final) 0.020" in second
    assert "<h4><bdi>Online policy on held-out tasks</bdi></h4>" in html
    assert html.count("Collapse warnings") == 1 and "step 12: all is lost" in html
    assert {"online-reinforce-2-kuhn_poker", "online-reinforce-3-kuhn_poker", "online-reinforce-3-training"} <= plots
    print_run(folder)
    assert "online training stopped at step 12: all is lost" in capsys.readouterr().out


@pytest.mark.usefixtures("_undrawn")
def test_a_run_without_offline_phases_has_no_section_of_them(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run", finished=False)
    (folder / "config.yaml").write_text(CONFIG.replace('- {algorithm: imitation, episodes: ["bot:random"]}\n', ""))
    (folder / "2-reinforce").rename(folder / "1-reinforce")
    write_json(folder / "manifest.json", {"schema_version": 1, "measured": {}, "stages": {}})
    html = write_report(folder).read_text()
    assert "12 steps, each a batch" in html and "No training step has been logged" not in html


def test_the_policy_is_drawn_after_one_evaluation_against_two_opponents() -> None:
    rows = [{**evaluation(4), "opponent": name} for name in ("start", "bot:x")]
    with plot_style():
        figure = curves.exact_curves(rows, KUHN, {}, phase_of([]))
    assert [line.get_marker() for line in figure.axes[0].lines] == ["o"]


def test_players_who_win_together_have_no_score() -> None:
    game = get("twenty_questions")
    evaluations = [{**evaluation(4), "game": game.name, "exact": {}}]
    met = [{"game": game.name, "opponent": "start", "games": 1200, "score": 0.5, "rating": 0.0, "share": 0.2}]
    by_role, opponents = evaluation_tables(phase_of(evaluations, met), game, {})
    assert [row[0] for row in by_role.rows] == ["start, step 4"] * 2
    assert opponents.rows == (("start", "1,200", None, None, "20"),)


def test_exact_figures_say_that_thinking_is_off_where_players_think(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, off, titles = write_online(tmp_path / "run"), ", with thinking disabled", dict[str, str]()

    def save_plot(figure: Figure, name: str, *_: object) -> Markup:
        titles[name] = figure.get_suptitle()
        return Markup()

    monkeypatch.setattr("spag.report.page.save_plot", save_plot)
    thinking = CONFIG.replace("games: 6}", "games: 6, sampling: {thinking: {enabled: true}}}")
    for config, says in ((CONFIG, ""), (thinking, off)):
        (folder / "config.yaml").write_text(config)
        write_report(folder)
        print_run(folder)
        table = f"Exact metrics of the policy{says} policy exploitability"
        assert table in text_of(folder) and table in " ".join(capsys.readouterr().out.split())
        assert titles["online-kuhn_poker-exact"] == f"Kuhn poker: exact metrics{says}"


def test_the_command_ends_with_what_the_steps_came_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = write_online(tmp_path / "a run")
    places = [f"{folder}/{phase}/checkpoint" for phase in ("1-imitation", "2-reinforce")]
    for place in places:
        write_json(Path(place) / "config.json", {})
    print_run(folder)
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["start,", "step", "12", "player", "1", "6", "33", "(10-70)", "0", "(0-39)"] in lines
    assert ["start", "12", "0", "[−24,", "+24]", "1.00"] in lines
    at = lines.index(["imitation", "0.370", "-"])
    assert ["base", "0.500", "-"] not in lines  # nor on the page
    assert [row[-2:] for row in lines[at + 1 : at + 4]] == [["0.090", "0.980"], ["0.030", "0.980"], ["0.040", "-"]]
    assert f"warning: online, from step 8 on: {SIGN}" in out
    assert f"  the models   {', '.join(places)} (plain" in out
    assert f"  the games    spag judge '{folder}/arena/episodes.jsonl' --show 5\n" in out  # a shell's one word
