"""LoRA adapters over a loaded model: one or several, one active at a time."""

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from spag.core.errors import ModelError
from spag.models.finding import Adapter
from spag.models.weights import refuse_unless_equal

ADAPTER_WEIGHTS = "adapter_model.safetensors"


def weights_beside_lora(adapter: Adapter) -> list[str]:
    """Return the names of an adapter's weights that belong neither to LoRA nor to whole modules: biases, embeddings of
    its own. All adapters over one copy of the base model would get them. None for a broken file: loading it fails.
    """
    with suppress(OSError, SafetensorError), safe_open(adapter.folder / ADAPTER_WEIGHTS, framework="pt") as opened:
        others = [key for key in opened.keys() if ".lora_" not in key]  # noqa: SIM118 - no mapping
        return [key for key in others if not any(f".{module}." in key for module in adapter.whole)]
    return []


def with_adapter(model: PreTrainedModel, folder: Path, *, name: str, trainable: bool) -> PreTrainedModel:
    """Return ``model`` with the adapter in ``folder`` as ``name``. Raises ``ModelError`` unless its weights match.

    ``has_other_embeddings`` of the model tells whether one of its adapters brought embeddings, which replaced the base
    model's: it is then saved with them.
    """
    from peft import PeftModel, get_peft_model_state_dict  # noqa: PLC0415 - slow to import, and only adapters need it

    file = folder / ADAPTER_WEIGHTS
    if not file.is_file():
        fix = "pickled weights are never loaded; save the adapter again"
        raise ModelError(f"{folder}: holds no {ADAPTER_WEIGHTS}; {fix}")
    adapted: Any = model
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found missing adapter keys")  # refused below
        if isinstance(model, PeftModel):
            model.load_adapter(folder, adapter_name=name, is_trainable=trainable)
        else:
            adapted = PeftModel.from_pretrained(model, folder, adapter_name=name, is_trainable=trainable)
    adapted.peft_config[name].base_model_name_or_path = adapted.get_base_model().name_or_path  # may have moved
    with safe_open(file, framework="pt") as opened:
        found = set(opened.keys())
    wanted = get_peft_model_state_dict(adapted, adapter_name=name, save_embedding_layers=False).keys()
    # Embeddings may also have been trained.
    others = {f"base_model.model.{key}" for key in adapted.get_base_model().state_dict()}
    refuse_unless_equal(str(folder), "the adapter", wanted - found, found - wanted - others)
    adapted.has_other_embeddings = getattr(adapted, "has_other_embeddings", False) or bool(found - wanted)
    return adapted


def use_adapter(model: PreTrainedModel, name: str) -> None:
    """Activate the adapter ``name``. Trainable weights stay the same: peft would train only this adapter."""
    adapted: Any = model
    if adapted.active_adapter == name:
        return
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    adapted.set_adapter(name, inference_mode=True)
    for weight in trained:
        weight.requires_grad_(True)
