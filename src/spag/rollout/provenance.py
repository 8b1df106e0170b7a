"""Who played a game, and how: what each row of a file of games records, and the check that keeps other games out of the file.

Beside task, seed and the hashes of its prompts, a row holds

    "settings":{"max_turns":5,"judge":"strict","prompts":"3f2a...","words":"shipped","top_words":50000},
    "players":{"attacker":{"model":"m","sampling":{...},"identity":{"weights":"9b1c...","dtype":"float32","prompt_style":"plain"}}}

where a setting that names a file stands as the hash of its contents. The record is part of the row, not of a file beside it: it is on disk
with the game whenever the process dies, and files may be moved, cut and joined. Older rows hold less: what they hold is compared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from spag.core.disk import is_file_there
from spag.core.episodes import Episode, PlayerInfo, read_episodes
from spag.core.errors import RunError
from spag.core.manifest import changes
from spag.core.store import file_digest, write_rows
from spag.games.base import Game
from spag.games.registry import settings_of
from spag.rollout.runner import GameSpec, prompt_digest


@dataclass(frozen=True, slots=True)
class Provenance:
    """What decides a game beside its task and seed: the game's settings, and the players by role."""

    settings: Mapping[str, Any]
    players: Mapping[str, PlayerInfo]

    def stamp(self, episode: Episode) -> Episode:
        """Return ``episode`` with this record."""
        return replace(episode, settings=self.settings, players=self.players)


def game_record(game: Game) -> dict[str, Any]:
    """Return the settings of ``game`` without those that are ``None``, the files among them by their hash."""
    settings = {name: value for name, value in settings_of(game).items() if value is not None}
    files = {name: Path(value) for name, value in settings.items() if isinstance(value, str) and Path(value).is_file()}
    return {**settings, **{name: file_digest(path) for name, path in files.items()}}


def check_games(
    path: Path,
    wanted: Mapping[str, tuple[GameSpec, Provenance]],
    game: Game,
    note: Callable[[str], None],
    *,
    force: bool = False,
) -> None:
    """Check that every game in ``path`` is one of ``wanted``, by id, and was played as that one is to be.

    With ``force``, other games are removed. ``note`` is told how many, and of how many the players are not known, which older files do not
    say. Raises ``RunError`` for the first game that differs, naming what does, and ``DataError`` when the file is corrupt.
    """
    if not is_file_there(path):
        return
    stale: set[int] = set()
    first, unknown, total = "", 0, 0
    for number, episode in enumerate(read_episodes(path, torn_ok=True)):
        total += 1
        if found := _differences(episode, wanted.get(episode.id), game):
            first = first or f"{episode.id!r}: {', '.join(found)}"
            stale.add(number)
        elif any(info.identity is None for info in episode.players.values()) or not episode.players:
            unknown += 1
    if stale and not force:
        fix = "choose another --output, or let --force play them again"
        raise RunError(f"{path}: {len(stale)} of its {total} games are others than those asked for, the first {first}; {fix}")
    if stale:
        write_rows(path, (episode for number, episode in enumerate(read_episodes(path, torn_ok=True)) if number not in stale))
        note(f"{path}: removed {len(stale)} of {total} games, which were played otherwise, the first {first}")
    if unknown:
        note(f"{path}: {unknown} games do not say which weights played them; they count as those of the players named")


def played_dtype(path: Path) -> str | None:
    """Return the dtype that the models of a file of games played in; ``None`` where no row says so."""
    infos = (info for episode in (read_episodes(path, torn_ok=True) if is_file_there(path) else ()) for info in episode.players.values())
    return next((info.identity["dtype"] for info in infos if info.identity and "dtype" in info.identity), None)


def _differences(episode: Episode, wanted: tuple[GameSpec, Provenance] | None, game: Game) -> list[str]:
    """Return what differs, as ``attacker.temperature was 1.2, is 0.7``; nothing where the game is the one asked for."""
    if wanted is None:
        return ["not one of this call's tasks, repeats or pairings"]
    spec, asked = wanted
    settings = asked.settings if episode.settings is None else episode.settings
    had = {"seed": episode.seed, "task": episode.task.data, "game": {"name": episode.game, **settings}}
    now = {"seed": spec.seed, "task": _as_read(spec.task.data), "game": {"name": game.name, **asked.settings}}
    found = changes(had, now)
    for role, info in asked.players.items():
        if role in episode.players:
            found += _player_differences(role, episode.players[role], info)
    digest = episode.history[0].prompt_digest if episode.history else None
    if digest is not None and not found and digest != (first := _first_prompt(spec, game)):
        found.append(f"the hash of the first prompt was {digest!r}, is {first!r}")
    return found


def _player_differences(role: str, had: PlayerInfo, asked: PlayerInfo) -> list[str]:
    """A model's name counts only where its identity is not known: a folder may be moved."""
    found = changes(had.sampling or asked.sampling, asked.sampling, f"{role}.")
    if had.identity is None or asked.identity is None:
        return found + changes({"model": had.model}, {"model": asked.model}, f"{role}.")
    if had.identity.keys() != asked.identity.keys():  # a model where there was a bot
        return [*found, f"{role} was {_described(had.identity)}, is {_described(asked.identity)}"]
    return found + changes(had.identity, asked.identity, f"{role}.")


def _described(identity: Mapping[str, str]) -> str:
    return " ".join(f"{name} {value}" for name, value in identity.items())


def _first_prompt(spec: GameSpec, game: Game) -> str:
    state = game.start(spec.task, spec.seed)
    role = game.to_move(state)
    assert role is not None
    return prompt_digest(game.prompt(game.observe(state, role)))


def _as_read(data: Mapping[str, Any]) -> Any:
    """Return a task's data as a row has it, with lists for tuples."""
    return msgspec.json.decode(msgspec.json.encode(data))
