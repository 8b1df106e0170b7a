"""The arena of a run, and of ``spag arena``: every pair of entrants on held-out tasks."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from spag.config.schema import ModelConfig, RunConfig
from spag.core.errors import DataError
from spag.core.progress import Reporter
from spag.core.seeds import derive_seed
from spag.core.types import Split
from spag.engines.players import Kind, identity_of, is_local, kind_of, members_of
from spag.evaluation.arena.standings import arena_report
from spag.evaluation.exact_metrics import figures_of, mixture_of, move_probabilities
from spag.evaluation.result_files import load_results
from spag.games.base import Game, SolvedGame
from spag.rollout.matches import PlaySetup, play_matches
from spag.rollout.matchmaking import Match, make_matches, match_specs, pairings
from spag.rollout.provenance import game_record
from spag.rollout.runner import GameSpec
from spag.runs.checks import naming
from spag.storage.episodes import read_episodes
from spag.storage.store import write_json

Policies = Mapping[str, Sequence[ModelConfig]]
"""By name: a model, or several equally likely ones."""


def play_arena(
    folder: Path, entrants: Mapping[str, ModelConfig], config: RunConfig, setup: PlaySetup, *,
    trained: Collection[str] = (), force: bool = False, keep_others: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Let every pair of ``entrants`` (by name) play the held-out tasks. Each game of a mixture draws its player.

    Reports are about the last entrant in ``trained``, else about the last local model.

    Writes ``episodes.jsonl`` and ``results.json``; returns the results. Games in the file stay. Raises ``RunError`` if
    some have other entrants or settings; ``force`` removes these. With ``keep_others``, games of other entrants stay
    too, and do not count.
    """
    path = folder / "episodes.jsonl"
    with naming("arena.tasks"):
        tasks = setup.game.tasks(Split.HELD_OUT, config.arena.tasks, derive_seed(config.seed, "arena"))
    pairs = {pairing: match_specs(pairing, tasks, config.seed) for pairing in pairings(list(entrants))}
    matches = make_matches(pairs, entrants, config.arena.sampling, setup.game.roles, "arena")
    parts = [part for match in matches for part in _drawn(match, config.seed)]
    summary = play_matches(path, parts, setup, force=force, keep_others=keep_others)
    models = [model for model in entrants.values() if kind_of(model.name) is not Kind.BOT]
    plays_alike = models and not config.arena.sampling.temperature
    if plays_alike and (copies := len(tasks) - len({json.dumps(task.data, sort_keys=True) for task in tasks})):
        what = f"{copies} of {len(tasks)} tasks are repeats, which models play alike at temperature 0"
        setup.reporter.note(f"arena: {what}; intervals and p-values count each: set arena.sampling.temperature")
    wanted = {spec.id for match in matches for spec in match.specs}
    played = (game for game in read_episodes(path) if game.id in wanted)
    results = arena_report(played, setup.game, list(entrants))
    local = [name for name, model in entrants.items() if is_local(model.name)]
    results["subjects"] = [name for name in trained if name in entrants] or local
    results["completion_tokens"] = summary.tokens
    results["thinking"] = config.arena.sampling.thinking.enabled
    results |= _exact_results(folder / "results.json", scored_policies(entrants, setup.game), setup)
    write_json(folder / "results.json", results)
    return results


def scored_policies(entrants: Mapping[str, ModelConfig], game: Game) -> Policies:
    """Return the policies that have exact metrics: if the game is solved, those of local models, and of mixtures if it
    records the player's earlier moves at each decision.
    """
    if not isinstance(game, SolvedGame):
        return {}
    mixes = all(decision.own is not None for decision in game.decisions())
    kinds = {Kind.LOCAL, Kind.MIXTURE} if mixes else {Kind.LOCAL}
    return {name: members_of(model) for name, model in entrants.items() if kind_of(model.name) in kinds}


def _exact_results(path: Path, policies: Policies, setup: PlaySetup) -> dict[str, Any]:
    """Return exact metrics, and fingerprints of their models and the game: by these, the results in ``path`` may have
    them already.
    """
    game, known = setup.game, dict[str, Any]()
    if not isinstance(game, SolvedGame):
        return {"exact_metrics": {}}
    rules = [game_record(game), [game.prompt(decision.observation) for decision in game.decisions()]]
    records = {name: json.dumps([rules, *map(identity_of, models)]) for name, models in policies.items()}
    prints = {name: sha256(record.encode()).hexdigest()[:16] for name, record in records.items()}
    with suppress(DataError):  # there are none, or this call replaces them
        known = load_results(path)
    same = prints.items() & known.get("exact_fingerprint", {}).items()
    found = {name: known["exact_metrics"][name] for name, _ in same if name in known["exact_metrics"]}
    left = {name: models for name, models in policies.items() if name not in found}
    found |= exact_metrics(left, game, setup.reporter)
    return {"exact_metrics": {name: found[name] for name in policies}, "exact_fingerprint": prints}


def exact_metrics(policies: Policies, game: SolvedGame, reporter: Reporter) -> dict[str, dict[str, float]]:
    """Return the exact metrics of policies."""
    if not policies:
        return {}
    done, found = 0, {}
    moves = sum(len(decision.moves) for decision in game.decisions()) * sum(map(len, policies.values()))
    with reporter.track("exact metrics: moves", moves) as tracker:

        def add(count: int) -> None:
            nonlocal done
            done += count
            tracker.update(done)

        for name, models in policies.items():
            played = [move_probabilities(model, game, add) for model in models]
            found[name] = figures_of(mixture_of(played, game) if len(played) > 1 else played[0], game)
    return found


def _drawn(match: Match, seed: int) -> list[Match]:
    """Split a match by which members of its mixtures play a game: drawn by the run's seed and the game's id."""
    members = {role: members_of(player.model) for role, player in match.players.items()}
    parts: dict[tuple[int, ...], list[GameSpec]] = defaultdict(list)
    for spec in match.specs:
        draws = (Random(derive_seed(seed, "mixture", spec.id, role)).randrange(len(members[role])) for role in members)
        parts[tuple(draws)].append(spec)
    found = []
    for drawn, specs in sorted(parts.items()):
        models = {role: members[role][at] for role, at in zip(members, drawn, strict=True)}
        players = {role: replace(player, model=models[role]) for role, player in match.players.items()}
        found.append(Match(match.title, specs, players))
    return found
