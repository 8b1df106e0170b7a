"""``spag run``: the whole loop."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spag.cli.options import ANY_PATH, on_stop, open_reporter, prompts_option, ray_option, read_config, seed_option, set_option

if TYPE_CHECKING:
    from spag.config.schema import RunConfig

MOST_DOUBTS = 3


@click.command("run")
@click.argument("config_name", metavar="CONFIG")
@click.option("--output", type=ANY_PATH, help="Run folder. [default: runs/NAME]")
@seed_option
@set_option
@prompts_option
@ray_option
@click.option("--force", is_flag=True, help="Redo the stages whose settings or results changed; their old results are removed.")
@click.option("--dry-run", is_flag=True, help="Check all that can be checked and show what the run would do; nothing is written.")
def run_command(config_name: str, output: Path | None, force: bool, dry_run: bool) -> None:
    """Run or resume everything: imitation, self-play, rewards, training, arena.

    CONFIG is a preset (demo, llama2-7b, baichuan2-13b, qwen3) or a YAML file. The same command resumes a run that was stopped.
    """
    config = read_config(config_name)
    folder = output or Path("runs") / Path(config_name).stem
    if dry_run:
        _foresee(config, folder, force)
        return
    from spag.cli.tables import print_run
    from spag.runs.folder import progress_of
    from spag.runs.loop import run

    on_stop(lambda: f"{progress_of(config, folder)}; the same command goes on from there")

    run(config, folder, open_reporter(), force=force)
    print_run(folder)
    click.echo(f"  the report   {_report(folder)}")


def _foresee(config: "RunConfig", folder: Path, force: bool) -> None:
    """Print what a run would do. Exit status 2: it would not come to its end here."""
    from rich.console import Console

    from spag.cli.console import new_table
    from spag.core.visible import visible_text
    from spag.planning.outlook import look_ahead

    outlook = look_ahead(config, folder, open_reporter(), force=force)
    table = new_table(None, "stage", "now", "work")
    for column in table.columns:
        column.justify = "left"
    for stage in outlook.stages:
        table.add_row(stage.name, stage.state, stage.work)
    Console(highlight=False).print(table)
    for about, line in outlook.facts.items():
        click.echo(f"  {about}: {visible_text(line)}")
    click.echo(f"  nothing was done; spag run without --dry-run works in {visible_text(str(folder))}")
    for doubt in outlook.doubts[:MOST_DOUBTS]:
        click.echo(f"error: {visible_text(doubt)}", err=True)
    if outlook.doubts:
        raise SystemExit(2)


def _report(folder: Path) -> Path:
    """Write the report unless it is newer than everything that it shows; return its path."""
    page = folder / "report" / "index.html"
    sources = [folder / "manifest.json", *folder.glob("*/results.json")]
    if page.is_file() and all(page.stat().st_mtime >= source.stat().st_mtime for source in sources):
        return page
    from spag.report.page import write_report  # draws the plots, which takes seconds

    return write_report(folder)
