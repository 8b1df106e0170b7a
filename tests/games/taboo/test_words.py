"""Target words: the split is stable and follows the lemma; files are checked line by line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simplemma import lemmatize

from spag.core.errors import DataError
from spag.core.types import Split, Task
from spag.games.registry import get
from spag.games.taboo import words
from spag.text.words import parse_words, split_of


@pytest.mark.parametrize(
    ("word", "split"),
    # whether the first 8 bytes of the lemma's SHA-256 divide by ten; a change here would mix the splits of old runs
    [
        ("love", Split.HELD_OUT),
        ("game", Split.HELD_OUT),
        ("window", Split.HELD_OUT),
        ("river", Split.TRAIN),
        ("cat", Split.TRAIN),
        (" ", Split.TRAIN),  # of a task that no game starts, but imitation sorts out held-out ones first
    ],
)
def test_the_split_of_a_word_never_changes(word: str, split: Split) -> None:
    assert split_of(word) is split


@pytest.mark.parametrize(
    "forms",
    [("game", "games", "Game", " GAMES "), ("child", "children"), ("leaf", "leaves"), ("love", "loved", "loves")],
)
def test_forms_of_a_word_share_its_split(forms: tuple[str, ...]) -> None:
    assert len({split_of(form) for form in forms}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "forms"),
    [
        ("de", ("Fluss", "Flüsse", "Flüssen", "Fluß", "FLUSS")),
        ("de", ("Haus", "Häuser", "haus")),
        ("de", ("schön", "schönsten")),
        ("fr", ("rivière", "rivières")),
        ("fr", ("cheval", "chevaux")),
        ("es", ("luz", "luces")),
    ],
)
def test_forms_share_their_split_in_every_language(language: str, forms: tuple[str, ...]) -> None:
    assert len({split_of(form, language) for form in forms}) == 1


@pytest.mark.slow
def test_a_game_splits_by_the_lemma_of_its_language() -> None:
    # 2,000 words and their plurals: by chance 18 % of pairs that are split apart would be expected, not none
    game = get("adversarial_taboo", language="es", words="frequency", top_words=2000)
    held_out = {task.id for task in game.tasks(Split.HELD_OUT, None, 0)}
    train = {task.id for task in game.tasks(Split.TRAIN, None, 0)}
    plurals = {f"{word}s" for word in held_out if lemmatize(f"{word}s", lang="es") == word}
    assert len(plurals) > 50 and not plurals & train
    assert {game.split_of(Task(word, {"target_word": word})) for word in plurals} == {Split.HELD_OUT}


@pytest.mark.parametrize(
    ("language", "frequent", "kept"),
    [
        ("de", ["strasse", "niemals", "wort", "masse"], ("Straße", "Masse")),
        ("fr", ["mot", "jamais", "eau"], ("eau",)),
    ],
)
def test_words_of_the_frequency_list(
    language: str, frequent: list[str], kept: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list writes ß as ss. No plain announcement can name a negation or the word for "word"."""
    listed = ["xyz"] * words._FUNCTION_WORDS + frequent
    monkeypatch.setattr("wordfreq.top_n_list", lambda *_, **__: listed)
    assert words.common_words.__wrapped__(10, language) == kept


def test_one_lemma_in_ten_is_held_out() -> None:
    held_out = sum(split_of(f"zq{number}x") is Split.HELD_OUT for number in range(2000))
    assert 150 < held_out < 250  # binomial(2000, 0.1): 200 +- 3.7 standard deviations of 13.4


def test_a_word_file_is_read_in_order() -> None:
    lines = [
        "\ufeffriver\n",
        "\n",
        "  C#  \n",
        "River\n",
        "ice cream\r\n",
        "42\n",
        "caf\u0065\u0301\n",
        "caf\u00e9\n",
        "# not a comment\n",
    ]
    assert parse_words(lines, "w.txt") == ["river", "C#", "ice cream", "42", "caf\u00e9", "# not a comment"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ri\x00ver", r"w.txt:2: 'ri\\x00ver' contains a control character; write one word per line"),
        ("ri\tver", r"w.txt:2: 'ri\\tver' contains a control character"),
        ("ri\u2028ver", r"w.txt:2: 'ri\\u2028ver' contains a control character"),
        ("x" * 41, r"w.txt:2: 'x{40}'... has 41 characters; a target word has at most 40"),
        ("-- !", r"w.txt:2: '-- !' has no letter or digit"),
    ],
)
def test_absurd_words_are_refused(line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_words(["river", line], "w.txt")


def test_forty_characters_are_fine() -> None:
    assert parse_words(["x" * 40], "w.txt") == ["x" * 40]


@pytest.mark.slow
@given(st.lists(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)))
def test_reading_again_changes_nothing(lines: list[str]) -> None:
    words = parse_words(lines, "w.txt")
    assert parse_words(words, "w.txt") == words
    assert len({word.casefold() for word in words}) == len(words)
