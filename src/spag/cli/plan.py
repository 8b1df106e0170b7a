"""``spag plan``: memory, tokens and hours of a run before machines are rented."""

from typing import TYPE_CHECKING

import click

from spag.cli.options import read_config

if TYPE_CHECKING:
    from rich.table import Table

    from spag.config.schema import RunConfig
    from spag.planning import Inputs, Plan

_PARTS = {
    "weights": "weights", "gradients": "gradients", "optimizer": "optimiser", "copies": "working copies of weights",
    "activations": "activations", "logits": "logits and the head's gradient", "cache": "KV cache", "total": "together",
}  # fmt: skip


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
    from spag.planning import Assumptions, find_gpu, plan_run, read_shape

    gpu, assumptions = find_gpu(kind), Assumptions().changed(changes)
    config = read_config(config_name, overrides, None)
    shape = read_shape(config.model.name, trust_remote_code=config.model.trust_remote_code)
    plan = plan_run(config, shape, gpus, gpu, assumptions=assumptions, inputs=_inputs(config))
    if as_json:
        click.echo(_json(plan))
    else:
        _print(plan)
    if not plan.fits:
        raise SystemExit(1)


def _inputs(config: "RunConfig") -> "Inputs":
    """Count the game's tasks and the rows of the config's files."""
    from spag.core.sft import read_sft
    from spag.core.types import Split
    from spag.planning import Inputs
    from spag.runs.stages import teacher_episodes

    game = config.game.build()
    rows = [len(read_sft(one.sft_data, None, 0)) if one.sft_data else 0 for one in (config.imitation.training, config.offline_rl)]
    return Inputs(
        train_tasks=len(game.tasks(Split.TRAIN, None, config.seed)),
        teacher_games=len(teacher_episodes(config.imitation.episodes, None, config.seed, game)),
        imitation_sft=rows[0],
        offline_rl_sft=rows[1],
    )


def _json(plan: "Plan") -> str:
    """Bytes, hours and counts; stages also say whether they fit, and the total of their memory."""
    import json
    from dataclasses import asdict

    values = asdict(plan) | {"assumptions": plan.assumptions.model_dump()}
    for stage, row in zip(plan.stages, values["stages"], strict=True):
        row["fits"], row["memory"]["total"] = stage.fits, stage.memory.total
    values["shape"]["parameters"] = plan.shape.parameters
    total = {"hours": plan.hours, "gpu_hours": plan.hours * plan.gpus, "tokens": plan.tokens, "fits": plan.fits}
    return json.dumps(values | {"total": total}, indent=2)


def _print(plan: "Plan") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)

    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    line(f"{plan.shape.name} ({plan.shape.parameters:,} parameters) on {plan.gpus} x {plan.gpu.name}", "italic")
    work, memory, assumed = _tables(plan)
    console.print(work, memory)
    for stage in plan.stages:
        if stage.fits:
            line(f"{stage.name} fits: {_gib(stage.memory.total)} of {_gib(stage.room)} GiB", "green")
        for problem in stage.problems:
            line(f"{stage.name} does not fit: {problem}", "red")
        for advice in stage.advice:
            line(f"  would fit: {advice}", "green")
        for note in stage.notes:
            line(f"  {note}")
    console.print(assumed)


def _tables(plan: "Plan") -> "tuple[Table, Table, Table]":
    from spag.cli.console import new_table

    work = new_table(None, "stage", "times", "each", "tokens", "hours")
    for stage in plan.stages:
        work.add_row(stage.name, str(stage.times), f"{stage.count:,} {stage.unit}", f"{stage.tokens / 1e6:,.1f} M", f"{stage.hours:.2f}")
    work.add_section()
    work.add_row("total", "", f"{plan.hours * plan.gpus:,.1f} GPU hours", f"{plan.tokens / 1e6:,.1f} M", f"{plan.hours:.2f}")
    memory = new_table("GiB on each GPU, at the fullest moment", "", *(stage.name for stage in plan.stages))
    for part, label in _PARTS.items():
        memory.add_row(label, *(_gib(getattr(stage.memory, part)) for stage in plan.stages))
    memory.add_row("may be filled", *(_gib(stage.room) for stage in plan.stages))
    memory.add_row("fits", *("yes" if stage.fits else "no" for stage in plan.stages))
    assumed = new_table("Assumptions (--assume NAME=VALUE)", "name", "value")
    assumed.add_column("reason")
    for name, field in type(plan.assumptions).model_fields.items():
        assumed.add_row(name, f"{getattr(plan.assumptions, name):g}", field.description)
    return work, memory, assumed


def _gib(size: float) -> str:
    from spag.planning import GIB

    return f"{size / GIB:.1f}" if size else "-"
