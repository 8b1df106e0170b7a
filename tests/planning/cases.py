"""What is measured: small Llamas and trainings in which weights, or activations, take most of the memory."""

from dataclasses import dataclass, field
from typing import Any

from spag.config.schema import PhaseConfig

MODELS = {
    # 10M parameters in wide layers; 2M, most of them embedding and head; 1M in many narrow layers. No larger: a CPU
    # without instructions for bfloat16 multiplies a gigaflop a second
    "wide": {"vocab_size": 4000, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 6,
             "num_key_value_heads": 6},
    "wordy": {"vocab_size": 8000, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2,
    "num_attention_heads": 4,
              "num_key_value_heads": 2},
    "deep": {"vocab_size": 4000, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 12,
    "num_attention_heads": 2,
             "num_key_value_heads": 2, "tie_word_embeddings": True},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One measurement: ``length`` tokens a sample, ``samples`` a micro-batch, ``accumulated`` micro-batches a step."""

    name: str
    model: str
    length: int
    dtype: str
    samples: int = 2
    accumulated: int = 2
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def phase(self) -> PhaseConfig:
        batch = {"micro_batch_size": self.samples, "global_batch_size": self.samples * self.accumulated}
        options = {"learning_rate": 1e-3, "gradient_checkpointing": False, "save_steps": 1000, **batch, **self.settings}
        return PhaseConfig.model_validate({"algorithm": "spag", **options})


CHECKPOINTING = {"gradient_checkpointing": True}
TRAININGS = (
    Case("float32, weights", "wide", 64, "float32", samples=1),
    Case("float32, activations", "deep", 300, "float32"),
    Case("float32, checkpointing", "deep", 500, "float32", settings=CHECKPOINTING),
    Case("float32, LoRA", "deep", 300, "float32", settings={"lora": {"rank": 8}}),
    Case("bfloat16, weights", "wordy", 70, "bfloat16", samples=1),
    Case("bfloat16, chunks", "wordy", 70, "bfloat16", samples=3),
    Case("bfloat16, activations", "deep", 200, "bfloat16"),
    Case("bfloat16, checkpointing", "deep", 200, "bfloat16", settings=CHECKPOINTING),
    Case("bfloat16, LoRA", "deep", 200, "bfloat16", settings={"lora": {"rank": 8}}),
    Case("bfloat16, LoRA, weights", "wide", 70, "bfloat16", samples=1, settings={"lora": {"rank": 8}}),
)
