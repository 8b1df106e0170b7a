"""``spag presets`` and ``spag config``: the available settings, and a config with all options resolved."""

import click

from spag.cli.options import CommandGroup, config_argument, json_option, read_config, task_options
from spag.config.presets import ABOUT, preset_names, preset_text


@click.command("presets")
@click.argument("name", required=False, type=click.Choice(preset_names()), metavar="[NAME]")
@json_option
def presets_command(name: str | None, as_json: bool) -> None:
    """List the presets, or print one as YAML.

    A printed preset is the start of a config of your own: spag presets demo > my.yaml. Times in hours are estimates of
    spag plan.
    """
    import json
    from dataclasses import asdict

    from spag.config.reading import parse_yaml
    from spag.models.finding import described_model

    if name is not None:
        text = preset_text(name)
        click.echo(json.dumps(parse_yaml(text, name), indent=2) if as_json else text.rstrip("\n"))
        return
    models = {known: parse_yaml(preset_text(known), known)["model"]["name"] for known in ABOUT}
    if as_json:
        rows = [{"name": known, "model": models[known], **asdict(about)} for known, about in ABOUT.items()]
        click.echo(json.dumps(rows, indent=2))
        return
    for known, about in ABOUT.items():
        click.echo(f"{known:<21} {about.purpose}")
        click.echo(f"{'':<21}   {described_model(models[known])}, {about.hardware}, {about.time}")


@click.group("config", cls=CommandGroup)
def config_group() -> None:
    """Show a config with every option resolved, or check a file."""


@config_group.command("show")
@config_argument
@task_options
def show_command(config_name: str) -> None:
    """Print CONFIG as YAML with every option, defaults included."""
    from spag.config.files import dump_config

    click.echo(dump_config(read_config(config_name)), nl=False)


@config_group.command("validate")
@config_argument
@task_options
def validate_command(config_name: str) -> None:
    """Check the options of CONFIG, and show its phases.

    Exit status 2: an option is unknown or has an invalid value. spag run --dry-run also checks models, files and
    the machine.
    """
    from spag.core.visible import visible_text
    from spag.runs.layout import describe_phases

    config = read_config(config_name)
    click.echo(f"{visible_text(config_name)}: valid")
    for line in describe_phases(config):
        click.echo(f"  {visible_text(line)}")
