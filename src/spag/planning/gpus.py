"""The GPUs that machines are rented with, and what their datasheets say of them."""

from dataclasses import dataclass

from spag.core.errors import ConfigError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class GPU:
    """One kind of GPU.

    ``memory`` in bytes; ``flops``: dense bfloat16 tensor operations a second with float32 accumulation, without sparsity; ``bandwidth`` of
    its memory and ``link`` to its neighbours in the same machine (NVLink, else PCIe; one direction) in bytes a second; ``source``: the
    maker's paper the figures are from.
    """

    name: str
    memory: float
    flops: float
    bandwidth: float
    link: float
    source: str


def _gpu(name: str, gigabytes: int, teraflops: float, gigabytes_s: float, link_gigabytes_s: float, source: str) -> GPU:
    # Makers write GB for what the driver reports as about as many GiB.
    return GPU(name, gigabytes * GIB, teraflops * 1e12, gigabytes_s * 1e9, link_gigabytes_s * 1e9, source)


GPUS = (
    _gpu("A100-40", 40, 312, 1555, 300, "NVIDIA A100 datasheet, SXM4 40 GB; NVLink 600 GB/s both ways"),
    _gpu("A100-80", 80, 312, 2039, 300, "NVIDIA A100 datasheet, SXM4 80 GB; NVLink 600 GB/s both ways"),
    _gpu("H100", 80, 989, 3350, 450, "NVIDIA H100 datasheet, SXM5; 1,979 TFLOP/s with sparsity, halved; NVLink 900 GB/s both ways"),
    _gpu("H200", 141, 989, 4800, 450, "NVIDIA H200 datasheet, SXM; 1,979 TFLOP/s with sparsity, halved; NVLink 900 GB/s both ways"),
    _gpu("L40S", 48, 362, 864, 32, "NVIDIA L40S datasheet; 733 TFLOP/s with sparsity, halved; PCIe 4.0 x16"),
    _gpu("A10G", 24, 70, 600, 32, "NVIDIA A10G datasheet (as AWS quotes it); PCIe 4.0 x16"),
    _gpu("RTX-4090", 24, 165.2, 1008, 32, "NVIDIA Ada GPU architecture whitepaper, appendix A; PCIe 4.0 x16"),
    _gpu("RTX-3090", 24, 71, 936, 32, "NVIDIA Ampere GA102 whitepaper, table 2; PCIe 4.0 x16"),
)


def find_gpu(name: str) -> GPU:
    """Return the GPU called ``name``; case, spaces and dashes do not count. Raises ``ConfigError`` with the known names."""
    wanted = _folded(name)
    for gpu in GPUS:
        if _folded(gpu.name) == wanted:
            return gpu
    raise ConfigError(f"--gpu {name}: no such kind of GPU is known (known: {', '.join(gpu.name for gpu in GPUS)})")


def _folded(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
