"""``spag train``: one training stage on a samples file."""

import os
from contextlib import nullcontext
from pathlib import Path

import click

from spag.cli.options import ANY_PATH, EXISTING, config_options, open_reporter, read_config


@click.command("train")
@click.argument("stage", type=click.Choice(["imitation", "offline-rl"]))
@click.argument("samples", type=EXISTING)
@click.option("--model", metavar="MODEL", help="Model to start from, which for offline-rl played the games. [default: the config's model]")
@config_options
@click.option("--output", type=ANY_PATH, required=True, help="Folder for checkpoint/ and metrics.jsonl.")
def train_command(stage: str, samples: Path, model: str | None, config_name: str | None, output: Path) -> None:
    """Train a model on samples.

    imitation: imitate the winners of teacher games, by likelihood with a KL term. offline-rl: learn from rewarded utterances, by clipped
    importance ratio, KL to the start and SFT mix.
    """
    from spag.core.store import FolderLock
    from spag.runs.stages import resolve_dtype
    from spag.training.launch import train_on

    config = resolve_dtype(read_config(config_name))
    reporter = open_reporter()
    first = os.environ.get("RANK", "0") == "0"  # under torchrun every process trains, and the first one writes
    with FolderLock(output) if first else nullcontext():
        results = train_on(
            samples,
            config.model,
            config.imitation.training if stage == "imitation" else config.offline_rl,
            start_from=model or config.model.name,
            output=output,
            seed=config.seed,
            reporter=reporter,
            title="training",
            cluster=config.cluster,
        )
    if first:
        click.echo(f"{results['steps']} steps on {results['samples']} samples in {results['seconds']:,.0f} s -> {output / 'checkpoint'}")
