"""``spag train imitation`` and ``spag train offline-rl``: one training stage on a samples file."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spag.cli.options import ANY_PATH, EXISTING, config_options, open_console, read_config

if TYPE_CHECKING:
    from spag.config.schema import RunConfig, TrainingConfig


@click.group("train")
def train_group() -> None:
    """Train a model on samples."""


@train_group.command("imitation")
@click.argument("samples", type=EXISTING)
@click.option("--model", metavar="MODEL", help="Model to start from. [default: the config's model]")
@config_options
@click.option("--output", type=ANY_PATH, required=True, help="Folder for checkpoint/ and metrics.jsonl.")
def imitation_command(
    samples: Path, model: str | None, config_name: str | None, overrides: tuple[str, ...], seed: int | None, output: Path
) -> None:
    """Imitate the winners of teacher games: likelihood with a KL term."""
    config = read_config(config_name, overrides, seed)
    _train(samples, model, config, config.imitation.training, output)


@train_group.command("offline-rl")
@click.argument("samples", type=EXISTING)
@click.option("--model", metavar="MODEL", help="Policy that played the games. [default: the config's model]")
@config_options
@click.option("--output", type=ANY_PATH, required=True, help="Folder for checkpoint/ and metrics.jsonl.")
def offline_rl_command(
    samples: Path, model: str | None, config_name: str | None, overrides: tuple[str, ...], seed: int | None, output: Path
) -> None:
    """Offline RL on rewarded utterances: clipped importance ratio, KL to the start, SFT mix."""
    config = read_config(config_name, overrides, seed)
    _train(samples, model, config, config.offline_rl, output)


def _train(samples: Path, model: str | None, config: "RunConfig", training: "TrainingConfig", output: Path) -> None:
    from spag.core.store import FolderLock
    from spag.runs.stages import resolve_dtype
    from spag.training.launch import train_on

    _, reporter = open_console()
    first = os.environ.get("RANK", "0") == "0"  # under torchrun every process trains, and the first one writes
    with FolderLock(output) if first else nullcontext():
        results = train_on(
            samples,
            resolve_dtype(config).model,
            training,
            start_from=model or config.model.name,
            output=output,
            seed=config.seed,
            reporter=reporter,
            title="training",
            cluster=config.cluster,
        )
    if not first:
        return
    click.echo(f"{results['steps']} steps on {results['samples']} samples in {results['seconds']:,.0f} s -> {output / 'checkpoint'}")
