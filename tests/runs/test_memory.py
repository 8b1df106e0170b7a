"""What a phase holds: nothing once it has ended, few logits at a time, and one copy of weights where one does."""

import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tiny_run import config_for, train_here
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from spag.algorithms.online_settings import MovingReference
from spag.core.options import SamplingConfig
from spag.engines.base import Request
from spag.engines.transformers import engine as engines
from spag.engines.transformers.engine import TransformersEngine
from spag.learning.loop import Loop
from spag.learning.policy import Reference
from spag.models.forward import CHUNK, Capabilities, Entropy, token_scores
from spag.models.loading import load_model, load_tokenizer
from spag.models.samples import EncodedSample, collate
from spag.rollout.steps import POLICY, StepPlayer

pytestmark = pytest.mark.slow

FEW = "reinforce.games=4", "reinforce.evaluation_tasks=1"

VOCABULARY = 258
"""Logits of the tiny model."""


def test_a_phase_that_ended_leaves_nothing(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Any]] = []
    finish, close = Loop._finish, StepPlayer.__exit__

    def note_loop(loop: Loop, result: dict[str, Any]) -> None:
        finish(loop, result)
        policy = loop.policy
        objects = (loop, policy, policy.bare, policy.optimizer.optimizer, loop.source, policy.reference, policy.average)
        alive.extend(map(weakref.ref, objects))
        alive.extend(map(weakref.ref, loop.policy.bare.parameters()))

    def note_engines(player: StepPlayer, *error: object) -> None:
        assert player._engines, "the engine of the policy is open until the phase ends"
        alive.extend(weakref.ref(engine) for engine in player._engines.values())
        alive.extend(weakref.ref(engine._model) for engine in player._engines.values())  # type: ignore[attr-defined]
        close(player, *error)

    monkeypatch.setattr(Loop, "_finish", note_loop)
    monkeypatch.setattr(StepPlayer, "__exit__", note_engines)
    changes = (*FEW, "reinforce.steps=2", "reinforce.kl_coef=0.1", "reinforce.average_decay=0.5")
    train_here(config_for(model_folder, *changes), tmp_path)
    assert len(alive) > 20
    assert [found for ref in alive if (found := ref()) is not None] == []


