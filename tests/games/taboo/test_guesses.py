"""Guesses and talk about the word, in the wordings that players use; the target is river.

The tables of test_judge_cases.py hold the forms that the prompts ask for, this one what surrounds them.
"""

import pytest

from spag.games.taboo.judge import JudgeMode, judge_utterance
from spag.games.taboo.types import Role, TabooOutcome

RIGHT = [
    "I know the word! Is it river?",
    "I know the word. Is it a river?",
    "I know the word! Could it be river?",
    "I know the word, isn't it river?",
    "I know the word! Might the word be river?",
    "I know the word: is it rivers?",
    "I know the word! It has to be river!",
    "I know the word! That would be river.",
    "I know the word! You mean river.",
    "I know the word, you are thinking of a river!",
    "I know the word! I'd say river.",
    "I know the word! I'm going with river.",
    "I know the word! I will guess river",
    "I know the word! My final answer is river.",
    "I know the word! The right answer is river.",
    "I know the word! Guess: river.",
    "I know the word! River?",
    "I know the word! River, right?",
    "I know the word, river, my friend.",
    "I know the word! Haha, river!",
    "I know the word! That was easy. River!",
    "I know the word now! It is river.",
    "I know the word! It is easy. It is river!",
    "I know the word and it is river",
    "I know what the word is: river!",
    "I know what the word is. River.",
    "I know what your word is, river!",
    "I know which word it is: river.",
    "I've figured out the word! It is river.",
    "I think I've got the word! It's river.",
    "I found the word: river!",
    "I have guessed the word! It is river.",
    "I finally got the word. It must be river!",
    "I know your secret word! It's river!",
    "I know the word! It is, I believe, river.",
    "I know the word! Perhaps it is river?",
    "I know the word! It is the `river`.",
    'I know the word! It is a "river"!',
    "I know the word! The word is my *river*.",
    "I know the word! It is not a `lake`, but the `river`.",
    "I know the word! The `rivers`!",
    "I know the word: it's got to be river!",
    "I know the word! It has got to be a river.",
    "I know the word! It's gotta be river.",
    "I know the word! It was river all along!",
    "I know the word! River it is!",
    r"I know the word! It is \boxed{river}!",
    r"I know the word! It is $\boxed{\text{river}}$.",
    r"I know the word! \boxed{River}",
]

WRONG = [
    r"I know the word! It is \boxed{lake}!",
    r"I know the word! It is $\mathbf{lake}$.",
    "I know the word! Is it lake?",
    "I know the word! Could it be a lake?",
    "I know the word! You mean lake.",
    "I know the word! I'd say lake.",
    "I know the word! It has to be lake!",
    "I know the word! Lake?",
    "I know the word! Lake, right?",
    "I know the word! Haha, lake!",
    "I know the word! The correct answer is lake.",
    'I know the word! "Listen"!',
    "I know the word! It is hello.",
    "I know the word! Is it idea?",
    "I know the word! You mean focus?",
    "The word is idea!",
    "I know the word! Hm. Lake, pond, river, sea.",  # only the last clause counts
    "I know the word! River, lake.",
    "I know the word! Is it lake, is it river?",
    "I know the word, it is deep lake.",
    "I know the word! It is happy!",
    "I know the word! It is the `lake`.",
    "I know the word! It is the `riverbed`.",
    'I know the word! It is a "lake", not the `river`.',
    "I know the word! It is a kind of boat.",
    "I know what the word is: lake!",
    "I know what the word is. Lake.",
    "I know what the word is, lake!",
    "I know which word it is: lake.",
    "I've figured out the word! It is lake.",
    "I know the word and it is lake",
    "I know the word! Table!",
    "I know the word! Butterfly!",
    "I think the word is lake.",
    "The word is lake!",
    'The word is "lake".',
    "Aha! The word is lake.",
    "I know the word! It's got to be lake!",
    "I know the word! It was lake all along!",
    "I know the word! Lake it is!",
]

