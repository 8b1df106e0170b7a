"""``spag export``: data for the paper's published code, and models for everybody."""

from pathlib import Path
from typing import Any

import click

from spag.cli.options import ANY_PATH, EXISTING, open_reporter, refuse_input
from spag.core.visible import counted


@click.group("export")
def export_group() -> None:
    """Write models for the hub, and data for the paper's code."""


@export_group.command("model")
@click.argument("source", metavar="RUN_OR_MODEL")
@click.option("--output", type=ANY_PATH, required=True, metavar="FOLDER", help="New folder to write.")
@click.option("--name", metavar="NAME", help="One of the run's models: base, imitation, spag-1. [default: the last]")
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="Data type of the weights. [default: that of the run's games; without a run, as saved]",
)
def export_model_command(source: str, output: Path, name: str | None, dtype: str | None) -> None:
    """Write a model as a plain transformers folder with a model card.

    RUN_OR_MODEL is a run folder, a checkpoint in one, or any model that spag play takes. A LoRA adapter is merged into
    its base.
    """
    from spag.export import export_model, find_source

    export_model(find_source(source, name), output, dtype=dtype, note=open_reporter().note)
    click.echo(output.absolute())


@export_group.command("episodes")
@click.argument("source", type=EXISTING)
@click.option("--output", type=ANY_PATH, required=True, help="JSON file to write.")
def export_episodes(source: Path, output: Path) -> None:
    """Write games as upstream's JSON list."""
    from spag.core.episodes import TABOO
    from spag.core.errors import DataError
    from spag.games.taboo.upstream import upstream_episode
    from spag.storage.episodes import read_episodes

    refuse_input(output, source)
    episodes = list(read_episodes(source))
    if other := next((episode.game for episode in episodes if episode.game != TABOO), None):
        raise DataError(f"{source}: holds games of {other}; upstream's format supports only Adversarial Taboo")
    _write_json_list(output, [upstream_episode(episode) for episode in episodes])


@export_group.command("samples")
@click.argument("source", type=EXISTING)
@click.option("--output", type=ANY_PATH, required=True, help="JSON file to write.")
def export_samples(source: Path, output: Path) -> None:
    """Write training samples as upstream's JSON list."""
    from spag.games.taboo.upstream import upstream_sample
    from spag.storage.episodes import read_samples

    refuse_input(output, source)
    _write_json_list(output, [upstream_sample(sample) for sample in read_samples(source)])


def _write_json_list(output: Path, rows: list[dict[str, Any]]) -> None:
    from spag.storage.store import write_json

    write_json(output, rows)
    click.echo(f"{counted(len(rows), 'row')} -> {output}", err=True)
