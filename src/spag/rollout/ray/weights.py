"""Transfer of weights to engines on other nodes: models go through storage visible to all nodes, a folder or any fsspec
URL.

A checkpoint is stored under its digest; the list of its files is written last, so that a partial copy is never loaded.
Weights that change between the plays of online learning go through Ray's object store as numpy arrays, which Ray copies
in one piece, whereas it pickles tensors: 538 MB took 4 s as tensors.
"""

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec  # type: ignore[import-untyped]

from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError, ModelError, StorageError, first_line
from spag.models.finding import ADAPTER_CONFIG, adapter_base
from spag.models.identity import weights_digest
from spag.models.roles import read_roles
from spag.storage.home import expanded
from spag.storage.jsonfile import read_json
from spag.storage.store import folder_beside, write_json

if TYPE_CHECKING:
    from torch import Tensor

_LIST = "files.json"
_SHARED = "shared:"


def publish(model: ModelConfig, storage: str | None) -> ModelConfig:
    """Return ``model`` under a name that other nodes find: its full path, or its copy in ``storage``, made if missing.

    Only folders are copied, adapters with the folder of their base. Raises ``ModelError`` for a folder that is not a
    model, ``ConfigError`` for a storage URL of an unknown kind, ``StorageError`` if it cannot be written.
    """
    folder = expanded(model.name)
    if storage is None or not folder.is_dir():  # processes on other nodes have other working folders
        return model.model_copy(update={"name": str(folder.resolve())}) if folder.exists() else model
    target = f"{storage.rstrip('/')}/{folder.parent.name}-{weights_digest(str(folder))}"
    folders = (folder, *map(Path, (read_roles(str(folder)) or {}).values()))
    files = (file for part in folders for file in sorted(part.iterdir()) if file.is_file())
    names = [file.relative_to(folder).as_posix() for file in files]
    try:
        system, root = fsspec.core.url_to_fs(target)
        if not system.exists(f"{root}/{_LIST}"):
            base = next(filter(None, map(adapter_base, folders)), None)
            shared = base and publish(model.model_copy(update={"name": base}), storage).name
            for name in names:
                system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
                system.put_file(str(folder / name), f"{root}/{name}")
            system.pipe_file(f"{root}/{_LIST}", json.dumps({"files": names, "base": shared}).encode())
    except (ValueError, ImportError) as error:
        raise ConfigError(f"cluster.storage={storage}: {first_line(error)}") from error
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {first_line(error)}") from error
    # a relative path means another folder on another node
    return model.model_copy(update={"name": _SHARED + system.unstrip_protocol(root)})


def fetch(model: ModelConfig, cache: Path) -> ModelConfig:
    """Return ``model`` with published weights copied to this node, under ``cache``. Raises ``ModelError``."""
    if not model.name.startswith(_SHARED):
        return model
    url = model.name.removeprefix(_SHARED)
    system, root = fsspec.core.url_to_fs(url)
    local = cache / "weights" / Path(root).name
    local.parent.mkdir(parents=True, exist_ok=True)
    with (local.parent / f".{local.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker per node fetches, the others wait for it
        if not local.is_dir():
            try:
                listed = json.loads(system.cat_file(f"{root}/{_LIST}"))
                base = listed["base"] and fetch(model.model_copy(update={"name": listed["base"]}), cache).name
                with folder_beside(local) as beside:
                    for name in listed["files"]:
                        (beside / name).parent.mkdir(exist_ok=True)
                        system.get_file(f"{root}/{name}", str(beside / name))
                        if Path(name).name == ADAPTER_CONFIG:
                            about = read_json(beside / name, dict[str, Any])
                            write_json(beside / name, about | {"base_model_name_or_path": base})
                    beside.rename(local)
            except OSError as error:
                raise ModelError(
                    f"{url}: the weights cannot be read: {first_line(error)}; does this node see cluster.storage?"
                ) from error
    return model.model_copy(update={"name": str(local)})


def pack(weights: "Mapping[str, Tensor]", dtype: str | None = None) -> dict[str, tuple[Any, str, tuple[int, ...]]]:
    """Return each weight's bytes, (N,) uint8, in ``dtype`` if given; its dtype; and its shape."""
    import torch  # noqa: PLC0415 - slow, and only learning needs it

    found = {}
    for name, weight in weights.items():
        data = weight.detach().to(getattr(torch, dtype) if dtype else weight.dtype).cpu().contiguous()
        kind = str(data.dtype).removeprefix("torch.")
        found[name] = data.reshape(-1).view(torch.uint8).numpy(), kind, tuple(weight.shape)
    return found


def unpack(packed: "Mapping[str, tuple[Any, str, tuple[int, ...]]]") -> "dict[str, Tensor]":
    """Return the tensors given to ``pack``, in their own memory."""
    import torch  # noqa: PLC0415

    return {
        name: torch.from_numpy(flat.copy()).view(getattr(torch, dtype)).reshape(shape)
        for name, (flat, dtype, shape) in packed.items()
    }
