"""A tiny model's policy in Kuhn poker against its own logits, token by token."""

import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from spag.config.schema import ModelConfig
from spag.evaluation.exact_metrics import figures_of, move_probabilities
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.models import forward, scoring
from spag.models.loading import load_model, load_tokenizer
from spag.models.scoring import completion_logprobs

GAME = KuhnPoker()


def by_hand(model: torch.nn.Module, ids: list[int], reply: list[int]) -> float:
    """Feed one token more at a time, and add up."""
    total = 0.0
    for at, token in enumerate(reply):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids + reply[:at]])).logits[0, -1]
        total += float(logits.log_softmax(-1)[token])
    return total


def test_log_probabilities_are_the_models(model_folder: Path) -> None:
    model, tokenizer = load_model(str(model_folder), dtype="float32"), load_tokenizer(str(model_folder))
    prompts, texts = [[0, 5, 9, 200], [0, 5, 9, 7, 80, 3], [0, 5, 9]], [["[check]", "[bet]", ""], ["[bet]"], ["a", ""]]
    expected = [
        [by_hand(model, ids, [*tokenizer(text).input_ids, 1]) for text in those]  # 1 is </s>
        for ids, those in zip(prompts, texts, strict=True)
    ]
    for start in (0, 1, 2):  # tokens that all prompts share: two, two, and all but the last of one's
        found = completion_logprobs(model, tokenizer, prompts[start:], texts[start:])
        for logprobs, by_token in zip(found, expected[start:], strict=True):
            assert logprobs == pytest.approx(by_token, rel=1e-5)


def test_models_that_cannot_attend_to_packed_rows_see_one_reply_at_a_time(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = load_model(str(model_folder), dtype="float32"), load_tokenizer(str(model_folder))
    asked = (model, tokenizer, [[0, 5, 9, 200], [0, 5, 7]], [["[bet]"], ["[fold]", "[call]"]])
    expected = completion_logprobs(*asked)
    attention = model.config._attn_implementation
    monkeypatch.setattr(forward, "ATTENTION", "sdpa")  # it ignores which tokens see each other
    rows: list[int] = []
    scores = scoring.token_scores
    monkeypatch.setattr(scoring, "token_scores", lambda *one: (rows.append(len(one[1]["weight"])), scores(*one))[1])
    for logprobs, kept in zip(completion_logprobs(*asked), expected, strict=True):
        assert logprobs == pytest.approx(kept, rel=1e-5)
    assert rows == [1, 1, 1]
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize(("limit", "chunked"), [("_ROW", True), ("_ROW_OF_LOGITS", False)])
def test_rows_are_cut_without_changing_a_score(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, chunked: bool
) -> None:
    model, tokenizer = load_model(str(model_folder), dtype="float32"), load_tokenizer(str(model_folder))
    prompts = [[0, 5, 9, last, 7] for last in range(3, 23)]
    asked = (model, tokenizer, prompts, [["[bet]", "[fold]", "a"]] * len(prompts))
    expected = completion_logprobs(*asked)
    probe = scoring.probe_capabilities
    monkeypatch.setattr(scoring, "probe_capabilities", lambda *one: replace(probe(*one), chunked=chunked))
    monkeypatch.setattr(scoring, limit, 40)
    counts: list[int] = []
    found = completion_logprobs(*asked, on_scored=counts.append)
    assert len(counts) > 5 and sum(counts) == 60
    for logprobs, whole in zip(found, expected, strict=True):
        assert logprobs == pytest.approx(whole, rel=1e-5)


def test_a_window_shorter_than_a_row_is_kept(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(str(model_folder))
    sizes = {"vocab_size": 258, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = MistralConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, sliding_window=16)
    torch.manual_seed(0)
    model = MistralForCausalLM(config).eval()
    torch.nn.init.normal_(model.lm_head.weight)
    monkeypatch.setattr(scoring, "_ROW", 20)  # the first row, which is tried, is shorter than the window
    prompts = [[0, 5, 6], [0, *range(10, 40)]]
    found = completion_logprobs(model, tokenizer, prompts, [["ab"], ["ab"]])
    for [logprob], ids in zip(found, prompts, strict=True):
        assert logprob == pytest.approx(by_hand(model, ids, [*tokenizer("ab").input_ids, 1]), rel=1e-5)


@pytest.mark.slow
def test_probabilities_of_moves(model_folder: Path) -> None:
    config = ModelConfig(name=str(model_folder), dtype="float32")
    found = move_probabilities(config, GAME)
    model, tokenizer = load_model(str(model_folder), dtype="float32"), load_tokenizer(str(model_folder))
    assert found.policy.keys() == found.legal_mass.keys() == {decision.key for decision in GAME.decisions()}
    assert all(sum(chances.values()) == pytest.approx(1) for chances in found.policy.values())
    for decision in GAME.decisions()[::5]:
        prompt = [0, *tokenizer(GAME.prompt(decision.observation)).input_ids]  # 0 is <s>
        logprobs = {move: by_hand(model, prompt, [*tokenizer(move).input_ids, 1]) for move in decision.moves}
        mass = sum(map(math.exp, logprobs.values()))
        assert found.policy[decision.key] == pytest.approx(
            {move: math.exp(value) / mass for move, value in logprobs.items()}, rel=1e-3
        )
        assert found.legal_mass[decision.key] == pytest.approx(mass, rel=1e-3, abs=0)


def test_the_models_of_two_roles_are_in_memory_one_after_the_other(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = ModelConfig(name=str(model_folder), dtype="float32"), load_tokenizer(str(model_folder))
    loaded: list[weakref.ref[Any]] = []

    def load(name: str, **_: object) -> torch.nn.Module:
        assert [one for one in loaded if one() is not None] == []
        weights = load_model(str(model_folder), dtype="float32")
        loaded.extend(weakref.ref(one) for one in (weights, weights.lm_head))
        return weights

    monkeypatch.setattr("spag.models.loading.load_model", load)
    monkeypatch.setattr("spag.models.loading.load_tokenizer", lambda name, **_: tokenizer)
    monkeypatch.setattr("spag.evaluation.exact_metrics.model_of_role", lambda name, game, role: f"{name}/{role}")
    assert move_probabilities(model, GAME).policy.keys() == {decision.key for decision in GAME.decisions()}
    assert len(loaded) == 4


def test_scores_of_a_model(model_folder: Path) -> None:
    counts: list[int] = []
    found = move_probabilities(ModelConfig(name=str(model_folder), dtype="float32"), GAME, counts.append)
    assert sum(counts) == 24  # two moves in each of twelve situations
    scores = figures_of(found, GAME)
    assert set(scores) == {"exploitability", "player_0_worst_case", "player_1_worst_case", "legal_mass"}
    assert 0 < scores["exploitability"] < 1
    assert scores["exploitability"] == pytest.approx(
        -(scores["player_0_worst_case"] + scores["player_1_worst_case"]) / 2
    )
