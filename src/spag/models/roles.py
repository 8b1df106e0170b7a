"""Models with an adapter for each role, as saved by online training with ``lora.per_role``. Imports no torch.

    checkpoint/  roles.json (which folder is whose)  GAME-ROLE/ of each role

Each folder holds a LoRA adapter and its tokenizer: a separate model, for peft and for us. A role is named
``GAME/ROLE``.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from spag.core.errors import ConfigError, DataError, ModelError
from spag.storage.home import expanded
from spag.storage.jsonfile import read_json

ROLES = "roles.json"
LONE_ADAPTER = "default"
"""peft's name for the adapter of a model with a single one."""

Value = TypeVar("Value")


def adapter_name(role: str) -> str:
    """Return the name of the adapter and folder of ``role`` (``GAME/ROLE``): torch allows no dots in module names."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", role)


def adapter_names(roles: Iterable[str]) -> dict[str, str]:
    """Return the adapters' names by role. Raises ``ConfigError`` when two roles would share one."""
    names = {role: adapter_name(role) for role in roles}
    owners = {name: role for role, name in names.items()}
    if shared := next(((role, owners[name]) for role, name in names.items() if owners[name] != role), None):
        raise ConfigError(f"lora.per_role: {' and '.join(shared)} would share an adapter's name; train them separately")
    return names


def read_description(file: Path, kind: type[Value], fix: str) -> Value:
    """Return a JSON file of a model as a ``kind``. Raises ``ModelError`` with ``fix``."""
    try:
        return read_json(file, kind)
    except DataError as error:
        raise ModelError(f"{error}; {fix}") from error


def read_roles(name: str) -> dict[str, str] | None:
    """Return the adapter folders of ``name`` by role; ``None`` for a model without roles. Raises ``ModelError``."""
    folder = expanded(name)
    file = folder / ROLES
    if not file.is_file():
        return None
    described = read_description(file, dict[str, str], "restore the file: it names the folder of each role's adapter")
    if not described or any(path != adapter_name(role) for role, path in described.items()):
        raise ModelError(f"{file}: names folders that are not those of its roles; restore the file, or train again")
    return {role: str(folder / path) for role, path in described.items()}


def model_of_role(name: str, game: str, role: str) -> str:
    """Return the model that plays ``role`` of ``game``: the adapter for it, or ``name`` itself if it has no roles.

    Raises ``ModelError`` for a model with adapters only for other roles.
    """
    found = read_roles(name)
    if found is None:
        return name
    if f"{game}/{role}" not in found:
        raise ModelError(f"{name}: has no adapter for {game}/{role}, only for {', '.join(found)}")
    return found[f"{game}/{role}"]


def models_of(name: str) -> list[str]:
    """Return the adapters of a model that has one for each role, else the model itself."""
    found = read_roles(name)
    return [name] if found is None else [*found.values()]


def weights_of_adapter(weights: Mapping[str, Value], adapter: str) -> dict[str, Value]:
    """Return the weights of ``adapter``, by their names in a model with a single adapter."""
    part = rf"\.{adapter}(?=\.|$)"  # the names of an adapted embedding's end with it
    return {re.sub(part, f".{LONE_ADAPTER}", name): value for name, value in weights.items() if re.search(part, name)}
