"""The grammar of guesses in one language, compiled from the ``guesses`` section of its language file.

A field is a list of regular expressions, or words separated by spaces; they are alternatives, and match folded text in
which every quotation mark is ``"``. A missing field matches nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

Fields = Mapping[str, str | list[str]]


@dataclass(frozen=True)
class Grammar:
    """The parts of a guess.

    ``word``: required in every announcement; ``announcement``: "I know the word"; ``goes_on``: what may follow one;
    ``direct``: "is", between an announcement and the word; ``states``: "it is"; ``asks``: "is it", and verbs that talk
    about other things too; ``short``: "the word is", said after a ``cue`` or a ``hedged_cue``, or ``firm`` in itself;
    ``negation`` and ``contrast``: "not", "not a lake but"; ``filler``: what may stand before the word; ``article``;
    ``end``: where the word ends; ``tags``: what may follow a word that is said alone; ``doubt`` and ``reported``: what
    an announcement may not follow, in its clause or its sentence; ``clause``: where a clause ends. A phrase that begins
    with one of ``no_names``, addresses the other as ``address`` does, or has a word of ``talk`` in it names nothing.
    """

    word: str
    announcement: re.Pattern[str]
    goes_on: re.Pattern[str]
    direct: re.Pattern[str]
    states: re.Pattern[str]
    asks: re.Pattern[str]
    short: re.Pattern[str]
    cue: re.Pattern[str]
    hedged_cue: re.Pattern[str]
    firm: re.Pattern[str]
    negation: re.Pattern[str]
    contrast: re.Pattern[str]
    filler: re.Pattern[str]
    article: re.Pattern[str]
    end: re.Pattern[str]
    doubt: re.Pattern[str]
    reported: re.Pattern[str]
    clause: re.Pattern[str]
    no_names: re.Pattern[str]
    address: re.Pattern[str]
    talk: re.Pattern[str]
    tags: re.Pattern[str]

    @staticmethod
    def compile(fields: Fields) -> "Grammar":
        """Return the grammar that the ``guesses`` section of a language file describes."""

        def compiled(pattern: str) -> re.Pattern[str]:
            filled = _filled(_filled(pattern, fields), fields)
            return re.compile(filled)

        return Grammar(
            word=str(fields["word"]),
            announcement=compiled(r"<announcement>"),
            goes_on=compiled(r'"?[ ]?(?:$|[!?.:;,=\-—–(\n"]|<goes_on>\b)'),
            direct=compiled(r'"?[ ]?(?P<mark><direct>\b:?|[:=\-—–]+)'),
            states=compiled(
                r"(?<![\w'])<states>(?!\w)"
                r'|(?<![\w\'])<labels>"?(?:[ ]?[:=]+>?|[ ][\-—–]+>?(?=[ ]))'
            ),
            asks=compiled(r"(?<![\w'])<asks>(?!\w)"),
            short=compiled(r"<short>\b"),
            cue=compiled(r'(?<!\w)<cue>[\s!.,:;\-—–"]*(?:<joins> )?$'),
            hedged_cue=compiled(r"(?<!\w)<hedged_cue>[\s:,]*$"),
            firm=compiled(r"<firm>$"),
            negation=compiled(r"[ ]?<negation>\b"),
            contrast=compiled(r"[ ]?<negation>\b[^.!?\n]{1,60}?\b<contrast> "),
            filler=compiled(r'(?:[\s:,=>\-—–(\[\]{}#¡¿]|\.{2,}|<filler>\b(?=[\s:,"]))*'),
            article=compiled(r"<article>"),
            end=compiled(r"\s*(?:$|[!?,;:()\[\]{}\n\"/—–]|\.(?=[\s.!\"')]|$)|-+\s|(?<=\s)<stops>(?![\w']))"),
            doubt=compiled(r"(?<!\w)<doubt>\b"),
            reported=compiled(r'(?<!\w)<conditions>\b[^.!?\n]*\b<reports>[\s:,"]*(?:<that> )?$'),
            clause=compiled(r'[.!?:;,\n"()—–¡¿]|\b<joins>\b'),
            no_names=compiled(r"<no_names>(?![\w'])"),
            address=compiled(r"<address>(?![\w'])"),
            tags=compiled(r"(?:[^\w]|(?<!\w)(?:<tags>|<address>)(?![\w']))*"),
            talk=compiled(r"(?<!\w)<talk>(?![\w'])"),
        )


def _filled(pattern: str, fields: Fields) -> str:
    """Return ``pattern`` with ``<field>`` replaced by the alternatives of that field."""
    return re.sub(r"(?<!P)<(\w+)>", lambda field: _alternatives(fields, field[1]), pattern)


def _alternatives(fields: Fields, name: str) -> str:
    value = fields.get(name, [])
    found = value.split() if isinstance(value, str) else value
    return f"(?:{'|'.join(found)})" if found else "(?!)"
