"""Small run folders, made of the same pieces as real ones."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from spag.config.files import dump_config
from spag.config.schema import RunConfig
from spag.core.episodes import Episode, PlayerInfo
from spag.evaluation.arena.standings import arena_report
from spag.evaluation.health import health
from spag.evaluation.reasoning.results import figures_of
from spag.rollout.matchmaking import match_specs, pairings
from spag.storage.store import write_json, write_rows
from taboo_games import ROLES, TABOO, episode_of, task_of

HOSTILE = (
    '</bdi></style><script src="http://evil.example/x.js">alert(1)</script><img src=x onerror=alert(2)> \u202eevil'
)
WORDS = [f"word{number:02d}x" for number in range(24)]
PLAYERS = ("base", "imitation", "spag-1")
STRENGTH = {"base": 0, "imitation": 10, "spag-1": 24}  # words on which it leads the defender astray, of 24


def leave_undrawn(patch: pytest.MonkeyPatch) -> list[str]:
    """Let reports make their plots but save none of them, which takes most of a report's time; return their names."""
    names: list[str] = []

    def save_plot(_: object, name: str, says: str, folder: Path) -> Markup:
        names.append(name)
        return Markup("")

    patch.setattr("spag.report.page.save_plot", save_plot)
    return names


def game(word: str, *texts: str, id: str = "", players: Mapping[str, str] | None = None) -> Episode:
    infos = {role: PlayerInfo(name) for role, name in (players or {}).items()}
    return episode_of(word, *texts, id=id or f"{word}-0", players=infos)


def arena_games() -> list[Episode]:
    """Every attacker lures its defender on the first of the words, as many as its strength; the others end in a tie."""
    games = []
    for pairing in pairings(PLAYERS):
        for place, spec in enumerate(match_specs(pairing, list(map(task_of, WORDS)), seed=0)):
            reply = f"Is it {spec.task.id}?" if place < STRENGTH[pairing.players[0]] else "No idea."
            players = dict(zip(ROLES, pairing.players, strict=True))
            games.append(game(spec.task.id, "Tell me about your day.", reply, id=spec.id, players=players))
    return games


def selfplay_games() -> list[Episode]:
    talk = "What flows to the sea?", "Water does, mostly.", "And what carries it there?"
    return [
        game("river", *talk, "I know the word! It is `river`!", id="river-0"),
        game("bread", "What do you eat with butter in the morning?", "I like my bread warm.", id="bread-0"),
        game("bread", "What is in your bag?", "A loaf of bread.", id="bread-1"),
        game("cat", f"{HOSTILE} My c-a-t sleeps.", "Good for it.", id="cat-0"),
        game("piano", "Hello there.", "Hello there.", "Hello there.", "Hello there.", id="piano-0"),
        game("garden", "Say it.", "I know the word! It is `spade`!", id="garden-0"),
        game("window", "Glass" + " and glass" * 20, "What?", id="window-0"),
    ]


def steps(count: int, **figures: float) -> list[dict[str, Any]]:
    return [{"step": step, "learning_rate": 1e-4 / step, "loss": 3.0 / step, **figures} for step in range(1, count + 1)]


def write_run(folder: Path, *, iterations: int = 1) -> Path:
    """Write a run with self-play, training and arena; no reasoning."""
    phases = [{"algorithm": "imitation"}, {"algorithm": "spag", "iterations": iterations}]
    config = RunConfig.model_validate({"model": {"name": "tiny <model>"}, "phases": phases})
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(config))
    stages: dict[str, Any] = {"1-imitation/train": stage(90.0, steps=5, samples=40, held_out=0)}
    (folder / "1-imitation").mkdir()
    write_rows(folder / "1-imitation" / "metrics.jsonl", steps(5, loss_attacker=1.0, loss_defender=2.0))
    for number in range(1, iterations + 1):
        name = f"2-spag/iteration-{number}"
        write_rows(folder / name / "episodes.jsonl", selfplay_games())
        write_json(folder / name / "health.json", health(selfplay_games(), TABOO))
        write_rows(folder / name / "metrics.jsonl", steps(7, kl=0.1, clip_fraction=0.25, grad_norm=float("inf")))
        outcomes = {"attacker_wins": 3, "defender_wins": 1, "attacker_violation": 1, "tie": 2}
        stages[f"{name}/play"] = stage(
            3600.0, games=7, outcomes=outcomes, games_per_hour=1234, completion_tokens=56_789
        )
        stages[f"{name}/train"] = stage(30.0, steps=7, samples=11, held_out=0, versions={"torch": "2.13.0"})
    write_rows(folder / "arena" / "episodes.jsonl", arena_games())
    write_json(folder / "arena" / "results.json", arena_report(arena_games(), TABOO, PLAYERS))
    stages["arena"] = {**stage(60.0, games=144), "finished": "2026-01-02T03:04:05Z"}
    write_manifest(folder, stages)
    return folder


def stage(seconds: float, **results: Any) -> dict[str, Any]:
    return {"status": "done", "fingerprint": "0" * 16, "settings": {}, "seconds": seconds, "results": results}


def record_held_out(folder: Path, stage: str, count: int | None) -> None:
    """Write into a run's manifest how many games on held-out tasks ``stage`` had; with ``None``, as runs from before
    this record.
    """
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["stages"][stage]["results"] = {} if count is None else {"held_out": count}
    write_manifest(folder, manifest["stages"])


def write_manifest(folder: Path, stages: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "manifest.json", {"schema_version": 1, "measured": {}, "stages": stages})


def write_reasoning(folder: Path, tasks: Sequence[str], *, better_by: float = 0.3) -> None:
    """Write reasoning results of base and spag-1, 100 items a task: base is right on 40, the other on
    ``better_by`` more.
    """
    right = {"base": 40, "spag-1": round(100 * (0.4 + better_by))}
    items = {
        task: {
            name: [{"task": task, "metrics": {"acc": float(item < count)}} for item in range(100)]
            for name, count in right.items()
        }
        for task in tasks
    }
    figures = figures_of(dict.fromkeys(tasks, "acc"), items, 0)
    for model in figures.values():
        for figure in model["tasks"].values():
            figure.update(seconds=60.0, versions={"lm_eval": "0.4.13"})
    about = {task: {"label": f"<{task}>", "metric": "acc", "shots": 0} for task in tasks}
    write_json(folder / "reasoning" / "results.json", {"reference": "base", "tasks": about, "models": figures})
