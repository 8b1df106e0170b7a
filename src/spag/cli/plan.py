"""``spag plan``: memory, tokens and hours of a run before machines are rented."""

from typing import TYPE_CHECKING

import click

from spag.cli.options import read_config
from spag.core.visible import visible_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spag.planning import StagePlan


@click.command("plan")
@click.argument("config_name", metavar="CONFIG")
@click.option("--gpus", type=click.IntRange(min=1), default=1, show_default=True, help="How many GPUs.")
@click.option("--gpu", "kind", default="A100-80", show_default=True, help="Kind of GPU: A100-80, H100, RTX-4090, ...")
@click.option("--set", "overrides", multiple=True, metavar="A.B=VALUE", help="Override one option; may be repeated.")
@click.option("--assume", "changes", multiple=True, metavar="NAME=VALUE", help="Change one assumption; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan_command(config_name: str, gpus: int, kind: str, overrides: tuple[str, ...], changes: tuple[str, ...], as_json: bool) -> None:
    """Print what a run takes, by stage: samples or games, tokens, hours, and memory of each GPU.

    CONFIG is a preset or a YAML file. Only the model's config is read, no weights. Exit status 1: the run does not fit; the nearest
    settings that would are named.
    """
    import json
    from dataclasses import asdict

    from spag.planning import Assumptions, Planner, find_gpu, read_shape

    gpu, assumed = find_gpu(kind), Assumptions().changed(changes)
    config = read_config(config_name, overrides)
    shape = read_shape(config.model.name, trust_remote_code=config.model.trust_remote_code)
    stages = list(Planner(config, shape, gpus, gpu, assumed).stages())
    fits, hours = not any(stage.problems for stage in stages), sum(stage.hours * stage.times for stage in stages)
    if as_json:
        found = {"parameters": shape.parameters, "gpus": gpus, "gpu": asdict(gpu), "stages": [asdict(stage) for stage in stages]}
        total = {"hours": hours, "gpu_hours": hours * gpus, "fits": fits}
        click.echo(json.dumps(found | {"total": total, "assumptions": assumed.model_dump()}, indent=2))
    else:
        click.echo(f"{visible_text(shape.name)} ({shape.parameters:,} parameters) on {gpus} x {gpu.name}")
        _print(stages, hours, gpus)
        click.echo("Assumptions (--assume NAME=VALUE):")
        for name, field in type(assumed).model_fields.items():
            click.echo(f"  {name}={getattr(assumed, name):g}: {field.description}")
    if not fits:
        raise SystemExit(1)


def _print(stages: "Sequence[StagePlan]", hours: float, gpus: int) -> None:
    from dataclasses import asdict

    from rich.console import Console

    from spag.cli.console import new_table
    from spag.planning import GIB

    table = new_table(None, "stage", "times", "each", "tokens", "hours")
    for stage in stages:
        table.add_row(stage.name, str(stage.times), f"{stage.count:,} {stage.unit}", f"{stage.tokens / 1e6:,.1f} M", f"{stage.hours:.2f}")
    table.add_section()
    tokens = sum(stage.tokens * stage.times for stage in stages)
    table.add_row("total", "", f"{hours * gpus:,.1f} GPU hours", f"{tokens / 1e6:,.1f} M", f"{hours:.2f}")
    Console(highlight=False).print(table)
    for stage in stages:
        parts = [f"{part} {size / GIB:.1f}" for part, size in asdict(stage.memory).items() if size >= GIB / 20 and part != "host"]
        memory = f"{stage.memory.total / GIB:.1f} of {stage.room / GIB:.1f} GiB ({', '.join(parts)})"
        verdict, color = ("does not fit", "red") if stage.problems else ("fits", "green")
        click.secho(f"{stage.name} {verdict}: {memory}", fg=color)
        for line in (*stage.problems, *(f"would fit: {advice}" for advice in stage.advice), *stage.notes):
            click.echo(f"  {visible_text(line)}")
