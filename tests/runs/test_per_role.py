"""Online runs with an adapter for each role, over one base model: exact updates, resuming, several processes, and play
by role.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from tiny_run import MOMENTS, PHASE, config_for, job_of, run_here, spoken, train_here, train_in_pair

from samplings import sampling_with
from scripted_run import run_until
from spag.algorithms.reinforce import Reinforce, ReinforceSettings
from spag.algorithms.settings import LoraConfig, UpdateSettings
from spag.cli import main
from spag.cli.eval import players_of as eval_players
from spag.config.schema import EngineConfig, ModelConfig
from spag.core.episodes import Episode, TrainingSample
from spag.core.errors import ConfigError, ModelError
from spag.core.types import Split
from spag.engines.bot import BotEngine
from spag.engines.opening import open_model
from spag.engines.players import bot_of
from spag.export.model import find_source, save_weights
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.learning.devices import make_accelerator
from spag.learning.loop import Loop
from spag.learning.start import load
from spag.learning.worker import run_job
from spag.models.adapters import use_adapter
from spag.models.identity import weights_digest
from spag.models.loading import load_adapters, load_model, load_tokenizer
from spag.rollout.matchmaking import step_specs
from spag.rollout.runner import Player, game_specs, play
from spag.runs.layout import trained_models
from spag.storage.episodes import read_episodes
from tiny_model import make_model

pytestmark = pytest.mark.slow

KUHN = KuhnPoker()
ROLES = [f"{KUHN.name}/{role}" for role in KUHN.roles]
NAMES = [f"{KUHN.name}-{role}" for role in KUHN.roles]
PER_ROLE = (
    'reinforce.lora={"rank": 4, "per_role": true}',
    'reinforce.opponents={"self": 1, "bot:equilibrium": 2}',  # whose moves are legal, so that both roles speak
    'reinforce.evaluation_opponents=["bot:equilibrium"]',
    "reinforce.warmup_ratio=0",
    "reinforce.learning_rate=1.0e-2",
    "reinforce.steps=3",
)


@pytest.fixture(scope="module")
def finished(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("per-role") / "run"
    run_here(config_for(model_folder, *PER_ROLE), folder)
    return folder


def adapters(folder: Path, part: str = "checkpoint") -> dict[str, dict[str, torch.Tensor]]:
    return {
        file.parent.name: load_file(file)
        for file in sorted((folder / PHASE / part).glob("*/adapter_model.safetensors"))
    }


def assert_same(one: Path, other: Path) -> None:
    first, second = adapters(one), adapters(other)
    assert [*first] == [*second] == NAMES
    for name, weights in first.items():
        for key, weight in weights.items():
            torch.testing.assert_close(weight, second[name][key], atol=1e-5, rtol=0, msg=f"{name} {key}")


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / PHASE / "metrics.jsonl").read_text().splitlines()]


def samples_of(games: Sequence[Episode]) -> list[TrainingSample]:
    return Reinforce(ReinforceSettings(baseline_decay=1.0)).credit(games, KUHN, "policy")


def test_a_run_ends_with_an_adapter_for_each_role(finished: Path) -> None:
    before, after = adapters(finished, "start"), adapters(finished)
    assert [*before] == [*after] == NAMES
    for key, weight in before[NAMES[0]].items():
        assert torch.equal(weight, before[NAMES[1]][key])  # both begin as the lone adapter would
        assert not any(torch.equal(weight, own[key]) for own in after.values())
        assert not torch.equal(after[NAMES[0]][key], after[NAMES[1]][key])
    for row in rows(finished):
        assert row["mismatch"] < 1e-5  # engines play with the adapter that is trained, in float32
        assert row["samples"] > 0
    entrants = {
        info.model for game in read_episodes(finished / "arena" / "episodes.jsonl") for info in game.players.values()
    }
    assert entrants == {"base", "reinforce"}


def test_no_adapter_keeps_its_cache_while_the_policy_trains(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[list[int]] = []
    update = Loop._update

    def note(loop: Loop, *rest: Any) -> Any:
        engines = loop.source.player._engines["policy"].engines.values()  # type: ignore[attr-defined]
        kept.extend(ids for engine in engines for ids in engine._cache.tokens)
        return update(loop, *rest)

    monkeypatch.setattr(Loop, "_update", note)
    train_here(config_for(model_folder, *PER_ROLE, "reinforce.steps=1", "reinforce.evaluate_every=null"), tmp_path)
    assert kept and not any(kept)


def test_each_adapter_begins_as_the_lone_one_and_learns_alone(model_folder: Path) -> None:
    lora, config = LoraConfig(rank=4), ModelConfig(name=str(model_folder), dtype="float32", device="cpu")
    accelerator = make_accelerator(config, UpdateSettings(lora=lora), seed=3)
    lone, both = (load(config, lora, accelerator, 3, roles) for roles in ({}, dict.fromkeys(ROLES, True)))
    own = dict(both.named_parameters())
    for name, weight in lone.named_parameters():
        for copy in (
            [own[name.replace("default", adapter)] for adapter in NAMES] if weight.requires_grad else [own[name]]
        ):
            assert torch.equal(weight, copy) and copy.requires_grad == weight.requires_grad
            if "lora_B" in name:  # at 0 nothing of A would be learned
                copy.data.fill_(0.1)
        if "lora_B" in name:
            weight.data.fill_(0.1)
    ids = torch.arange(2, 12)[None]
    use_adapter(both, NAMES[1])
    for policy in (lone, both):
        policy.train()
        policy(ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None]).sum().backward()
    for name, weight in lone.named_parameters():
        if weight.requires_grad:
            assert own[name.replace("default", NAMES[0])].grad is None
            found = own[name.replace("default", NAMES[1])].grad
            assert weight.grad is not None and found is not None and float(weight.grad.abs().max()) > 0
            torch.testing.assert_close(found, weight.grad)


def test_roles_that_are_not_trained_stay_as_they_are(model_folder: Path, tmp_path: Path) -> None:
    train_here(
        config_for(
            model_folder, *PER_ROLE, "reinforce.roles=player_1", "reinforce.steps=1", "reinforce.evaluate_every=null"
        ),
        tmp_path,
    )
    before, after = adapters(tmp_path, "start"), adapters(tmp_path)
    assert all(torch.equal(weight, after[NAMES[0]][key]) for key, weight in before[NAMES[0]].items())
    assert any(not torch.equal(weight, after[NAMES[1]][key]) for key, weight in before[NAMES[1]].items())


def test_an_update_is_that_of_each_roles_own_samples(model_folder: Path, tmp_path: Path) -> None:
    """One step, without micro-batches, packing, merging and shared weights: AdamW on the role's part of the sum over
    tokens. Without baselines, for all hands end alike and none would have an advantage.
    """
    some = [
        "reinforce.steps=1",
        "reinforce.max_grad_norm=0",
        "reinforce.evaluate_every=null",
        "reinforce.baseline_decay=1",
        "reinforce.entropy_coef=0",
    ]
    train_here(config_for(model_folder, *PER_ROLE, *some), tmp_path)
    games = {game.id: game for game in read_episodes(tmp_path / PHASE / "episodes" / "step-00001.jsonl")}
    samples = samples_of([games[spec.id] for _, spec in step_specs([(KUHN, 1.0)], 12, 1, 0)])
    assert {sample.role for sample in samples} == set(ROLES)
    for role, name in zip(ROLES, NAMES, strict=True):
        folder = tmp_path / PHASE / "start" / name
        lone = load_model(str(folder), dtype="float32", device="cpu", trainable_adapter=True)
        optimizer = torch.optim.AdamW(
            [weight for weight in lone.parameters() if weight.requires_grad], lr=1e-2, weight_decay=0.0
        )
        own, tokenizer = [sample for sample in samples if sample.role == role], load_tokenizer(str(folder))
        loss = -sum((sample.reward * spoken(lone, tokenizer, sample).sum() for sample in own), torch.zeros(())) / (
            len(samples) * 6
        )
        loss.backward()
        optimizer.step()
        found, expected = adapters(tmp_path)[name], dict(lone.named_parameters())
        moved = torch.cat(
            [(found[key] - expected[key.replace(".weight", ".default.weight")]).flatten() for key in found]
        )
        # rounding decides the sign, and so AdamW's first step, of gradients that are next to nothing
        assert float((moved.abs() > 1e-4).float().mean()) < 0.005
        assert float(max(found[key].abs().max() for key in found if "lora_B" in key)) == pytest.approx(1e-2, rel=0.01)


@pytest.mark.long
def test_a_run_survives_being_killed_anywhere(model_folder: Path, finished: Path, tmp_path: Path) -> None:
    config, killed = config_for(model_folder, *PER_ROLE), tmp_path / "killed"
    assert all(run_until(moment, config, killed, run_here) for moment in MOMENTS[3:5])
    run_here(config, killed)
    assert_same(killed, finished)


@pytest.mark.long
def test_two_processes_do_what_one_does(model_folder: Path, tmp_path: Path) -> None:
    """Each plays and trains its share, with micro-batches of other roles at the same time; the adapters are those of
    one process.
    """
    some = [
        *PER_ROLE,
        "reinforce.steps=2",
        "reinforce.epochs=2",
        "reinforce.kl_coef=0.1",
        "reinforce.average_decay=0.5",
        "reinforce.evaluate_every=null",
        "reinforce.save_steps=2",
    ]
    train_in_pair(config_for(model_folder, *some), tmp_path / "two")
    run_job(job_of(config_for(model_folder, *some), tmp_path / "one"))
    assert_same(tmp_path / "two", tmp_path / "one")


@pytest.mark.long
def test_games_are_mixed_ahead_and_against_frozen_policies(model_folder: Path, tmp_path: Path) -> None:
    opponents = 'reinforce.opponents={"start": 1, "snapshot": 1, "bot:random": 1}'
    mix = "reinforce.mix=[{name: kuhn_poker}, {name: nim}]"
    more = [
        "reinforce.overlap=1",
        "reinforce.gradient_checkpointing=true",
        "reinforce.minibatches=2",
        "reinforce.steps=3",
    ]
    run_here(
        config_for(model_folder, *PER_ROLE, opponents, mix, *more, 'reinforce.evaluation_opponents=["start"]'), tmp_path
    )
    assert len(adapters(tmp_path)) == 4
    met = {
        info.model
        for file in (tmp_path / PHASE / "episodes").iterdir()
        for game in read_episodes(file)
        for info in game.players.values()
    }
    assert met == {"policy", "start", "snapshot-1", "bot:random"}
    assert rows(tmp_path)[0]["mismatch"] < 1e-5


def test_play_takes_the_adapter_of_the_role(finished: Path) -> None:
    checkpoint = finished / PHASE / "checkpoint"
    engine = open_model(ModelConfig(name=str(checkpoint), dtype="float32", device="cpu"), EngineConfig(concurrency=4))
    sampling = sampling_with(1.0, max_new_tokens=6, min_new_tokens=0)
    bot = Player(BotEngine(bot_of(KUHN, "bot:equilibrium")), "bot", sampling)
    lone = {
        role: load_model(str(checkpoint / name), dtype="float32", device="cpu")
        for role, name in zip(ROLES, NAMES, strict=True)
    }
    for at, (role, other) in enumerate((ROLES, ROLES[::-1])):
        players = {own: Player(engine, "policy", sampling) if own == KUHN.roles[at] else bot for own in KUHN.roles}
        games = list(play(game_specs(KUHN.tasks(Split.HELD_OUT, 4, 1), 1, 1), players, game=KUHN))
        samples, tokenizer = samples_of(games), load_tokenizer(str(checkpoint / NAMES[at]))
        assert samples and {sample.role for sample in samples} == {role}
        with torch.no_grad():
            for sample in samples:
                drawn = torch.tensor(sample.logprobs)
                torch.testing.assert_close(spoken(lone[role], tokenizer, sample), drawn, atol=1e-4, rtol=0)
                assert not torch.allclose(spoken(lone[other], tokenizer, sample), drawn, atol=1e-3)
    engine.close()


def test_a_finished_run_is_read_adapter_by_adapter(finished: Path, tmp_path: Path) -> None:
    checkpoint = finished / PHASE / "checkpoint"
    assert trained_models(config_for(checkpoint), finished) == {"reinforce": str(checkpoint)}
    assert weights_digest(str(checkpoint)) not in {weights_digest(str(checkpoint / name)) for name in NAMES}
    # the last evaluation read the exact figures off the trainer's model, the arena off the files
    evaluated = json.loads((finished / PHASE / "evaluations.jsonl").read_text().splitlines()[-1])["exact"]
    assert json.loads((finished / "arena" / "results.json").read_text())["exact_metrics"]["reinforce"] == pytest.approx(
        evaluated, rel=1e-4
    )
    assert [*eval_players((str(finished),), config_for(checkpoint))] == [
        "base",
        *(f"reinforce/{name}" for name in NAMES),
    ]
    with pytest.raises(ModelError, match="but one model is needed here"):
        save_weights(find_source(str(finished)), tmp_path / "none")
    assert save_weights(find_source(str(checkpoint / NAMES[1])), tmp_path / "one").merged


@pytest.mark.vllm
@pytest.mark.long
@pytest.mark.usefixtures("warm_vllm")
def test_vllm_serves_each_roles_adapter(tmp_path: Path) -> None:
    big_enough = make_model(
        tmp_path / "model", hidden_size=128, intermediate_size=2048, tie_word_embeddings=True
    )  # for vLLM's kernels
    some = ("reinforce.steps=2", "engine.backend=vllm", "engine.max_length=1024")
    train_here(config_for(big_enough, *PER_ROLE, *some), tmp_path / "run")  # a whole run on vLLM: test_tutorials.py
    assert [row["mismatch_max"] < 1e-3 for row in rows(tmp_path / "run")] == [True, True]
    assert all(
        sum(row[f"{role}/entropy"] or 0.0 for row in rows(tmp_path / "run")) > 0 for role in ROLES
    )  # both were trained
    after = adapters(tmp_path / "run")
    assert any(not torch.equal(weight, after[NAMES[1]][key]) for key, weight in after[NAMES[0]].items())


def test_another_run_goes_on_with_each_roles_adapter(finished: Path, tmp_path: Path) -> None:
    checkpoint = finished / PHASE / "checkpoint"
    train_here(
        config_for(
            checkpoint, *PER_ROLE, "reinforce.steps=1", "reinforce.kl_coef=0.1", "reinforce.evaluate_every=null"
        ),
        tmp_path / "on",
    )
    for name, weights in adapters(tmp_path / "on", "start").items():
        assert all(torch.equal(weight, adapters(finished)[name][key]) for key, weight in weights.items())
    assert rows(tmp_path / "on")[0]["kl"] == pytest.approx(0.0, abs=1e-5)
    lone = checkpoint / NAMES[0]  # one adapter: each role begins with a copy of it
    train_here(
        config_for(lone, *PER_ROLE, "reinforce.steps=1", "reinforce.kl_coef=0.1", "reinforce.evaluate_every=null"),
        tmp_path / "copies",
    )
    for weights in adapters(tmp_path / "copies", "start").values():
        assert all(torch.equal(weight, adapters(finished)[NAMES[0]][key]) for key, weight in weights.items())
    assert rows(tmp_path / "copies")[0]["kl"] == pytest.approx(0.0, abs=1e-5)


def test_adapters_play_the_game_of_a_phase_that_is_not_the_run_s(finished: Path, tmp_path: Path) -> None:
    file, settings = tmp_path / "config.yaml", ("model.device=cpu", "model.dtype=float32")
    phase = "{algorithm: spag, game: {name: kuhn_poker}, sampling: {max_new_tokens: 4}}"
    file.write_text(f"game: {{name: nim}}\nphases: [{phase}]\n")
    names = (str(finished / PHASE / "checkpoint"), "bot:equilibrium", "--output", str(tmp_path / "games.jsonl"))
    options = ("--config", str(file), "--count", "1", *(part for one in settings for part in ("--set", one)))
    result = CliRunner().invoke(main, ["play", *names, *options])
    assert result.exit_code == 0, result.output
    assert [game.game for game in read_episodes(tmp_path / "games.jsonl")] == ["kuhn_poker"]


def test_what_cannot_work_is_refused(model_folder: Path, finished: Path, tmp_path: Path) -> None:
    for algorithm in ("imitation", "spag"):
        with pytest.raises(ConfigError, match="per_role"):
            config_for(model_folder, f"phases=[{{algorithm: {algorithm}, lora: {{per_role: true}}}}]")
    with pytest.raises(ConfigError, match=r"parallel=fsdp with lora\.per_role"):
        run_here(
            config_for(model_folder, *PER_ROLE, "reinforce.parallel=fsdp", "reinforce.processes=2"),
            tmp_path / "fsdp",
        )
    checkpoint = finished / PHASE / "checkpoint"
    with pytest.raises(ModelError, match=f"but one model is needed here; name one: {checkpoint}/{NAMES[0]}, "):
        run_here(config_for(checkpoint), tmp_path / "one")
    mixed = (
        "reinforce.mix=[{name: tic_tac_toe}]",
        "reinforce.opponents={self: 1}",
        "reinforce.evaluation_opponents=[start]",
    )
    with pytest.raises(ConfigError, match="the arena plays kuhn_poker, and adapters are trained for tic_tac_toe"):
        run_here(config_for(model_folder, *PER_ROLE, *mixed), tmp_path / "other")
    with pytest.raises(ModelError, match="has no adapter for tic_tac_toe/player_0, only for kuhn_poker/player_0, "):
        both = "reinforce.mix=[{name: kuhn_poker}, {name: tic_tac_toe}]"
        run_here(config_for(checkpoint, *PER_ROLE, *mixed, both), tmp_path / "roles")
    with pytest.raises(ModelError, match="are adapters of 2 base models"):
        load_adapters({"a": str(checkpoint / NAMES[0]), "b": str(model_folder)}, dtype="float32")
