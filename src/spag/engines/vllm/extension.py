"""Methods added to vLLM's workers (``worker_extension_cls``), called by name with ``collective_rpc``.

vLLM reports one kind of log-probability, raw or processed, may sample padding of the vocabulary, takes new weights only
from GPUs, and loads them layer by layer, which misses one case on CPUs. All four are corrected here. vLLM mixes these
methods into its worker class, so nothing of vLLM is imported before they run.
"""

from collections.abc import Mapping
from typing import Any

import torch


class WorkerExtension:
    """Mixed into ``vllm.v1.worker.gpu_worker.Worker``."""

    model_runner: Any
    vllm_config: Any

    def extend_sampler(self, token_count: int) -> None:
        """Ban the tokens from ``token_count`` on, and replace the likeliest token's log-probability, in the second
        column of every sample, by the sampled token's raw one.

        The first column holds that under the sampling distribution (``logprobs_mode="processed_logprobs"``). A request
        asks for both with ``logprobs=1``.
        """
        sampler = self.model_runner.sampler
        sampler.__class__ = _extended(type(sampler), token_count)

    def update_weights_from_host(self, update_info: Mapping[str, Any], file: str) -> None:
        """Like the worker's ``update_weights`` in the ``ipc`` transfer, but with a ``file`` as buffer."""
        from vllm.config import set_current_vllm_config  # noqa: PLC0415

        sizes = update_info["tensor_sizes"]
        buffer = torch.from_file(file, shared=True, size=sum(sizes), dtype=torch.uint8)
        described = (update_info[key] for key in ("names", "dtype_names", "shapes"))
        parts = zip(*described, buffer.split_with_sizes(sizes), strict=True)
        # copies, since vLLM keeps the parts of a layer until it has them all, and the buffer is reused
        weights = [(name, part.clone().view(getattr(torch, dtype)).view(shape)) for name, dtype, shape, part in parts]
        with set_current_vllm_config(self.vllm_config):
            self.model_runner.get_model().load_weights(weights)

    def refresh_packed_weights(self) -> None:
        """Repack the output layer: reloading packs a tied one under the embedding's name only."""
        for module in self.model_runner.get_model().modules():
            # other layers replace their weights by packed ones
            if hasattr(module, "cpu_linear") and module.weight.numel():
                module.quant_method.process_weights_after_loading(module)


def _extended(sampler: type[Any], token_count: int) -> type[Any]:
    """Return a subclass of a sampler whose first argument is the logits, (B, V)."""

    class ExtendedSampler(sampler):  # type: ignore[misc]
        def __call__(self, logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            raw = logits.log_softmax(-1, dtype=torch.float32)  # first, since later steps may change the logits in place
            logits[:, token_count:] = -torch.inf
            output = super().__call__(logits, *args, **kwargs)
            if output.logprobs_tensors is not None:
                ids, logprobs = output.logprobs_tensors.logprob_token_ids, output.logprobs_tensors.logprobs
                ids[:, 1:2] = ids[:, :1]
                logprobs[:, 1:2] = raw.gather(-1, ids[:, :1].long())
            return output

    return ExtendedSampler
