"""What training hands to transformers, DeepSpeed and bitsandbytes, and QLoRA for real where bitsandbytes is
installed.
"""

import importlib.util
import re
import shlex
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tiny import MODEL, job, settings, train_tiny, train_until

import forked
from spag.algorithms.settings import LoraConfig, UpdateSettings
from spag.config.files import load_config
from spag.config.schema import ClusterConfig, ModelConfig
from spag.core.errors import ConfigError
from spag.core.progress import SilentReporter
from spag.learning import devices, worker
from spag.learning.batches import TrainingData
from spag.learning.devices import allocate_moments, make_accelerator, make_optimizer
from spag.learning.job import TrainingJob
from spag.learning.launch import process_count, train_on
from spag.learning.references import logprobs_of
from spag.learning.sharding import deepspeed_settings, fsdp_plugin
from spag.learning.start import load
from spag.models.forward import Capabilities
from spag.models.loading import load_model, load_tokenizer, save_model
from spag.models.samples import Batch, EncodedSample
from tiny_model import make_model

QLORA = LoraConfig(rank=4, alpha=8, quantize=True)
EIGHT_BITS = {"optimizer": "adamw_8bit"}
ADAPTER = "adapter_model.safetensors"


# What upstream's configs/default_offload_opt_param.json decides and our presets do not; "auto" in both is filled in by
# Trainer.
UPSTREAMS_ZERO = {
    "stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": True},
    "offload_param": {"device": "cpu", "pin_memory": True},
    "overlap_comm": True,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
}
CLOSEST_RUN = re.compile(r"spag run llama2-7b --output runs/llama2-7b-paper .*?(?=\n```)", re.S)


def test_the_closest_run_shards_and_schedules_as_upstreams_deepspeed_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    page = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text()
    [command] = CLOSEST_RUN.findall(page)
    words = shlex.split(command.replace("\\\n", ""))
    config = load_config("llama2-7b", [value for option, value in pairwise(words) if option == "--set"])
    for training in (phase.settings for phase in config.phases):
        assert training.parallel == "deepspeed"
        chosen = deepspeed_settings(training, config.model.dtype)
        assert chosen["zero_optimization"] == UPSTREAMS_ZERO
        assert (chosen["bf16"], chosen["fp16"], chosen["gradient_clipping"]) == (
            {"enabled": True},
            {"enabled": False},
            1.0,
        )
        assert training.lr_scheduler == "warmup_decay_0.13"
        [group] = make_optimizer(torch.nn.Linear(2, 2, bias=False), training).param_groups
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.999), 1e-8, 0.0)
    assert config.phases[1].settings.loss_group == 2


