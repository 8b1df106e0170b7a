"""A stage of a run before it starts: what a plan says of play or training."""

from dataclasses import dataclass, field, replace

from spag.algorithms.settings import LoraConfig
from spag.config.schema import GameConfig, PhaseConfig, RunConfig
from spag.planning.memory import Memory
from spag.planning.sharing import Sharing
from spag.runs.layout import planned_models


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage, repeated ``times`` times: ``count`` samples or games (``unit``), updates, games learned from, tokens
    and hours, each per repetition.

    ``memory`` is its use of a GPU or process, in bytes: training's if every utterance has the maximum length, play's if
    they have the usual one; ``room`` is the available memory. ``shortage`` says what does not fit into memory
    (empty: it fits), ``refusals`` why else it cannot run as configured, ``advice`` names the nearest settings with
    which it could. ``sharing``: how vLLM's engines of online play share each GPU, most often with a trainer.
    """

    name: str
    times: int
    unit: str
    count: int
    updates: int
    games: int
    tokens: float
    hours: float
    memory: Memory = field(default_factory=Memory)
    room: float = 0.0
    sharing: Sharing | None = None
    shortage: str = ""
    refusals: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Why it cannot run as configured; empty if it can."""
        return [one for one in (*self.refusals, self.shortage) if one]

    def taking(self, memory: Memory, room: float) -> "StagePlan":
        """Return the stage with ``memory`` of ``room`` bytes."""
        shortage = "it needs more memory than there is" if memory.total > room else ""
        if self.sharing:
            shortage = self.sharing.shortage or shortage
        return replace(self, memory=memory, room=room, shortage=shortage)


def adapter_count(phase: PhaseConfig, game: GameConfig) -> int:
    """Return how many adapters a phase of ``game`` trains, if it trains adapters: one, or one for each role."""
    return sum(len(one.roles) for one, _ in phase.mix(game)) if phase.settings.per_role else 1


def phases_of(config: RunConfig) -> dict[str, PhaseConfig]:
    """Return the phases of a run by the names of their stages, in order, each with the adapter that it trains: later
    phases train the first one further.
    """
    first: LoraConfig | None = None
    found: dict[str, PhaseConfig] = {}
    labels = dict.fromkeys(model.label for model in planned_models(config))
    for label, phase in zip(labels, config.phases, strict=True):
        own: LoraConfig | None = phase.settings.lora
        first = first or own
        loading = {"quantize": own is not None and own.quantize, "per_role": phase.settings.per_role}
        found[label] = phase.model_copy(update={"lora": first and first.model_copy(update=loading)})
    return found
