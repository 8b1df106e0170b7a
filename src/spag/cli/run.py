"""``spag run``: the phases of a config, then its arena. ``spag report``: a run's results as one HTML file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spag.cli.options import (
    ANY_PATH,
    config_argument,
    json_option,
    open_reporter,
    print_json,
    ray_option,
    read_config,
    task_options,
)
from spag.core.errors import ConfigError, require_package
from spag.core.visible import visible_text

if TYPE_CHECKING:
    from spag.config.schema import RunConfig

_INSTALL = "pip install '.[report]'"
MOST_DOUBTS = 3
MOST_DAMAGED = 2  # files listed; the report names all


@click.command("run")
@config_argument
@click.option("--output", type=ANY_PATH, help="Run folder. [default: runs/NAME]")
@task_options
@ray_option
@click.option(
    "--force", is_flag=True, help="Redo the stages whose settings or results changed; their old results are removed."
)
@click.option("--dry-run", is_flag=True, help="Check the run and show its stages; nothing is written.")
@json_option
def run_command(config_name: str, output: Path | None, force: bool, dry_run: bool, as_json: bool) -> None:
    """Run or resume a config: its phases, then the arena.

    The same command resumes a run that was stopped. --set phases.2.steps=6 changes an option of the third phase, --set
    reinforce.steps=6 of the phase with that algorithm. Exit status 3: with --dry-run, the run does not fit here.
    """
    from spag.config.presets import PRESETS

    config = read_config(config_name)
    name = config_name if config_name in PRESETS else Path(config_name).stem  # qwen3-1.7b has no suffix
    folder = output or Path("runs") / name
    if dry_run:
        _preview(config, folder, force, as_json)
        return
    from spag.cli.tables import print_run
    from spag.planning.here import planned_engines
    from spag.runs.execute import run
    from spag.runs.reading import RunFolder
    from spag.runs.teachers import few_games
    from spag.storage.manifest import MANIFEST

    if not (folder / MANIFEST).exists() and (found := few_games(config)):
        click.echo(f"warning: imitation has {visible_text(found)}", err=True)
    run(config, folder, open_reporter(), force=force, plan_engines=planned_engines)
    if as_json:
        done, report = RunFolder.open(folder), str(_report(folder))
        print_json({"folder": str(folder), "models": done.checkpoints(), "report": report, "arena": done.arena})
        return
    print_run(folder)
    click.echo(f"  the report   {_report(folder)}")


def _preview(config: "RunConfig", folder: Path, force: bool, as_json: bool) -> None:
    """Print what a run would do. Exit status 3: it does not fit here."""
    from dataclasses import asdict

    from spag.cli.tables import print_table
    from spag.planning.estimate import estimate_run
    from spag.report.cells import Table
    from spag.runs.layout import describe_phases

    estimate = estimate_run(config, folder, open_reporter(), force=force)
    if as_json:
        print_json({**asdict(estimate), "fits": not estimate.doubts})
    else:
        for line in describe_phases(config):
            click.echo(visible_text(line))
        rows = tuple((stage.name, stage.state, stage.work) for stage in estimate.stages)
        print_table(Table("", ("stage", "now", "work"), rows, texts=3))
        for about, line in estimate.facts.items():
            click.echo(f"  {about}: {visible_text(line)}")
        click.echo(f"  dry run: nothing was written; spag run would write to {visible_text(str(folder))}")
        for doubt in estimate.doubts[:MOST_DOUBTS]:
            click.echo(f"error: {visible_text(doubt)}", err=True)
    if estimate.doubts:
        raise SystemExit(3)


def _report(folder: Path) -> Path | str:
    """Write the report unless it is newer than everything it shows; return its path, or why there is none."""
    from spag.storage.manifest import MANIFEST

    page = folder / "report" / "index.html"
    sources = [folder / MANIFEST, *folder.glob("*/results.json")]
    if page.is_file() and all(page.stat().st_mtime >= source.stat().st_mtime for source in sources):
        return page
    try:
        require_package("matplotlib", "spag report", _INSTALL)
    except ConfigError as lacking:
        return f"skipped: {lacking}"
    from spag.report.page import write_report  # drawing the plots takes seconds

    return write_report(folder)


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
def report_command(run: Path) -> None:
    """Write a run's results, plots and games as one HTML file.

    RUN is a run folder, finished or not. The file is RUN/report/index.html; the plots are also in RUN/report/plots, as
    PNG and SVG.
    """
    require_package("matplotlib", "spag report", _INSTALL)
    from spag.report.page import write_report

    damage: list[str] = []
    page = write_report(run, damage.append)
    for line in damage[:MOST_DAMAGED]:
        click.echo(f"warning: {visible_text(line)}", err=True)
    if len(damage) > MOST_DAMAGED:
        click.echo(f"warning: {len(damage) - MOST_DAMAGED} more files cannot be read; the report names them", err=True)
    click.echo(page)
