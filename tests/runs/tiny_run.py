"""Tiny online runs: Kuhn poker by a random model, whose every hand is illegal at first, on the CPU in float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import forked
from spag.config.files import parse_config
from spag.config.schema import RunConfig
from spag.core.episodes import TrainingSample
from spag.core.progress import Reporter, SilentReporter
from spag.learning.job import TrainingJob
from spag.learning.worker import run_in_group
from spag.models.tokens import PromptStyle, encode_prompt
from spag.rollout.matches import PlaySetup
from spag.runs.execute import run
from spag.runs.phases import carry_out
from spag.runs.stage import Run
from spag.storage.manifest import Manifest

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


class Watcher(SilentReporter):
    """Keeps what is shown: the total of the last task, and how much was done, with which figures."""

    def __init__(self) -> None:
        self.total, self.shown = 0, list[tuple[int, str]]()

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator["Watcher"]:
        self.total = total
        yield self

    def update(self, done: int, detail: str = "") -> None:
        self.shown.append((done, detail))


def run_here(config: RunConfig, folder: Path) -> None:
    run(config, folder, SilentReporter())


def train_here(config: RunConfig, folder: Path, reporter: Reporter | None = None) -> None:
    """Carry out a run's phases without its arena, which takes as long as two steps."""
    state = Run(config, folder, Manifest.open(folder), PlaySetup.of(config, reporter or SilentReporter()))
    for model in state.models.values():
        carry_out(state, model)


def job_of(config: RunConfig, folder: Path) -> TrainingJob:
    """The only phase of ``config`` as a job, without the run around it."""
    [phase] = config.phases
    start = config.model.name
    return TrainingJob(
        model=config.model, phase=phase, game=config.game, start_from=start, output=folder / PHASE, seed=config.seed
    )


def train_in_pair(config: RunConfig, folder: Path) -> None:
    """Do the job in two processes that find each other as torchrun's do."""
    job = job_of(config, folder)
    job.folder.mkdir(parents=True)
    processes = forked.start_pair(run_in_group, job.to_json())
    assert [forked.end(process) for process in processes] == [0, 0]


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
