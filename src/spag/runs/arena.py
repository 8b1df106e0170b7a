"""The arena of a run, and of ``spag arena``: every pair of entrants on held-out tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spag.config.schema import ModelConfig, RunConfig
from spag.core.seeds import derive_seed
from spag.core.types import Split
from spag.engines.players import is_local
from spag.evaluation.arena.standings import arena_report
from spag.evaluation.exact_metrics import score_model
from spag.games.base import Game, SolvedGame
from spag.rollout.matches import PlaySetup, make_matches, play_matches
from spag.rollout.matchmaking import match_specs, pairings
from spag.storage.episodes import read_episodes
from spag.storage.store import write_json


def play_arena(
    folder: Path, entrants: Mapping[str, ModelConfig], config: RunConfig, setup: PlaySetup, *, force: bool = False
) -> dict[str, Any]:
    """Let every pair of ``entrants`` (by name) play the held-out tasks.

    Writes ``episodes.jsonl`` and ``results.json``; returns the results. Games in the file stay. Raises ``RunError``
    where some are of other entrants or settings, which ``force`` removes.
    """
    path = folder / "episodes.jsonl"
    tasks = setup.game.tasks(Split.HELD_OUT, config.arena.tasks, derive_seed(config.seed, "arena"))
    pairs = {pairing: match_specs(pairing, tasks, config.seed) for pairing in pairings(list(entrants))}
    matches = make_matches(pairs, entrants, lambda _: config.arena.sampling, setup.game.roles, "arena")
    play_matches(path, matches, setup, force=force)
    results = arena_report(read_episodes(path), setup.game, list(entrants))
    results["exact_metrics"] = exact_metrics(entrants, setup.game)
    write_json(folder / "results.json", results)
    return results


def exact_metrics(entrants: Mapping[str, ModelConfig], game: Game) -> dict[str, dict[str, float]]:
    """Return the exact figures of each local model's policy, where the game is solved; nothing for other players."""
    if not isinstance(game, SolvedGame):
        return {}
    return {name: score_model(model, game) for name, model in entrants.items() if is_local(model.name)}
