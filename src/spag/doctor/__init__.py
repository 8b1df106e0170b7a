"""Checks of this machine for ``spag doctor``: what it has, what of spag works here, and the command for what is missing.

``machine`` is the only part that touches the machine; ``findings`` is pure. Nothing is downloaded and no network is used.
"""

from spag.doctor.findings import Finding, Status, can_play, examine
from spag.doctor.machine import Gpu, Machine, look_around

__all__ = ["Finding", "Gpu", "Machine", "Status", "can_play", "examine", "look_around"]
