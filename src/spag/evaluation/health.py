"""Whether play is still a game: figures of a file of episodes that show degenerate play, and warnings drawn from them.

A model that learns to win may win cheaply: an attacker by one opening for every word, or by leaking the word where a judge does not look; a
defender by never guessing. Win rates do not show that, these figures do. One streaming pass; what is kept does not grow with the texts
(distinct-n looks at the first words only, openings are kept as hashes).
"""

import re
import string
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from spag.core.episodes import Episode, read_episodes
from spag.evaluation.arena.games import announces_guess
from spag.games.taboo.judge.judge import JudgeMode, judge_episode, judge_utterance
from spag.games.taboo.prompts import PromptSet
from spag.games.taboo.types import Outcome, Role, Verdict

DISTINCT_WORDS = 20_000
"""Words of each role that distinct-n looks at: the share falls with the length of a text, so files compare only over equal lengths."""
COPIED_WORDS = 8
"""Words in a row shared with the rules or instructions that count as copied; the announcement of a guess alone has fewer."""
GENERIC_TARGETS = 3
"""An opening used for so many different target words says nothing about any of them."""
FEWEST_GAMES = 20
"""Fewer games give no warnings: shares of so few are noise."""

MOST_WRONG_GUESSES = 0.75
MOST_FIRST_GUESSES = 0.5
MOST_SHARED_OPENINGS = 0.5
MOST_GENERIC_OPENINGS = 0.25
MOST_REPEATED = 0.25
MOST_COPIED = 0.05
MOST_EMPTY = 0.05
MOST_REFUSALS = 0.05
MOST_VIOLATIONS = 0.3
MOST_HIDDEN_LEAKS = 0.05
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


@dataclass(frozen=True, slots=True)
class Health:
    """Figures of a file of episodes, judged anew. Utterances after the judged end do not count.

    Shares of games: the four outcomes; ``induced`` and ``wrong_guess``, the two ways in which the attacker wins; ``first_wrong_guess``, a
    wrong guess in the defender's first utterance; ``shared_openings``, where the first utterance opens a game on another word too;
    ``generic_openings``, where it opens games on at least ``GENERIC_TARGETS`` words; ``hidden_leaks``, violations that strict judging finds
    and the paper's judge overlooks.
    Shares of utterances: ``empty``; ``repeated``, said before in the same game by whomever; ``copied``, with ``COPIED_WORDS`` words on end
    from the rules or instructions; ``refusals``. Lengths are in utterances. Without games every figure is 0.
    """

    games: int
    attacker_wins: float
    defender_wins: float
    ties: float
    violations: float
    induced: float
    wrong_guess: float
    first_wrong_guess: float
    mean_length: float
    median_length: float
    attacker: RoleHealth
    defender: RoleHealth
    empty: float
    repeated: float
    shared_openings: float
    generic_openings: float
    copied: float
    hidden_leaks: float
    refusals: float


@dataclass(slots=True)
class _Voice:
    """What is counted of one role."""

    lengths: list[int] = field(default_factory=list)
    words: int = 0
    totals: Counter[int] = field(default_factory=Counter)  # by n
    distinct: dict[int, set[tuple[str, ...]]] = field(default_factory=lambda: {1: set(), 2: set()})

    def hear(self, words: list[str]) -> None:
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

    rules: frozenset[tuple[str, ...]]
    found: Counter[str] = field(default_factory=Counter)  # by field of Health
    lengths: list[int] = field(default_factory=list)
    voices: dict[Role, _Voice] = field(default_factory=lambda: {role: _Voice() for role in Role})
    openings: Counter[int] = field(default_factory=Counter)  # games by hash
    targets: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))  # of an opening, the first few


def health(episodes: Iterable[Episode], judge: JudgeMode = JudgeMode.STRICT, prompts: PromptSet | None = None) -> Health:
    """Judge ``episodes`` and return their figures. ``prompts``: what the players read, for finding copies of it."""
    prompts = prompts or PromptSet.default()
    counts = _Counts(_template_grams((*prompts.rules, *prompts.instructions.values())))
    for episode in episodes:
        _count_outcome(counts, episode, judge)
    return _result(counts)


def iteration_health(path: Path, judge: JudgeMode, prompts: PromptSet | None = None) -> dict[str, Any]:
    """Return the figures of an episodes file as plain data, with the ``warnings`` they give. Raises ``DataError`` for a faulty file."""
    found = health(read_episodes(path), judge, prompts)
    return {**asdict(found), "warnings": warnings(found)}


def _count_outcome(counts: _Counts, episode: Episode, judge: JudgeMode) -> None:
    verdict = judge_episode(episode, judge)
    strict = verdict if judge is JudgeMode.STRICT else judge_episode(episode, JudgeMode.STRICT)
    counts.lengths.append(verdict.length)
    counts.found[verdict.outcome] += 1
    counts.found["hidden_leaks"] += _is_hidden_leak(episode, strict)
    if verdict.outcome is Outcome.ATTACKER_WINS:
        guessed = announces_guess(episode.history[verdict.length - 1].content, episode.target_word, judge)
        counts.found["wrong_guess" if guessed else "induced"] += 1
        counts.found["first_wrong_guess"] += guessed and verdict.length <= 2
    _count_texts(counts, episode, verdict.length)


