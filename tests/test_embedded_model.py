"""The embedded language model for real: loading, playing, being killed, training. Slow."""

import json
import signal
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import forked
from scripted_run import WORDS
from spag.core.episodes import Episode, TrainingSample
from spag.storage.episodes import read_episodes

pytestmark = [pytest.mark.long, pytest.mark.model]
MODEL = "smollm2-135m"
SETTINGS = (
    "model.prompt_style=chat", "model.dtype=float32", "game.max_turns=2", "engine.concurrency=2",
    "spag.sampling.max_new_tokens=6",
)  # fmt: skip


def play(words: Path, output: Path) -> BaseProcess:
    chosen = [part for setting in SETTINGS for part in ("--set", setting)]
    return forked.start(forked.run_command, "play", MODEL, "--words", str(words), *chosen, "--output", str(output))


def by_id(path: Path) -> dict[str, Episode]:
    return {episode.id: episode for episode in read_episodes(path)}


def without_logprobs(episodes: dict[str, Episode]) -> dict[str, Episode]:
    without = {"logprobs": None, "sampling_logprobs": None}
    return {
        name: replace(e, history=tuple(replace(said, **without) for said in e.history)) for name, e in episodes.items()
    }


def logprobs_of(episodes: dict[str, Episode]) -> list[float]:
    return [logprob for name in sorted(episodes) for said in episodes[name].history for logprob in said.logprobs or ()]


def test_the_gguf_becomes_a_plain_folder() -> None:
    from spag.models.finding import embedded_gguf, resolve_model
    from spag.models.loading import load_model, load_tokenizer
    from spag.models.tokens import PromptStyle, encode_prompt, stop_token_ids

    assert embedded_gguf() is not None
    folder = Path(resolve_model(MODEL))
    assert (folder / "model.safetensors").exists()
    model, tokenizer = load_model(MODEL), load_tokenizer(MODEL)
    assert str(model.dtype) == "torch.bfloat16"
    assert not hasattr(model.config, "quantization_config")
    assert stop_token_ids(model.generation_config, tokenizer, PromptStyle.CHAT) == {
        tokenizer.convert_tokens_to_ids("<|im_end|>")
    }
    text = tokenizer.decode(encode_prompt(tokenizer, "Hello", PromptStyle.CHAT))
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


def test_play_killed_in_the_middle_ends_as_if_undisturbed(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("".join(f"{word}\n" for word in WORDS[:4]))
    assert forked.end(play(words, tmp_path / "whole.jsonl")) == 0
    killed = tmp_path / "killed.jsonl"
    process = play(words, killed)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and (not killed.exists() or killed.read_bytes().count(b"\n") < 2):
        time.sleep(0.05)
    process.kill()
    assert forked.end(process) == -signal.SIGKILL
    before = by_id(killed)
    assert 2 <= len(before) < 4
    assert forked.end(play(words, killed)) == 0
    resumed, whole = by_id(killed), by_id(tmp_path / "whole.jsonl")
    assert without_logprobs(resumed) == without_logprobs(whole)  # every word, token, outcome and seed
    assert logprobs_of(resumed) == pytest.approx(
        logprobs_of(whole), abs=1e-3
    )  # the last digits depend on what shared the batch
    assert killed.read_bytes().count(b"\n") == len(by_id(killed))
    assert before.items() <= by_id(killed).items()


def test_a_few_steps_of_training_make_the_targets_likelier(tmp_path: Path) -> None:
    from spag.config.schema import GameConfig, ModelConfig, PhaseConfig
    from spag.core.episodes import SampleType
    from spag.learning.worker import TrainingJob
    from spag.storage.store import write_rows

    prompt = "You are the defender. Say your next line.\n"
    samples = [
        TrainingSample(
            prompt=prompt, completion=f"I know the word! It is `{word}`!", role="defender", type=SampleType.IMITATION
        )
        for word in ("river", "bread") * 2
    ]
    write_rows(tmp_path / "samples.jsonl", samples)
    about = {"epochs": 2, "global_batch_size": 2, "micro_batch_size": 2, "gradient_checkpointing": False}
    job = TrainingJob(
        model=ModelConfig(name=MODEL, prompt_style="chat", dtype="float32"),
        phase=PhaseConfig.model_validate({"algorithm": "imitation", "learning_rate": 1e-4, **about}),
        game=GameConfig(),
        start_from=MODEL,
        output=tmp_path / "run",
        seed=0,
        files=[tmp_path / "samples.jsonl"],
    )
    result = job.run()
    rows = [line for line in (job.output / "metrics.jsonl").read_text().splitlines() if line]
    assert result["steps"] == len(rows) == 4
    first, last = json.loads(rows[0])["loss"], json.loads(rows[-1])["loss"]
    assert last < 0.8 * first
    assert (job.output / "checkpoint" / "model.safetensors").exists()
