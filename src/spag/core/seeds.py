"""Seed derivation: a seed depends on its purpose, never on time, place or order."""

import hashlib


def derive_seed(*parts: object) -> int:
    """Return a 63-bit seed that depends on ``parts`` alone (SHA-256 of their text), on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
