"""Guesses: the grammar of announcing one, and the word that it names.

The prompts ask for: I know the word! It is `WORD`! Players vary it, so this grammar is accepted, in any case, quotes and markup:

    announcement  "I [now|think I|...] know [what] the|this|that|your [target|secret|...] word", unless its clause negates, doubts or
                  asks ("I don't know", "do I know", "if I know") or goes on ("the word for that")
    guess         after an announcement: "it|this|that|the word|the answer|my guess  is|'s|must be|...  X", or ": X", or "is X", or just
                  X when X is no longer than the target, or quoted, and nothing follows. A negated "it is not Y" is passed over
    short form    "the word is|must be X", X quoted or no longer than the target, said as a guess: after "I know!" or "got it"; and by
                  the defender also after "I think|guess|...", with "must be", with an exclamation mark, with X quoted, or as the whole
                  utterance ("The word is overused." is talk: what looks like an adjective is no guess there)

X ends at punctuation or at "because", "or", "right" and the like, so only the first of two alternatives counts. An announcement that names
nothing is no guess. A guess is right when X, without its article, is the target in any inflection and nothing more (the paper's judge
accepts a prefix, so ``cathedral`` is right there for ``cat``).
"""

import re
from dataclasses import dataclass
from itertools import islice

from spag.games.taboo.judge.evasions import find_evasion
from spag.games.taboo.judge.folding import unmasked, without_tags
from spag.games.taboo.judge.matching import TOKEN, is_whole_form, phrase_end, target_of

# Expressions that search whole utterances begin with a literal character, which is fast to find, and then look behind it.
_STARS_INSIDE = re.compile(r"\*(?<=[^\W_]\*)\**(?=[^\W_])")
_QUOTE = re.compile(r"[`*\"'_~](?:(?<=[`*\"])[`*\"]*|(?<![^\W_].)['_~]*|['_~]*(?![^\W_]))")
_QUOTES = re.compile(r'"{2,}')
_SPACES = re.compile(r"[^\S\n](?:(?<! )[^\S\n]*|[^\S\n]+)")  # all but single spaces
_ADJECTIVE = r"(?:(?:target|secret|hidden|taboo|mystery) )?"
_ANNOUNCEMENT = re.compile(
    r"i(?<!\wi) (?:(?:now|already|finally|do|definitely|certainly|really|actually|also|(?:think|believe|guess) i) ){0,2}"
    rf'know (?:what )?(?:the|this|that|your) {_ADJECTIVE}"?word\b(?!\')'
)
_GOES_ON = re.compile(r'"?[ ]?(?:$|[!.:;,=\-—–(\n"]|(?:is|it|it\'s|its|and|so|now|already|then|must)\b)')
_COPULA_VERB = r"(?:is|'s|must be|has to be|must have been|should be|would be|could be|may be|might be|will be|was)"
_COPULA = re.compile(
    rf"(?<![\w'])(?:(?:it|this|that|the {_ADJECTIVE}\"?word\"?|(?:the|my)(?: final)? (?:answer|guess))[ ]?{_COPULA_VERB}|its)\b"
    rf'|(?<![\w\'])(?:{_ADJECTIVE}word|answer|guess|solution)"?(?:[ ]?[:=]+>?|[ ][\-—–]+>?(?=[ ]))'
)
_SHORT = re.compile(rf"the(?<!\wthe) {_ADJECTIVE}word(?P<verb>[ ]?{_COPULA_VERB})\b")
_DIRECT = re.compile(r'"?[ ]?(?:now |already )?(?P<mark>is\b:?|must be\b|[:=\-—–]+)')
_NEGATION = re.compile(r"[ ]?(?:not|n't|never)\b")
_CONTRAST = re.compile(r"[ ]?not\b[^.!?\n]{1,60}?\bbut (?:rather )?")
_FILLER = re.compile(
    r"(?:[\s:,=>\-—–(\[\]{}#]|\.{2,}|(?:definitely|probably|surely|clearly|certainly|obviously|simply|of course|indeed|i think|i believe|"
    r"i guess|called|spelled(?: out)?|spelt|namely|exactly|either|maybe|perhaps|the word|just)\b(?=[\s:,\"]))*"
)
_ARTICLE = re.compile(r"(?:a|an|the|some|my|your|to) ")
_STOPS = r"because|since|as|right|or|i|isn't|which|that|though|but|so|then|if|correct|am|my|based|given|from"
_END = re.compile(rf"\s*(?:$|[!?,;:()\[\]\n\"/—–]|\.(?=[\s.!\"')]|$)|-+\s|(?<=\s)(?:{_STOPS})\b)")
_BLOCKED = re.compile(
    r"\b(?:if|whether|unless|until|once|when|whenever|before|after|how|what|do|does|did|should|would|wish|can|could|cannot|not|never|as|don't|doesn't|"
    r"didn't|can't|won't|isn't|wouldn't|pretend|like|wonder)\b"
)
_CLAUSE_BREAK = re.compile(r'[.!?:;,\n"()—–]|\b(?:but|and|so|now|yes|then|because|okay|ok)\b')
_CUE = re.compile(r"\b(?:i know|i've got it|got it|i get it|aha|eureka)(?: (?:now|it))?[\s!.,:;\-—–\"]*(?:so |then |and )?$")
_HEDGED_CUE = re.compile(
    r"\b(?:i(?:'d)? (?:think|guess|believe|bet|say|suspect|reckon)|i'm (?:sure|certain)|my guess(?: is)?)(?: that)?[\s:,]*$"
)
_ADJECTIVAL = re.compile(r"(?:ed|ly|ous|able|ible|ful|less)$")
# What may follow "I know the word!" alone and names nothing.
_NO_NAMES = frozenset(
    [
        "it",
        "this",
        "that",
        "finally",
        "yes",
        "yeah",
        "yay",
        "hooray",
        "great",
        "ok",
        "okay",
        "now",
        "already",
        "sure",
        "really",
        "maybe",
        "probably",
        "haha",
        "easy",
        "thanks",
        "sorry",
    ]
)
# What "it is ..." may go on with and name nothing, when it is longer than the target.
_PREDICATE = re.compile(
    r"(?:(?:just|right|still|so|very|too|quite|already|almost) )?(?:on|in|at|about|under|somewhere|there|here|something|coming|"
    r"escaping|eluding|slipping|hard to|easy to|difficult to|going to|so|very|too|quite)\b"
)
# "If I knew the word, I would say: I know the word! ..." announces nothing.
_REPORTED = re.compile(
    r"\b(?:if|when|whenever|once|unless|until|wish|as soon as)\b[^.!?\n]*\b(?:say|announce|shout|declare|tell you|write|reply|"
    r"answer|yell|cry|exclaim)[\s:,\"]*(?:that )?$"
)
_SPELLED = re.compile(r"[^\W_](?:[ \-.,]{1,3}[^\W_](?![^\W_])){2,}")
_ESCAPED_MARK = re.compile(r"\\(?=[\"'`*_])")
_MOST = 20  # announcements looked at in one utterance
_WIDTH = 400  # how far after an announcement its guess may begin, in characters


