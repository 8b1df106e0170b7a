"""The games worth reading. One pass over a file; only a few candidates are kept.

Won games come first if no utterance is empty, repeated, copied or a refusal, and none of the game's own figures warns.
Longer games precede shorter ones. Ties are broken by the games' ids, so the order of a file does not matter.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from spag.core.episodes import Episode
from spag.evaluation.health import health
from spag.games.base import Game
from spag.games.replay import Explanation, explain

MOST = 6
"""Games shown."""


def pick_games(episodes: Iterable[Episode], game: Game) -> list[tuple[Episode, Explanation]]:
    """Return the ``MOST`` best games, each on another task, without what was said after their judged end."""
    best: dict[str, tuple[tuple[bool, int, int, str], Episode]] = {}  # rank and game, by task
    for played in episodes:
        found = health([played], game)
        length = round(found["mean_length"])
        episode = replace(played, history=played.history[:length])
        words = {word.casefold() for said in episode.history for word in said.content.split()}
        rank, task = (not _is_good(found, game), -length, -len(words), episode.id), game.describe_task(episode.task)
        if task not in best or rank < best[task][0]:
            best[task] = rank, episode
        if len(best) > MOST:
            del best[max(best, key=lambda one: best[one][0])]
    return [(episode, explain(game, episode)) for _, episode in sorted(best.values(), key=lambda kept: kept[0])]


def _is_good(found: Mapping[str, Any], game: Game) -> bool:
    warns = (found["figures"][figure.name] for figure in game.figures if figure.limit is not None)
    if any(warns) or any(found[name] for name in ("empty", "repeated", "copied", "refusals")):
        return False
    return any(found["outcomes"][name] for name, outcome in game.outcomes.items() if outcome.winners)
