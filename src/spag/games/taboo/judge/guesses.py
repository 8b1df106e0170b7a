"""Guesses: whether an utterance announces one, and the word that it names.

The prompts ask for: I know the word! It is `WORD`! Players vary it, so this is accepted, in any case, quotes and
markup, with the words of a ``Language``:

    announcement  "I [now|think I|...] know [what] the|this|your [secret|...] word", unless its clause negates, doubts
                  or asks ("I don't know", "if I know") or goes on ("the word for that")
    guess         after an announcement: "it is|must be|... X", "is it|could it be|you mean|... X", ": X", "is X", or X
                  alone in the last clause. A negated "it is not Y" is passed over
    short form    "the word is|must be X", by itself or after "I know!", "got it", "I think"; the attacker may say it
                  where none of these stands before it

X is a word or a short noun phrase; it ends at punctuation or at "because", "or", "right" and the like, so only the
first of two alternatives counts. What only talks about the word ("it is on the tip of my tongue", "the word is
important", "I know the word, my friend") names none, unless it names the target. A guess is right when X, without its
article, is the target in any inflection and nothing more (the paper's judge accepts a prefix, so ``cathedral`` is right
there for ``cat``). Right and wrong guesses have the same wordings, so nobody can guess without risk. One exception:
after a wording that also begins talk ("is it cold?"), a single adjective or word of talk counts only if it is right;
after such a word, the target counts only where a wrong word would count too, or a list of adjectives would be many
guesses at no risk.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from spag.games.taboo.languages import Language, language_of
from spag.text.english import ENGLISH, is_adjective
from spag.text.evasions import find_evasion
from spag.text.folding import fold, unmasked, without_tags
from spag.text.matching import TOKEN, Target, phrase_end, target_of

# Expressions that search whole utterances begin with a literal character, which is fast to find, and then look behind
# it.
_STARS_INSIDE = re.compile(r"\*(?<=[^\W_]\*)\**(?=[^\W_])")
_QUOTE = re.compile(r"[`*\"'_~](?:(?<=[`*\"])[`*\"]*|(?<![^\W_].)['_~]*|['_~]*(?![^\W_]))")
_QUOTES = re.compile(r'"{2,}')
_SPACES = re.compile(r"[^\S\n](?:(?<! )[^\S\n]*|[^\S\n]+)")  # any but single spaces
_LATEX = re.compile(r"\\(?=[\"'`*_])|\$?\\[a-z]{2,20}(?=\{)")  # \* and $\boxed{
_SPELLED = re.compile(r"[^\W_](?:[ \-.,]{1,3}[^\W_](?![^\W_])){2,}")
_INVERTED = re.compile(r"(?<!\w)[¡¿]")  # opens a sentence, though ¡ looks like an i
_OPENING = ' !?.,;:-—–=>([{\n"'  # may separate an announcement from a bare word
_MOST = 20  # announcements, and clauses after one, looked at in one utterance
_WIDTH = 400  # how far after an announcement its guess may begin, in characters
_LONGEST = 3  # words of a wrong guess, where the target has fewer


@dataclass(frozen=True, slots=True)
class Guess:
    """A folded ``phrase``, without an article, and the ``rest`` of its line, which begins with the phrase.

    ``loose``: it follows a wording of talk, so a wrong one counts only if it is no longer than the target, no adjective
    and nobody's name. After "it is", any short phrase does. ``bare``: it is all of the last clause, without a wording.
    """

    phrase: str
    rest: str
    quoted: bool
    loose: bool
    bare: bool = False

    @property
    def after(self) -> str:
        """What follows the phrase on its line."""
        return self.rest.partition(self.phrase)[2]


def find_guess(
    text: str, target_word: str, language: str = "en", *, by_defender: bool = True
) -> tuple[Guess, bool] | None:
    """Return the guess announced in ``text`` and whether it is right; ``None`` when none is announced.

    The attacker knows the word, so less of what it says about it is a guess (``by_defender`` false).
    """
    spoken = language_of(language)
    target = target_of(target_word, spoken.lexicon)
    wrong = None
    for reading in unmasked(_INVERTED.sub(",", text), spoken.lexicon.letters):
        found = _first_guess(reading, target, spoken, by_defender=by_defender)
        if found is not None and found[1]:
            return found
        wrong = wrong or found
    return wrong


def _first_guess(folded: str, target: Target, spoken: Language, *, by_defender: bool) -> tuple[Guess, bool] | None:
    if spoken.word not in folded:
        return None
    passed_over = False
    for guess in _candidates(_tidy(folded), spoken, by_defender=by_defender):
        named = _is_named(guess, target, spoken, by_defender=by_defender)
        if _is_right(guess, target, spoken):
            if named or not passed_over:
                return guess, True
        elif named:
            return guess, False
        passed_over |= guess.loose and len(TOKEN.findall(guess.phrase)) <= max(1, len(target.words))
    return None


def _tidy(folded: str) -> str:
    """Make every quoting and emphasis mark a double quote, drop marks inside words, and single the spaces."""
    text = _QUOTE.sub('"', _STARS_INSIDE.sub("", _LATEX.sub("", without_tags(folded))))
    text = _SPACES.sub(" ", text)
    return (_QUOTES.sub('"', text) if '""' in text else text).strip()


def _candidates(text: str, spoken: Language, *, by_defender: bool) -> Iterator[Guess]:
    """Yield every phrase that may be a guess, in the order in which they count."""
    for announcement in islice(spoken.announcement.finditer(text), _MOST):
        after = text[announcement.end() : announcement.end() + _WIDTH + 200]
        if spoken.goes_on.match(after) and not _in_doubt(text, announcement.start(), spoken):
            yield from filter(None, _announced(after, spoken))
    for short in islice(spoken.short.finditer(text), _MOST):
        guess = None if _in_doubt(text, short.start(), spoken) else _phrase(text, short.end(), spoken, loose=True)
        if guess is not None and _is_meant(text, short, guess, spoken, by_defender=by_defender):
            yield guess


def _in_doubt(text: str, start: int, spoken: Language) -> bool:
    before = text[max(0, start - 80) : start]
    clause = spoken.clause.split(before)[-1]
    return spoken.doubt.search(clause) is not None or spoken.reported.search(before) is not None


def _announced(after: str, spoken: Language) -> Iterator[Guess | None]:
    """Yield what may be named in the text after an announcement; ``None`` where no phrase follows."""
    # "I know the word is X", "I know the word: X"
    direct = spoken.direct.match(after)
    opened = direct.end() if direct is not None else 0
    follows = after[opened:]
    if direct is not None and follows[:1] not in set(".,;!?") and not spoken.states.match(follows.lstrip(_OPENING)):
        yield _phrase(after, opened, spoken, loose=direct["mark"][0].isalpha())
    # "I know the word! It is X", "Is it X?"
    stated = [(found.start(), found.end(), False) for found in spoken.states.finditer(after, 0, _WIDTH)]
    asked = [(found.start(), found.end(), True) for found in spoken.asks.finditer(after, 0, _WIDTH)]
    for start, end, loose in sorted(stated + asked, key=lambda place: place[0]):
        if not _in_doubt(after, start, spoken):
            yield _phrase(after, end, spoken, loose=loose)
    # "I know the word! X", "I know what the word is, X", "I know the word! Haha. X, right?"
    bare = after[opened:].lstrip(_OPENING)
    opening = after[opened : len(after) - len(bare)]
    starts = [len(after) - len(bare) - opening.endswith('"')] if opening.strip() else []
    starts += [clause.end() for clause in islice(spoken.clause.finditer(after, 0, _WIDTH), _MOST)]
    for start in starts:
        guess = _phrase(after, start, spoken, loose=True)
        if guess and spoken.tags.fullmatch(guess.after) and "\n" not in after[start:].strip():
            yield replace(guess, bare=True)


def _is_meant(text: str, short: re.Match[str], guess: Guess, spoken: Language, *, by_defender: bool) -> bool:
    """Tell a guess without an announcement ("The word is river!") from talk ("The word is river in all of them.")."""
    before = text[max(0, short.start() - 60) : short.start()]
    mark = guess.after.lstrip(' "')[:1]  # behind the closing quotation mark, or a French space
    if mark == "?":
        return False
    if spoken.cue.search(before):
        return True
    if not by_defender:
        return False
    alone = TOKEN.search(guess.after) is None and (guess.quoted or short.start() == 0)
    cued = spoken.hedged_cue.search(before) or spoken.firm.search(short[0])
    return alone or mark == "!" or cued is not None


def _phrase(text: str, start: int, spoken: Language, *, loose: bool) -> Guess | None:
    """Return the phrase from ``start`` on, or ``None`` if it is empty or a mere denial."""
    contrast = spoken.contrast.match(text, start)
    if contrast is not None:
        start = contrast.end()
    elif spoken.negation.match(text, start):
        return None
    filler = spoken.filler.match(text, start)
    start = filler.end() if filler else start
    article = spoken.article.match(text, start)
    if article is not None and text[article.end() : article.end() + 1] == '"':  # the "cat"
        start = article.end()
    quoted = text[start : start + 1] == '"'
    rest = text[start:].lstrip('" ').partition("\n")[0][:200]
    if quoted and '"' in rest:
        phrase = rest.partition('"')[0]
    elif spelled := _SPELLED.match(rest):
        phrase, quoted = spelled[0], True
    else:
        end = spoken.end.search(rest)
        phrase = rest[: end.start()] if end else rest
    phrase = phrase.strip()
    article = spoken.article.match(phrase)
    phrase = phrase[article.end() :] if article else phrase
    return Guess(phrase, rest, quoted, loose) if TOKEN.search(phrase) or not phrase.isascii() else None


def _is_right(guess: Guess, target: Target, spoken: Language) -> bool:
    """Tell whether the guess is the target, in any inflection, with or without an article, and nothing more."""
    article = spoken.article.match(guess.rest)
    for rest in (guess.rest, guess.rest[article.end() :]) if article else (guess.rest,):
        end = phrase_end(rest, target)
        if end is not None and spoken.end.match(rest, end):
            return True
    if guess.phrase == fold(target.word, target.lexicon.letters).strip():
        return True  # marks too: +1, £5
    if target.literal:
        return False
    said = find_evasion(guess.phrase, target.word, target.lexicon)
    whole = said is not None and len(said) == len(guess.phrase)
    return whole or target.is_form("".join(TOKEN.findall(guess.phrase)))


def _is_named(guess: Guess, target: Target, spoken: Language, *, by_defender: bool) -> bool:
    """Tell whether a phrase other than the target is a guess, and not talk about the word."""
    if guess.quoted:
        return True
    if spoken.no_names.match(guess.phrase) or spoken.talk.search(guess.phrase):
        return False
    words, width = len(TOKEN.findall(guess.phrase)), max(1, len(target.words))
    if by_defender and not guess.loose:
        return words <= max(width, _LONGEST)
    if guess.bare and spoken.calls.fullmatch(guess.phrase):
        return False
    adjective = target.lexicon is ENGLISH and is_adjective(guess.phrase)
    return words <= width and not adjective and not spoken.address.match(guess.phrase)
