"""The embedded language model for real: loading and training. Slow."""

import json
from pathlib import Path

import pytest

from spag.core.episodes import TrainingSample

pytestmark = [pytest.mark.long, pytest.mark.model]
MODEL = "smollm2-135m"


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


def test_half_precision_hides_no_attention_that_ignores_what_tokens_see(monkeypatch: pytest.MonkeyPatch) -> None:
    from spag.models import forward
    from spag.models.loading import load_model

    model = load_model(MODEL, dtype="bfloat16", device="cpu")
    with monkeypatch.context() as patched:
        patched.setattr(forward, "ATTENTION", "sdpa")
        assert not forward.probe_capabilities(model, 100).packed
    assert forward.probe_capabilities(model, 100).packed


def test_a_few_steps_of_training_make_the_targets_likelier(tmp_path: Path) -> None:
    from spag.config.schema import GameConfig, ModelConfig, PhaseConfig
    from spag.core.episodes import SampleType
    from spag.learning.job import TrainingJob
    from spag.learning.worker import run_job
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
    result = run_job(job)
    rows = [line for line in (job.output / "metrics.jsonl").read_text().splitlines() if line]
    assert result["steps"] == len(rows) == 4
    first, last = json.loads(rows[0])["loss"], json.loads(rows[-1])["loss"]
    assert last < 0.8 * first
    assert (job.output / "checkpoint" / "model.safetensors").exists()
