"""``spag doctor``: what works on this machine."""

import sys

import click

from spag.cli.options import complete_config, json_option
from spag.core.visible import visible_text

DEFAULT_PRESETS = ("kuhn", "demo")


@click.command("doctor")
@click.argument("config_names", nargs=-1, metavar="[CONFIG]...", shell_complete=complete_config)
@json_option
def doctor_command(config_names: tuple[str, ...], as_json: bool) -> None:
    """Check this machine: what it has, what works, the command for what is missing, and whether runs fit.

    CONFIG is a preset or a YAML file, by default kuhn and demo. Exit status 3: a CONFIG needs more memory than there
    is; 1: torch or transformers is missing or broken, so no model can be played at all.
    """
    import json
    from dataclasses import asdict

    from spag.planning.doctor import Status, examine, examine_presets, look_around

    machine = look_around()
    runs = list(examine_presets(config_names or DEFAULT_PRESETS))
    findings, can_play = [*examine(machine), *runs], machine.torch_trouble is None
    fits = not any(one.status is Status.MISSING for one in runs)
    if as_json:
        found = {"can_play": can_play, "fits": fits, "findings": [asdict(one) for one in findings]}
        click.echo(json.dumps(found, indent=2))
    else:
        colors = {Status.WORKS: "green", Status.LIMITED: "yellow", Status.MISSING: "red"}
        for one in findings:
            status = click.style(f"{'' if one.status is Status.HAS else one.status:<8}", fg=colors.get(one.status))
            click.echo(f"{visible_text(one.name):<14} {status} {visible_text(one.detail)}")
            if one.fix:
                click.secho(f"{'':<23} {visible_text(one.fix)}", bold=True)
    if not (can_play and fits):
        sys.exit(3 if can_play else 1)
