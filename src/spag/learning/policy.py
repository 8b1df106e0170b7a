"""The policy in training: model, optimiser, and the policies kept for a KL term or an average."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, disable_fsdp_ram_efficient_loading
from torch import Tensor, nn
from transformers import PreTrainedModel

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import OfflineSettings
from spag.learning import checkpoints
from spag.learning.batches import Batch
from spag.learning.devices import allocate_moments, make_optimizer
from spag.learning.phase import Phase
from spag.learning.policy_copies import Reference, WeightCopy
from spag.learning.sharding import is_sharded, whole_weights
from spag.learning.start import trainable
from spag.learning.updates import save_policy
from spag.models.adapters import use_adapter
from spag.models.finding import ADAPTER_CONFIG
from spag.models.loading import load_tokenizer
from spag.models.roles import adapter_name, models_of

_LONGEST = 1 << 20
"""Longest sample of an online phase, in tokens, a bound for attention windows: samples are never cut."""


class TrainedPolicy:
    """``bare`` is the model, ``model`` is accelerate's wrapper; both change in place. ``adapters``: by GAME/ROLE,
    whether it is trained; empty unless each role has its own.
    """

    def __init__(self, phase: Phase, accelerator: Accelerator, *, needs_reference: bool) -> None:
        settings = phase.settings
        self.accelerator, self.settings, self.start_from = accelerator, settings, phase.start_from
        online = settings if isinstance(settings, OnlineSettings) else None
        self.tokenizer = load_tokenizer(models_of(phase.start_from)[0], trust_remote_code=phase.model.trust_remote_code)
        kept = online.roles if online else "both"
        roles = phase.roles if settings.per_role else ()
        self.adapters = {role: kept in ("both", role.rpartition("/")[2]) for role in roles}
        start = phase.model.model_copy(update={"name": phase.start_from})
        longest = settings.max_length if isinstance(settings, OfflineSettings) else _LONGEST
        bare, capabilities = trainable(start, settings.lora, accelerator, phase.seed, longest, self.adapters)
        self.capabilities = replace(capabilities, checkpointed=settings.gradient_checkpointing)
        if settings.gradient_checkpointing and settings.parallel != "fsdp":  # there accelerate wraps the layers
            bare.gradient_checkpointing_enable({"use_reentrant": False})
        self.bare: Any = bare
        self.model, self.optimizer = accelerator.prepare(bare, make_optimizer(bare, settings))
        # Else transformers would leave models empty that this process loads to play, unless it is the first.
        disable_fsdp_ram_efficient_loading()
        if settings.parallel == "replicas":  # the others have optimisers of their own
            allocate_moments(self.optimizer.optimizer)
        trained = [weight for weight in accelerator.unwrap_model(self.model).parameters() if weight.requires_grad]
        self.reference = Reference(trained, online.reference, phase.output) if online and needs_reference else None
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

    def save_state(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Save everything needed to resume training, and ``state``, plain JSON."""
        checkpoints.save(folder, self.accelerator, self.model, self.optimizer, state, self._moving)

    def load_state(self, folder: Path) -> None:
        """Load the result of ``save_state``."""
        checkpoints.load(folder, self.accelerator, self.model, self.optimizer, self._moving)

    @property
    def _moving(self) -> dict[str, WeightCopy]:
        """The policies besides the trained one that change from step to step."""
        follows = self.reference is not None and self.reference.settings is not None
        copies = {"average": self.average, "reference": self.reference if follows else None}
        return {name: copy for name, copy in copies.items() if copy is not None}

    # What sources of games use. Every process must call ``wait``, ``weights`` and ``save``.

    def wait(self) -> None:
        """Wait until all processes get here."""
        self.accelerator.wait_for_everyone()

    def weights(self) -> dict[str, Tensor]:
        """Return the full trained weights by name."""
        model: nn.Module = self.accelerator.unwrap_model(self.model)
        if is_sharded(model):
            return whole_weights(model)
        return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}

    def save(self, folder: Path) -> None:
        """Save the policy as a model, written by the first process; it is there when this returns."""
        weights = checkpoints.final_weights(self.accelerator, self.model)
        if self.accelerator.is_main_process:
            save_policy(self.bare, self.tokenizer, folder, self.settings, [*self.adapters], weights)
        self.wait()

    def policy(self) -> PreTrainedModel | None:
        """Return the model, if this process has all of it."""
        return None if is_sharded(self.bare) else self.bare

    @contextmanager
    def final(self) -> Iterator[None]:
        """Use the policy that training would end with now: the average of the weights, if one is kept."""
        average = self.average.in_place() if self.average is not None else nullcontext()
        with average, self.accelerator.autocast():
            yield
