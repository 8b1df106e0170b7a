"""A stand-in for vLLM on a GPU of a given memory, for machines without one: it counts bytes, and refuses as vLLM does.

The GPU is a folder: ``total`` holds its bytes, one file for each holder what that holds, ``events`` what happened. The
stand-in runs in our real worker processes, which find it as the package ``vllm`` (``installed``), and answers every
request with a few tokens. It has the methods that ``spag.engines.vllm.worker`` calls, and no others. A buffer on the
GPU is a file whose handle is ``(path,)`` (``gpu_buffers``, in the place of ``transfer.gpu_buffers``).

Torch is imported where weights are touched: most workers touch none, and it takes them seconds.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

GIB = 2**30
WORKING = GIB
"""What an engine takes besides weights and cache; less than the plan's guess."""
LEFT_ASLEEP = GIB // 2
UUID = "00000000-1111-2222-3333-444444444444"
"""The GPU's id."""


@dataclass(frozen=True)
class FakeGPU:
    """The memory of a GPU, which several processes share."""

    folder: Path

    @classmethod
    def of(cls, folder: Path, total: float) -> "FakeGPU":
        (folder / "held").mkdir(parents=True)
        (folder / "total").write_text(str(int(total)))
        return cls(folder)

    @property
    def total(self) -> int:
        return int((self.folder / "total").read_text())

    @property
    def free(self) -> int:
        return self.total - sum(int(path.read_text()) for path in (self.folder / "held").iterdir())

    def hold(self, who: str, count: float) -> None:
        """Let ``who`` hold so many bytes. Raises ``RuntimeError`` as CUDA does where they are not free."""
        path = self.folder / "held" / who
        before = int(path.read_text()) if path.exists() else 0
        if count - before > self.free:
            asked, free = (count - before) / GIB, self.free / GIB
            raise RuntimeError(f"CUDA out of memory. Tried to allocate {asked:.2f} GiB; {free:.2f} GiB is free.")
        path.write_text(str(int(count)))
        self.note(f"{who} holds {count / GIB:.2f}")

    def note(self, event: str) -> None:
        with (self.folder / "events").open("a") as file:
            file.write(f"{event}\n")

    def events(self, *words: str) -> list[str]:
        """Return the events that hold one of ``words``, in order."""
        lines = (self.folder / "events").read_text().splitlines()
        return [line for line in lines if any(word in line for word in words)]


class EngineArgs(SimpleNamespace):
    pass


class SamplingParams(SimpleNamespace):
    pass