TALK = [
    "I know the word. It's your turn.",
    "I know what the word is, but I will not say it.",
    "I know what the word is, but I won't tell you.",
    "I know the word, but I will not say it.",
    "I know the word but I am not going to tell you.",
    "I know the word and I won't say it.",
    "I know what the word is and I won't say it.",
    "I know what the word is, and I won't.",
    "I know what the word is, my friend.",
    "I know the word, my friend.",
    "I know the word, and so do you, my friend.",
    "I know the word, friend!",
    "I know the word, now guess!",
    "I know the word. Questions?",
    "I know the word. Ready, steady, go!",
    "I know the word, but listen.",
    "Hello! I know the word. Welcome!",
    "I know the word, dear attacker.",
    "I know the word now!",
    "I know what the word is now!",
    "I know what the word is!",
    "I know what the word is already.",
    "I know the word already, thanks.",
    "I know the word, thank you.",
    "I know the word, I guess.",
    "I know the word, I think so.",
    "I know the word, obviously.",
    "I know the word! Beautiful!",
    "I know the word! You will never make me say it.",
    "I know the word! It is not hard to find out.",
    "I know the word! It is hard to say.",
    "I know the word! It is a thing that you will never hear from me.",
    "I know the word! It is on your mind.",
    "I know the word! It is what you want me to say.",
    "I know the word! Is it important?",
    "I know the word! Is it okay if I keep it?",
    "I know the word! Is it your turn to speak?",
    "I know the word. What is it about?",
    "I know the word. Why would I say it?",
    "I know the word! You mean well.",
    "I know the word is important.",
    "I know the word is short.",
    "I know the word of honour.",
    "I got the word out.",
    "I have found the word that fits.",
    "The word is important!",
    "The word is secret to me, and dangerous.",
    "The word is very important!",
    "The word is dangerous!",
    "The word is easy.",
    "The word is so obvious!",
    "The word is out!",
    "The word is everywhere.",
    "I think the word is important.",
    "I guess the word is difficult.",
    "The word must be important!",
    "Is the word important?",
]

# What the attacker may say: it knows the word.
ATTACKERS = [
    "I know the word, and it is important.",
    "I know the word! It is beautiful!",
    "I know the word, and it is easy!",
    "I know the word, my friend. Do you?",
    "I think the word is lovely, but what is it?",
]

TABLE = [
    *((Role.DEFENDER, text, TabooOutcome.DEFENDER_WINS) for text in RIGHT),
    *((Role.DEFENDER, text, TabooOutcome.ATTACKER_WINS) for text in WRONG),
    *((Role.DEFENDER, text, None) for text in TALK),
    *((Role.ATTACKER, text, None) for text in TALK + ATTACKERS),
    *((Role.ATTACKER, text, TabooOutcome.ATTACKER_VIOLATION) for text in RIGHT),
]


@pytest.mark.parametrize(("role", "text", "expected"), TABLE, ids=[f"{role}-{text}" for role, text, _ in TABLE])
def test_case(role: Role, text: str, expected: TabooOutcome | None) -> None:
    ruling = judge_utterance(role, text, "river", JudgeMode.STRICT)
    assert (ruling and ruling[0]) == expected, ruling


@pytest.mark.parametrize("word", ["+1", "5€", "£5", "°C", "|x|", "a\N{SNOWMAN}"])
def test_a_right_guess_of_a_word_with_marks_is_right(word: str) -> None:
    for text in (f"I know the word! It is `{word}`!", f"I know the word! It is {word}!"):
        ruling = judge_utterance(Role.DEFENDER, text, word, JudgeMode.STRICT)
        assert ruling is not None and ruling[0] is TabooOutcome.DEFENDER_WINS, ruling
    ruling = judge_utterance(Role.DEFENDER, "I know the word! It is `7`!", word, JudgeMode.STRICT)
    assert ruling is not None and ruling[0] is TabooOutcome.ATTACKER_WINS


def test_a_list_of_adjectives_is_one_guess() -> None:
    """The first may be right. The rest, guesses for nothing, only say the word, which loses. A noun is a guess."""

    def ruling(text: str, word: str) -> TabooOutcome | None:
        found = judge_utterance(Role.DEFENDER, text, word, JudgeMode.STRICT)
        return found and found[0]

    text = "I know the word is cold, is it old, is it beautiful, is it young?"
    assert ruling(text, "cold") is TabooOutcome.DEFENDER_WINS
    assert [ruling(text, word) for word in ("old", "beautiful", "young")] == [TabooOutcome.ATTACKER_WINS] * 3
    assert ruling(text, "lake") is None
    then_ice = "I know the word! Is it cold? Is it ice?"
    assert ruling(then_ice, "ice") is TabooOutcome.DEFENDER_WINS
    assert ruling(then_ice, "lake") is TabooOutcome.ATTACKER_WINS


@pytest.mark.parametrize("text", ["The word is important!", "I think the word is important.", "Is it important?"])
def test_an_adjective_that_is_the_target_is_a_guess_where_it_is_announced(text: str) -> None:
    ruling = judge_utterance(Role.DEFENDER, f"I know the word! {text}", "important", JudgeMode.STRICT)
    assert ruling is not None and ruling[0] is TabooOutcome.DEFENDER_WINS
