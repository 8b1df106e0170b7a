"""The speed of matrix products on a core, used to choose a dtype and to estimate a plan's hours on a CPU."""

from functools import lru_cache
from time import process_time

import torch

from spag.storage.machine import limit_kernel_caches

_LONG_ENOUGH = 0.1
"""CPU seconds of a measurement: sandboxes may count CPU time in steps of 10 ms."""


@lru_cache(maxsize=1)
def core_speeds() -> tuple[float, float]:
    """Return one core's operations per second in bfloat16 and in float32, for matrix products as in a small model.
    Measured in CPU time, so that other programs hardly matter.
    """
    limit_kernel_caches()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _product_speed(torch.bfloat16), _product_speed(torch.float32)
    finally:
        torch.set_num_threads(threads)


def _product_speed(dtype: torch.dtype) -> float:
    rows, inputs, outputs = 256, 576, 1536  # an MLP's product in SmolLM2-135M
    states, weights = torch.ones(rows, inputs, dtype=dtype), torch.ones(outputs, inputs, dtype=dtype)
    with torch.inference_mode():
        torch.nn.functional.linear(states, weights)  # compiles kernels
        began, done = process_time(), 0
        while (took := process_time() - began) < _LONG_ENOUGH:
            torch.nn.functional.linear(states, weights)
            done += 1
    return 2.0 * rows * inputs * outputs * done / took
