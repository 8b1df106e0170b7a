"""``spag report``: a run's results as one HTML file."""

from pathlib import Path

import click

from spag.cli.options import needs_extra

MOST_LINES = 2  # damaged files listed; the page names all


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
def report_command(run: Path) -> None:
    """Write a run's results, plots and games as one HTML file.

    RUN is a run folder, finished or not. The file is RUN/report/index.html; the plots are also in RUN/report/plots, as
    PNG and SVG.
    """
    from spag.core.visible import visible_text

    with needs_extra("report", "spag report"):
        from spag.report.page import write_report

    damage: list[str] = []
    page = write_report(run, damage.append)
    for line in damage[:MOST_LINES]:
        click.echo(f"warning: {visible_text(line)}", err=True)
    if len(damage) > MOST_LINES:
        click.echo(f"warning: {len(damage) - MOST_LINES} more files cannot be read; the page names them", err=True)
    click.echo(page)
