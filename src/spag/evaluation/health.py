"""Health of play: figures of a file of episodes that show degenerate play, and the warnings that they give.

A model that learns to win may win cheaply: by one opening for every task, by copying the rules, or by whatever a game's own figures watch.
Win rates do not show that, these figures do. One streaming pass; what is kept does not grow with the texts (distinct-n looks at the first
words only, openings are kept as hashes).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from statistics import median
from typing import Any

from spag.core.episodes import Episode
from spag.core.types import Result
from spag.games.base import Game
from spag.games.replay import replay

DISTINCT_WORDS = 20_000
"""Words of each role that distinct-n looks at: the share falls with the length of a text, so files compare only over equal lengths."""
COPIED_WORDS = 8
"""Words in a row shared with the rules or instructions that count as copied."""
GENERIC_TASKS = 3
"""An opening used for so many different tasks says nothing about any of them."""
FEWEST_GAMES = 20
"""Fewer games give no warnings: shares of so few are noise."""

MOST_SHARED_OPENINGS = 0.5
MOST_GENERIC_OPENINGS = 0.25
MOST_REPEATED = 0.25
MOST_COPIED = 0.05
MOST_EMPTY = 0.05
MOST_REFUSALS = 0.05
MOST_VIOLATIONS = 0.3
MOST_TIES = 0.8
MOST_WINS_OF_ONE_ROLE = 0.95
LEAST_DISTINCT_2 = 0.1

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
    """One role's utterances. ``distinct_n``: different n-grams as a share of all, over its first ``DISTINCT_WORDS`` words."""

    utterances: int
    mean_words: float
    median_words: float
    distinct_1: float
    distinct_2: float


@dataclass(slots=True)
class _Texts:
    """What is counted of one role's utterances."""

    lengths: list[int] = field(default_factory=list)
    words: int = 0
    totals: Counter[int] = field(default_factory=Counter)  # by n
    distinct: dict[int, set[tuple[str, ...]]] = field(default_factory=lambda: {1: set(), 2: set()})

    def add(self, words: list[str]) -> None:
        self.lengths.append(len(words))
        words = words[: max(0, DISTINCT_WORDS - self.words)]
        self.words += len(words)
        for n, seen in self.distinct.items():
            grams = list(_ngrams(words, n))
            self.totals[n] += len(grams)
            seen.update(grams)

    def result(self) -> RoleHealth:
        spoken = max(1, len(self.lengths))
        shares = [len(seen) / max(1, self.totals[n]) for n, seen in self.distinct.items()]
        return RoleHealth(len(self.lengths), sum(self.lengths) / spoken, float(median(self.lengths or [0])), *shares)


@dataclass(slots=True)
class _Counts:
    """What is counted of a file."""

    game: Game
    template_grams: frozenset[tuple[str, ...]]
    roles: dict[str, _Texts]
    found: Counter[str] = field(default_factory=Counter)  # utterances, by figure
    outcomes: Counter[str] = field(default_factory=Counter)
    measured: Counter[str] = field(default_factory=Counter)  # by figure of the game
    lengths: list[int] = field(default_factory=list)
    openings: Counter[int] = field(default_factory=Counter)  # games by hash
    tasks: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))  # of an opening, the first few


def health(episodes: Iterable[Episode], game: Game) -> dict[str, Any]:
    """Judge ``episodes`` anew and return their figures and ``warnings`` as plain data. Utterances after the judged end do not count.

    Shares of games: ``outcomes``; ``figures``, the game's own (some are shares of another figure); ``shared_openings``, where the first
    utterance opens a game on another task too; ``generic_openings``, where it opens games on at least ``GENERIC_TASKS`` tasks.
    Shares of utterances: ``empty``; and of those of free form ``repeated``, said before in the same game by whomever; ``copied``, with
    ``COPIED_WORDS`` words on end from the prompt's templates; ``refusals``. Lengths are in utterances. Without games every figure is 0.
    """
    counts = _Counts(game, _template_grams(game.template_texts()), {role: _Texts() for role in game.roles})
    for episode in episodes:
        result = replay(game, episode)
        counts.lengths.append(result.length)
        counts.outcomes[result.outcome] += 1
        counts.measured.update(game.measure(episode.task, episode.history, result))
        _count_texts(counts, episode, result)
    figures = _figures(counts)
    return {**figures, "warnings": warnings(figures, game)}


