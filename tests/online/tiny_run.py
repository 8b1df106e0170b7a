"""Tiny online runs: Kuhn poker by a random model, whose every hand is illegal at first, on the CPU in float32."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spag.config.files import parse_config
from spag.config.schema import PlannedEngine, RunConfig
from spag.core.episodes import TrainingSample
from spag.core.progress import SilentReporter
from spag.learning.launch import train_on
from spag.learning.worker import TrainingJob
from spag.models.tokens import PromptStyle, encode_prompt
from spag.runs.execute import run

CONFIG = """
game: {name: kuhn_poker}
engine: {concurrency: 8}
phases:
  - algorithm: reinforce
    steps: 4
    games: 12
    learning_rate: 1.0e-3
    micro_batch_size: 4
    sampling: {max_new_tokens: 6, min_new_tokens: 0}
    evaluate_every: 2
    evaluation_tasks: 3
    snapshot_every: 1
    save_steps: 1
    entropy_coef: 0.01  # or there would be nothing to learn where all hands end alike
arena: {tasks: 2, sampling: {max_new_tokens: 6}, entrants: [base, reinforce]}
"""

PHASE = "1-reinforce"
MOMENTS = (
    (f"{PHASE}/episodes/step-00001.jsonl", 3, 0.0),  # in play
    (f"{PHASE}/metrics.jsonl", 1, 0.0),  # trained, not saved
    (f"{PHASE}/episodes/step-00002.jsonl", 12, 0.0),  # all played, not trained
    (f"{PHASE}/state/checkpoint-2/shares/.metadata", 0, 0.0),  # in saving
    (f"{PHASE}/episodes/step-00003.jsonl", 5, 0.0),
    (f"{PHASE}/evaluations.jsonl", 2, 0.0),
    (f"{PHASE}/checkpoint/model.safetensors", 0, 0.0),
)
"""When a run is killed: the file of its folder, how many lines it then has, and how many seconds later."""


def config_for(model: Path, *overrides: str) -> RunConfig:
    return parse_config(CONFIG, "test", [f"model.name={model}", "model.dtype=float32", "model.device=cpu", *overrides])


def run_here(config: RunConfig, folder: Path) -> None:
    run(config, folder, SilentReporter())


def train_here(config: RunConfig, folder: Path) -> None:
    """Carry out the phase alone, where the run's checks and its arena prove nothing more."""
    job = TrainingJob(
        model=config.model, phase=config.phases[0], game=config.game, start_from=config.model.name,
        output=folder / PHASE, seed=0, engine=PlannedEngine(**config.engine.model_dump()),
    )  # fmt: skip
    train_on(job, SilentReporter(), "training")


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    [file] = (folder / PHASE / "checkpoint").glob("*.safetensors")
    return dict(load_file(file))


def assert_same_weights(one: Path, other: Path) -> None:
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    for name, weight in first.items():
        torch.testing.assert_close(weight, second[name], atol=1e-5, rtol=0, msg=name)


def spoken(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sample: TrainingSample) -> torch.Tensor:
    """The log-probability of each token of a sample, without packing, caches and chunks: (K,)."""
    prompt = encode_prompt(tokenizer, sample.prompt, PromptStyle.PLAIN)
    ids = torch.tensor([[*prompt, *(sample.completion_ids or ())]])
    logprobs = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return logprobs.gather(-1, ids[0, len(prompt) :, None]).squeeze(-1)
