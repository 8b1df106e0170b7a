"""The folder of an online run of Kuhn poker as ``spag run`` leaves it, written without training: bots play, figures
follow formulas.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from spag.config.files import dump_config, parse_config
from spag.core.episodes import Episode, PlayerInfo
from spag.core.options import SamplingConfig
from spag.core.types import Split
from spag.engines.bot import BotEngine
from spag.evaluation.arena.standings import arena_report
from spag.games import get
from spag.rollout.matchmaking import Pairing
from spag.rollout.runner import Player, game_specs, play
from spag.storage.store import write_json, write_rows

KUHN = get("kuhn_poker")
CONFIG = """
model: {name: no-such-model, dtype: float32}
game: {name: kuhn_poker}
phases:
- {algorithm: imitation, episodes: ["bot:random"]}
- {algorithm: reinforce, steps: 12, games: 6}
"""
SIGN = "player_1 of kuhn_poker: entropy is 0.010 nats per token, at first 0.300: the policy nearly always says the same"
DRIFT = "player_0 of kuhn_poker: has 97 % of the policy's wins"


def games(step: int, count: int = 6) -> list[Episode]:
    move = KUHN.bots["random"]
    player = Player(BotEngine(move), "policy", SamplingConfig())
    specs = game_specs(KUHN.tasks(Split.TRAIN, count, step), 1, step)
    return list(
        play(
            [type(spec)(f"{step}/{spec.id}", spec.task, spec.seed) for spec in specs],
            dict.fromkeys(KUHN.roles, player),
            game=KUHN,
        )
    )


def duels(one: str = "policy", other: str = "start") -> list[Episode]:
    """Twelve games between two players, six in each assignment of roles."""
    made = []
    for pairing in (Pairing((one, other)), Pairing((other, one))):
        for episode in games(1):
            players = dict(zip(KUHN.roles, map(PlayerInfo, pairing.players), strict=True))
            made.append(replace(episode, id=f"{pairing.title}: {episode.task.id}", players=players))
    return made


def metrics(step: int, noise: float = 0.05) -> dict[str, Any]:
    wave = noise * math.sin(9.0 * step)
    row: dict[str, Any] = {
        "step": step,
        "samples": 14.0,
        "loss": 0.05 + wave,
        "tokens": 60.0,
        "entropy": 0.3,
        "kl": 0.01 * step,
    }
    row |= {"mismatch": 1e-6, "mismatch_max": 1e-5, "mismatch_kl": 1e-8, "learning_rate": 5e-6, "grad_norm": 2.0 + wave}
    row |= {
        "tokens_per_second": 400.0,
        "play_s": 2.0,
        "update_weights_s": 0.05,
        "logprobs_s": 0.25,
        "train_s": 2.5,
        "evaluate_s": 0.0,
    }
    row |= {"step_s": 5.0, "kuhn_poker/games": 6}
    for sign, role in zip((1, -1), KUHN.roles, strict=True):
        own = {"reward": sign * (0.2 - 0.01 * step + wave), "baseline": sign * 0.1, "win": 0.5 + sign * 0.05 + wave}
        own |= {
            "illegal": 0.2 / step,
            "length": 4.0,
            "no_advantage": 0.0,
            "distinct": 0.3,
            "entropy": 0.3 / math.sqrt(step),
        }
        row |= {f"kuhn_poker/{role}/{name}": value for name, value in own.items()}
    return row


def evaluation(step: int) -> dict[str, Any]:
    report = arena_report(duels(), KUHN, ("policy", "start"))
    own = [row for row in report["roles"] if row["name"] == "policy"]
    exact = {"exploitability": 0.36 / step, "legal_mass": 0.98}
    return {
        "step": step,
        "game": "kuhn_poker",
        "opponent": "start",
        "roles": own,
        "pair": report["pairs"],
        "exact": exact,
    }


MET = [
    {"game": "kuhn_poker", "opponent": "bot:random", "games": 1200, "score": 0.75, "rating": -190.8, "share": 0.2},
    {"game": "kuhn_poker", "opponent": "snapshot-8", "games": 96, "score": 0.4, "rating": 70.4, "share": 0.3},
]
"""How the policy stands to its opponents after the last step; the rest of the draws is self-play."""


def write_online(folder: Path, *, steps: int = 12, finished: bool = True) -> Path:
    """Write a run; unless ``finished`` it is at work, without an arena. Step 2 was played by two processes."""
    online = folder / "2-reinforce"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(parse_config(CONFIG, "test")))
    for step in range(1, steps + 1):
        write_rows(online / "episodes" / f"step-{step:05d}.jsonl", games(step))
    write_rows(online / "episodes" / "step-00002.part1.jsonl", games(102))
    rows = [metrics(step) for step in range(1, steps + 1)]
    rows[-1]["evaluate_s"] = 30.0
    write_rows(online / "metrics.jsonl", rows)
    write_rows(online / "evaluations.jsonl", [evaluation(step) for step in (4, steps)])
    write_rows(online / "evaluations" / f"step-{steps:05d}-kuhn_poker-start.jsonl", duels())
    write_rows(online / "opponents.jsonl", [{"step": step, "opponents": met} for step, met in ((4, []), (steps, MET))])
    signs = [{"a": SIGN}, {"a": SIGN, "b": DRIFT}, {"a": SIGN}]
    write_rows(
        online / "warnings.jsonl",
        [{"step": step, "warnings": found} for step, found in zip((8, 9, 11), signs, strict=True)],
    )
    stages = {"1-imitation/train": _stage(90.0, steps=5, samples=40, held_out=0)}
    if finished:
        names = ("base", "imitation", "reinforce")
        pairs = [("base", "imitation"), ("base", "reinforce"), ("imitation", "reinforce")]
        arena = arena_report([game for pair in pairs for game in duels(*pair)], KUHN, names)
        arena["exact_metrics"] = {
            name: {"exploitability": value} for name, value in zip(names, (0.5, 0.37, 0.04), strict=True)
        }
        write_json(folder / "arena" / "results.json", arena)
        stages |= {"2-reinforce/train": _stage(60.0, steps=steps), "arena": _stage(5.0, games=36)}
    else:
        stages["2-reinforce/train"] = {**_stage(0.0), "status": "started"}
    write_json(folder / "manifest.json", {"schema_version": 1, "measured": {}, "stages": stages})
    return folder


def _stage(seconds: float, **results: Any) -> dict[str, Any]:
    return {"status": "done", "fingerprint": "0" * 16, "settings": {}, "seconds": seconds, "results": results}
