"""Checks at run time for models with their own code, which we have not reviewed."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spag.core.errors import ModelError


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
