"""The record of a game's players and settings, and the check that keeps other games out of a file.

Beside task, seed and the hashes of its prompts, a row holds

    "settings":{"max_turns":5,"judge":"strict","prompts":"3f2a...","words":"shipped","top_words":50000},
    "players":{"attacker":{"model":"m","sampling":{...},
                           "identity":{"weights":"9b1c...","dtype":"float32","prompt_style":"plain"}}}

where a setting that names a file is the hash of its contents. The record is part of the row, so it is on disk with the
game even after a crash, and files may be moved, cut and joined.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from spag.algorithms.credit import prompt_digest
from spag.core.episodes import Episode, PlayerInfo
from spag.core.errors import RunError
from spag.engines.players import PlayerConfig
from spag.games.base import Game
from spag.games.registry import files_of, settings_of
from spag.rollout.matchmaking import Match
from spag.storage.disk import is_file_there
from spag.storage.episodes import read_episodes
from spag.storage.outputs import changes
from spag.storage.store import file_digest, write_rows


def game_record(game: Game) -> dict[str, Any]:
    """Return the settings of ``game`` that are not ``None``, with files replaced by their hashes."""
    settings = {name: value for name, value in settings_of(game).items() if value is not None}
    return {**settings, **{name: file_digest(path) for name, path in named_files(game).items()}}


def named_files(game: Game) -> dict[str, Path]:
    """Return the existing files named in a game's settings, by option: their contents are part of the settings."""
    return {name: path for name, path in files_of(game).items() if path.is_file()}


def records_of(
    matches: Iterable[Match], game: Game, identity_of: Callable[[PlayerConfig], dict[str, str]]
) -> dict[str, Episode]:
    """Return the games of ``matches`` by id, as episodes without utterances that hold their records."""
    settings, found = game_record(game), dict[str, Episode]()
    for match in matches:
        players = {
            role: PlayerInfo(player.name, player.sampling.model_dump(), identity_of(player))
            for role, player in match.players.items()
        }
        for spec in match.specs:
            unplayed = Episode(id=spec.id, game=game.name, task=spec.task, seed=spec.seed, history=())
            found[spec.id] = replace(unplayed, settings=settings, players=players)
    return found


def check_games(
    path: Path,
    wanted: Mapping[str, Episode],
    game: Game,
    note: Callable[[str], None],
    *,
    force: bool,
    keep_others: bool = False,
) -> None:
    """Check that every game in ``path`` is one of ``wanted``, by id, and was played with the same settings. ``wanted``
    are games as ``records_of`` returns them.

    Players are renamed as in ``wanted``: a phase added to a run may rename its models, and one file must not hold a
    learner under two names. With ``force``, other games are removed, and ``note`` receives how many; with
    ``keep_others``, those of other ids stay as they are. Raises ``RunError`` for the first game that differs, naming
    the difference, and ``DataError`` if the file is corrupt.
    """
    if not is_file_there(path):
        return
    stale: set[int] = set()
    first, total, renamed = "", 0, False
    for number, episode in enumerate(read_episodes(path, torn_ok=True)):
        total += 1
        if keep_others and episode.id not in wanted:
            continue
        if found := _differences(episode, wanted.get(episode.id), game):
            first = first or f"{episode.id!r}: {', '.join(found)}"
            stale.add(number)
        else:
            renamed |= _names(episode) != _names(wanted[episode.id])
    if stale and not force:
        fix = "choose another --output, or replay them with --force"
        raise RunError(
            f"{path}: {len(stale)} of its {total} games differ from the requested games, the first {first}; {fix}"
        )
    if stale or renamed:
        kept = (one for number, one in enumerate(read_episodes(path, torn_ok=True)) if number not in stale)
        named = (replace(one, players=wanted[one.id].players) if one.id in wanted else one for one in kept)
        write_rows(path, named)
    if stale:
        note(f"{path}: removed {len(stale)} of {total} games that differ from the requested games, the first {first}")


def played_dtype(path: Path) -> str | None:
    """Return the dtype of the models in a file of games; ``None`` if no row records it."""
    infos = (
        info
        for episode in (read_episodes(path, torn_ok=True) if is_file_there(path) else ())
        for info in episode.players.values()
    )
    return next((info.identity["dtype"] for info in infos if info.identity and "dtype" in info.identity), None)


def _differences(episode: Episode, wanted: Episode | None, game: Game) -> list[str]:
    """Return the differences, as ``attacker.temperature was 1.2, is 0.7``; none if the game is the requested one."""
    if wanted is None:
        return ["not one of this call's tasks, repeats or pairings"]
    task = msgspec.json.decode(msgspec.json.encode(wanted.task.data))  # as in a row, with lists for tuples
    found = changes(_record(episode), {**_record(wanted), "task": task})
    digest = episode.history[0].prompt_digest if episode.history else None
    if digest is not None and not found and digest != (first := _first_prompt(wanted, game)):
        found.append(f"the hash of the first prompt was {digest!r}, is {first!r}")
    return found


def _record(episode: Episode) -> dict[str, Any]:
    """Return what determines a game. A model's name does not: a folder may be moved."""
    by_role = {role: {**info.sampling, **(info.identity or {})} for role, info in episode.players.items()}
    about = {"name": episode.game, **(episode.settings or {})}
    return {"seed": episode.seed, "task": episode.task.data, "game": about, **by_role}


def _names(episode: Episode) -> dict[str, str]:
    return {role: info.model for role, info in episode.players.items()}


def _first_prompt(episode: Episode, game: Game) -> str:
    state = episode.before(0)
    role = game.to_move(state)
    assert role is not None
    return prompt_digest(game.prompt(game.observe(state, role)))