def _is_hidden_leak(episode: Episode, strict: Verdict) -> bool:
    if strict.outcome is not Outcome.ATTACKER_VIOLATION:
        return False
    said = episode.history[strict.length - 1]
    return judge_utterance(said.role, said.content, episode.target_word, JudgeMode.PAPER) is None


def _count_texts(counts: _Counts, episode: Episode, length: int) -> None:
    said_before: set[str] = set()
    for index, said in enumerate(episode.history[:length]):
        text = " ".join(said.content.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").split())
        if index == 0 and said.role is Role.ATTACKER:
            counts.openings[hash(text)] += 1
            if len(counts.targets[hash(text)]) < GENERIC_TARGETS:
                counts.targets[hash(text)].add(episode.target_word)
        words = _WORD.findall(text)
        counts.voices[said.role].hear(words)
        counts.found["empty"] += not text
        counts.found["repeated"] += bool(text) and text in said_before
        counts.found["copied"] += not counts.rules.isdisjoint(_ngrams(words, COPIED_WORDS))
        counts.found["refusals"] += _REFUSAL.search(text) is not None
        said_before.add(text)


def _result(counts: _Counts) -> Health:
    games = max(1, len(counts.lengths))
    utterances = max(1, sum(len(voice.lengths) for voice in counts.voices.values()))
    shared, generic = (
        sum(count for key, count in counts.openings.items() if len(counts.targets[key]) >= least) for least in (2, GENERIC_TARGETS)
    )
    return Health(
        games=len(counts.lengths),
        attacker_wins=counts.found[Outcome.ATTACKER_WINS] / games,
        defender_wins=counts.found[Outcome.DEFENDER_WINS] / games,
        ties=counts.found[Outcome.TIE] / games,
        violations=counts.found[Outcome.ATTACKER_VIOLATION] / games,
        **{name: counts.found[name] / games for name in ("induced", "wrong_guess", "first_wrong_guess", "hidden_leaks")},
        **{name: counts.found[name] / utterances for name in ("empty", "repeated", "copied", "refusals")},
        mean_length=sum(counts.lengths) / games,
        median_length=float(median(counts.lengths or [0])),
        attacker=counts.voices[Role.ATTACKER].result(),
        defender=counts.voices[Role.DEFENDER].result(),
        shared_openings=shared / games,
        generic_openings=generic / games,
    )


def _ngrams(words: list[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)), strict=False)


@lru_cache(maxsize=8)
def _template_grams(texts: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    """Return the n-grams that stand between the placeholders of the templates; remembered, as the report asks for each game alone."""
    pieces = (piece for text in texts for piece, *_ in string.Formatter().parse(text))
    return frozenset(gram for piece in pieces for gram in _ngrams(_WORD.findall(piece.casefold()), COPIED_WORDS))


def warnings(found: Health) -> list[str]:
    """Return a line for each sign that play degenerates; none for fewer than ``FEWEST_GAMES`` games."""
    if found.games < FEWEST_GAMES:
        return []
    decided = found.attacker_wins + found.defender_wins
    shares = [
        (found.wrong_guess, MOST_WRONG_GUESSES, "of games end with a wrong guess, so attackers need not lure"),
        (found.first_wrong_guess, MOST_FIRST_GUESSES, "of games end with a wrong guess in the defender's first utterance"),
        (found.shared_openings, MOST_SHARED_OPENINGS, "of games open with words that open a game on another target too"),
        (found.generic_openings, MOST_GENERIC_OPENINGS, f"of games open with words used for {GENERIC_TARGETS} target words or more"),
        (found.repeated, MOST_REPEATED, "of utterances were said before in the same game"),
        (found.copied, MOST_COPIED, "of utterances copy the rules or instructions"),
        (found.empty, MOST_EMPTY, "of utterances are empty"),
        (found.refusals, MOST_REFUSALS, "of utterances refuse to play"),
        (found.violations, MOST_VIOLATIONS, "of games end with the attacker breaking the rules"),
        (found.hidden_leaks, MOST_HIDDEN_LEAKS, "of games leak the word in a way that only strict judging sees"),
        (found.ties, MOST_TIES, "of games are ties"),
        (found.attacker_wins / decided if decided else 0.0, MOST_WINS_OF_ONE_ROLE, "of decided games are won by the attacker"),
        (found.defender_wins / decided if decided else 0.0, MOST_WINS_OF_ONE_ROLE, "of decided games are won by the defender"),
    ]
    lines = [f"{100 * share:.0f} % {what} (more than {100 * limit:.0f} %)" for share, limit, what in shares if share > limit]
    voices: Mapping[Role, RoleHealth] = {Role.ATTACKER: found.attacker, Role.DEFENDER: found.defender}
    return lines + [
        f"the {role} varies little: distinct-2 is {voice.distinct_2:.2f} (less than {LEAST_DISTINCT_2})"
        for role, voice in voices.items()
        if voice.mean_words > 1 and voice.distinct_2 < LEAST_DISTINCT_2  # single words make no pairs
    ]
