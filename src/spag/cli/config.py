"""``spag presets`` and ``spag config``: the available settings, and a config with all options resolved."""

from dataclasses import asdict

import click

from spag.cli.options import config_argument, json_option, print_json, read_config, task_options
from spag.config.presets import PRESETS, preset_text


@click.command("presets")
@click.argument("name", required=False, type=click.Choice(PRESETS), metavar="[NAME]")
@json_option
def presets_command(name: str | None, as_json: bool) -> None:
    """List the presets, or print one as YAML.

    A printed preset is a starting point for your own config: spag presets demo > my.yaml. Hours are estimates of
    spag plan.
    """
    from spag.config.reading import parse_yaml
    from spag.models.finding import described_model

    if name is not None:
        if as_json:
            print_json(parse_yaml(preset_text(name), name))
        else:
            click.echo(preset_text(name).rstrip("\n"))
        return
    models = {known: parse_yaml(preset_text(known), known)["model"]["name"] for known in PRESETS}
    if as_json:
        print_json([{"name": known, "model": models[known], **asdict(about)} for known, about in PRESETS.items()])
        return
    for known, about in PRESETS.items():
        click.echo(f"{known:<21} {about.purpose}")
        click.echo(f"{'':<21}   {described_model(models[known])}, {about.hardware}, {about.time}")


@click.group("config")
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
