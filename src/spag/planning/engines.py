"""How trainer and engines share each GPU in an online phase, and which share vLLM gets of it.

A step has two moments. In play the trainer keeps weights, optimiser and copies of the policy; in training it needs
gradients and activations, too, and the engines stay awake or sleep. An engine that sleeps has given up its cache and
moved its weights to CPU memory (vLLM's level 1) or dropped them (level 2: they are read again from their files), so it
may have what training fills in between. ``docs/planning.md`` says what is a guess.
"""

from dataclasses import dataclass

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import SELF, SNAPSHOT, START
from spag.engines.players import is_local
from spag.engines.vllm.setup import GPU_MEMORY
from spag.planning.specs import GIB

USABLE = 0.92
"""Share of a GPU's memory that can be filled; the rest is the driver's, CUDA's context, fragments: a guess."""
ASLEEP = GIB
"""What a sleeping vLLM keeps on the GPU: CUDA's context and graphs; a guess."""
_HOST = 0.5
"""Share of the machine's memory that the weights of sleeping engines may take."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What an online phase asks of each GPU, in bytes. ``least``: of an engine with room for one text of
    ``engine.max_length``; ``roomy``: with room for all texts at once. ``resident``: of the trainer during play;
    ``training``: at its peak. ``share``: what the user gives all engines. ``sleep``: the level at which vLLM may sleep,
    0: it may not.
    """

    engines: int
    least: float
    roomy: float
    resident: float
    training: float
    share: float | None = None
    sleep: int = 0


@dataclass(frozen=True, slots=True)
class Sharing:
    """The outcome: ``each`` of ``engines`` gets this share of the GPU; vLLM sleeps at this level while training, 0:
    not. ``in_turn``: the policy's copies take turns in one engine.
    """

    engines: int
    each: float
    sleep: int
    in_turn: bool = False

    def describe(self) -> str:
        """Return the shares in words."""
        sizes = f"{self.engines} x {self.each:.3f} of each GPU for vLLM"
        sizes += ", start and snapshots in turn with the policy" if self.in_turn else ""
        return f"{sizes}, asleep (level {self.sleep}) while training" if self.sleep else f"{sizes}, always awake"


def share_out(demand: Demand, gpu: float) -> Sharing | None:
    """Return how trainer and engines share a ``gpu`` of so many bytes; ``None`` where they do not fit.

    Engines sleep where all texts would not fit beside training.
    """
    usable = USABLE * gpu
    for level, need in ((0, demand.roomy), (demand.sleep, demand.least), (0, demand.least)):
        beside = demand.resident if level else demand.training
        engines = min(usable - beside, GPU_MEMORY * gpu) if demand.share is None else demand.share * gpu
        trains = not level or demand.training + demand.engines * ASLEEP <= usable
        if trains and beside + engines <= usable and engines >= demand.engines * need:
            return Sharing(demand.engines, int(1000 * engines / gpu / demand.engines) / 1000, level)
    return None


def engine_players(online: OnlineSettings, *, together: bool = False) -> list[str]:
    """Return the players that an engine of their own plays here, by name: the policy, its frozen copies, other models.

    ``spag.rollout.steps.StepPlayer`` opens them one by one, each with weights of its own; ``together``: copies are in
    the policy's engine, as adapters on vLLM are side by side, or take turns.
    """
    within = (SELF, START, SNAPSHOT) if together else (SELF,)
    others = [name for name in online.met if name not in within]
    return [SELF, *filter(is_local, others)]


def sleep_level(online: OnlineSettings, weights: float, host: float, *, adapters: bool) -> int:
    """Return the level at which the engines of a machine may sleep: 1 where ``host``, its memory, has room for their
    ``weights``, else 2; 0 where they play while others train, or where adapters would be lost.
    """
    if online.overlap:
        return 0
    return 1 if weights <= _HOST * host else 0 if adapters else 2