class Largest(TorchDispatchMode):
    """Notes the rows of the largest tensor that holds a number for each token of the vocabulary."""

    rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.ndim > 1 and out.shape[-1] == VOCABULARY:
            self.rows = max(self.rows, out.numel() // VOCABULARY)
        return out


@pytest.mark.parametrize("entropy", Entropy)
def test_logits_of_a_chunk_exist_at_once_in_both_passes(model_folder: Path, entropy: Entropy) -> None:
    model = load_model(str(model_folder), dtype="float32", device="cpu")
    assert model.get_output_embeddings().weight.shape[0] == VOCABULARY
    length = 2 * CHUNK + 40
    batch = collate([EncodedSample.of([5 + at % 90 for at in range(length)], completion_start=1)], packed=False)
    with Largest() as largest:
        scores = token_scores(model, batch, Capabilities(kept=True, chunked=True), entropy=entropy)
        scores.sum().backward()
    assert len(scores) == length - 1
    assert largest.rows == CHUNK


def test_an_entropy_that_is_only_shown_has_no_gradient(model_folder: Path) -> None:
    model = load_model(str(model_folder), dtype="float32", device="cpu")
    batch = collate([EncodedSample.of([*range(5, 25)], completion_start=3)], packed=False)
    found = {}
    for kind in Entropy:
        model.zero_grad()
        scores = token_scores(model, batch, Capabilities(kept=True, chunked=True), entropy=kind)
        scores.sum().backward()
        found[kind] = scores.detach(), model.get_output_embeddings().weight.grad.clone()
    torch.testing.assert_close(found[Entropy.VALUE][0], found[Entropy.GRADIENT][0])
    torch.testing.assert_close(found[Entropy.VALUE][0][:, :1], found[Entropy.NONE][0])
    torch.testing.assert_close(found[Entropy.VALUE][1], found[Entropy.NONE][1])
    assert not torch.allclose(found[Entropy.GRADIENT][1], found[Entropy.NONE][1])


def test_the_engine_draws_a_few_tokens_at_once(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    draw = engines.sample_tokens
    monkeypatch.setattr(engines, "sample_tokens", lambda logits, *rest: rows.append(len(logits)) or draw(logits, *rest))
    model = load_model(str(model_folder), dtype="float32", device="cpu")
    engine = TransformersEngine(model, load_tokenizer(str(model_folder)))
    count = 2 * engines.DRAWN + 5
    for number in range(count):
        engine.submit(Request(f"{number}", "the same words", SamplingConfig(max_new_tokens=1), seed=number))
    done = 0
    while finished := engine.poll():
        done += len(finished)
    assert done == count and max(rows) == engines.DRAWN


def test_shared_weights_are_the_callers_own(model_folder: Path) -> None:
    def open_engine() -> TransformersEngine:
        model = load_model(str(model_folder), dtype="float32", device="cpu")
        return TransformersEngine(model, load_tokenizer(str(model_folder)), concurrency=2)

    def answer(engine: TransformersEngine) -> tuple[int, ...] | None:
        engine.submit(
            Request("r", "some words to go on with", SamplingConfig(temperature=0, max_new_tokens=12), seed=0)
        )
        return next(one.token_ids for one in engine.poll())

    engine, copying = open_engine(), open_engine()
    before = answer(engine)
    trained = {name: nn.Parameter(2.0 * weight.detach().flip(0)) for name, weight in engine._model.named_parameters()}
    kept = {name: weight.detach().clone() for name, weight in trained.items()}
    engine.share_weights(trained)
    copying.update_weights(trained)
    assert all(own.data_ptr() == trained[name].data_ptr() for name, own in engine._model.named_parameters())
    after = answer(engine)
    assert after == answer(copying) != before
    engine.update_weights({name: weight.detach() * 0.5 for name, weight in trained.items()})
    assert all(torch.equal(weight, kept[name]) for name, weight in trained.items()), "another's weights were changed"
    with torch.no_grad():
        for weight in trained.values():
            weight.zero_()
    assert answer(copying) == after, "a copy changed with the caller's weights"


@pytest.mark.parametrize("overlap", [0, 1])
def test_while_the_policy_trains(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap: int
) -> None:
    """One copy of its weights is there, or two where games are played meanwhile; keys, values and opponents are not."""
    seen, ahead = [], overlap > 0
    update = Loop._update

    def note(loop: Loop, *rest: Any) -> Any:
        player = loop.source.player  # type: ignore[attr-defined]
        engine = player._engines[POLICY]
        trained = {name: weight.data_ptr() for name, weight in loop.policy.bare.named_parameters()}
        shared = [own.data_ptr() == trained[name] for name, own in engine._model.named_parameters()]
        idle = not engine._known and not any(engine._cache.tokens)
        seen.append((all(shared), any(shared), ahead or idle, ahead or [*player._engines] == [POLICY]))
        return update(loop, *rest)

    monkeypatch.setattr(Loop, "_update", note)
    changes = (*FEW, "reinforce.steps=3", "reinforce.evaluate_every=1", f"reinforce.overlap={overlap}")
    train_here(config_for(model_folder, *changes), tmp_path)
    assert seen == [(not ahead, not ahead, True, True)] * 3


def test_a_fixed_reference_is_in_a_file_and_the_same(tmp_path: Path) -> None:
    weights = [nn.Parameter(torch.randn(3, 7).bfloat16()), nn.Parameter(torch.randn(5_000_000))]
    first = [weight.detach().clone() for weight in weights]
    reference = Reference(weights, "fixed", tmp_path)
    assert not list(tmp_path.iterdir())  # the file has no name
    with torch.no_grad():
        for weight in weights:
            weight.mul_(3.0)
    mapped = psutil.Process().memory_info().shared  # bytes of files that are in this process's memory
    for _ in range(2):
        with reference.in_place():
            assert all(torch.equal(weight, value) for weight, value in zip(weights, first, strict=True))
            assert psutil.Process().memory_info().shared > mapped + 15_000_000
        assert psutil.Process().memory_info().shared < mapped + 5_000_000
        assert all(torch.equal(weight, 3.0 * value) for weight, value in zip(weights, first, strict=True))


def test_a_moving_reference_stays_in_memory(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.zeros(3))
    reference = Reference([weight], MovingReference(every=1), tmp_path)
    weight.data.fill_(2.0)
    assert reference.after_step(1) and reference._file is None
    assert reference.values[0].tolist() == [2.0] * 3
