"""Public names of earlier tools: ``spag.training.losses``. The code is in ``spag.learning`` and ``spag.algorithms``."""
