"""The lists of target words, as shipped and as made from wordfreq."""

from importlib import resources
from pathlib import Path

import pytest

from spag.core.errors import DataError
from spag.core.types import Split
from spag.games.taboo.words import EXCLUDED_LISTS, common_words, load_words, shipped_words
from spag.text.words import parse_words, split_of


@pytest.mark.slow
def test_the_shipped_list_is_a_selection_of_the_frequency_list_in_its_order() -> None:
    words, rank = shipped_words(), {word: at for at, word in enumerate(common_words(50_000))}
    assert len(words) == len(set(words)) == 2000
    ranks = [rank[word] for word in words]  # KeyError: a word that the frequency list does not have
    assert ranks == sorted(ranks)
    assert parse_words(words, "words.txt") == words


def test_about_a_tenth_of_the_shipped_words_is_held_out() -> None:
    held_out = sum(split_of(word) is Split.HELD_OUT for word in shipped_words())
    assert 160 < held_out < 240  # binomial(2000, 0.1): 200 +- 3 standard deviations of 13.4


def test_common_words_come_most_frequent_first_and_a_shorter_list_is_a_prefix() -> None:
    words = common_words(50_000)
    assert 40_000 < len(words) < 45_000  # what is left of wordfreq's 320,000
    assert len(set(words)) == len(words)
    assert common_words(300) == words[:300]
    assert words.index("water") < words.index("river") < words.index("penguin") < words.index("stapler")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("stop word", ["the", "because", "themselves", "really", "seven", "something", "whatever"]),
        ("name", ["london", "obama", "october", "monday", "michael", "toyota", "google", "french", "africa", "shelly"]),
        ("inflection", ["cats", "children", "walked", "leaves", "better", "went", "biggest"]),
        ("offensive", ["fuck", "bitch", "nigger", "faggot", "porn", "retard"]),
        ("abbreviation", ["dna", "fbi", "lol", "etc", "tbsp", "usa", "govt"]),
        ("number or short", ["10", "2010", "of", "tv", "x"]),
        ("contraction", ["don't", "can't", "it's", "dont", "cant"]),
    ],
)
def test_words_nobody_can_play_with_are_out(kind: str, words: list[str]) -> None:
    assert not set(words) & set(common_words(50_000)), kind


def test_ordinary_words_that_are_also_names_stay() -> None:
    assert {"rose", "mark", "duke", "falcon", "turkey", "apple", "march", "bill"} <= set(common_words(50_000))


@pytest.mark.parametrize("name", EXCLUDED_LISTS)
def test_excluded_lists_are_sorted_lower_case_and_disjoint_from_the_result(name: str) -> None:
    listed = (resources.files("spag.text.data") / f"{name}.txt").read_text(encoding="utf-8").split()
    assert listed == sorted(set(listed))
    assert all(word == word.lower() for word in listed)
    assert not set(listed) & set(common_words(50_000))


def test_load_words_takes_the_first_of_each_source(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("\ufeffriver\nriver\nC#\nmoon\n", encoding="utf-8")
    assert load_words("shipped", 3) == shipped_words()[:3]
    assert load_words("frequency", 3) == [*common_words(3)]
    assert load_words(str(path), 2) == ["river", "C#"]


def test_faults_of_a_word_file(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("river\n\n---\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DataError, match=r"bad.txt:3: '---' has no letter or digit"):
        load_words(str(tmp_path / "bad.txt"), 9)
    with pytest.raises(DataError, match=r"empty.txt: no words"):
        load_words(str(tmp_path / "empty.txt"), 9)
    with pytest.raises(DataError, match=r"none.txt: cannot be read"):
        load_words(str(tmp_path / "none.txt"), 9)
