"""The policy in training: model, optimiser, and copies of its weights for a KL term or an average."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, broadcast_object_list, disable_fsdp_ram_efficient_loading, gather_object
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from spag.algorithms.online_settings import MovingReference, OnlineSettings
from spag.algorithms.settings import OfflineSettings
from spag.learning.devices import allocate_moments, make_optimizer
from spag.learning.job import TrainingJob
from spag.learning.sharding import gathered_weights, is_sharded, whole_weights, whole_zero3_weights
from spag.learning.start import trainable
from spag.models.adapters import use_adapter
from spag.models.finding import ADAPTER_CONFIG
from spag.models.loading import load_tokenizer, save_model
from spag.models.roles import adapter_name, models_of
from spag.models.samples import Batch
from spag.models.weights import weights_of

_LONGEST = 1 << 20
"""Longest sample of an online phase, in tokens, a bound for attention windows: samples are never cut."""


class WeightCopy:
    """Another set of values for the trained weights; frozen weights are shared. Sharded weights stay sharded.

    With LoRA this is only the adapter, so a reference policy needs no second model.
    """

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self.weights = weights
        self.values: list[Tensor] = [weight.detach().clone() for weight in weights]

    @torch.no_grad()
    def move(self, share: float) -> None:
        """Move ``share`` of the way to the current weights; 1 copies them."""
        for value, weight in zip(self.values, self.weights, strict=True):
            value.lerp_(weight.detach(), share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model compute with these values until the block ends."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's values and these."""
        for at, weight in enumerate(self.weights):
            if isinstance(weight, DTensor):  # FSDP2 keeps views of the storage: its contents must change, not its place
                before = weight.detach().clone()
                weight.copy_(self.values[at])
                self.values[at].copy_(before)
            else:
                weight.data, self.values[at] = self.values[at], weight.data


class Reference(WeightCopy):
    """The reference policy of a KL term: the start model, or a policy that follows the trained one.

    As in magnetic mirror descent (arXiv 2206.05825) and NashPG (arXiv 2510.18183), where a moving anchor converges to
    an equilibrium and a fixed one stays biased. ``folder``: a fixed reference on a CPU is kept there, in an unnamed
    file, so that it takes memory only while the model uses it.
    """

    def __init__(
        self, weights: Sequence[nn.Parameter], settings: "str | MovingReference", folder: Path | None = None
    ) -> None:
        super().__init__(weights)
        self.settings = settings if isinstance(settings, MovingReference) else None
        on_cpu = all(weight.device.type == "cpu" and not isinstance(weight, DTensor) for weight in weights)
        self._file = None
        if folder is not None and self.settings is None and on_cpu:
            self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as the reference is used
            weakref.finalize(self, self._file.close)
            torch.save(self.values, self._file)
            self._file.flush()
            self.values = []

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with self._in_memory(), super().in_place():
            yield

    @contextmanager
    def _in_memory(self) -> Iterator[None]:
        if self._file is not None:
            self.values = torch.load(f"/dev/fd/{self._file.fileno()}", mmap=True, weights_only=True)
        yield
        if self._file is not None:
            self.values = []

    @torch.no_grad()
    def equals_policy(self) -> bool:
        """Return whether the trained weights are those of the reference. Every process must call it."""
        with self._in_memory():
            pairs = zip(self.values, (weight.detach() for weight in self.weights), strict=True)
            here = all(
                torch.equal(*(one.to_local() if isinstance(one, DTensor) else one for one in pair)) for pair in pairs
            )
        return all(gather_object([here]))

    def after_step(self, step: int) -> bool:
        """Update the reference after ``step`` as the settings require; return whether it changed."""
        if self.settings is None or (self.settings.every is not None and step % self.settings.every):
            return False
        self.move(self.settings.ema or 1.0)
        return True


