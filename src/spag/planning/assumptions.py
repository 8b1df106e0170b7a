"""Everything a plan takes for granted, each with its reason. ``--assume NAME=VALUE`` changes one."""

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from spag.core.errors import ConfigError


def _assume(value: float, reason: str) -> Any:
    return field(default=value, metadata={"reason": reason})


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Numbers that no config states. The reason of each is in its field's metadata."""

    training_mfu: float = _assume(0.35, "share of peak FLOP/s in training; 0.3 to 0.5 is reported for 7B on A100s; not measured by us")
    prefill_mfu: float = _assume(0.4, "share of peak FLOP/s while prompts are read, in batches; not measured by us")
    decode_mfu: float = _assume(0.4, "share of peak FLOP/s of a decoding step where products are its limit; not measured by us")
    bandwidth_share: float = _assume(0.6, "share of memory bandwidth that a decoding step reaches; not measured by us")
    step_overhead_ms: float = _assume(3.0, "vLLM's own work between two decoding steps; a guess")
    layer_overhead_ms: float = _assume(0.8, "transformers engine: launching one layer's kernels from Python; a guess")
    link_share: float = _assume(0.6, "share of the datasheet's link speed that collective operations reach; a guess")
    machine_gpus: float = _assume(8, "GPUs in a machine, as A100 and H100 machines have")
    network_gb_s: float = _assume(50.0, "GB/s between two machines: 400 Gbit/s; the largest offer 3,200")
    host_gb_s: float = _assume(20.0, "GB/s between a GPU and CPU memory (offload): PCIe 4.0 x16 less protocol")
    stage_minutes: float = _assume(4.0, "loading and saving weights and starting engines, a stage; a guess for 7B from a local disk")
    memory_share: float = _assume(0.92, "share of a GPU's memory that training can fill: driver, CUDA context, fragments, reserved ECC")
    engine_gib: float = _assume(2.0, "vLLM's memory beside weights and cache: CUDA graphs and working space")
    utterance_tokens: float = _assume(40, "mean utterance; shipped teacher play has 15, models run on at temperature 1.2; a guess")
    teacher_tokens: float = _assume(16, "mean utterance of teacher play with its end: 15.4 measured in the shipped games")
    turns: float = _assume(2.94, "utterances of the winner in a decided game: 99,740 samples of 33,973 games of the paper's LLaMA-2-7B")
    decided_share: float = _assume(0.68, "games that somebody wins: 33,973 of 50,000 of the paper's LLaMA-2-7B after imitation")
    attacker_share: float = _assume(0.92, "decided games that the attacker wins: 31,273 of 33,973, as before")
    prefix_tokens: float = _assume(160, "rules and name lines before the conversation: 120 to 137 tokens a paraphrase, and headers")
    instruction_tokens: float = _assume(45, "a role's instruction and cue behind the conversation: 35 and 50 tokens")
    name_tokens: float = _assume(5, "a line's player name in the conversation")
    sft_query_tokens: float = _assume(60, "instruction rows: query with its template; a guess for Alpaca")
    sft_target_tokens: float = _assume(65, "instruction rows: answer, some 270 characters in Alpaca")

    def changed(self, changes: Sequence[str]) -> "Assumptions":
        """Return these assumptions with ``NAME=VALUE`` changes. Raises ``ConfigError``."""
        values = dict(_change(text) for text in changes)
        return replace(self, **values)

    def rows(self) -> list[tuple[str, float, str]]:
        """Return name, value and reason of each."""
        return [(one.name, getattr(self, one.name), one.metadata["reason"]) for one in fields(self)]


def _change(text: str) -> tuple[str, float]:
    known: dict[str, Field[Any]] = {one.name: one for one in fields(Assumptions)}
    name, _, number = text.partition("=")
    if name not in known:
        raise ConfigError(f"--assume {text}: there is no assumption {name} (known: {', '.join(known)})")
    try:
        value = float(number)
    except ValueError as error:
        raise ConfigError(f"--assume {text}: write it as NAME=NUMBER") from error
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"--assume {text}: the number must be positive and finite")
    share = name.endswith(("_share", "_mfu"))
    if share and value > 1:
        raise ConfigError(f"--assume {text}: a share is at most 1")
    return name, value
