"""Checks of this machine for ``spag doctor``. Nothing is downloaded and no network is used."""

from spag.doctor.findings import Finding, Status, examine
from spag.doctor.machine import Gpu, Machine, look_around

__all__ = ["Finding", "Gpu", "Machine", "Status", "examine", "look_around"]
