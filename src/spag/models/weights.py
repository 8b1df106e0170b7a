"""What must hold of weights before anybody plays with them or trains on: all there, of the config's shapes, and finite
numbers.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from spag.core.errors import ModelError

SAFETENSORS = "*.safetensors"


def check_size(name: str, folder: Path, config: PreTrainedConfig) -> None:
    """Raise ``ModelError`` when ``config`` describes a model that is larger than the weights in ``folder``.

    transformers makes room for all that a config asks for before it looks at the weights; this looks at their headers
    alone. Quantized weights hold several numbers in one; they are not checked.
    """
    files = sorted(folder.glob(SAFETENSORS))
    if not files or getattr(config, "quantization_config", None) is not None:
        return
    tensors = numbers = 0
    for file in files:
        with safe_open(file, framework="pt") as opened:
            shapes = [opened.get_slice(key).get_shape() for key in opened.keys()]  # noqa: SIM118 - no mapping
        tensors, numbers = tensors + len(shapes), numbers + sum(map(_product, shapes))
    layers = config.get_text_config(decoder=True).num_hidden_layers
    wanted = (
        _parameters(config) if layers <= tensors else None
    )  # a layer has a tensor at least; billions of them would take hours
    if wanted is None or wanted > 2 * numbers + 1:  # twice: a head may be tied in the file and not in the model
        what = f"{layers} layers" if wanted is None else f"{wanted:,} parameters"
        held = f"{tensors} tensors of {numbers:,} numbers"
        raise ModelError(
            f"{name}: config.json asks for {what}, its weights are {held}, no {config.model_type} "
            "like that; restore the file"
        )


def _product(shape: Iterable[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _parameters(config: PreTrainedConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())


def check_complete(name: str, info: Mapping[str, Any], kind: str) -> None:
    """Raise ``ModelError`` unless the weights are those of the config, of model type ``kind``: all of them, and nothing
    else.

    ``info`` is transformers' ``output_loading_info``; it leaves out tied weights and those that a model's class says
    may be missing.
    """
    mismatched = [f"{key} {tuple(found)} for {tuple(wanted)}" for key, found, wanted in info["mismatched_keys"]]
    refuse_unless_equal(
        name, f"a {kind}", missing=info["missing_keys"], unexpected=info["unexpected_keys"], mismatched=mismatched
    )


def refuse_unless_equal(
    name: str, kind: str, *, missing: Iterable[str], unexpected: Iterable[str], mismatched: Iterable[str] = ()
) -> None:
    """Raise ``ModelError`` when one of the lists of names is not empty."""
    groups = {"missing": sorted(missing), "unexpected": sorted(unexpected), "of another shape": sorted(mismatched)}
    wrong = [f"{len(keys)} {what} ({keys[0]}{', ...' if keys[1:] else ''})" for what, keys in groups.items() if keys]
    if wrong:
        raise ModelError(
            f"{name}: its weights are not those of {kind} as its config says: {', '.join(wrong)}; "
            "restore config or weights"
        )


def check_finite(name: str, tensors: Iterable[tuple[str, Tensor]], fix: str) -> None:
    """Raise ``ModelError`` when a tensor holds a number that is not finite."""
    for key, tensor in tensors:
        if not _is_finite(tensor.detach()):
            raise ModelError(f"{name}: {key} holds numbers that are not finite; {fix}")


def weights_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return what is saved of ``model``, by name: parameters and buffers. Some buffers are not saved, and no others are
    left out.
    """
    yield from model.named_parameters()
    saved = model.state_dict(keep_vars=True).keys()
    yield from ((key, buffer) for key, buffer in model.named_buffers() if key in saved)


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite: the sum, as fast as reading them, is not if one of them is not; only then all are
    looked at.
    """
    if not tensor.is_floating_point() or bool(tensor.sum(dtype=torch.float32).isfinite()):
        return True
    return bool(tensor.isfinite().all())
