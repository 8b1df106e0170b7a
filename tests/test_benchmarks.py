"""The benchmarks compare like with like: both steps of training compute the same gradients, and what they count is what
they compute.
"""

import json
from pathlib import Path

import pytest
import torch
from benchmarks import __main__ as every
from benchmarks import online, steps, web
from benchmarks.corpus import long_games
from benchmarks.machine import datasheet, hardware, versions
from benchmarks.steps import Ours, PaperStyle, Setting, Work
from benchmarks.training import run

from spag import judge_episode
from spag.algorithms.reinforce import Reinforce
from spag.config.schema import PhaseConfig
from spag.games.taboo.types import TabooOutcome
from spag.models.loading import load_tokenizer
from spag.models.samples import encode_samples
from spag.models.tokens import PromptStyle
from spag.planning.specs import GIB
from spag.rollout.matchmaking import step_specs
from spag.storage.episodes import read_episodes
from tiny_model import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("tiny") / "model"))


def gradients(setting: Setting) -> torch.Tensor:
    assert setting.gradients() == 1.0
    return torch.cat(
        [parameter.grad.flatten() for parameter in setting.policy.parameters() if parameter.grad is not None]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("template", "turns"), [("play", 0), ("random", 3)])
def test_both_steps_compute_the_same_gradients(
    model: str, template: str, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "PAPER_SHARE", 1)  # all of the paper's pairs
    work = Work(model=model, template=template, dtype="float32", samples=6, micro_batch=4, turns=turns)
    paper, ours = gradients(PaperStyle(work)), gradients(Ours(work))
    assert paper.norm() > 0.001
    torch.testing.assert_close(ours, paper, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.long
def test_both_online_steps_compute_the_same_gradients(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine bans end tokens, so its probabilities are a little above the policy's: a limit of 0.5 makes every
    correction 0.5.
    """
    work = online.Work(model=model, dtype="float32", games=3, steps=1, micro_batch=4)
    corrected = online.settings_of(work).model_copy(update={"correction_limit": 0.5})
    monkeypatch.setattr(PhaseConfig, "settings", property(lambda _: corrected))
    described, [row] = online.train(work, tmp_path)
    assert 0 < sum(row[part] for part in online.PARTS) < described["seconds"]
    played = {game.id: game for game in read_episodes(tmp_path / "episodes" / "step-00001.jsonl")}
    games = [played[spec.id] for _, spec in step_specs([(online.GAME, 1.0)], 3, 1, 0)]
    samples = Reinforce(corrected).credit(games, online.GAME, None)
    assert len(samples) == 3 * 2 * online.TURNS and row["tokens"] == len(samples) * online.TOKENS
    encoded = encode_samples(samples, load_tokenizer(model), PromptStyle.PLAIN, 2048)
    plain = online.PlainLoop(work)
    trained = [(list(found.input_ids), found.completion_start) for found in encoded]
    loss = plain.gradients(trained, [sample.reward for sample in samples], plain.batches(len(trained)))
    norm = torch.cat(
        [parameter.grad.flatten() for parameter in plain.model.parameters() if parameter.grad is not None]
    ).norm()
    assert row["loss"] == pytest.approx(loss / 2, rel=1e-4) and row["grad_norm"] == pytest.approx(
        float(norm) / 2, rel=1e-3
    )


@pytest.mark.slow
@pytest.mark.long
def test_every_contestant_of_the_online_step_does_all_its_work(model: str) -> None:
    work = online.Work(model=model, dtype="float32", games=2, steps=1)
    readings = {name: contestant(work) for name, contestant in online.CONTESTANTS.items()}
    trained = 2 * 2 * online.TURNS * online.TOKENS
    assert [readings[name].more["tokens"] for name in ("online-training", "offline-training")] == [trained, trained]
    for name in ("plain", "ours"):
        more = readings[name].more
        assert readings[name].value == pytest.approx(3600 / more["seconds_per_step"])
        assert 0 < sum(share for part, share in more.items() if part.endswith("_share")) <= 1.0 + 1e-9


@pytest.mark.slow
def test_operations_are_counted_as_they_are_made(model: str) -> None:
    work = Work(model=model, template="play", samples=6, micro_batch=2)
    paper, ours = PaperStyle(work), Ours(work)
    padded = sum(2 * max(len(sample.input_ids) for sample in pair) for pair in paper.pairs())
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64  # attention with half as many keys as queries, and a gated MLP
    head = len(paper.policy.get_output_embeddings().weight) * 32
    assert paper.flops() == 2 * 4 * padded * (2 * layer + head)
    trained = sum(len(sample.completion) for sample in ours.samples)
    assert 4 * 2 * trained * head < ours.flops() < paper.flops() / 2


@pytest.mark.slow
def test_a_run_reads_speed_and_memory(model: str) -> None:
    reading = run("ours", Work(model=model, dtype="float32", samples=4))
    assert reading.value == pytest.approx(4 / reading.more["seconds"])
    assert 0 < reading.more["resting_gib"] <= reading.more["peak_gib"]
    assert "mfu" not in reading.more or torch.cuda.is_available()


@pytest.mark.slow
def test_long_games_are_won_by_the_attacker_at_the_end() -> None:
    verdicts = [judge_episode(episode) for episode in long_games(4, samples=40)]
    won = [verdict for verdict in verdicts if verdict.outcome is TabooOutcome.ATTACKER_WINS and verdict.length == 8]
    assert len(verdicts) == 20
    assert len(won) >= 18


@pytest.mark.parametrize(
    ("name", "gib", "kind"),
    [
        ("NVIDIA H200", 139.8, "H200"),
        ("NVIDIA A100-SXM4-80GB", 79.3, "A100-80"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100-40"),
        ("NVIDIA GeForce RTX 4090", 23.6, "RTX-4090"),
        ("NVIDIA A10G", 22.0, "A10G"),
        ("NVIDIA H100 PCIe", 79.2, None),
        ("NVIDIA GeForce RTX 3090 Ti", 23.7, None),
        ("Some GPU", 80.0, None),
    ],
)
def test_a_gpu_is_known_by_the_name_that_torch_gives_it(name: str, gib: float, kind: str | None) -> None:
    found = datasheet(name, gib * GIB)
    assert (found.name if found else None) == kind


def test_results_say_what_they_were_measured_on() -> None:
    assert {"cpu", "cores", "python", "bfloat16"} <= hardware().keys()
    assert {"spag-selfplay", "torch", "transformers"} <= versions().keys()


@pytest.mark.slow
def test_the_web_is_asked_for_every_kind_of_page(capsys: pytest.CaptureFixture[str]) -> None:
    web.main(["--games", "60", "--repeats", "1"])
    said = capsys.readouterr().out
    assert all(title in said for title in web.kinds(["a"]))


@pytest.mark.long
def test_quick_contests_are_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):  # the stub sets them
        monkeypatch.setenv(name, "")
    for group in ("endpoint", "judging"):  # the others take minutes even with little work
        every.main(["--quick", "--pairs", "1", "--only", group, "--output", str(tmp_path), "--name", "here"])
    found = json.loads((tmp_path / "here.json").read_text(encoding="utf-8"))
    names = [contest["name"].partition(",")[0] for contest in found["contests"]]
    assert names == ["endpoint", "judging and rewards", "judging and rewards"]
    assert (tmp_path / "here.svg").is_file()
