"""The games worth reading: the best and the strangest. One pass over a file; only a few candidates are kept.

Best: won in many utterances, none of them empty, repeated, copied or a refusal, and without a warning from the game's
own figures. Strangest: one game for each kind of oddity, the rarest first. Ties are broken by the games' ids, so the
order of a file does not matter.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spag.core.episodes import Episode
from spag.core.visible import counted
from spag.evaluation.health import health
from spag.evaluation.warnings import MOST_COPIED, MOST_REPEATED, MOST_VIOLATIONS, free_roles
from spag.games.base import Figure, Game
from spag.games.replay import Explanation, explain

MOST = 3
"""Games shown of each kind."""
MOST_ODD = 0.5
"""Behavior allowed in more than half of the games without a warning is not strange."""

COPIED = "a player recites the rules"
REPEATED = "the same is said again"
AT_ONCE = "a rule is broken with the first words"
LONGEST = "the longest utterance"


@dataclass(frozen=True, slots=True)
class ShownGame:
    """A game with why it is shown. Utterances after the judged end are left out."""

    label: str
    episode: Episode
    explanation: Explanation


_Kept = tuple[tuple[int, ...], Episode]


def pick_games(episodes: Iterable[Episode], game: Game) -> tuple[list[ShownGame], list[ShownGame]]:
    """Return the best and the strangest games, at most ``MOST`` of each."""
    best: dict[str, _Kept] = {}  # by task, MOST of them
    odd: dict[str, _Kept] = {}  # by oddity
    for played in episodes:
        found = health([played], game)
        length = round(found["mean_length"])
        episode = replace(played, history=played.history[:length])
        if _is_good(found, game):
            words = {word.casefold() for said in episode.history for word in said.content.split()}
            _keep(best, game.describe_task(episode.task), ((length, len(words)), episode))
            if len(best) > MOST:
                del best[max(best, key=lambda task: _order(best[task]))]
        for oddity, much in _strangeness(episode, found, game):
            if much:
                _keep(odd, oddity, ((much,), episode))
    strangest: dict[str, ShownGame] = {}
    for oddity in (name for name in _oddities(game) if name in odd):
        (much, *_), episode = odd[oddity]
        detail = {REPEATED: f" ({counted(much, 'time')})", LONGEST: f", {counted(much, 'word')}"}.get(oddity, "")
        strangest.setdefault(episode.id, _shown(oddity + detail, episode, game))  # one game may be strange in many ways
    won = [(counted(rank[0], "utterance"), episode) for rank, episode in sorted(best.values(), key=_order)]
    good = [_shown(f"{explain(game, one).outcome.label} after {length}", one, game) for length, one in won]
    return good, list(strangest.values())[:MOST]


def _is_good(found: Mapping[str, Any], game: Game) -> bool:
    warns = (found["figures"][figure.name] for figure in game.figures if figure.limit is not None)
    if any(warns) or any(found[name] for name in ("empty", "repeated", "copied", "refusals")):
        return False
    return any(found["outcomes"][name] for name, outcome in game.outcomes.items() if outcome.winners)


def _oddities(game: Game) -> list[str]:
    """Return the kinds of oddities, with the share of games that may have each without a warning."""
    figures = {_oddity(figure): figure.limit for figure in game.figures}
    limits = {oddity: limit for oddity, limit in figures.items() if limit is not None and limit <= MOST_ODD}
    limits |= {COPIED: MOST_COPIED, REPEATED: MOST_REPEATED, AT_ONCE: MOST_VIOLATIONS}
    if free_roles(game):
        limits[LONGEST] = 1.0
    return sorted(limits, key=lambda name: limits[name])


def _oddity(figure: Figure) -> str:
    """Rephrase a warning for one game: ``of games end with a leak`` becomes one of the games that end with a leak."""
    of, _, what = figure.warning.partition(" ")
    kind, _, does = what.partition(" ")
    return f"one of the {kind} that {does}" if of == "of" else figure.label


def _strangeness(episode: Episode, found: Mapping[str, Any], game: Game) -> Iterator[tuple[str, int]]:
    """Yield how strange a game is by each oddity; 0 means not at all."""
    length, spoken = round(found["mean_length"]), sum(found["roles"][role]["utterances"] for role in free_roles(game))
    broken = any(found["outcomes"][name] for name, outcome in game.outcomes.items() if outcome.fault)
    yield from ((_oddity(figure), length * bool(found["figures"][figure.name])) for figure in game.figures)
    yield COPIED, round(found["copied"] * spoken)
    yield REPEATED, round(found["repeated"] * spoken)
    yield AT_ONCE, int(broken and length == 1)
    yield LONGEST, max((len(said.content.split()) for said in episode.history), default=0)


def _keep(kept: dict[str, _Kept], name: str, found: _Kept) -> None:
    if name not in kept or _order(found) < _order(kept[name]):
        kept[name] = found


def _order(kept: _Kept) -> tuple[list[int], str]:
    rank, episode = kept
    return [-part for part in rank], episode.id


def _shown(label: str, episode: Episode, game: Game) -> ShownGame:
    return ShownGame(label, episode, explain(game, episode))