class TrainedPolicy:
    """``bare`` is the model, ``model`` is accelerate's wrapper; both change in place. ``adapters``: by GAME/ROLE,
    whether it is trained; empty unless each role has its own.
    """

    def __init__(self, job: TrainingJob, accelerator: Accelerator, *, needs_reference: bool) -> None:
        settings = job.settings
        self.accelerator, self.settings, self.start_from = accelerator, settings, job.start_from
        self.dtype = getattr(torch, job.model.dtype)
        online = settings if isinstance(settings, OnlineSettings) else None
        self.tokenizer = load_tokenizer(models_of(job.start_from)[0], trust_remote_code=job.model.trust_remote_code)
        kept = online.roles if online else "both"
        roles = job.roles if settings.per_role else ()
        self.adapters = {role: kept in ("both", role.rpartition("/")[2]) for role in roles}
        start = job.model.model_copy(update={"name": job.start_from})
        longest = settings.max_length if isinstance(settings, OfflineSettings) else _LONGEST
        sharded = settings.parallel != "replicas"
        bare, capabilities = trainable(
            start, settings.lora, accelerator, job.seed, longest, self.adapters, sharded=sharded
        )
        self.capabilities = replace(capabilities, checkpointed=settings.gradient_checkpointing)
        if settings.gradient_checkpointing and settings.parallel != "fsdp":  # there accelerate wraps the layers
            bare.gradient_checkpointing_enable({"use_reentrant": False})
        self.bare: Any = bare
        self.model, self.optimizer = accelerator.prepare(bare, make_optimizer(bare, settings))
        if isinstance(self.model, DistributedDataParallel):  # each process computes the buffers its texts need
            self.model.broadcast_buffers = False
        # Else transformers would leave models empty that this process loads to play, unless it is the first.
        disable_fsdp_ram_efficient_loading()
        if settings.parallel == "replicas":  # the others have optimisers of their own
            allocate_moments(self.optimizer.optimizer)
        trained = [weight for weight in bare.parameters() if weight.requires_grad]
        self.reference = Reference(trained, online.reference, job.output) if online and needs_reference else None
        self.average = WeightCopy(trained) if online and online.average_decay else None

    def as_engines_load_it(self, output: Path) -> str:
        """Return the folder or name for engines to load: the start model, or new adapters, which are written first."""
        is_adapter = (Path(self.start_from) / ADAPTER_CONFIG).is_file()
        if not self.adapters and (self.settings.lora is None or is_adapter):
            return self.start_from
        folder = output / "start"
        [is_there] = broadcast_object_list([folder.is_dir()])  # all save, or none: shards are gathered
        if not is_there:
            self.save(folder)
        return str(folder)

    def use_role(self, batch: Batch, groups: Sequence[str]) -> None:
        """Activate the adapter of a micro-batch, if each role has its own."""
        if self.adapters:
            use_adapter(self.bare, adapter_name(groups[int(batch["adapter" if "adapter" in batch else "group"].max())]))

    @property
    def moving(self) -> dict[str, list[Tensor]]:
        """The weights of the policies besides the trained one that change from step to step."""
        follows = self.reference is not None and self.reference.settings is not None
        copies = {"average": self.average, "reference": self.reference if follows else None}
        return {name: copy.values for name, copy in copies.items() if copy is not None}

    # What sources of games use. Every process must call ``weights`` and ``save``.

    def weights(self) -> dict[str, Tensor]:
        """Return the full trained weights by name; of a sharded policy in the precision of play."""
        if is_sharded(self.bare):
            return gathered_weights(self.bare, self.dtype)
        return {name: weight.detach() for name, weight in self.bare.named_parameters() if weight.requires_grad}

    def save(self, folder: Path) -> None:
        """Save the policy as a model or its roles' adapters, written by the first process; it is there on return.

        Full weights are saved in the precision of the settings.
        """
        weights = whole_weights(self.bare) if is_sharded(self.bare) else None
        if self.accelerator.distributed_type is DistributedType.DEEPSPEED:
            weights = whole_zero3_weights(self.bare)
        if self.accelerator.is_main_process:
            if self.settings.save_dtype == "bfloat16" and not hasattr(self.bare, "peft_config"):
                exact = weights_of(self.bare) if weights is None else weights.items()  # of tied weights only one
                weights = {name: weight.detach().bfloat16() for name, weight in exact}
            save_model(self.bare, self.tokenizer, folder, weights, [*self.adapters])
        self.accelerator.wait_for_everyone()

    @contextmanager
    def final(self) -> Iterator[None]:
        """Use the policy that training would end with now: the average of the weights, if one is kept."""
        average = self.average.in_place() if self.average is not None else nullcontext()
        with average, self.accelerator.autocast():
            yield
