"""The shipped presets: one YAML file each, and its purpose. Imports no other package, to keep ``--help`` fast."""

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset's purpose, its target hardware, and its duration there; hours are from ``spag plan``."""

    purpose: str
    hardware: str
    time: str


PRESETS = {
    "demo": Preset("Taboo: imitation, then one SPAG iteration", "2 CPU cores", "5 to 25 minutes"),
    "nim": Preset("Nim online, scored against perfect play", "2 CPU cores", "2 to 10 minutes"),
    "kuhn": Preset("Kuhn poker online, scored exactly", "1 CPU core", "6 to 24 minutes"),
    "leduc": Preset("Leduc poker online, scored exactly", "2 CPU cores", "40 minutes"),
    "tic-tac-toe": Preset("tic-tac-toe online, scored on all boards", "1 CPU core", "3 hours"),
    "taboo-online": Preset("Taboo: imitation, then online steps", "2 CPU cores", "15 minutes"),
    "textarena-mix": Preset("three TextArena games and Taboo, online", "2 CPU cores", "1.5 hours"),
    "qwen3": Preset("the paper's recipe with a current model", "1 A100, 80 GB", "2.8 hours"),
    "taboo-qwen3-1.7b-lora": Preset("Taboo online with thoughts and LoRA", "1 RTX 4090", "22 hours"),
    "taboo-qwen3-1.7b": Preset("Taboo online with thoughts", "1 A100, 80 GB", "12 hours"),
    "llama2-7b-qlora": Preset("the paper's run with QLoRA", "1 RTX 4090", "21 hours"),
    "llama2-7b-lora": Preset("the paper's run with LoRA", "1 RTX 4090", "19 hours"),
    "spiral-qwen3-4b": Preset("SPIRAL's run: Kuhn poker with thoughts", "8 H100", "6.8 hours"),
    "marshal-qwen3-4b": Preset("MARSHAL's run: credit for each turn", "8 H100", "1.8 hours"),
    "llama2-7b": Preset("the paper's run", "8 A100, 80 GB", "3.8 hours"),
    "baichuan2-13b": Preset("the paper's second model", "8 A100, 80 GB", "10.3 hours"),
}
"""Every preset, from the smallest machine to the largest."""


def preset_text(name: str) -> str:
    """Return the YAML of a preset."""
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
