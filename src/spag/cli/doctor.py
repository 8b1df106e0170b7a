"""``spag doctor``: what works on this machine."""

import sys

import click

from spag.core.visible import visible_text


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor_command(as_json: bool) -> None:
    """Check this machine: what it has, which engines and optional packages work, and the command for what is missing.

    Exit status 1: no model can be played at all, because torch or transformers is missing or broken.
    """
    import json
    from dataclasses import asdict

    from spag.doctor import Status, examine, look_around

    machine = look_around()
    findings, can_play = examine(machine), machine.torch_trouble is None
    if as_json:
        click.echo(json.dumps({"can_play": can_play, "findings": [asdict(one) for one in findings]}, indent=2))
    else:
        colors = {Status.WORKS: "green", Status.LIMITED: "yellow", Status.MISSING: "red"}
        for one in findings:
            status = "" if one.status is Status.HAS else one.status
            click.echo(f"{one.name:<14} {click.style(f'{status:<8}', fg=colors.get(one.status))} {visible_text(one.detail)}")
            if one.fix:
                click.secho(f"{'':<23} {one.fix}", bold=True)
    if not can_play:
        sys.exit(1)
