"""``spag plan``: memory, tokens and hours of a run before it starts. ``spag doctor``: what works on this machine."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spag.cli.options import complete_config, config_argument, json_option, print_json, read_config, task_options
from spag.core.visible import counted, visible_text

if TYPE_CHECKING:
    from spag.planning.plan import Planner

DEFAULT_PRESETS = ("kuhn", "demo")


@click.command("plan")
@config_argument
@click.option("--gpus", type=click.IntRange(min=1), help="Number of GPUs. [default: 1 with --gpu, else this machine's]")
@click.option("--gpu", "kind", help="Kind of GPU: A100-80 (default with --gpus), H100, RTX-4090, ...")
@task_options
@click.option(
    "--assume", "changes", multiple=True, metavar="NAME=VALUE", help="Change one assumption; may be repeated."
)
@json_option
def plan_command(config_name: str, gpus: int | None, kind: str | None, changes: tuple[str, ...], as_json: bool) -> None:
    """Estimate games or samples, tokens, hours and memory of each stage of a run, on this machine or on GPUs.

    Only the model's config is read, not its weights. Exit status 3: the run does not fit; the nearest settings that
    would fit are printed.
    """
    from spag.planning.estimate import disk_bytes, run_notes
    from spag.planning.here import plan_here, shape_in
    from spag.planning.hours import Assumptions
    from spag.planning.plan import Planner
    from spag.planning.specs import GIB, find_gpu

    assumed, config = Assumptions().changed(changes), read_config(config_name)
    if kind or gpus:
        planner = Planner(config, shape_in(config), find_gpu(kind or "A100-80"), gpus or 1, assumed)
    else:
        planner = plan_here(config, assumed)
    hours = sum(stage.hours * stage.times for stage in planner.stages)
    disk = f"{disk_bytes(config, planner.shape) / GIB:,.1f} GiB for models and checkpoints"
    notes = {"disk": disk, **run_notes(config)}
    fits = not any(stage.problems for stage in planner.stages)
    if as_json:
        about = {"parameters": planner.shape.parameters, "devices": planner.devices, "device": planner.device}
        total = {"hours": hours, "device_hours": hours * planner.devices, "fits": fits}
        found = {**about, "stages": planner.stages, "total": total, "notes": notes}
        print_json({**found, "assumptions": assumed.model_dump()})
    else:
        _print(planner, hours, notes)
    if not fits:
        sys.exit(3)


def _print(planner: "Planner", hours: float, notes: dict[str, str]) -> None:
    from spag.cli.tables import print_table
    from spag.planning.specs import GIB
    from spag.report.cells import Table

    shape, device, assumed = planner.shape, planner.device, planner.assumed
    where = device.name if device.is_cpu else f"{planner.devices} x {device.name}"
    click.echo(visible_text(f"{shape.name} ({shape.parameters:,} parameters) on {where}"))
    tokens = sum(stage.tokens * stage.times for stage in planner.stages)
    rows = []
    for one in planner.stages:
        each = counted(one.count, one.unit.removesuffix("s"))
        rows.append((one.name, str(one.times), each, f"{one.tokens / 1e6:,.2f} M", f"{one.hours:.2f}"))
    rows.append(("total", "", "", f"{tokens / 1e6:,.2f} M", f"{hours:.2f}"))
    print_table(Table("", ("stage", "times", "each", "tokens", "hours"), tuple(rows), last_is_total=True))
    for stage in planner.stages:
        sizes = {name: size / GIB for name, size in asdict(stage.memory).items() if name != "host"}
        parts = ", ".join(f"{name} {size:.1f}" for name, size in sizes.items() if size >= 0.05)
        verdict, color = ("does not fit", "red") if stage.problems else ("fits", "green")
        taken = f"{stage.memory.total / GIB:.1f} of {stage.room / GIB:.1f} GiB ({parts})"
        click.secho(f"{stage.name} {verdict}: {taken}", fg=color)
        for line in (*stage.problems, *(f"would fit: {advice}" for advice in stage.advice), *stage.notes):
            click.echo(f"  {visible_text(line)}")
    for about, line in notes.items():
        click.echo(visible_text(f"{about}: {line}"))
    click.echo("assumptions (--assume NAME=VALUE):")
    for name, field in type(assumed).model_fields.items():
        click.echo(f"  {name}={getattr(assumed, name):g}: {field.description}")


@click.command("doctor")
@click.argument("config_names", nargs=-1, metavar="[CONFIG]...", shell_complete=complete_config)
@json_option
def doctor_command(config_names: tuple[str, ...], as_json: bool) -> None:
    """Check the hardware and packages of this machine, and whether runs fit its memory.

    Prints the commands that install what is missing. CONFIG is a preset or a YAML file, by default kuhn and demo. Exit
    status 1: torch or transformers is missing or broken, so no model can play; 3: a CONFIG needs more memory.
    """
    from spag.planning.doctor import Status, examine, examine_presets

    runs = list(examine_presets(config_names or DEFAULT_PRESETS))
    findings = [*examine(), *runs]
    can_play = not any(one.stops_play for one in findings)
    fits = not any(one.status is Status.MISSING for one in runs)
    if as_json:
        print_json({"can_play": can_play, "fits": fits, "findings": findings})
    else:
        colors = {Status.WORKS: "green", Status.LIMITED: "yellow", Status.MISSING: "red"}
        for one in findings:
            status = click.style(f"{'' if one.status is Status.HAS else one.status:<8}", fg=colors.get(one.status))
            click.echo(f"{visible_text(one.name):<14} {status} {visible_text(one.detail)}")
            if one.fix:
                click.secho(f"{'':<23} {visible_text(one.fix)}", bold=True)
    if not (can_play and fits):
        sys.exit(3 if can_play else 1)
