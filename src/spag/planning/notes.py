"""Notes on a whole run before it starts: its disk space, and too few games to imitate."""

from collections.abc import Sequence

from spag.algorithms.online_settings import OnlineSettings
from spag.config.schema import RunConfig
from spag.planning.plan import Planner, labels, with_adapters
from spag.planning.samples import play_work
from spag.planning.specs import ModelShape
from spag.planning.stage import adapter_count
from spag.runs.execute import mix_warnings
from spag.runs.layout import planned_models
from spag.runs.teachers import TEACHER

_PAPERS, _ENOUGH = 23_354, 5_000
"""GPT-4's games that the paper imitates, 20,067 and 3,287 wins, and how many suffice (upstream issue 5)."""
_FEW = (
    "only the {games:,} shipped games: {samples:,} samples, {updates:,} updates (the paper: {papers:,} games of "
    "GPT-4). Self-play of {plays:,} games then gives little to learn from. Download gpt4_game_top30k_results.json, or "
    "the samples train_imitation_gpt4.json, by the links in data/README.md of github.com/Linear95/SPAG, and add "
    "{option}=[gpt4_game_top30k_results.json]. Or let a model of your choice play about {enough:,} games ({asked}): "
    "spag play openai:MODEL openai:MODEL --count {enough} --output games.jsonl, then add {option}=[games.jsonl]"
)


def run_notes(planner: Planner, teacher_price: tuple[float, float] | None = None) -> dict[str, str]:
    """Return lines about the run, by topic. ``teacher_price``: USD per million prompt and completion tokens."""
    config, stages = planner.config, {stage.name: stage for stage in planner.stages}
    warned = [line.removeprefix("warning: ") for line in mix_warnings(config)]
    found = {"instruction data": "; ".join(warned)} if warned else {}
    plays = max((stage.count for name, stage in stages.items() if name.endswith(" self-play")), default=0)
    for number, (label, phase) in enumerate(zip(labels(config), config.phases, strict=True)):
        stage, place = stages[label], phase.algorithm if label == phase.algorithm else f"phases.{number}"
        if getattr(phase.settings, "episodes", None) == [TEACHER] and plays > 10 * stage.games:
            asked = play_work(config.game_of(phase).build(), planner.assumed.utterance) * _ENOUGH
            tokens = asked.prompts / 1e6, asked.drawn / 1e6
            said = f"{tokens[0]:.0f} M prompt and {tokens[1]:.1f} M completion tokens"
            if teacher_price is not None:
                said += f", {tokens[0] * teacher_price[0] + tokens[1] * teacher_price[1]:,.2f} USD"
            found["imitation data"] = _FEW.format(
                games=stage.games, samples=stage.count, updates=stage.updates, papers=_PAPERS, plays=plays,
                option=f"--set {place}.episodes", enough=_ENOUGH, asked=said,
            )  # fmt: skip
    return found


def disk_bytes(config: RunConfig, shape: ModelShape, due: Sequence[str] | None = None) -> float:
    """Return the disk space of a run's models, and of the largest checkpoint to resume from: an old one stays until the
    new one is complete. ``due``: the remaining stages.
    """
    saved, largest = 0.0, 0.0
    for model in planned_models(with_adapters(config)):
        if due is None or f"{model.folder}/train" in due:
            settings, copies, kept = model.phase.settings, 0, 1
            trained = adapter_count(model.phase, model.game) * shape.adapter(settings.lora) or shape.parameters
            if isinstance(settings, OnlineSettings):
                kept += settings.steps // every if (every := settings.keeps_snapshots_every) else 0
                copies = (settings.average_decay > 0) + (settings.reference != "fixed")
            saved += kept * trained * (2.0 if settings.save_dtype == "bfloat16" and not settings.lora else 4.0)
            largest = max(largest, 2 * trained * (12.0 + 4.0 * copies))  # float32 weights, Adam's moments, copies
    return saved + largest
