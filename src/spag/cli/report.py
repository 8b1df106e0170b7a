"""``spag report``: one HTML file of what a run came to."""

from pathlib import Path

import click


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
def report_command(run: Path) -> None:
    """Write RUN/report/index.html: figures, plots and games of the run in one file that needs nothing else.

    RUN is the folder of a run, finished or not. The plots are also in RUN/report/plots, as PNG and SVG.
    """
    from spag.report.page import write_report

    click.echo(write_report(run))