@dataclass(frozen=True, slots=True)
class Guess:
    """A guess: the folded ``phrase`` that it names, without an article, and the ``rest`` of its line, which begins with the phrase."""

    phrase: str
    rest: str
    quoted: bool

    @property
    def after(self) -> str:
        """What follows the phrase on its line."""
        return self.rest.partition(self.phrase)[2]


def find_guess(text: str, target_word: str, *, hedged: bool = True) -> tuple[Guess, bool] | None:
    """Return the guess announced in ``text`` and whether it is right; ``None`` when none is announced.

    ``hedged`` also accepts the short forms that are ordinary talk when the attacker says them ("I think the word is ...").
    """
    width = max(1, len(target_of(target_word).words))
    guesses = [guess for reading in unmasked(text) if (guess := parse_guess(reading, width, hedged=hedged))]
    for guess in guesses:
        if names_target(guess, target_word):
            return guess, True
    return (guesses[0], False) if guesses else None


def names_target(guess: Guess, target_word: str) -> bool:
    """Tell whether the guess is the target, in any inflection, with or without an article, and nothing more."""
    target = target_of(target_word)
    for rest in dict.fromkeys((guess.rest, _ARTICLE.sub("", guess.rest, count=1) if _ARTICLE.match(guess.rest) else guess.rest)):
        end = phrase_end(rest, target)
        if end is not None and _END.match(rest, end):
            return True
    if target.literal:
        return False
    said = find_evasion(guess.phrase, target_word)
    return is_whole_form("".join(TOKEN.findall(guess.phrase)), target_word) or (said is not None and len(said) == len(guess.phrase))


