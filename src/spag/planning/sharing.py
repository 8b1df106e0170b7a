"""How trainer and engines share each GPU in an online phase, and the share that vLLM gets.

A step has two parts. During play the trainer keeps weights, optimiser and copies of the policy; during training it also
needs gradients and activations, and the engines stay awake or sleep. A sleeping engine has released its cache and moved
its weights to CPU memory (vLLM's level 1) or dropped them (level 2: they are read again from their files), so during
play it may use memory that training fills in between. ``docs/planning.md`` lists which numbers are guesses.
"""

from dataclasses import dataclass

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import SELF, SNAPSHOT, START
from spag.engines.players import is_local
from spag.engines.vllm.setup import GPU_MEMORY
from spag.planning.specs import GIB

USABLE = 0.92
"""Usable share of a GPU's memory; the rest is for the driver, CUDA's context and fragmentation: a guess."""
ASLEEP = 1.33 * GIB
"""GPU memory of a sleeping vLLM: CUDA's context and graphs. Measured with the shape of Qwen2.5-7B on one H200."""
_HOST = 0.5
"""Share of the machine's memory for the weights of sleeping engines."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Each of ``engines`` gets the share ``each`` of the GPU; vLLM sleeps at level ``sleep`` during training; 0: never.
    ``in_turn``: the policy's copies take turns in one engine. ``shortage``: why trainer and engines do not fit
    together; empty if they do.
    """

    engines: int
    each: float
    sleep: int = 0
    in_turn: bool = False
    shortage: str = ""

    def describe(self) -> str:
        """Return the shares in words."""
        sizes = f"{self.engines} x {self.each:.3f} of each GPU for vLLM"
        sizes += ", start and snapshots in turn with the policy" if self.in_turn else ""
        return f"{sizes}, asleep (level {self.sleep}) while training" if self.sleep else f"{sizes}, always awake"


def share_out(
    gpu: float, engines: int, *, least: float, roomy: float, resident: float, training: float,
    share: float | None = None, sleep: int = 0,
) -> Sharing:  # fmt: skip
    """Return how a trainer and ``engines`` share a GPU of ``gpu`` bytes.

    In bytes: ``least``: an engine with room for one text of ``engine.max_length``; ``roomy``: one with room for all
    texts at once; ``resident``: the trainer during play; ``training``: at its peak. ``share``: the user's setting for
    all engines. ``sleep``: the level at which they may sleep, as they do if there is no room for all texts during
    training; 0: never.
    """
    usable = USABLE * gpu
    for level, need in ((0, roomy), (sleep, least), (0, least)):
        # under FSDP the whole policy is gathered during play, which may take more than training does
        free = usable - (resident if level else max(resident, training))
        given = min(free, GPU_MEMORY * gpu) if share is None else share * gpu
        trains = not level or training + engines * ASLEEP <= usable
        if trains and engines * need <= given <= free:
            return Sharing(engines, int(1000 * given / gpu / engines) / 1000, level)
    shortage = (
        f"trainer and vLLM do not fit together: while playing {resident / GIB:.1f} GiB and {engines} x "
        f"{least / GIB:.1f} GiB at least, while training {training / GIB:.1f} GiB, of {usable / GIB:.1f} GiB"
    )
    return Sharing(engines, (share or engines * least / gpu) / engines, shortage=shortage)


def engine_players(online: OnlineSettings, *, together: bool = False) -> list[str]:
    """Return the players with their own engine, by name: the policy, its frozen copies, other models.

    ``spag.rollout.steps.StepPlayer`` opens them one by one, each with its own weights; ``together``: copies are in the
    policy's engine, as adapters in one vLLM, or take turns.
    """
    within = (SELF, START, SNAPSHOT) if together else (SELF,)
    others = [name for name in online.met if name not in within]
    return [SELF, *filter(is_local, others)]


def sleep_level(online: OnlineSettings, weights: float, host: float) -> int:
    """Return the level at which a machine's engines may sleep: 1 if its memory, ``host``, has room for their
    ``weights``, else 2; 0 if they play while others train, or if adapters would be lost.
    """
    if online.overlap:
        return 0
    return 1 if weights <= _HOST * host else 0 if online.lora else 2
