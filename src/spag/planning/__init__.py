"""Memory, hours and disk of a run before it starts, and what this machine has: ``spag plan`` and ``spag doctor``."""
