"""The writer of episode files: resumable, one row per finished game, nothing played twice."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spag.core.episodes import Episode
from spag.core.errors import RunError
from spag.core.progress import Reporter, SilentReporter
from spag.engines.base import FinishReason
from spag.games.base import Game
from spag.rollout.matchmaking import Match
from spag.rollout.runner import PlayStats, Summable
from spag.storage.disk import is_file_there
from spag.storage.episodes import ROW_START, JsonlStore, read_episodes

PlayThem = Callable[[Sequence[Match], PlayStats], Iterator[Sequence[Episode]]]
"""Plays games here or elsewhere: yields episodes as they finish, and updates the stats.

Games that finish together are stored with one sync.
"""


@dataclass(slots=True)
class PlaySummary(Summable):
    """Totals of a file, and of this process's additions to it."""

    games: int = 0
    tokens: int = 0  # of all utterances; 0 if the engine reports none
    empty: int = 0  # utterances of the file without text
    overflows: int = 0  # those whose prompt left no room in the context
    played_now: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    stats: PlayStats = field(default_factory=PlayStats)

    @property
    def games_per_hour(self) -> float:
        return 3600 * self.played_now / self.seconds if self.seconds else 0.0

    def describe(self, game: Game) -> str:
        """Return the rate of play, if any, and outcome shares as one line."""
        total = max(self.games, 1)
        shares = "  ".join(
            f"{outcome.label} {100 * self.outcomes[name] / total:.0f}%" for name, outcome in game.outcomes.items()
        )
        return f"{self.games_per_hour:,.0f} games/h  {shares}" if self.played_now else shares


def collect_episodes(
    path: Path,
    matches: Sequence[Match],
    play_them: PlayThem,
    game: Game,
    *,
    records: Mapping[str, Episode] | None = None,
    reporter: Reporter | None = None,
) -> PlaySummary:
    """Play every game of ``matches`` whose id is not yet in ``path``, appending each as it finishes, with the settings
    and players of its record in ``records``, by id.

    ``path`` may hold other games too; ``provenance.check_games`` checks whether they belong there. ``play_them`` is
    called only if games are left to play, so that no model is loaded for nothing. Raises ``RunError`` for a duplicate
    id in ``matches``, ``DataError`` if the file is corrupt.
    """
    summary = PlaySummary()
    left = _left_to_play(path, matches, summary)
    if not left:
        return summary
    batches, records, reporter = play_them(left, summary.stats), records or {}, reporter or SilentReporter()
    title = matches[0].title + (f" and {len(matches) - 1} more" if len(matches) > 1 else "")
    total = sum(len(match.specs) for match in matches)
    with JsonlStore(path, ROW_START) as store, reporter.track(title, total, summary.games) as tracker:
        started = time.monotonic()
        for batch in batches:
            known = ((episode, records.get(episode.id, episode)) for episode in batch)
            store.append(*(replace(one, settings=record.settings, players=record.players) for one, record in known))
            for episode in batch:
                _count(summary, episode)
            summary.played_now += len(batch)
            summary.seconds = time.monotonic() - started
            tracker.update(summary.games, summary.describe(game))
    return summary


def _left_to_play(path: Path, matches: Sequence[Match], summary: PlaySummary) -> list[Match]:
    ids = [spec.id for match in matches for spec in match.specs]
    left = set(ids)
    if len(left) != len(ids):
        raise RunError("two games have the same id: a task is listed twice")
    for episode in read_episodes(path, torn_ok=True) if is_file_there(path) else ():
        if episode.id in left:
            left.remove(episode.id)
            _count(summary, episode)
    found = (replace(match, specs=[spec for spec in match.specs if spec.id in left]) for match in matches)
    return [match for match in found if match.specs]


def _count(summary: PlaySummary, episode: Episode) -> None:
    summary.games += 1
    summary.tokens += sum(len(said.token_ids or ()) for said in episode.history)
    summary.empty += sum(not said.content.strip() for said in episode.history)
    summary.overflows += sum(said.finish_reason == FinishReason.CONTEXT for said in episode.history)
    if episode.outcome is not None:
        summary.outcomes[episode.outcome] += 1
