"""Estimates of a run's memory, hours and disk, and checks of this machine: ``spag plan`` and ``spag doctor``."""
