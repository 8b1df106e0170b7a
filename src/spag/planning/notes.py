"""What is worth knowing of a whole run before it starts: its disk, too few games to imitate, published times."""

from collections.abc import Sequence

from spag.algorithms.settings import IterationSettings, OnlineSettings
from spag.config.schema import RunConfig
from spag.games.registry import DEFAULT
from spag.planning.plan import Planner, StagePlan, labels
from spag.planning.samples import Work, play_work
from spag.planning.specs import ModelShape
from spag.runs.execute import mix_warnings
from spag.runs.plan import PlannedModel, planned_models
from spag.runs.teachers import TEACHER

_PAPERS, _ENOUGH = 23_354, 5_000
"""Games of GPT-4 that the paper imitates, 20,067 and 3,287 wins, and how many suffice (upstream issue 5)."""
_PUBLISHED = (
    "its author reports 3 to 4 h of training and 24 to 48 h of sampling an iteration, on 8 A100, with offload and "
    "without vLLM (github.com/Linear95/SPAG/issues/4)"
)


def run_notes(planner: Planner, teacher_price: tuple[float, float] | None = None) -> dict[str, str]:
    """Return lines about the whole run, by what they are about. ``teacher_price``: USD for a million prompt and
    completion tokens of a teacher.
    """
    config = planner.config
    warned = [line.removeprefix("warning: ") for line in mix_warnings(config)]
    found = {"instruction data": "; ".join(warned)} if warned else {}
    phases = list(zip(labels(config), config.phases, strict=True))
    iterations = [(label, phase) for label, phase in phases if isinstance(phase.settings, IterationSettings)]
    stages = {stage.name: stage for stage in planner.stages}
    plays = max((stages[f"{label} self-play"].count for label, _ in iterations), default=0)
    for number, (label, phase) in enumerate(phases):
        stage, place = stages[label], phase.algorithm if label == phase.algorithm else f"phases.{number}"
        if getattr(phase.settings, "episodes", None) == [TEACHER] and plays > 10 * stage.games:
            game = config.game_of(phase).build()
            asked = play_work(game, planner.assumed.utterance) * _ENOUGH
            found["imitation data"] = _few_games(place, stage, asked, plays, teacher_price)
    if iterations and config.game_of(iterations[0][1]).name == DEFAULT and 6e9 < planner.shape.parameters < 15e9:
        trained, played = (stages[iterations[0][0] + kind].hours for kind in ("", " self-play"))
        here = f"{trained:.1f} h of training and {played:.1f} h of play"
        found["published time"] = f"{_PUBLISHED}; here {here} on {planner.devices} x {planner.device.name}"
    return found


def _few_games(place: str, stage: StagePlan, asked: Work, plays: int, price: tuple[float, float] | None = None) -> str:
    option, cost = f"--set {place}.episodes", ""
    if price is not None:
        cost = f", {(asked.prompts * price[0] + asked.drawn * price[1]) / 1e6:,.2f} USD"
    return (
        f"only the {stage.games:,} shipped games: {stage.count:,} samples, {stage.updates:,} updates (the paper: "
        f"{_PAPERS:,} games of GPT-4). Self-play of {plays:,} games then gives little to learn from. Download "
        "gpt4_game_top30k_results.json, or the samples train_imitation_gpt4.json, by the links in data/README.md of "
        f"github.com/Linear95/SPAG, and add {option}=[gpt4_game_top30k_results.json]. Or let a model of your choice "
        f"play about {_ENOUGH:,} games ({asked.prompts / 1e6:.0f} M prompt and {asked.drawn / 1e6:.1f} M completion "
        f"tokens{cost}): spag play openai:MODEL openai:MODEL --count {_ENOUGH} --output games.jsonl, then add "
        f"{option}=[games.jsonl]"
    )


def disk_bytes(config: RunConfig, shape: ModelShape, due: Sequence[str] | None = None) -> float:
    """Return what the models of a run take on disk, and the largest checkpoint to resume from: an old one stays until
    the new one is complete. ``due``: the stages that are left.
    """
    saved, largest = 0.0, 0.0
    for model in planned_models(config):
        if due is None or f"{model.folder}/train" in due:
            settings, trained, copies = model.phase.settings, _trained(model, shape), 0
            model_bytes = trained * (2.0 if settings.save_dtype == "bfloat16" and not settings.lora else 4.0)
            saved += model_bytes
            if isinstance(settings, OnlineSettings):
                every = settings.keeps_snapshots_every
                saved += model_bytes * (settings.steps // every) if every else 0.0
                copies = (settings.average_decay > 0) + (settings.reference != "fixed")
            largest = max(largest, 2 * trained * (12.0 + 4.0 * copies))  # float32 weights, Adam's moments, copies
    return saved + largest


def _trained(model: PlannedModel, shape: ModelShape) -> int:
    """Return how many parameters a model's training changes."""
    settings, adapters = model.phase.settings, 1
    if settings.per_role:
        adapters = sum(len(game.roles) for game, _ in model.phase.mix(model.game))
    return adapters * shape.adapter(settings.lora) or shape.parameters
