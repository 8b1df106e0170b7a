"""Stanford Alpaca's rows, ``{"instruction", "input", "output"}``, and their two training prompts.

The prompts are part of the format: the dataset's README (tatsu-lab/stanford_alpaca, "Data Release") defines them, and
upstream's data page (Linear95/SPAG, data/README.md) requires them. The output is trained unchanged and follows the
prompt without a line break.
"""

from collections.abc import Mapping
from typing import Any

from spag.core.errors import DataError

WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{given}\n\n### Response:"
)
WITHOUT_INPUT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:"
)


def is_alpaca(row: Mapping[str, Any]) -> bool:
    """Whether ``row`` has an instruction but no prompt built from it yet."""
    return "instruction" in row and not {"prompt", "query"} & row.keys()


def prompt_and_completion(row: Mapping[str, Any], place: str) -> dict[str, str]:
    """Return ``prompt`` and ``completion`` of an Alpaca row; its input is optional. Raises ``DataError``."""
    match row["instruction"], row.get("input") or "", row.get("output"):
        case (str(instruction), str(given), str(output)):
            prompt = WITH_INPUT if given else WITHOUT_INPUT
            return {"prompt": prompt.format(instruction=instruction, given=given), "completion": output}
    raise DataError(f"{place}: instruction, input and output must be text")
