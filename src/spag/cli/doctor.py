"""``spag doctor``: what works on this machine."""

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spag.doctor import Finding


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor_command(as_json: bool) -> None:
    """Check this machine: what it has, which engines, kinds of training and presets work, and the command for what is missing.

    Exit status 1: no model can be played at all, because torch or transformers is missing or broken.
    """
    from dataclasses import asdict

    from spag.doctor import can_play, examine, look_around

    machine = look_around()
    findings = examine(machine)
    if as_json:
        import json

        click.echo(json.dumps({"can_play": can_play(machine), "findings": [asdict(one) for one in findings]}, indent=2))
    else:
        _print(findings)
    if not can_play(machine):
        sys.exit(1)


def _print(findings: "Sequence[Finding]") -> None:
    """Print a table for each group, each finding's fix below it."""
    from rich.console import Console
    from rich.text import Text

    from spag.cli.console import new_table
    from spag.doctor import Status

    styles = {Status.HAS: "", Status.WORKS: "green", Status.LIMITED: "yellow", Status.MISSING: "red"}
    console = Console(highlight=False)
    for group in dict.fromkeys(one.group for one in findings):
        table = new_table(group, "")
        table.show_header = False
        for one in (one for one in findings if one.group == group):
            detail = Text(one.detail)
            if one.fix:
                detail.append(f"\n{one.fix}", style="bold")
            table.add_row(Text(one.name), Text("" if one.status is Status.HAS else one.status, style=styles[one.status]), detail)
        console.print(table)
