"""The page as a reader, a browser and a curious file would meet it."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import run_fixtures
from click.testing import CliRunner
from run_fixtures import (
    HOSTILE,
    STRENGTH,
    leave_undrawn,
    record_held_out,
    stage,
    write_manifest,
    write_reasoning,
    write_run,
)

from spag.cli.run import report_command
from spag.cli.tables import print_reasoning
from spag.config.files import dump_config
from spag.config.schema import RunConfig
from spag.core.errors import RunError
from spag.evaluation.result_files import load_reasoning
from spag.report import charts
from spag.report.arena_tables import rating_table
from spag.report.cells import Table
from spag.report.html import environment, visible
from spag.report.page import write_report
from spag.report.plot_files import plot_style, save_plot
from taboo_games import TABOO

pytestmark = pytest.mark.slow

BLOCKS = {"td", "th", "dt", "dd", "small"}
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Checks that tags are balanced and ids unique; collects tags, links and text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.pieces: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} {name}"
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "src", "xlink:href", "action", "data", "poster"):
                self.links.append(value or "")
        self.pieces += [" "] * (tag in BLOCKS)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> at {self.getpos()}"
        self.pieces += [" "] * (tag in BLOCKS)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.pieces).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("runs") / "nice & <short>", iterations=2)
    write_reasoning(run, ["alpha", "beta", "gamma"])
    write_report(run)
    return run


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return (folder / "report" / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_says_whether_it_got_better(page: Page) -> None:
    assert "spag-1 is better than base (24:0) and imitation (24:10); 90 % of its utterances repeat" in page.text
    # against base on 24 words: 24 wins and 24 ties, so (24 - 0) / 48; against imitation 24 wins to 10, so 14 / 48
    assert "In the game, against base: score +50 [+28, +58] of 100, p < 0.001; Elo +" in page.text
    assert "In the game, against imitation: score +29 [+" in page.text
    assert "on 24 held-out tasks (144 games); so few tasks show only large differences" in page.text
    assert "Intervals are 95 %. p is not corrected for the number of comparisons. One run" in page.text
    # 70 of 100 right against 40, on each of three tasks
    assert "Reasoning of spag-1, against base: geometric mean of 3 tasks +30.0 [+" in page.text


def test_no_claim_of_the_headline_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_undrawn(monkeypatch)
    names = {"base": "a" * 200, "imitation": "b" * 200, "spag-1": "c" * 200}
    monkeypatch.setattr(run_fixtures, "PLAYERS", tuple(names.values()))
    monkeypatch.setattr(run_fixtures, "STRENGTH", {names[name]: count for name, count in STRENGTH.items()})
    text = Page(write_report(write_run(tmp_path / "run")).read_text(encoding="utf-8")).text
    claims = f"is better than {names['base']} (24:0) and {names['imitation']} (24:10)"
    assert f"{names['spag-1']} {claims}; 90 % of its utterances repeat what was said before." in text


@pytest.mark.parametrize(
    ("count", "doubt"),
    [(59, "59 games on tasks of the held-out split were trained on, so"), (None, "The run does not record")],
)
def test_held_out_is_claimed_only_where_every_stage_recorded_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int | None, doubt: str
) -> None:
    leave_undrawn(monkeypatch)
    folder = write_run(tmp_path / "run")
    record_held_out(folder, "1-imitation/train", count)
    text = Page(write_report(folder).read_text(encoding="utf-8")).text
    assert "on 24 tasks (144 games); so few tasks show only large differences." in text and doubt in text
    assert "held-out tasks" not in text


def test_shows_the_figures(page: Page) -> None:
    assert "imitation +0.42 42 24–61" in page.text  # attacks 48 times and wins 10 + 10, on the same words
    assert "spag-1 – imitation 48 24 – 10 14 +29" in page.text
    assert "70.0 ± 4.6 +30.0 [+" in page.text  # sqrt(0.7 * 0.3 / 99) = 0.0461
    assert "2-spag/iteration-1/play 60 min 7 games 1,234 56,789" in page.text
    # 90 + 2 * 3630 + 60 + 6 tasks * 60 s = 7770 s; twice 56,789 tokens
    assert "total 2 h 10 min 113,578" in page.text
    assert "utterances per game" in page.text and "leaks only strict judging sees, % 14.3" in page.text  # 1 of 7
    assert "lm_eval 0.4.13" in page.text and "torch 2.13.0" in page.text
    assert "Adversarial Taboo · tiny <model> · imitation · spag · seed 0" in page.text
    assert "finished 2026-01-02 03:04:05 UTC" in page.text and "kl_coef:" in page.text


def test_shows_games_as_a_conversation_with_the_word_marked(html: str, page: Page) -> None:
    assert "It is `<mark>river</mark>`!" in html
    assert "I like my <mark>bread</mark> warm." in html
    assert "My <mark>c-a-t</mark> sleeps." in html
    assert 'The attacker spelled "cat" as "c-a-t".' in page.text
    assert 'The defender guessed "river", and was right.' in page.text
    assert "Games of spag-2" in page.text


def test_needs_nothing_else_and_runs_nothing(html: str, page: Page) -> None:
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(
        r"https?:|//|@import|url\((?!#)", re.sub(r"</?bdi[^>]*>", "", html).replace(escaped(HOSTILE), "")
    ), "an address"


def escaped(text: str) -> str:
    return str(visible(text))


def test_hostile_text_stays_text(html: str, page: Page) -> None:
    assert "alert(1)" in page.text and "<script" not in html and "<img" not in html
    assert "U+202E" in page.text and "\u202e" not in html
    assert "nice & <short>" in page.text and "<short>" not in html
    assert "&lt;alpha&gt;" in html  # a task's label inside a plot


def test_plots_are_files_too(folder: Path, html: str) -> None:
    names = {"ratings", "win-matrix", "reasoning-bars", "outcomes"}
    names |= {"training-imitation", "training-spag-1", "training-spag-2"}
    plots = folder / "report" / "plots"
    assert {path.name for path in plots.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert all((plots / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)
    assert html.count('class="chart"') == len(names)
    inline = html[html.index('<svg class="chart"') : html.rindex("</svg>")]
    assert "currentColor" in inline and "#33363f" not in inline  # the page's ink, whatever its colours


def test_the_same_run_gives_the_same_bytes(folder: Path, html: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plots = {path: path.read_bytes() for path in (folder / "report" / "plots").iterdir()}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert write_report(folder).read_text(encoding="utf-8") == html
    assert {path: path.read_bytes() for path in plots} == plots


def test_plots_of_an_earlier_report_go_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_undrawn(monkeypatch)
    folder = write_run(tmp_path / "run")
    plots = folder / "report" / "plots"
    plots.mkdir(parents=True)
    for name in ("reasoning-bars.svg", "training-gone.png", "mine.png"):
        (plots / name).touch()
    write_report(folder)
    assert [path.name for path in plots.iterdir()] == ["mine.png"]


def test_names_that_are_cut_to_one_label_show_what_differs() -> None:
    paths = [f"./runs/a/2-spag/iteration-{number}/checkpoint" for number in (1, 3)]
    assert charts.labels([*paths, "base"]) == {paths[0]: "…iteration-1", paths[1]: "…iteration-3", "base": "base"}
    qwen = "Qwen/Qwen2.5-0.5B-Instruct"
    folder = "./runs/kuhn-baseline/2-reinforce/checkpoint"
    seeds = [f"./runs/kuhn-baseline-seed-{seed}/2-reinforce/checkpoint" for seed in (1, 2)]
    for names in ([qwen, f"{qwen}-GGUF"], [f"openai:{qwen}-2024-01", f"openai:{qwen}-2024-02"], seeds,
                  [folder, f"{folder}/kuhn_poker-player_0"]):  # fmt: skip
        for longest in (18, 24):
            labels = charts.labels(names, longest).values()
            assert len(set(labels)) == 2 and "…" not in labels and max(map(len, labels)) <= longest
    assert all(map(str.isprintable, charts.labels([f"{folder}/a\n1", f"{folder}/b\n1"]).values()))
    with plot_style():
        matrix = charts.ratings([{"name": name, "points": 0, "low": 0, "high": 1} for name in paths])
    assert [text.get_text() for text in matrix.axes[0].get_yticklabels()] == ["…iteration-1", "…iteration-3"]


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    folder = tmp_path / "a\u200bb"
    write_manifest(
        folder, {"1-imitation/train": {"status": "started", "fingerprint": "", "settings": {}, "seconds": 0.0}}
    )
    html = write_report(folder).read_text(encoding="utf-8")
    page = Page(html)
    assert "<title>aU+200Bb · spag report</title>" in html
    missing = (
        "The arena has not been played yet",
        "Not evaluated. Run spag eval",
        "No self-play has finished",
        "No training step has been logged",
    )
    for words in (
        *missing,
        "No games have been played",
        "recorded no versions",
        "settings have not been written yet",
        "not finished",
    ):
        assert words in page.text
    assert "By player" not in page.text and "svg" not in page.tags


def test_names_of_any_script_and_beginning_are_in_the_legend(tmp_path: Path) -> None:
    figures = {
        name: {"a": {"value": 0.5, "se": None}} for name in ("base", "_ablation", "\N{CJK UNIFIED IDEOGRAPH-6A21}")
    }
    with plot_style():  # a warning would be an error
        plot = save_plot(charts.reasoning_bars({"a": "A"}, figures), "bars", "Bars", tmp_path)
    assert all(re.search(f"> ?{name}<", plot) for name in figures)


def test_a_name_written_from_right_to_left_does_not_turn_a_row_around() -> None:
    row = ("\N{HEBREW LETTER ALEF} – base", "1 – 0")
    tables: Any = environment("spag.report").get_template("tables.html").module
    html = tables.table(Table("Wins", ("", "wins"), (row,)))
    assert '<bdi dir="ltr">\N{HEBREW LETTER ALEF} – base</bdi>' in html


def test_legends_of_long_names_are_not_cut_and_no_two_models_look_alike(tmp_path: Path) -> None:
    names = [f"organisation/a-long-name-{number}" for number in range(9)]
    figures = {name: {task: {"value": 0.5, "se": None} for task in "abc"} for name in names}
    with plot_style():
        figure = charts.reasoning_bars(dict(zip("abc", "ABC", strict=True)), figures)
        save_plot(figure, "plot", "Plot", tmp_path)
        [legend] = figure.legends
        assert legend.get_window_extent().width <= figure.bbox.width
    assert len({charts.look(place) for place in range(14)}) == 14


def test_a_report_of_reasoning_alone(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"1-imitation/train": stage(1.0)})
    write_reasoning(tmp_path, ["alpha", "beta"])
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert {path.stem for path in (tmp_path / "report" / "plots").iterdir()} == {"reasoning-bars"}
    assert "better Reasoning of spag-1, against base: geometric mean of 2 tasks" in page.text


@pytest.mark.parametrize(
    ("tasks", "said"), [(["alpha"], "test."), (["alpha", "beta"], "not corrected for the 2 comparisons.")]
)
def test_one_comparison_needs_no_correction(
    tasks: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_reasoning(tmp_path, tasks)
    print_reasoning(load_reasoning(tmp_path / "reasoning" / "results.json"))
    assert capsys.readouterr().out.rstrip().endswith(said)


def test_the_heat_map_stays_legible_with_many_players() -> None:
    for count in (4, 5, 6, 10):
        names = [f"player-{number}" for number in range(count)]
        cells = [
            {"players": [one, other], "games": 2, "outcomes": {"attacker_wins": 1, "tie": 1}}
            for one in names
            for other in names
            if one != other
        ]
        with plot_style():
            [axes] = charts.win_matrix(cells, TABOO).axes
        sizes = [text.get_fontsize() for text in axes.texts]
        assert len(sizes) == len(cells) and min(sizes) > 7
        assert [label.get_rotation() for label in axes.get_xticklabels()] == [90 if count > 4 else 0] * count


def test_only_the_first_rating_is_zero_by_definition() -> None:
    equal = [{"name": name, "points": 0.0, "low": 0.0, "high": 0.0} for name in ("base", "mine")]
    assert rating_table({"ratings": equal}).rows == (("base", "0"), ("mine", "0 [0, 0]"))


def test_no_run_and_broken_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"nowhere: not a run folder: it has no manifest.json; name the --output of spag run"
    ):
        write_report(tmp_path / "nowhere")
    write_manifest(tmp_path, {})
    (tmp_path / "config.yaml").write_text(dump_config(RunConfig()))
    (tmp_path / "1-imitation").mkdir()
    (tmp_path / "1-imitation" / "metrics.jsonl").write_text(
        '{"step": 1, "loss": NaN}\n{"step": 2, "lo'
    )  # being written
    write_report(tmp_path)
    said: list[str] = []
    (tmp_path / "1-imitation" / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n')
    write_report(tmp_path, said.append)
    write_manifest(tmp_path, {"arena": {"status": "done"}})
    write_report(tmp_path, said.append)
    assert [line.partition("; ")[0].removeprefix(f"{tmp_path}/")[:46] for line in said] == [
        "1-imitation/metrics.jsonl:2: not JSON: invalid",
        "manifest.json: arena: object missing required ",
        "1-imitation/metrics.jsonl:2: not JSON: invalid",
    ]


def test_the_command_names_the_page(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    result = CliRunner().invoke(report_command, [str(tmp_path)])
    assert (result.exit_code, result.output) == (0, f"{tmp_path / 'report' / 'index.html'}\n")
