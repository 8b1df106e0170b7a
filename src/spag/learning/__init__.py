"""Learning: one loop for every algorithm, offline and online (``loop.py``)."""