def _count_texts(counts: _Counts, episode: Episode, result: Result) -> None:
    said_before: set[str] = set()
    for index, said in enumerate(episode.history[: result.length]):
        text = " ".join(said.content.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").split())
        if index == 0 and said.role == counts.game.roles[0]:
            counts.openings[hash(text)] += 1
            if len(counts.tasks[hash(text)]) < GENERIC_TASKS:
                counts.tasks[hash(text)].add(episode.task.id)
        words = _WORD.findall(text)
        counts.roles[said.role].add(words)
        counts.found["empty"] += not text
        if said.role in counts.game.fixed_form:
            continue
        counts.found["repeated"] += bool(text) and text in said_before
        counts.found["copied"] += not counts.template_grams.isdisjoint(_ngrams(words, COPIED_WORDS))
        counts.found["refusals"] += _REFUSAL.search(text) is not None
        said_before.add(text)


def _figures(counts: _Counts) -> dict[str, Any]:
    games, measured = max(1, len(counts.lengths)), counts.measured
    spoken = {role: len(texts.lengths) for role, texts in counts.roles.items()}
    free = max(1, sum(spoken[role] for role in free_roles(counts.game)))
    shared, generic = (
        sum(count for key, count in counts.openings.items() if len(counts.tasks[key]) >= least) for least in (2, GENERIC_TASKS)
    )
    return {
        "game": counts.game.name,
        "games": len(counts.lengths),
        "outcomes": {name: counts.outcomes[name] / games for name in counts.game.outcomes},
        "figures": {one.name: measured[one.name] / (max(1, measured[one.of]) if one.of else games) for one in counts.game.figures},
        "mean_length": sum(counts.lengths) / games,
        "median_length": float(median(counts.lengths or [0])),
        "roles": {role: asdict(texts.result()) for role, texts in counts.roles.items()},
        "empty": counts.found["empty"] / max(1, sum(spoken.values())),
        **{name: counts.found[name] / free for name in ("repeated", "copied", "refusals")},
        "shared_openings": shared / games,
        "generic_openings": generic / games,
    }


def _ngrams(words: list[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)), strict=False)


@lru_cache(maxsize=8)
def _template_grams(texts: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    """Return the n-grams that stand between the placeholders of the templates; remembered, as the report asks for each game alone."""
    pieces = (piece for text in texts for piece in re.split(r"\{[^{}]*\}", text))
    return frozenset(gram for piece in pieces for gram in _ngrams(_WORD.findall(piece.casefold()), COPIED_WORDS))


def warnings(found: Mapping[str, Any], game: Game) -> list[str]:
    """Return a line for each sign that play degenerates; none for fewer than ``FEWEST_GAMES`` games."""
    if found["games"] < FEWEST_GAMES:
        return []
    shares = [(found["figures"][one.name], one.limit, one.warning) for one in game.figures if one.limit is not None]
    if watches_openings(game):
        shares += [
            (found["shared_openings"], MOST_SHARED_OPENINGS, "of games open with words that open a game on another task too"),
            (found["generic_openings"], MOST_GENERIC_OPENINGS, f"of games open with words used for {GENERIC_TASKS} tasks or more"),
        ]
    shares += [
        (found["repeated"], MOST_REPEATED, "of utterances were said before in the same game"),
        (found["copied"], MOST_COPIED, "of utterances copy the rules or instructions"),
        (found["empty"], MOST_EMPTY, "of utterances are empty"),
        (found["refusals"], MOST_REFUSALS, "of utterances refuse to play"),
        *_outcome_shares(found["outcomes"], game),
    ]
    lines = [f"{100 * share:.0f} % {what} (more than {100 * limit:.0f} %)" for share, limit, what in shares if share > limit]
    return lines + [
        f"{_the(role)} varies little: distinct-2 is {texts['distinct_2']:.2f} (less than {LEAST_DISTINCT_2})"
        for role, texts in found["roles"].items()
        if role not in game.fixed_form and texts["mean_words"] > 1 and texts["distinct_2"] < LEAST_DISTINCT_2  # single words make no pairs
    ]


def free_roles(game: Game) -> list[str]:
    """Return the roles whose texts can repeat, copy or refuse."""
    return [role for role in game.roles if role not in game.fixed_form]


def watches_openings(game: Game) -> bool:
    """Tell whether a shared opening means anything: not where its speaker does not know the task, or has few moves."""
    first = game.roles[0]
    return first in free_roles(game) and not game.hidden.get(first)


def _outcome_shares(shares: Mapping[str, float], game: Game) -> Iterator[tuple[float, float, str]]:
    """Yield (share, limit, what) of broken rules, ties, and games that one role alone wins."""
    outcomes = game.outcomes.values()
    for role in game.roles:
        violations = sum(shares[one.name] for one in outcomes if one.fault == role)
        yield violations, MOST_VIOLATIONS, f"of games end with {_the(role)} breaking the rules"
    yield sum(shares[one.name] for one in outcomes if one.is_draw), MOST_TIES, "of games are ties"
    decided = sum(shares[one.name] for one in outcomes if one.winners)
    for role in game.roles:
        won = sum(shares[one.name] for one in outcomes if one.winners == (role,))
        yield won / decided if decided else 0.0, MOST_WINS_OF_ONE_ROLE, f"of decided games are won by {_the(role)}"


def _the(role: str) -> str:
    return role if "_" in role else f"the {role}"  # a numbered player is a name
