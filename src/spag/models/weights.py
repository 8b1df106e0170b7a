"""Checks of weights before play or training: complete, of the config's shapes, finite, the same after evaluation."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from spag.core.errors import ModelError


def check_size(name: str, folder: Path, config: PreTrainedConfig) -> None:
    """Raise ``ModelError`` if ``config`` describes a larger model than the weights in ``folder``.

    transformers allocates everything in a config before it reads the weights; this reads only their headers. Quantized
    weights pack several numbers into one; they are not checked.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files or getattr(config, "quantization_config", None) is not None:
        return
    tensors = numbers = 0
    for file in files:
        with safe_open(file, framework="pt") as opened:
            shapes = [opened.get_slice(key).get_shape() for key in opened.keys()]  # noqa: SIM118 - no mapping
        tensors, numbers = tensors + len(shapes), numbers + sum(map(math.prod, shapes))
    layers = config.get_text_config(decoder=True).num_hidden_layers
    # A layer has at least one tensor; billions of layers would take hours.
    wanted = sum(weight.numel() for weight in empty_model(config).parameters()) if layers <= tensors else None
    if wanted is None or wanted > 2 * numbers + 1:  # doubled: a head may be tied in the file but not in the model
        what = f"{layers} layers" if wanted is None else f"{wanted:,} parameters"
        held = f"{tensors} tensors of {numbers:,} numbers"
        fault = f"config.json asks for {what}, but its weights are {held}, which fit no such {config.model_type}"
        raise ModelError(f"{name}: {fault}; restore the file")


def empty_model(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """Return the model of ``config`` without memory for its weights."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    return model


def refuse_unless_equal(
    name: str, kind: str, missing: Iterable[str], unexpected: Iterable[str], mismatched: Iterable[tuple[Any, ...]] = ()
) -> None:
    """Raise ``ModelError`` if a list of weights is not empty. ``mismatched``: name, shape found, shape wanted."""
    shapes = [f"{key} {tuple(found)} for {tuple(wanted)}" for key, found, wanted in mismatched]
    groups = {"missing": sorted(missing), "unexpected": sorted(unexpected), "of another shape": sorted(shapes)}
    wrong = [f"{len(keys)} {what} ({keys[0]}{', ...' if keys[1:] else ''})" for what, keys in groups.items() if keys]
    if wrong:
        fault = f"its weights are not those of {kind} as its config says: {', '.join(wrong)}"
        raise ModelError(f"{name}: {fault}; restore config or weights")


def check_finite(name: str, tensors: Iterable[tuple[str, Tensor]], fix: str) -> None:
    """Raise ``ModelError`` if a tensor contains a number that is not finite."""
    for key, tensor in tensors:
        if not _is_finite(tensor.detach()):
            raise ModelError(f"{name}: {key} contains numbers that are not finite; {fix}")


def weights_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return the saved tensors of ``model``, by name: all parameters, and the persistent buffers."""
    yield from model.named_parameters()
    saved = model.state_dict(keep_vars=True).keys()
    yield from ((key, buffer) for key, buffer in model.named_buffers() if key in saved)


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite. If one is not, neither is the sum, which is fast; only then is each checked."""
    sum_is_finite = not tensor.is_floating_point() or bool(tensor.sum(dtype=torch.float32).isfinite())
    return sum_is_finite or bool(tensor.isfinite().all())


def check_own_code(name: str, model: PreTrainedModel) -> None:
    """Run ``model`` once in evaluation mode if it has its own code. Raises ``ModelError`` if that changes its weights.

    Reference log-probabilities are computed in evaluation mode: a model that changes its weights there would not be
    trained from the loaded weights, and an optimizer may hold the old ones.
    """
    if not type(model).__module__.startswith("transformers_modules"):
        return
    before = _lengths(model)
    with torch.no_grad():
        model.eval()(input_ids=torch.tensor([[1, 2, 3]], device=model.device), use_cache=False)
    changed = [key for key, length in _lengths(model).items() if not torch.equal(length, before[key])]
    if changed:
        what = f"its own code changes weights in evaluation mode ({', '.join(changed[:3])})"
        raise ModelError(f"{name}: {what}, so it cannot be trained from what was loaded; use a model without such code")


def _lengths(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the Euclidean norm of each weight, to detect changes without a copy."""
    return {key: weight.detach().float().norm().nan_to_num() for key, weight in model.named_parameters()}
