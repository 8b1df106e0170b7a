"""``spag eval``: reasoning tasks on models, or on every model of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spag.cli.options import ANY_PATH, config_options, entrant, open_console, read_config
from spag.core.errors import ConfigError

if TYPE_CHECKING:
    from spag.config.schema import ModelConfig, RunConfig


@click.command("eval")
@click.argument("models", nargs=-1, required=True, metavar="RUN_OR_MODEL...")
@config_options
@click.option("--tasks", default="paper", show_default=True, metavar="paper|NAME,...", help="lm-eval's tasks or groups.")
@click.option("--task-path", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of your own task files (YAML).")
@click.option("--trust-task-code", is_flag=True, help="Let task files of --task-path run Python code; review them first.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many items of each task; for trying out.")
@click.option("--shots", type=click.IntRange(min=0), help="Solved examples before a question. [default: the paper's, else the task's own]")
@click.option("--batch-size", type=click.IntRange(min=1), default=16, show_default=True, help="Requests computed at once.")
@click.option("--output", type=ANY_PATH, required=True, help="Folder for the items and results.json; what is done in it is kept.")
@click.option("--force", is_flag=True, help="Redo what was evaluated with other settings, data or models.")
def eval_command(
    models: tuple[str, ...],
    config_name: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    tasks: str,
    task_path: Path | None,
    trust_task_code: bool,
    limit: int | None,
    shots: int | None,
    batch_size: int,
    output: Path,
    force: bool,
) -> None:
    """Evaluate reasoning with lm-eval, every figure with its standard error and its item-by-item difference to the first model.

    Name run folders (base, imitation and every finished iteration are evaluated) or models as for spag arena: MODEL or NAME=MODEL. The
    same command resumes.
    """
    config = read_config(config_name, overrides, seed)
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"spag eval needs lm-eval ({error}); install it with: pip install '.[eval]'") from error
    from spag.evaluation.reasoning.run import evaluate_reasoning
    from spag.evaluation.reasoning.tasks import ReasoningSettings

    _, reporter = open_console()
    settings = ReasoningSettings(
        tuple(name.strip() for name in tasks.split(",") if name.strip()), task_path, trust_task_code, limit, shots, batch_size, config.seed
    )
    results = evaluate_reasoning(_players(models, config), settings, output, reporter, force=force)
    print_reasoning(results)


def _players(arguments: tuple[str, ...], config: "RunConfig") -> "dict[str, ModelConfig]":
    """Return the models by name; a run folder stands for all its models, under its own name when other models are named beside it."""
    from spag.runs.stages import resolve_dtype

    players: dict[str, ModelConfig] = {}
    for name, model in map(entrant, arguments):
        if (Path(model) / "config.yaml").is_file():
            prefix = "" if len(arguments) == 1 else f"{Path(model).resolve().name if name == model else name}/"
            found = {f"{prefix}{player}": entry for player, entry in _models_of_run(Path(model)).items()}
        else:
            found = {name: resolve_dtype(config).model.model_copy(update={"name": model})}
        if twice := players.keys() & found.keys():
            raise click.UsageError(f"two models are called {sorted(twice)[0]}; give them names as NAME=MODEL")
        players |= found
    return players


def _models_of_run(folder: Path) -> "dict[str, ModelConfig]":
    """Return base, imitation and the iterations of a run, as far as they are trained, as the run's own config loads them."""
    from spag.runs.reading import RunFolder

    run = RunFolder(folder)
    return {name: run.model(name) for name in run.checkpoints()}


def print_reasoning(results: dict[str, Any]) -> None:
    """Show for every task and model: percent with standard error, and the difference to the first model with interval and p-value."""
    from rich.console import Console
    from rich.text import Text

    from spag.cli.console import new_table
    from spag.display.figures import p_value

    reference, models, tasks = results["reference"], results["models"], results["tasks"]
    table = new_table("Reasoning, % ± standard error", "model")
    for label in ("score", f"minus {reference}", "p"):
        table.add_column(label, justify="right", no_wrap=True)
    for task_name, task in tasks.items():
        items = models[reference]["tasks"][task_name]["items"]
        table.add_row(Text(f"{task['label']} {task['metric']} {task['shots']}-shot n={items}"), style="bold")
        for name, model in models.items():
            figure = model["tasks"][task_name]
            error = "" if figure["se"] is None else f" ± {100 * figure['se']:.1f}"
            change = [] if name == reference else [_signed(figure["difference"]), p_value(figure["difference"]["p"])]
            table.add_row(Text(f"  {name}"), f"{100 * figure['value']:.1f}{error}", *change)
        table.add_section()
    if len(tasks) > 1:
        table.add_row("geometric mean", style="bold")
        for name, model in models.items():
            overall = model["geometric_mean"]
            low, high = (f"{100 * overall[key]:.1f}" for key in ("low", "high"))
            change = [] if name == reference else [_signed(overall["difference"])]
            table.add_row(Text(f"  {name}"), f"{100 * overall['value']:.1f} [{low}, {high}]", *change)
    console = Console(highlight=False)
    console.print(table)
    if comparisons := (len(models) - 1) * len(tasks):
        console.print("In brackets: 95 % bootstrap interval over the same items.", markup=False)
        console.print(f"p: exact McNemar (sign) test, not corrected for the {comparisons} comparisons.", markup=False)


def _signed(difference: dict[str, Any]) -> str:
    value, low, high = (f"{100 * difference[key]:+.1f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"