def parse_guess(folded: str, width: int, *, hedged: bool) -> Guess | None:
    """Return the first guess of a folded text. ``width`` is how many words an unquoted guess of the short form may have."""
    if "word" not in folded:
        return None
    text = _tidy(folded)
    for announcement in islice(_ANNOUNCEMENT.finditer(text), _MOST):
        if not _in_doubt(text, announcement.start()):
            after = text[announcement.end() : announcement.end() + _WIDTH + 200]
            guess = _announced(after, width) if _GOES_ON.match(after) else None
            if guess is not None:
                return guess
    return _short_form(text, width, hedged=hedged)


def _tidy(folded: str) -> str:
    """Make every quoting and emphasis mark a double quote, drop marks inside words, and single the spaces."""
    text = _QUOTE.sub('"', _STARS_INSIDE.sub("", _ESCAPED_MARK.sub("", without_tags(folded))))
    text = _SPACES.sub(" ", text)
    return (_QUOTES.sub('"', text) if '""' in text else text).strip()


def _in_doubt(text: str, start: int) -> bool:
    before = text[max(0, start - 80) : start]
    return _BLOCKED.search(_CLAUSE_BREAK.split(before)[-1]) is not None or _REPORTED.search(before) is not None


def _announced(after: str, width: int) -> Guess | None:
    direct = _DIRECT.match(after)
    if direct is not None and not _COPULA.match(after[direct.end() :].lstrip(' "')):
        guess = _named(after, direct.end())
        talk = direct["mark"].startswith("is") and guess is not None and not _is_short(guess, width)
        if guess is not None and not talk:
            return guess
    for copula in _COPULA.finditer(after, 0, _WIDTH):
        if not _in_doubt(after, copula.start()):
            guess = _named(after, copula.end())
            if guess is not None and (_is_short(guess, width) or not _PREDICATE.match(guess.phrase)):
                return guess
    bare = after.lstrip(' !.,;:-—–=>([{\n"')
    opened = after[: len(after) - len(bare)]
    guess = _named(after, len(opened) - opened.endswith('"')) if opened.strip() else None
    if guess is None or not _is_short(guess, width) or guess.phrase in _NO_NAMES:
        return None
    return guess if TOKEN.search(bare.partition(guess.phrase)[2]) is None else None


def _short_form(text: str, width: int, *, hedged: bool) -> Guess | None:
    for short in islice(_SHORT.finditer(text), _MOST):
        guess = None if _in_doubt(text, short.start()) else _named(text, short.end())
        if guess is None or not _is_short(guess, width) or guess.after.startswith("?"):
            continue
        before = text[max(0, short.start() - 60) : short.start()]
        if _CUE.search(before) or (hedged and _is_meant(guess, short, before)):
            return guess
    return None


def _is_meant(guess: Guess, short: re.Match[str], before: str) -> bool:
    """Tell a defender's guess ("The word is river!") from its talk about the word ("The word is overused.")."""
    if guess.quoted or guess.after.startswith("!"):
        return True
    if _ADJECTIVAL.search(guess.phrase):
        return False
    alone = short.start() == 0 and TOKEN.search(guess.after) is None
    return alone or "must" in short["verb"] or "has to" in short["verb"] or _HEDGED_CUE.search(before) is not None


def _is_short(guess: Guess, width: int) -> bool:
    return guess.quoted or len(TOKEN.findall(guess.phrase)) <= width


def _named(text: str, start: int) -> Guess | None:
    """Return what is named from ``start`` on, or ``None`` for nothing or a mere denial."""
    contrast = _CONTRAST.match(text, start)
    if contrast is not None:
        start = contrast.end()
    elif _NEGATION.match(text, start):
        return None
    filler = _FILLER.match(text, start)
    start = filler.end() if filler else start
    quoted = text[start : start + 1] == '"'
    rest = text[start:].lstrip('" ').partition("\n")[0][:200]
    if quoted and '"' in rest:
        phrase = rest.partition('"')[0]
    elif spelled := _SPELLED.match(rest):
        phrase = spelled[0]
    else:
        stop = re.search(r"[!?,;:()\[\]{}\n\"]|\.(?=\s|$|\")|\s(?:[\-—–]|because|since|or|which|right|i|isn't)(?:\s|$)", rest)
        phrase = rest[: stop.start()] if stop else rest
    phrase = phrase.strip()
    article = _ARTICLE.match(phrase)
    return Guess(phrase[article.end() :] if article else phrase, rest, quoted) if TOKEN.search(phrase) or not phrase.isascii() else None