@dataclass(frozen=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False


@dataclass
class LLMEngine:
    args: EngineArgs
    gpu: FakeGPU
    weights_bytes: int
    weights: str | None
    name: str = field(default_factory=lambda: f"vllm-{os.getpid()}")
    asleep: set[str] = field(default_factory=set)
    waiting: list[tuple[str, Any]] = field(default_factory=list)
    stale: bool = False
    transfer: dict[str, Any] | None = None
    updating: "dict[str, torch.Tensor] | None" = None

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> "LLMEngine":
        gpu, weights = FakeGPU(Path(os.environ["FAKE_GPU"])), int(os.environ["FAKE_WEIGHTS"])
        asked = args.gpu_memory_utilization * gpu.total
        if gpu.free < asked:
            raise ValueError(
                f"Free memory on device cuda:0 ({gpu.free / GIB:.2f}/{gpu.total / GIB:.2f} GiB) on startup is less "
                f"than desired GPU memory utilization ({args.gpu_memory_utilization}, {asked / GIB:.2f} GiB)."
            )
        if asked < weights + WORKING:
            raise ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.")
        engine = cls(args, gpu, weights, args.model)
        gpu.hold(engine.name, asked)
        return engine

    @property
    def engine_core(self) -> SimpleNamespace:
        return SimpleNamespace(shutdown=lambda: self.gpu.hold(self.name, 0))

    def collective_rpc(self, method: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> None:
        if method not in ("extend_sampler", "refresh_packed_weights"):
            getattr(self, f"_{method}")(*args, **kwargs or {})

    def _reload_weights(self, weights_path: str) -> None:
        assert "weights" not in self.asleep, "weights have no memory"
        assert Path(weights_path).is_dir()
        self.weights = weights_path
        self.gpu.note(f"{self.name} loads")

    def _init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        assert getattr(self.args, "weight_transfer_config", None) == {"backend": "ipc"}
        _checked(init_info, {"packed"}, set(), "init_info for IPCWeightTransferEngine")
        assert self.transfer is None, "a second handshake"
        self.transfer = init_info

    def _start_weight_update(self) -> None:
        if self.transfer is None:
            raise RuntimeError("Weight transfer not configured.")
        if self.updating is not None:
            raise RuntimeError("start_weight_update called while a weight update is already active.")
        assert "weights" not in self.asleep, "weights have no memory"
        assert not self.waiting, "weights change under requests"
        self.updating = {}
        self.gpu.note(f"{self.name} begins to take weights")

    def _update_weights(self, update_info: dict[str, Any]) -> None:
        if self.updating is None:
            raise RuntimeError("start_weight_update must be called before update_weights.")
        self._open(update_info)

    def _open(self, update_info: dict[str, Any]) -> None:
        """As the ``ipc`` transfer, packed: a buffer that another process has on the same GPU."""
        assert self.transfer == {"packed": True} and self.updating is not None
        handles = update_info["ipc_handles"]
        if UUID not in handles or os.environ.get("FAKE_REFUSES") == "ipc":
            self.updating = None
            raise ValueError(f"IPC handle not found for GPU UUID {UUID}. Available UUIDs: {list(handles)}")
        self._take(update_info, handles[UUID][0], "ipc")

    def _update_weights_from_host(self, update_info: dict[str, Any], file: str) -> None:
        assert self.updating is not None
        self._take(update_info, file, "host")

    def _take(self, update_info: dict[str, Any], file: str, way: str) -> None:
        import torch

        assert self.updating is not None
        sizes = update_info["tensor_sizes"]
        parts = torch.from_file(file, shared=True, size=sum(sizes), dtype=torch.uint8).clone().split_with_sizes(sizes)
        named = zip(update_info["names"], update_info["dtype_names"], update_info["shapes"], parts, strict=True)
        self.updating |= {name: part.view(getattr(torch, dtype)).view(shape) for name, dtype, shape, part in named}
        self.gpu.note(f"{self.name} takes {len(sizes)} weights by {way}")

    def _finish_weight_update(self) -> None:
        from safetensors.torch import save_file

        if self.updating is None:
            raise RuntimeError("finish_weight_update called without a matching start_weight_update.")
        save_file(self.updating, self.gpu.folder / "weights.safetensors")
        self.weights, self.updating, self.stale = "new", None, True

    def add_lora(self, request: Any) -> None:
        assert not self.asleep and not self.waiting and request.load_inplace
        assert (Path(request.lora_path) / "adapter_model.safetensors").is_file()
        self.gpu.note(f"{self.name} takes {request.lora_name}")

    def reset_prefix_cache(self) -> bool:
        assert not self.asleep, "the cache has no memory"
        self.stale = False
        self.gpu.note(f"{self.name} forgets")
        return True

    def sleep(self, level: int) -> None:
        assert getattr(self.args, "enable_sleep_mode", False), "Sleep mode is not enabled."
        assert not self.waiting and not self.asleep
        self.asleep = {"weights", "kv_cache"}
        self.weights = None if level == 2 else self.weights
        self.gpu.note(f"{self.name} sleeps at level {level}")
        self.gpu.hold(self.name, LEFT_ASLEEP)

    def wake_up(self, tags: list[str] | None = None) -> None:
        assert self.asleep, "nothing sleeps"
        self.asleep -= set(tags or ("weights", "kv_cache"))
        self.gpu.note(f"{self.name} wakes {' and '.join(tags or ())}")
        whole = self.args.gpu_memory_utilization * self.gpu.total
        self.gpu.hold(self.name, LEFT_ASLEEP + self.weights_bytes if self.asleep else whole)

    def add_request(self, key: str, prompt: Any, sampling: SamplingParams, lora_request: Any = None) -> None:
        assert not self.asleep, "requests to an engine that sleeps"
        assert self.updating is None and not self.stale, "requests in the middle of an update"
        assert self.weights is not None, "requests to an engine whose weights were dropped"
        self.waiting.append((key, sampling))
        self.gpu.note(f"{self.name} plays{f' {lora_request.lora_name}' if lora_request else ''}")

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Any]:
        done = [self._output(key, sampling.stop_token_ids[0]) for key, sampling in self.waiting]
        self.waiting.clear()
        return done

    @staticmethod
    def _output(key: str, stop: int) -> Any:
        tokens = [50, 51, 10**6 if os.environ.get("FAKE_UNKNOWN") else stop]
        values = SimpleNamespace(logprobs=[-1.0] * (2 * len(tokens)))
        said = SimpleNamespace(logprobs=values, token_ids=tokens, finish_reason="stop")
        return SimpleNamespace(request_id=key, outputs=[said], finished=True)


def _checked(info: dict[str, Any], known: set[str], needed: set[str], what: str) -> dict[str, Any]:
    """Refuse what a backend does not know, or lacks, as the constructors of vLLM's classes do."""
    if wrong := sorted(info.keys() - known):
        raise ValueError(f"Invalid {what}: __init__() got an unexpected keyword argument {wrong[0]!r}")
    if missing := sorted(needed - info.keys()):
        raise ValueError(f"Invalid {what}: __init__() missing {len(missing)} required arguments: {missing[0]!r}")
    return info


def installed(folder: Path, gpu: FakeGPU, weights: float) -> dict[str, str]:
    """Install the stand-in as ``vllm`` under ``folder``; return the environment in which our workers find it, for a
    model of so many bytes.
    """
    (folder / "vllm" / "lora").mkdir(parents=True)
    (folder / "vllm" / "lora" / "__init__.py").touch()
    (folder / "vllm" / "lora" / "request.py").write_text("from fake_vllm import LoRARequest\n")
    (folder / "vllm" / "__init__.py").write_text("from fake_vllm import EngineArgs, LLMEngine, SamplingParams\n")
    paths = os.pathsep.join([str(folder), str(Path(__file__).parent)])
    return {"PYTHONPATH": paths, "FAKE_GPU": str(gpu.folder), "FAKE_WEIGHTS": str(int(weights))}


@contextmanager
def gpu_buffers(gpus: Sequence[int], size: int) -> "Iterator[tuple[list[torch.Tensor], dict[str, Any]]]":
    """Stand in for ``spag.engines.vllm.transfer.gpu_buffers``: one GPU, and a file for its memory."""
    import torch

    assert list(gpus) == [0]
    gpu = FakeGPU(Path(os.environ["FAKE_GPU"]))
    file = gpu.folder / "buffer"
    gpu.hold("buffer", size)
    file.write_bytes(bytes(size))
    yield [torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8)], {UUID: (str(file),)}
    file.unlink()
    gpu.hold("buffer", 0)
