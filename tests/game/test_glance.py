"""A glance may err on one side only: where it sees nothing, a close look finds nothing either."""

import random

import pytest

from spag.games.taboo.judge.evasions import find_evasion
from spag.games.taboo.judge.glance import may_guess, may_say
from spag.games.taboo.judge.guesses import find_guess
from spag.games.taboo.judge.matching import find_form
from spag.games.taboo.wordlist import shipped_words

PROSE = "Well, I'd say it's a **nice** thing (or so), e.g. at <b>my</b> home: https://example.org/a_(b). “Don’t” you think? naïve 😀 р2"
MARKS = [
    "*",
    "_",
    "<i>",
    "</i>",
    "<",
    "&amp;",
    "&#114;",
    "\u200b",
    "\u0301",
    "＊",
    "р",
    "ｒ",
    "'",
    "’",
    "+",
    "#",
    "1",
    "0",
    "3",
    "!",
    "|",
    "-",
    "/",
    ".",
]
TARGETS = ["ice cream", "U.S.", "C++", "don't", "水", "ox", "go", "x-ray", "o'clock", "3D", "naïve", "e-mail"]


def disguised(rng: random.Random, word: str) -> str:
    at = rng.randint(0, len(word))
    ways = (
        word,
        word[::-1],
        rng.choice("-_.* ,").join(word),
        f"{word[:at]} {word[at:]}",
        word[:at] + rng.choice(MARKS) + word[at:],
        word.translate(str.maketrans("oieastb", "0134578")),
        f"the word is {word}!",
        word + rng.choice(["s", "ing", "ed", "'s", "++", "_"]),
    )
    return rng.choice(ways)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_close_look_finds_is_never_missed_at_a_glance(seed: int) -> None:
    rng, words = random.Random(seed), shipped_words()
    found = 0
    for _ in range(1500):
        target = rng.choice(TARGETS) if rng.random() < 0.3 else rng.choice(words)
        pieces = rng.choices(PROSE.split(" "), k=rng.randint(0, 8))
        for extra in (disguised(rng, target), rng.choice(MARKS), rng.choice(MARKS)):
            pieces.insert(rng.randint(0, len(pieces)), extra)
        text = (" " if rng.random() < 0.9 else "").join(pieces)
        said = find_form(text, target) or find_evasion(text, target)
        found += said is not None
        assert may_say(text, target) or said is None, (text, target, said)
        assert may_guess(text) or find_guess(text, target) is None, (text, target)
    assert found > 500  # else the texts test nothing


def test_ordinary_prose_needs_no_closer_look() -> None:
    said = [word for word in shipped_words()[:500] if find_form(PROSE, word)]
    looked_at = [word for word in shipped_words()[:500] if may_say(PROSE, word)]
    assert said == ["home"]
    assert len(looked_at) <= 5  # 1 %: a glance may err on this side
    assert not may_guess(PROSE)


def test_single_letters_need_a_closer_look_only_where_they_spell() -> None:
    text = "Is it (1990s, 3rd, 5 p.m.) I wonder, r i v e d e r?"
    assert not may_say(text, "mountain")
    assert may_say(text, "rive")
    assert may_say("r <b>i</b> v e r", "river")


def test_pieces_need_a_closer_look_only_where_they_hide_the_target() -> None:
    text = "x_moun=tain(x); https://example.org/a-b"
    assert not may_say(text, "mouse")
    assert may_say(text, "xmountain")
