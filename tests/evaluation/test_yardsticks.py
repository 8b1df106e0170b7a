"""A tiny model's policy in Kuhn poker against its own logits, token by token."""

import math
from pathlib import Path

import pytest
import torch

from spag.config.schema import ModelConfig
from spag.evaluation.yardsticks import move_probabilities, score_model
from spag.games.kuhn_poker.rules import KuhnPoker
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
    ids, texts = [0, 5, 9, 200], ["[check]", "[bet]", ""]
    expected = [by_hand(model, ids, [*tokenizer(text).input_ids, 1]) for text in texts]  # 1 is </s>
    assert completion_logprobs(model, tokenizer, ids, texts) == pytest.approx(expected, rel=1e-5)
    assert completion_logprobs(model, tokenizer, ids, ["[bet]"]) == pytest.approx(expected[1:2], rel=1e-5)


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
        assert found.policy[decision.key] == pytest.approx({move: math.exp(value) / mass for move, value in logprobs.items()}, rel=1e-3)
        assert found.legal_mass[decision.key] == pytest.approx(mass, rel=1e-3, abs=0)


def test_scores_of_a_model(model_folder: Path) -> None:
    scores = score_model(ModelConfig(name=str(model_folder), dtype="float32"), GAME)
    assert set(scores) == {"exploitability", "player_0_worst_case", "player_1_worst_case", "legal_mass"}
    assert 0 < scores["exploitability"] < 1
    assert scores["exploitability"] == pytest.approx(-(scores["player_0_worst_case"] + scores["player_1_worst_case"]) / 2)
