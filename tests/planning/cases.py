"""What is measured: small Llamas and trainings in which weights, or activations, take most of the memory."""

from dataclasses import dataclass, field
from typing import Any

from spag.config.schema import PhaseConfig

MODELS = {
    # 30M parameters in wide layers; 15M, most of them embedding and head; 3M in many narrow layers
    "wide": {"vocab_size": 8000, "hidden_size": 640, "intermediate_size": 1728, "num_hidden_layers": 4,
    "num_attention_heads": 10,
             "num_key_value_heads": 10},
    "wordy": {"vocab_size": 24_000, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
    "num_attention_heads": 4,
              "num_key_value_heads": 2},
    "deep": {"vocab_size": 4000, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 12,
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
    Case("float32, activations", "deep", 400, "float32"),
    Case("float32, checkpointing", "deep", 800, "float32", settings=CHECKPOINTING),
    Case("float32, LoRA", "deep", 400, "float32", settings={"lora": {"rank": 8}}),
    Case("bfloat16, weights", "wordy", 70, "bfloat16", samples=1),
    Case("bfloat16, chunks", "wordy", 70, "bfloat16", samples=6),
    Case("bfloat16, activations", "deep", 300, "bfloat16"),
    Case("bfloat16, checkpointing", "deep", 300, "bfloat16", settings=CHECKPOINTING),
    Case("bfloat16, LoRA", "deep", 300, "bfloat16", settings={"lora": {"rank": 8}}),
)
