"""Reasoning tasks for models that think: their chat template, stop strings behind the thought, cut thoughts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError
from spag.core.progress import SilentReporter
from spag.evaluation.reasoning.answers import ChatModel, answer_in
from spag.evaluation.reasoning.evaluate import evaluate_reasoning
from spag.evaluation.reasoning.tasks import ReasoningSettings
from spag.models.loading import load_tokenizer
from tiny_model import make_model

TASKS = Path(__file__).parent / "tasks"
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
pytestmark = pytest.mark.slow  # lm_eval alone takes six seconds to import


@pytest.fixture
def chatty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelConfig:
    """A tiny model with a chat template."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    folder = make_model(tmp_path / "model")
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return ModelConfig(name=str(folder), dtype="float32")


@pytest.mark.parametrize(
    ("reply", "stop", "answer"),
    [
        ("four, five", [","], "four"),
        ("<think>one, two\n\nso</think>\n\nfour, five", [",", "\n"], "four"),
        ("one, two</think>four", [","], "four"),  # opened by the template
        ("<think>one, two", [","], ""),  # still thinking at the limit
        ("<think>a</think>four\nfive", "\n", "four"),
        ("<think>a</think>four", None, "four"),
    ],
)
def test_the_answer_is_what_follows_the_thought(reply: str, stop: str | None, answer: str) -> None:
    assert answer_in(reply, stop) == answer


def test_a_thought_that_the_template_opens_and_the_limit_cuts_is_no_answer() -> None:
    class Thinker:
        def generate_until(self, requests: Sequence[Instance]) -> list[str]:
            return ["one, two", "one, two</think>four, five", "one, two"]

    prompts = "[user]Hi[assistant]<think>\n", "[user]Hi[assistant]<think>\n", "[user]Hi[assistant]"
    asked = [Instance("generate_until", {}, (prompt, {"until": [","]}), 0) for prompt in prompts]
    assert ChatModel(Thinker()).generate_until(asked) == ["", "four", "one"]


def test_a_model_is_asked_in_its_template_and_scored_by_its_answer(
    chatty: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ReasoningSettings(("spag_counting",), task_path=TASKS, limit=4, max_new_tokens=64, chat=True)
    items = [json.loads(line) for line in (TASKS / "counting.jsonl").read_text().splitlines()][:4]
    asked: list[tuple[str, dict[str, Any]]] = []

    def reply(lm: Any, requests: Sequence[Any], **_: Any) -> list[str]:
        asked.extend(request.args for request in requests)
        thoughts = ["<think>They count, from one.\n\nEasy.</think> "] * 3 + ["<think>They count, "]
        return [thought + item["next"] + ", and so on" for thought, item in zip(thoughts, items, strict=True)]

    monkeypatch.setattr("lm_eval.models.huggingface.HFLM.generate_until", reply)
    results = evaluate_reasoning({"m": chatty}, settings, tmp_path / "out", SilentReporter())
    assert [prompt for prompt, _ in asked] == [f"[user]{item['start']},[assistant]" for item in items]
    assert all(options["until"] == [] and options["max_gen_toks"] == 64 for _, options in asked)
    assert results["models"]["m"]["tasks"]["spag_counting"]["value"] == 0.75  # the fourth never stopped thinking
    rows = [json.loads(line) for line in (tmp_path / "out" / "m" / "spag_counting.jsonl").read_text().splitlines()]
    assert [row["answers"] for row in rows][:3] == [[item["next"]] for item in items[:3]]


def test_answers_are_generated_and_scored_for_real(chatty: ModelConfig, model_folder: Path, tmp_path: Path) -> None:
    tasks = ("spag_common_sense", "spag_counting")
    settings = ReasoningSettings(tasks, task_path=TASKS, limit=2, max_new_tokens=8, shots=1, chat=True)
    results = evaluate_reasoning({"m": chatty, "same": chatty}, settings, tmp_path / "out", SilentReporter())
    assert [results["models"]["same"]["tasks"][name]["difference"]["value"] for name in tasks] == [0, 0]
    plain = ModelConfig(name=str(model_folder), dtype="float32")
    with pytest.raises(ConfigError, match="it has no chat template; omit --chat"):
        evaluate_reasoning({"m": plain}, settings, tmp_path / "none", SilentReporter())


def test_models_with_other_templates_are_asked_the_same_items(
    chatty: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lm_eval.models.huggingface.HFLM.generate_until", lambda lm, requests, **_: ["1"] * len(requests)
    )
    folder = make_model(tmp_path / "other")
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = TEMPLATE.replace("[user]", "user: ").replace(
        "[{{ message.role }}]", "{{ message.role }}: "
    )
    tokenizer.save_pretrained(folder)
    other = ModelConfig(name=str(folder), dtype="float32")
    settings = ReasoningSettings(("spag_counting",), task_path=TASKS, limit=2, max_new_tokens=4, chat=True)
    results = evaluate_reasoning({"m": chatty, "other": other}, settings, tmp_path / "out", SilentReporter())
    assert results["models"]["other"]["tasks"]["spag_counting"]["difference"]["value"] == 0
