"""``spag run``: the whole loop."""

from pathlib import Path

import click

from spag.cli.options import ANY_PATH, open_reporter, prompts_option, ray_option, read_config, seed_option, set_option


@click.command("run")
@click.argument("config_name", metavar="CONFIG")
@click.option("--output", type=ANY_PATH, help="Run folder. [default: runs/NAME]")
@seed_option
@set_option
@prompts_option
@ray_option
@click.option("--force", is_flag=True, help="Redo the stages whose settings changed; their old results are removed.")
def run_command(config_name: str, output: Path | None, force: bool) -> None:
    """Run or resume everything: imitation, self-play, rewards, training, arena.

    CONFIG is a preset (demo, llama2-7b, baichuan2-13b, qwen3) or a YAML file. The same command resumes a run that was stopped.
    """
    from spag.cli.tables import print_run
    from spag.runs.loop import run

    config = read_config(config_name)
    folder = output or Path("runs") / Path(config_name).stem
    run(config, folder, open_reporter(), force=force)
    print_run(folder)
    click.echo(f"  the report   {_report(folder)}")


def _report(folder: Path) -> Path:
    """Write the report unless it is newer than everything that it shows; return its path."""
    page = folder / "report" / "index.html"
    sources = [folder / "manifest.json", *folder.glob("*/results.json")]
    if page.is_file() and all(page.stat().st_mtime >= source.stat().st_mtime for source in sources):
        return page
    from spag.report.page import write_report  # draws the plots, which takes seconds

    return write_report(folder)
