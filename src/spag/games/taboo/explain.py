"""Finds the characters of a decisive utterance that name the word or the guess."""

from spag.games.taboo.judge.guesses import find_guess
from spag.games.taboo.languages import language_of
from spag.games.taboo.types import Role
from spag.text.evasions import find_said
from spag.text.spans import find_span

_LONGEST = 20_000  # characters searched for the deciding piece


def deciding_span(role: Role, text: str, target_word: str, language: str = "en") -> tuple[int, int] | None:
    """Return the characters of a decisive utterance that name the word or the guess, or ``None``."""
    text = text[:_LONGEST]
    found = find_guess(text, target_word, language, by_defender=role == Role.DEFENDER)
    guess = find_span(text, found[0].phrase, found[0].after) if found else None
    piece = find_said(text, target_word, language_of(language).lexicon)
    said = find_span(text, piece) if piece else None
    return guess or said if role == Role.DEFENDER else said or guess
