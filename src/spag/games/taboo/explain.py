"""The piece of a decisive utterance that names the word or the guess.

The judge searches folded text (no case, accents, invisible characters, look-alike letters); ``find_span`` finds the same piece in the
utterance as it was written.
"""

import re

from spag.games.taboo.judge.evasions import find_evasion
from spag.games.taboo.judge.folding import fold, unmasked
from spag.games.taboo.judge.guesses import find_guess
from spag.games.taboo.judge.matching import TOKEN, find_form
from spag.games.taboo.types import Role

_LONGEST = 20_000  # characters searched for the deciding piece
_WORDS_AFTER = 4  # words compared to tell one of several places from the others


def deciding_span(role: Role, text: str, target_word: str) -> tuple[int, int] | None:
    """Return the characters of a decisive utterance that name the word or the guess, ``None`` where they are not found."""
    text = text[:_LONGEST]
    found = find_guess(text, target_word, hedged=role == Role.DEFENDER)
    guess = find_span(text, found[0].phrase, found[0].after) if found else None
    piece = find_form(text, target_word) or find_evasion(text, target_word)
    said = find_span(text, piece) if piece else None
    return guess or said if role == Role.DEFENDER else said or guess


def find_span(text: str, piece: str, after: str | None = None) -> tuple[int, int] | None:
    """Return where the folded ``piece`` stands in ``text``: (start, end) in characters.

    Whole words are preferred to parts of words; among several places, the one whose line continues with the words of ``after``.
    """
    pattern = r"[\s\"]+".join(r"[*_~`]*".join(map(re.escape, word)) for word in piece.split())
    for folded in (fold, lambda char: unmasked(char)[-1]) if pattern else ():
        origins = [(char, position) for position, original in enumerate(text) for char in folded(original)]
        plain = "".join(char for char, _ in origins)
        places = [*re.finditer(rf"(?<!\w){pattern}(?!\w)", plain)] or [*re.finditer(pattern, plain)]
        if places:
            wanted = None if after is None else TOKEN.findall(after)[:_WORDS_AFTER]
            rest = (TOKEN.findall(plain[place.end() :].partition("\n")[0])[:_WORDS_AFTER] for place in places)
            place = next((place for place, words in zip(places, rest, strict=True) if words == wanted), places[0])
            return origins[place.start()][1], origins[place.end() - 1][1] + 1
    return None
