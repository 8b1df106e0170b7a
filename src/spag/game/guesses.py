"""Reading a guess from an utterance, with tolerance for how models write the announcement.

The form is: I know the word! It is `WORD`!  Accepted besides: other case, quotes, markup and punctuation; "I know the word: river"; "I know the word! River.";
"I know! The word is river"; "I think I know the word, it must be a river". A denied word is passed over: "It is not river, it is lake" guesses
lake. Of several words the first counts, since there is one guess only. Not announcements: "I don't know the word", "Do I know the
word?", "if I know the word", "I know the word for that in French", "I know the word!" with no word named.
"""

import re

from spag.game.matching import is_form, normalise, tokens_of

_ADVERBS = r"(?:(?:think|believe|am sure|'m sure|guess) i )?(?:(?:already|now|finally|do|really|definitely|probably|also|surely) )?"
_WORD = r"(?:the|this|your|that) (?:\w+ )?word\b"
_ANNOUNCED = re.compile(rf"(?<![\w'])i {_ADVERBS}know(?:(?: {_WORD})|(?=\s*[!.,:;-]+\s*(?:the|your) (?:\w+ )?word (?:is|must be)\b))")
_CONDITION = re.compile(r"\b(?:if|whether|when|once|until|till|unless|wish|do|does|did|suppose|pretend|that|until|before|because)\s+$")
_IS = r"(?:'s|\s+is|\s+was|\s+must\s+be|\s+has\s+to\s+be|\s+should\s+be|\s+might\s+be|\s+could\s+be|\s*:)"
_NAMING = re.compile(rf"^(?:it|that|this|(?:the|your) (?:\w+ )?word|my guess|the answer){_IS}\s*|^is\s+|^it\s+(?=[`\"'*])")
_LEADING = re.compile(r"^(?:(?:and|so|well|yes|ok|okay|oh|then|i think|i believe|i guess|i'd say|i say)[\s,]+)+")
_FILLERS = re.compile(r"^(?:(?:probably|definitely|surely|certainly|maybe|just|simply|clearly|obviously|of course|the word|called)[\s,]+|a\s+|an\s+|the\s+)+")
_QUOTED = re.compile(r"^[`\"'*_\u00ab\u201c\u201e(\[]+([^`\"*_\u00bb\u201d)\]\n]{1,60}?)[`\"'*_\u00bb\u201d)\]]+(?!\w)")
_PHRASE_END = re.compile(r"[.!?,;:()\[\]\n\"`*_\u2014]|\s-+\s|\s(?:or|and|because|since|i|isn't|right|as|which|that|where|when|but)(?=\s|$)")
_NO_GUESS = frozenset("but and so now because just let do you i we what how why can could will would it is not this that he she they".split())
_LONGEST_BARE = 3


def announced_guess(text: str) -> str | None:
    """Return the phrase that ``text`` announces as its guess, normalised, or ``None`` when it announces none."""
    said = " ".join(normalise(text).replace("\u201c", '"').replace("\u201d", '"').split())
    for match in _ANNOUNCED.finditer(said):
        if _CONDITION.search(said[max(0, match.start() - 12) : match.start()]):
            continue
        guess = _named(said[match.end() :])
        if guess is not None:
            return guess
    return None


def is_right(guess: str, target: str) -> bool:
    """Whether a guessed phrase is the target, in any inflection; more or fewer words are another word."""
    return is_form(tokens_of(normalise(guess)), target) or normalise(guess).strip() == normalise(target).strip()


def _named(rest: str) -> str | None:
    """Return what is named behind "I know the word"."""
    punctuated = re.match(r"^[\s\"'`*_)]*[!.,:;\u2026-]+[\s\"'`*_(]*", rest)
    body = rest[punctuated.end() :] if punctuated else rest.lstrip(" \"'`*_")
    if punctuated and rest[: punctuated.end()].rstrip(" ").endswith(("`", '"', "*", "'")):
        body = rest[: punctuated.end()].rstrip(" ")[-1] + body  # the quote belongs to the word
    body = _LEADING.sub("", body)
    denied = False
    while naming := _NAMING.match(body):
        body = _FILLERS.sub("", body[naming.end() :])
        if not re.match(r"(?:not|n't)\b", body):
            return _phrase(body)
        denied = True
        following = re.search(r"[,.;!:]\s*(?:but\s+|rather\s+)?(?=(?:it|that|the word)\b)", body)
        body = body[following.end() :] if following else ""
    return _bare(body) if punctuated and not denied else None


def _phrase(body: str) -> str | None:
    quoted = _QUOTED.match(body)
    phrase = quoted.group(1) if quoted else body[: end.start()] if (end := _PHRASE_END.search(body)) else body
    phrase = phrase.strip(" '\"`*_")
    return phrase if tokens_of(phrase) or phrase else None


def _bare(body: str) -> str | None:
    """A word on its own behind the announcement: short, to the end of its sentence, and not the start of other talk."""
    body = _FILLERS.sub("", body)
    if quoted := _QUOTED.match(body):
        return quoted.group(1).strip()
    sentence = re.split(r"[.!?\n]", body, maxsplit=1)[0].strip(" '\"`*_,")
    tokens = tokens_of(sentence)
    return sentence if 0 < len(tokens) <= _LONGEST_BARE and tokens[0] not in _NO_GUESS else None
