"""Matrix products on CPUs: the faster of torch's libraries, and its speed on a core, used to choose a dtype and to
estimate a plan's hours.
"""

from functools import lru_cache
from pathlib import Path
from time import process_time

import torch

from spag.storage.machine import limit_kernel_caches

_LONG_ENOUGH = 0.1
"""CPU seconds of a measurement: sandboxes may count CPU time in steps of 10 ms."""


def choose_products(device: torch.device, dtype: torch.dtype) -> None:
    """Let oneDNN compute float32 products on AMD's CPUs with AVX-512, for models that compute in float32 on ``device``:
    MKL, torch's choice, uses AVX2 there, and takes twice as long.

    torch counts this as permission to use bfloat16 inside the products, which oneDNN does only with AMX. These CPUs
    have none; should one, the choice is taken back. It applies to GPUs too, so with a GPU all stays as it is.
    """
    limit_kernel_caches()  # the product below may be the first
    if device.type != "cpu" or dtype is not torch.float32:  # float32 attention beside bfloat16 is faster with MKL
        return
    # a choice made here before, or the user's
    if torch.cuda.is_available() or torch.get_float32_matmul_precision() != "highest":
        return
    info = Path("/proc/cpuinfo")
    is_amd = info.is_file() and "AuthenticAMD" in info.read_text(encoding="utf-8", errors="replace")
    if not is_amd or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return
    torch.set_float32_matmul_precision("medium")
    almost_one = torch.full((64, 64), 1 + 2**-12)  # 1 in bfloat16
    if (almost_one @ almost_one).min() <= len(almost_one):
        torch.set_float32_matmul_precision("highest")


@lru_cache(maxsize=1)
def core_speeds() -> tuple[float, float]:
    """Return one core's operations per second in bfloat16 and in float32, for matrix products as in a small model.
    Measured in CPU time, so that other programs hardly matter.
    """
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    choose_products(torch.device("cpu"), torch.float32)
    try:
        return _product_speed(torch.bfloat16), _product_speed(torch.float32)
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


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
