"""``spag train``: one training stage on a samples file."""

import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from spag.cli.options import ANY_PATH, EXISTING, config_options, on_stop, open_reporter, read_config


@click.command("train")
@click.argument("stage", type=click.Choice(["imitation", "offline-rl"]))
@click.argument("samples", type=EXISTING)
@click.option("--model", metavar="MODEL", help="Model to start from, which for offline-rl played the games. [default: the config's model]")
@config_options
@click.option("--output", type=ANY_PATH, required=True, help="Folder for checkpoint/ and metrics.jsonl.")
def train_command(stage: str, samples: Path, model: str | None, config_name: str | None, output: Path) -> None:
    """Train a model on samples, ours or upstream's.

    imitation: imitate the winners of teacher games, by likelihood with a KL term. offline-rl: learn from rewarded utterances, by clipped
    importance ratio, KL to the start and SFT mix (offline_rl.sft_data, unless SAMPLES holds SFT rows).
    """
    from spag.core.disk import FolderLock
    from spag.runs.checks import check_machine
    from spag.runs.folder import check_free
    from spag.runs.sft import with_sft
    from spag.runs.stages import resolve_dtype
    from spag.training.launch import train_on

    config = resolve_dtype(read_config(config_name))
    training = config.imitation.training if stage == "imitation" else config.offline_rl
    check_machine(config)
    on_stop(lambda: f"{output} has {_checkpoint(output)}; the same command goes on from there")
    reporter = open_reporter()
    first = os.environ.get("RANK", "0") == "0"  # under torchrun every process trains, and the first one writes
    with ExitStack() as stack:
        if first:
            check_free(output)
            stack.enter_context(FolderLock(output))
        # the others mix the same rows into files of their own, rather than wait for a file that they may not see
        mixed = (output if first else Path(stack.enter_context(TemporaryDirectory()))) / "mixed.jsonl"
        results = train_on(
            with_sft(samples, training, config.seed, mixed, reporter.note if first else lambda line: None),
            config.model,
            training,
            start_from=model or config.model.name,
            output=output,
            seed=config.seed,
            reporter=reporter,
            title="training",
            cluster=config.cluster,
        )
    if first:
        click.echo(f"{results['steps']} steps on {results['samples']} samples in {results['seconds']:,.0f} s -> {output / 'checkpoint'}")


def _checkpoint(output: Path) -> str:
    steps = [int(number) for path in output.glob("state/checkpoint-*") if (number := path.name.partition("-")[2]).isdigit()]
    return f"the checkpoint of step {max(steps)}" if steps else "no checkpoint yet"