@pytest.mark.parametrize("name", ["adamw", "adamw_8bit"])
def test_moments_allocated_before_the_first_step_are_those_of_the_optimizer(name: str) -> None:
    if name == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    states, weights = [], []
    for beforehand in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(128, 64)
        optimizer = make_optimizer(model, UpdateSettings(optimizer=name, learning_rate=0.01))
        if beforehand:
            allocate_moments(optimizer)
            assert len(optimizer.state) == 2
        for step in range(1, 4):
            model(torch.full((2, 128), 0.1 * step)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        states.append([optimizer.state[weight] for weight in model.parameters()])
        weights.append([*model.parameters()])
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


def test_fsdp_shards_decoder_layers_and_recomputes_them_by_itself() -> None:
    chosen = fsdp_plugin(settings(gradient_checkpointing=True).settings, "bfloat16")
    assert (chosen.fsdp_version, chosen.activation_checkpointing) == (2, True)
    assert chosen.mixed_precision_policy.param_dtype == torch.bfloat16
    assert chosen.mixed_precision_policy.reduce_dtype == torch.float32
    assert not fsdp_plugin(settings().settings, "float32").activation_checkpointing


def test_sharing_that_cannot_work_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(expected: str, model: ModelConfig = MODEL, **changes: object) -> None:
        with pytest.raises(ConfigError, match=expected):
            make_accelerator(model, settings(**changes).settings, 0)

    refused(r"parallel=fsdp: processes share the model, so call spag\.learning\.launch", parallel="fsdp")
    monkeypatch.setenv("LOCAL_RANK", "0")
    if importlib.util.find_spec("bitsandbytes"):  # else its absence is what is said
        refused(r"parallel=fsdp with lora\.quantize", parallel="fsdp", lora=QLORA.model_dump())
        refused("parallel=fsdp with optimizer=adamw_8bit: .* set parallel=replicas", parallel="fsdp", **EIGHT_BITS)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(
        r"parallel=deepspeed: deepspeed is not installed; pip install deepspeed, or set parallel=fsdp",
        parallel="deepspeed",
    )
    refused("optimizer=adamw_8bit: bitsandbytes is not installed; .* or set optimizer=adamw", **EIGHT_BITS)
    refused(r"lora\.quantize: bitsandbytes is not installed; pip install bitsandbytes", lora=QLORA.model_dump())


def test_a_start_model_below_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an adapter there counts as none, and online play gets a copy of it."""
    jobs: list[TrainingJob] = []
    monkeypatch.setattr(worker, "Loop", lambda job, *_: SimpleNamespace(run=lambda: jobs.append(job)))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    worker.run_job(job(Path("~/model"), tmp_path / "out"))
    assert [job.start_from for job in jobs] == [str((tmp_path / "model").resolve())]


def test_training_on_a_cluster_without_ray_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    with pytest.raises(
        ConfigError, match=r"^cluster\.address=auto: ray is not installed; pip install '\.\[cluster\]'$"
    ):
        train_on(job(tmp_path, tmp_path / "run", cluster=ClusterConfig(address="auto")), SilentReporter(), "training")


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model wide enough for blocks of 64 weights."""
    return make_model(tmp_path_factory.mktemp("wide") / "model", hidden_size=64, intermediate_size=128)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_qlora_trains_the_adapter_that_lora_trains_on_the_same_coarse_weights(
    wide_folder: Path, tmp_path: Path
) -> None:
    from bitsandbytes.nn import Params4bit

    chosen = settings(lora=QLORA.model_dump(), gradient_checkpointing=True)
    first = train_tiny(wide_folder, tmp_path / "four_bits", chosen)
    accelerator = make_accelerator(MODEL, chosen.settings, 0)
    coarse = load(MODEL.model_copy(update={"name": str(wide_folder)}), QLORA, accelerator, 0, {}).unload()
    kinds = {name: type(weight) for name, weight in coarse.named_parameters()}
    assert kinds["model.layers.0.mlp.up_proj.weight"] is Params4bit
    assert kinds["lm_head.weight"] is torch.nn.Parameter

    plain = load_model(str(wide_folder), dtype="float32", device="cpu")
    weights = {name: value.float() for name, value in coarse.dequantize().state_dict().items()}
    assert max((weights[name] - value).abs().max() for name, value in plain.state_dict().items()) > 1e-2
    plain.load_state_dict(weights)
    save_model(plain, load_tokenizer(str(wide_folder)), tmp_path / "coarse")
    other = train_tiny(tmp_path / "coarse", tmp_path / "plain", settings(lora={"rank": 4, "alpha": 8}))
    left, right = load_file(first.checkpoint / ADAPTER), load_file(other.checkpoint / ADAPTER)
    assert set(left) == set(right)
    assert max((left[name] - right[name]).abs().max().item() for name in left) < 1e-3

    second = train_tiny(first.checkpoint, tmp_path / "second", chosen)  # a later stage goes on with the adapter
    assert set(load_file(second.checkpoint / ADAPTER)) == set(left)
    load_model(str(second.checkpoint), device="cpu")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_the_other_precisions_reference_is_not_reused(wide_folder: Path, tmp_path: Path) -> None:
    references = []
    for quantize in (False, True, False):
        result = train_tiny(
            wide_folder, tmp_path, settings(lora={"rank": 4, "alpha": 8, "quantize": quantize}, max_steps=1)
        )
        # the policy starts at its reference, up to the rounding of log-probabilities of -6 in sums of another order
        assert result.metrics["kl"] == pytest.approx(0.0, abs=1e-5)
        references.append((tmp_path / "reference.jsonl").read_text())
    assert references[0] == references[2] != references[1]


def test_the_reference_pass_feeds_the_device_that_computes_not_the_one_that_holds_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = set()

    def scores(model: torch.nn.Module, rows: Batch, capabilities: Capabilities) -> torch.Tensor:
        fed.update(value.device.type for value in rows.values() if isinstance(value, torch.Tensor))
        return torch.zeros(len(rows["labels"]), 1)

    monkeypatch.setattr("spag.learning.references.token_scores", scores)
    accelerator = make_accelerator(MODEL, settings().settings, 0)
    elsewhere = SimpleNamespace(device=torch.device("meta"), autocast=accelerator.autocast)
    weights = torch.nn.Linear(2, 2)  # offloaded: on the CPU
    parts = {"model": weights, "capabilities": Capabilities(), "accelerator": elsewhere}
    policy = SimpleNamespace(**parts, use_role=lambda batch, groups: None)
    data = TrainingData([EncodedSample.of([2, 3, 4], completion_start=1)], 1, packed=False)
    assert logprobs_of(data, policy, [0]) == {0: [0.0, 0.0]}
    assert fed == {"meta"}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_moments_of_8_bits_resume_exactly_and_learn_nearly_the_same(wide_folder: Path, tmp_path: Path) -> None:
    def weights(name: str, moment: str = "", **changes: object) -> torch.Tensor:
        chosen = settings(learning_rate=1e-3, max_steps=4, **changes)
        assert forked.end(forked.start(train_until, moment, wide_folder, tmp_path / name, chosen)) in (0, -9)
        saved = tmp_path / name / "checkpoint" / "model.safetensors"
        return torch.cat([value.flatten() for value in load_file(saved).values()]) if not moment else torch.empty(0)

    exact, undisturbed = weights("32"), weights("8", **EIGHT_BITS)
    weights("killed", "training 3", **EIGHT_BITS)
    assert (tmp_path / "killed" / "state" / "checkpoint-2").is_dir()
    assert torch.equal(weights("killed", **EIGHT_BITS), undisturbed)
    start = torch.cat([value.flatten() for value in load_file(wide_folder / "model.safetensors").values()])
    moved, error = (exact - start).norm(), (undisturbed - exact).norm()
    assert 0 < error < 0.1 * moved


def test_a_sharded_weights_placeholder_decays_by_the_weights_own_shape() -> None:
    """ZeRO-3 leaves a one-dimensional placeholder, with the shape beside it."""
    model = torch.nn.Linear(2, 3)
    for weight in model.parameters():
        weight.ds_shape = weight.shape
        weight.data = torch.empty(0)
    optimizer = make_optimizer(model, UpdateSettings(weight_decay=0.1))
    groups = [([weight.ds_shape for weight in one["params"]], one["weight_decay"]) for one in optimizer.param_groups]
    assert groups == [([torch.Size([3, 2])], 0.1), ([torch.Size([3])], 0.0)]


def test_a_model_on_one_gpu_trains_on_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    models = {device: ModelConfig(name="m", device=device) for device in (None, "cuda", "cuda:0", "cpu")}
    counts = {device: process_count(model, UpdateSettings()) for device, model in models.items()}
    assert counts == {None: 4, "cuda": 4, "cuda:0": 1, "cpu": 1}
    assert process_count(models["cuda:0"], UpdateSettings(processes=2)) == 2


def test_emulated_bfloat16_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch says that a T4 supports it, because it can be emulated."""
    monkeypatch.setattr(devices, "checked_device", lambda _: "cuda")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    with pytest.raises(
        ConfigError, match=r"model\.dtype=bfloat16: this GPU does not support it; use float16 or float32"
    ):
        devices.check_settings(ModelConfig(name="tiny", dtype="bfloat16"), settings().settings)
    devices.check_settings(ModelConfig(name="tiny", dtype="float16"), settings().settings)
