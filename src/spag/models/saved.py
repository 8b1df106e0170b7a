"""The weights of a saved model, by their names in a loaded one."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spag.core.errors import ModelError
from spag.models.finding import ADAPTER_CONFIG, model_type, read_adapter
from spag.models.roles import LONE_ADAPTER, adapter_name, read_roles

if TYPE_CHECKING:
    from torch import Tensor

_ADAPTED = re.compile(r"\.(lora_[A-Za-z_]+|trainable_tokens_delta)(?=\.|$)")
_DORA = "lora_magnitude_vector"


def saved_weights(folder: Path) -> dict[str, "Tensor"]:
    """Return the weights in ``folder``: of a whole model, of an adapter, or of an adapter for each role.

    peft saves parameters without the adapter's name, which they include in a loaded model. Raises ``ModelError`` for a
    folder without weights.
    """
    roles = read_roles(str(folder))
    if roles is not None:
        parts = {adapter_name(role): Path(place) for role, place in roles.items()}
        return {name: value for adapter, place in parts.items() for name, value in _of_adapter(place, adapter).items()}
    if (folder / ADAPTER_CONFIG).is_file():
        return _of_adapter(folder, LONE_ADAPTER)
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping  # noqa: PLC0415 - imports torch

    from spag.models.loading import load_model  # noqa: PLC0415

    if not get_checkpoint_conversion_mapping(model_type(str(folder))):
        return _in_files(folder)
    # transformers joins or renames weights as it loads them: a file has each expert of a layer by itself
    model = load_model(str(folder), dtype="float32", device="cpu")
    return {name: weight.detach() for name, weight in model.named_parameters()}


def _of_adapter(folder: Path, adapter: str) -> dict[str, "Tensor"]:
    described = read_adapter(folder)
    whole = described.whole if described else ()
    named = ((_name(saved, adapter, whole), value) for saved, value in _in_files(folder).items())
    return {name: value for name, value in named if name is not None}


def _name(name: str, adapter: str, whole: Sequence[str]) -> str | None:
    """Return a saved weight's name in a loaded model, ``None`` for one of the base model: peft saves its embeddings
    beside an adapter for them. ``whole``: ends of the names of modules that are trained whole.
    """
    if _ADAPTED.search(name):
        return _ADAPTED.sub(rf".\1.{adapter}", name) + (".weight" if name.endswith(_DORA) else "")
    for module in whole:
        if found := re.match(rf".*?{re.escape(module)}(?=\.)", name):
            return f"{found[0]}.modules_to_save.{adapter}{name[found.end() :]}"
    return None if name.endswith(".weight") else name  # biases may be trained too


def _in_files(folder: Path) -> dict[str, "Tensor"]:
    from safetensors.torch import load_file  # noqa: PLC0415 - imports torch

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder}: has no weights; was it deleted, or not saved completely?")
    return {name: value for file in files for name, value in load_file(file).items()}
