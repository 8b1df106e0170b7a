"""``spag eval``: reasoning tasks on models, or on every model of a run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spag.cli.options import (
    ANY_PATH,
    config_options,
    entrants,
    json_option,
    open_reporter,
    print_json,
    read_config,
)
from spag.core.errors import ConfigError, require_package
from spag.core.visible import visible_text
from spag.evaluation.reasoning.suites import SUITES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spag.config.schema import ModelConfig, RunConfig

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
COUNT = click.IntRange(min=1)


def _temperature(_: click.Context, __: click.Parameter, value: float) -> float:
    """Check a temperature as in a config."""
    from pydantic import ValidationError

    from spag.core.options import SamplingConfig, fault_of

    try:
        return SamplingConfig(temperature=value).temperature
    except ValidationError as error:
        raise click.BadParameter(fault_of(error.errors()[0])) from error


@click.command("eval")
@click.argument("models", nargs=-1, required=True, metavar="RUN_OR_MODEL...")
@config_options
@click.option("--suite", type=click.Choice([*SUITES]), help="Benchmarks of a paper. [default: paper, SPAG's own]")
@click.option(
    "--tasks",
    default="",
    show_default=False,
    metavar="NAME,...",
    help="Tasks or groups of lm-eval, instead of a suite or in addition to --suite.",
)
@click.option("--task-path", type=FOLDER, help="Folder of your own task files (YAML).")
@click.option("--data", type=FOLDER, help="Folder of JSON Lines files to read instead of using the hub.")
@click.option(
    "--trust-task-code", is_flag=True, help="Let task files of --task-path run Python code; review them first."
)
@click.option("--limit", type=COUNT, help="Use only the first N items of each task; parts of a group share them.")
@click.option(
    "--shots", type=click.IntRange(min=0), help="Solved examples in each prompt. [default: the suite's or task's]"
)
@click.option("--max-new-tokens", type=COUNT, help="Token limit of generated answers. [default: the task's]")
@click.option("--samples", type=COUNT, default=1, help="Answers drawn per item; the score is their mean.")
@click.option("--temperature", default=0.0, callback=_temperature, help="Sampling temperature; 0 is greedy.")
@click.option("--chat", is_flag=True, help="Use the model's chat template; thoughts are not part of the answer.")
@click.option("--batch-size", type=COUNT, default=16, help="Requests per batch.")
@click.option(
    "--output", type=ANY_PATH, required=True, help="Folder for answers and results.json; existing answers are kept."
)
@json_option
@click.option("--force", is_flag=True, help="Replace answers obtained with other settings, data or models.")
def eval_command(
    models: tuple[str, ...],
    config_name: str | None,
    suite: str | None,
    tasks: str,
    as_json: bool,
    output: Path,
    force: bool,
    **options: Any,
) -> None:
    """Evaluate reasoning with lm-eval, with standard errors and item-by-item differences from the first model.

    Each argument is a run folder, whose base and finished models are all evaluated, or a model as for spag arena: MODEL
    or NAME=MODEL. The same command resumes. Tasks whose data cannot be loaded are skipped and named; the exit status is
    then 1.
    """
    config = read_config(config_name)
    if options["samples"] > 1 and not options["temperature"]:
        raise ConfigError("--samples: greedy answers are all equal; also set --temperature, such as 0.6")
    require_package("lm_eval", "spag eval", "pip install '.[eval]'")
    from spag.cli.tables import print_reasoning
    from spag.evaluation.reasoning.evaluate import evaluate_reasoning
    from spag.evaluation.reasoning.tasks import LOADING_HINT, ReasoningSettings

    settings = ReasoningSettings(_task_names(suite, tasks), seed=config.seed, **options)
    results = evaluate_reasoning(players_of(models, config), settings, output, open_reporter(), force=force)
    if as_json:
        print_json(results)
    else:
        print_reasoning(results)
    if left_out := results["left_out"]:
        for name, why in left_out.items():
            click.echo(visible_text(f"{name} is skipped: {why}"), err=True)
        click.echo(f"To evaluate {'it' if len(left_out) == 1 else 'them'} too, {LOADING_HINT}.", err=True)
        sys.exit(1)


def _task_names(suite: str | None, tasks: str) -> tuple[str, ...]:
    """Return the task names of both; those of the paper's suite if neither is given."""
    own = [name.strip() for name in tasks.split(",") if name.strip()]
    if own and suite is None:
        return tuple(own)
    chosen = SUITES[suite or "paper"]
    if chosen.lacking:
        click.echo(f"lm-eval has no {', '.join(chosen.lacking)}: skipped in suite {suite}.", err=True)
    return (*(one.task for one in chosen.tasks), *own)


def players_of(arguments: tuple[str, ...], config: "RunConfig") -> "dict[str, ModelConfig]":
    """Return the models by name; a run folder means all its models, prefixed with its name if others are given.

    Options of the model that ``config`` sets apply to all.
    """
    from spag.runs.execute import resolve_dtype
    from spag.runs.reading import RunFolder

    players: dict[str, ModelConfig] = {}
    chosen = resolve_dtype(config, here=True).model
    asked = chosen.model_dump(include=config.model.model_fields_set - {"name"})
    for name, model in entrants(arguments).items():
        if (Path(model) / "config.yaml").is_file():
            run = RunFolder(Path(model))
            prefix = "" if len(arguments) == 1 else f"{Path(model).resolve().name if name == model else name}/"
            found = {f"{prefix}{one}": run.model(one).model_copy(update=asked) for one in run.checkpoints()}
        else:
            found = {name: chosen.model_copy(update={"name": model})}
        found = {each: adapter for player, one in found.items() for each, adapter in _by_role(player, one)}
        if twice := players.keys() & found.keys():
            raise click.UsageError(f"two models are called {sorted(twice)[0]}; give them names as NAME=MODEL")
        players |= found
    return players


def _by_role(name: str, model: "ModelConfig") -> "Iterator[tuple[str, ModelConfig]]":
    """Yield a model by its name; a model with an adapter for each role gives each as ``NAME/ADAPTER``."""
    from spag.models.roles import models_of

    for one in models_of(model.name):
        own = name if one == model.name else f"{name}/{Path(one).name}"
        yield own, model.model_copy(update={"name": one})
