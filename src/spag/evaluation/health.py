"""Health of play: metrics of a file of episodes that show degenerate play, and their warnings.

A model that learns to win may win cheaply: by one opening for every task, by copying the rules, or by exploits that a
game's own figures measure. Win rates do not show this; these metrics do. One streaming pass; memory does not grow with
the texts (distinct-n uses only the first words, openings are kept as hashes).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from spag.algorithms.credit import is_trained
from spag.core.episodes import Episode
from spag.engines.base import FinishReason
from spag.evaluation.warnings import GENERIC_TASKS, free_roles, health_warnings, is_bare_move
from spag.games.base import Figure, Game
from spag.games.replay import replay

DISTINCT_WORDS = 20_000
"""Words of each role used for distinct-n: the share falls with length, so files compare only at equal lengths."""
COPIED_WORDS = 8
"""Consecutive words shared with the rules or instructions that count as copied."""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_AI = r"an? (?:ai|artificial intelligence|(?:large )?language model)"
_REFUSAL = re.compile(
    rf"\b(?:as {_AI}|i(?:'m| am) (?:just |only )?{_AI}|i must decline"
    r"|(?:sorry|afraid),? (?:but )?i(?: can't| cannot| can not| won't|'m unable|'m not able| am unable| am not able)"
    r"|i(?: can't| cannot| won't|'m unable to|'m not able to| am unable to| am not able to)"
    r" (?:assist|comply|fulfill?|participate|engage in|help (?:you )?with))\b"
)


@dataclass(frozen=True, slots=True)
class RoleHealth:
    """One role. Shares of its ``games``: ``win``, alone; ``violation``. ``distinct_n``: distinct n-grams as a share of
    all, over its first ``DISTINCT_WORDS`` words; a bare move has no words.
    """

    games: int
    win: float
    violation: float
    utterances: int
    mean_words: float
    distinct_1: float
    distinct_2: float


@dataclass(slots=True)
class _Role:
    """Counts of one role."""

    games: int = 0
    wins: int = 0
    violations: int = 0
    utterances: int = 0
    words: int = 0
    totals: Counter[int] = field(default_factory=Counter)  # by n
    distinct: dict[int, set[tuple[str, ...]]] = field(default_factory=lambda: {1: set(), 2: set()})

    def add(self, words: list[str]) -> None:
        first = words[: max(0, DISTINCT_WORDS - self.words)]
        self.utterances += 1
        self.words += len(words)
        for n, seen in self.distinct.items():
            grams = list(_ngrams(first, n))
            self.totals[n] += len(grams)
            seen.update(grams)

    def result(self) -> RoleHealth:
        games = max(1, self.games)
        return RoleHealth(
            games=self.games,
            win=self.wins / games,
            violation=self.violations / games,
            utterances=self.utterances,
            mean_words=self.words / max(1, self.utterances),
            distinct_1=len(self.distinct[1]) / max(1, self.totals[1]),
            distinct_2=len(self.distinct[2]) / max(1, self.totals[2]),
        )


@dataclass(slots=True)
class _Counts:
    """Counts of a file."""

    game: Game
    template_grams: frozenset[tuple[str, ...]]
    roles: dict[str, _Role]
    found: Counter[str] = field(default_factory=Counter)  # utterances, by metric
    outcomes: Counter[str] = field(default_factory=Counter)
    measured: Counter[str] = field(default_factory=Counter)  # by figure of the game
    games: int = 0
    counted: int = 0  # for figures without a role
    utterances: int = 0
    openings: Counter[int] = field(default_factory=Counter)  # games by hash
    tasks: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))  # the first few of an opening


def health(episodes: Iterable[Episode], game: Game, player: str | None = None) -> dict[str, Any]:
    """Judge ``episodes`` again and return their metrics and ``warnings`` as plain data, up to each judged end.

    With ``player``, the name of one of the models, metrics of roles, openings and utterances cover only its play, and
    figures without a role leave out games that another player's fault ended.
    Shares of games: ``outcomes``; ``figures``, the game's own (some are shares of another figure); ``shared_openings``,
    whose first utterance also opens a game on another task; ``generic_openings``, whose first utterance opens games on
    at least ``GENERIC_TASKS`` tasks. Shares of utterances: ``empty``; where players think, ``cut_thoughts``, which left
    nothing to say; and of those of free form ``repeated``, said before in that game by either player and no bare move;
    ``copied``, with ``COPIED_WORDS`` words on end from the prompt's templates; ``refusals``. Lengths are in utterances.
    Without games every figure is 0.
    """
    counts = _Counts(game, _template_grams(game.template_texts()), {role: _Role() for role in game.roles})
    role_of = {figure.name: figure.role for figure in game.figures}
    for episode in episodes:
        result = replay(game, episode)
        own = [role for role in game.roles if is_trained(episode, role, player)]
        counts.games += 1
        counts.utterances += result.length
        counts.outcomes[result.outcome] += 1
        measured, outcome = game.measure(episode.task, episode.history, result), game.outcomes[result.outcome]
        counted = own if outcome.fault not in (None, *own) else (None, *own)  # another's fault is not the player's
        counts.counted += None in counted
        counts.measured.update({name: value for name, value in measured.items() if role_of[name] in counted})
        for role in own:
            counts.roles[role].games += 1
            counts.roles[role].wins += outcome.winners == (role,)
            counts.roles[role].violations += outcome.fault == role
        _count_texts(counts, episode, result.length, own)
    figures = _figures(counts)
    return {**figures, "warnings": health_warnings(figures, game)}


def _count_texts(counts: _Counts, episode: Episode, length: int, own: Collection[str]) -> None:
    said_before: set[str] = set()
    for index, said in enumerate(episode.history[:length]):
        text = " ".join(said.content.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").split())
        is_repeated = bool(text) and text in said_before
        if said.role not in counts.game.fixed_form:
            said_before.add(text)
        if said.role not in own:
            continue
        if index == 0 and said.role == counts.game.roles[0]:
            counts.openings[hash(text)] += 1
            if len(counts.tasks[hash(text)]) < GENERIC_TASKS:
                counts.tasks[hash(text)].add(episode.task.id)
        is_move = is_bare_move(text, counts.game)
        words = [] if is_move else _WORD.findall(text)
        counts.roles[said.role].add(words)
        counts.found["empty"] += not text
        counts.found["asked_to_think"] += said.thought is not None
        counts.found["cut_thoughts"] += said.finish_reason == FinishReason.THOUGHT
        if said.role in counts.game.fixed_form:
            continue
        counts.found["repeated"] += is_repeated and not is_move
        counts.found["copied"] += not counts.template_grams.isdisjoint(_ngrams(words, COPIED_WORDS))
        counts.found["refusals"] += _REFUSAL.search(text) is not None


def _figures(counts: _Counts) -> dict[str, Any]:
    games, opened = max(1, counts.games), max(1, counts.openings.total())
    spoken = {role: one.utterances for role, one in counts.roles.items()}
    free = max(1, sum(spoken[role] for role in free_roles(counts.game)))
    uses = [(count, len(counts.tasks[key])) for key, count in counts.openings.items()]
    shared, generic = (sum(count for count, tasks in uses if tasks >= least) for least in (2, GENERIC_TASKS))
    cut = counts.found["cut_thoughts"]
    thinking = counts.found["asked_to_think"] or (sum(spoken.values()) if cut else 0)  # an endpoint may think unasked
    return {
        "game": counts.game.name,
        "games": counts.games,
        "outcomes": {name: counts.outcomes[name] / games for name in counts.game.outcomes},
        "figures": {one.name: _share(counts, one) for one in counts.game.figures},
        "mean_length": counts.utterances / games,
        "roles": {role: asdict(one.result()) for role, one in counts.roles.items()},
        "empty": counts.found["empty"] / max(1, sum(spoken.values())),
        **{name: counts.found[name] / free for name in ("repeated", "copied", "refusals")},
        "shared_openings": shared / opened,
        "generic_openings": generic / opened,
        **({"cut_thoughts": cut / thinking} if thinking else {}),
    }


def _share(counts: _Counts, figure: Figure) -> float:
    of_games = counts.roles[figure.role].games if figure.role else counts.counted
    return counts.measured[figure.name] / max(1, counts.measured[figure.of] if figure.of else of_games)


def _ngrams(words: list[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)), strict=False)


@lru_cache(maxsize=8)
def _template_grams(texts: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    """Return the n-grams between the placeholders of the templates; cached, since the report calls it game by game."""
    pieces = (piece for text in texts for piece in re.split(r"\{[^{}]*\}", text))
    return frozenset(gram for piece in pieces for gram in _ngrams(_WORD.findall(piece.casefold()), COPIED_WORDS))
