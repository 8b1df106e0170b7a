"""``spag doctor``: what this machine has, what of spag works here, and the command for what is missing.

    machine    looking around: processor, memory, GPUs, disks, packages; the only part that touches the machine
    findings   what follows from it, pure

Nothing is downloaded and no network is asked.
"""

from spag.doctor.findings import Finding, Status, examine
from spag.doctor.machine import Gpu, Machine, look_around

__all__ = ["Finding", "Gpu", "Machine", "Status", "examine", "look_around"]
