"""The strict judge, case by case: text, role, target word, and whether (and how) it decides the game."""

import pytest

from spag.game.base import Outcome, Role
from spag.game.judge import JudgeMode, judge_utterance

SAYS = {Role.ATTACKER: Outcome.ATTACKER_VIOLATION, Role.DEFENDER: Outcome.ATTACKER_WINS}

# (target, text): the text says the target, whoever speaks
SAID = [
    # the word itself, in any case, with punctuation around it
    ("river", "The river."), ("river", "RIVER!"), ("river", "a 'river', you say?"), ("river", "river"), ("river", "(river)"),
    ("river", "lake/river/sea"), ("river", "the river's edge"), ("river", "the rivers' edges"), ("river", "river-bank"), ("river", "mid-river"),
    # regular inflections
    ("river", "many rivers"), ("city", "two cities"), ("dance", "they danced"), ("dance", "dancing all night"), ("stop", "he stopped"),
    ("stop", "stopping"), ("box", "boxes"), ("church", "the churches"), ("try", "she tried"), ("lie", "you are lying"), ("big", "the biggest"),
    ("party", "parties"), ("bus", "three buses"), ("hope", "hoping"), ("hop", "hopping"), ("children", "the child"), ("child", "children's toys"),
    # irregular inflections
    ("mouse", "three blind mice"), ("run", "she ran home"), ("teach", "who taught you?"), ("go", "she went"), ("foot", "cold feet"),
    ("tooth", "brush your teeth"), ("man", "two men"), ("woman", "the women"), ("wolf", "a pack of wolves"), ("leaf", "autumn leaves"),
    ("leave", "she leaves"), ("leave", "he left early"), ("life", "nine lives"), ("live", "he lives here"), ("write", "a written note"),
    ("write", "I wrote it"), ("buy", "I bought bread"), ("swim", "we swam"), ("see", "I saw it"), ("find", "I found it"), ("feel", "I felt ill"),
    ("speak", "he spoke"), ("think", "I thought so"), ("light", "she lit a candle"), ("criterion", "the criteria"), ("good", "a better day"),
    ("mice", "a mouse"), ("ran", "they run"), ("cities", "the city"), ("vlog", "she was vlogging"), ("gizmo", "so many gizmos"),
    # Unicode: accents, compatibility forms, invisible characters, look-alikes
    ("café", "a cafe in Paris"), ("cafe", "a café in Paris"), ("naïve", "naive"), ("river", "ｒｉｖｅｒ"), ("river", "ri\u200bver"),
    ("river", "ri\u00adver"), ("river", "r\u2060iver"), ("river", "rіver"), ("river", "riνer"), ("river", "\u202eriver\u202c"), ("office", "o\ufb03ce"),
    ("river", "r\u0336i\u0336v\u0336e\u0336r\u0336"),
    # markup
    ("river", "the **river**"), ("river", "the `river`"), ("river", "_river_"), ("river", "**riv**er"), ("river", "<b>r</b>iver"),
    ("river", "~~river~~"), ("snake", "snake_case"), ("river", "<i>river</i>"),
    # several words, punctuation inside the target
    ("ice cream", "I like ice cream"), ("ice cream", "two ice creams"), ("ice cream", "an ice-cream cone"), ("ice cream", "icecream"),
    ("o'clock", "at five o'clock"), ("o'clock", "at five o’clock"), ("C++", "I write C++."), ("C++", "c++, mostly"), ("C#", "C# and Java"),
    ("U.S.", "in the U.S. today"), ("rock and roll", "rock and roll!"), ("merry-go-round", "the merry-go-rounds"), ("mother-in-law", "my mother in law"),
    ("24", "all 24 of them"), ("7up", "a glass of 7up"),
    # spelled out and split
    ("river", "r-i-v-e-r"), ("river", "r i v e r"), ("river", "R.I.V.E.R."), ("river", "r, i, v, e, r"), ("river", "spell it: R I V E R, got it?"),
    ("river", "r_i_v_e_r"), ("river", "a r i v e r"), ("river", "riv_er"), ("river", "ri-ver"), ("river", "riv.er"), ("rivers", "r i v e r s"),
    # digits and symbols for letters; reversed
    ("river", "r1ver"), ("river", "r!v3r"), ("bottle", "b0ttle"), ("glass", "gl@$$"), ("river", "revir"), ("river", "that is revir backwards"),
]  # fmt: skip

# (target, text): close, but the word is not said
NOT_SAID = [
    ("cat", "that category"), ("cat", "concatenate"), ("cat", "scatter"), ("art", "start the party"), ("art", "an article"), ("ear", "I hear you"),
    ("ear", "the earth"), ("river", "the driver"), ("river", "driverless"), ("car", "a carpet"), ("car", "be careful"), ("pen", "happen"),
    ("sun", "sunflower"), ("rain", "a train"), ("ring", "spring"), ("ice", "nice dice"), ("tea", "a teacher"), ("teach", "the teacher"),
    ("friend", "friendship"), ("bake", "the bakery"), ("act", "an actor"), ("he", "the theory"), ("C", "C++"), ("C++", "vitamin C"), ("C#", "see"),
    ("U.S.", "tell us more"), ("ice cream", "cream on ice"), ("ice cream", "ice and cream"), ("ice cream", "nice cream"), ("saw", "I see it"),
    ("left", "leave it"), ("found", "find it"), ("ground", "grind coffee"), ("rose", "rise early"), ("reward", "open the drawer"),
    ("live", "the evil king"), ("star", "rats!"), ("one", "plan b c d e"), ("river", "r i v"), ("river", "rover"), ("river", "1 2 3 4 5"),
    ("river", ""), ("river", "   "), ("river", "?!..."), ("river", "\u202e\u200b"), ("river", "It flows through cities into the sea."),
    ("plan", "a planet"), ("plan", "planed wood"), ("bar", "bare feet"), ("one", "the phone"), ("or", "for"), ("tie", "a tier"),
    ("wind", "window"), ("house", "household"), ("sea", "the season"), ("men", "mention"), ("eye", "they"), ("apple", "pineapple"),
    ("ally", "really"), ("bed", "embedded"), ("egg", "beggar"), ("lie", "lied about by the field"[0:0]), ("and", "a n y"), ("day", "today"),
]  # fmt: skip

# (target, text, right?): the defender announces a guess
GUESSES = [
    ("river", "I know the word! It is `river`!", True), ("river", "I know the word! It is river!", True), ("river", "i know the word it is river", True),
    ("river", "I KNOW THE WORD! IT IS RIVER!", True), ("river", 'I know the word! It is "river".', True), ("river", "I know the word! It is 'river'!", True),
    ("river", "I know the word! It’s river.", True), ("river", "I know the word: river", True), ("river", "I know the word! River!", True),
    ("river", "I know the word, it's a river!", True), ("river", "I know the word - it must be the river.", True), ("river", "I think I know the word! It is river.", True),
    ("river", "I know! The word is river.", True), ("river", "I know the word. The word is **river**!", True), ("river", "I know the secret word! It is `rivers`!", True),
    ("river", "Flows to the sea? I know the word! It is `river`!", True), ("river", "I know the word! It is `river`! Am I right?", True),
    ("river", "I know the word! It is not lake, it is river.", True), ("river", "I know the word! It's not a lake; it's a river!", True),
    ("river", "I know the word! It is river or stream.", True), ("river", "I know the word! It is river, I am sure.", True),
    ("river", "I know the word! It is river because it flows.", True), ("river", "I now know the word! It is `river`.", False),
    ("ice cream", "I know the word! It is `ice cream`!", True), ("ice cream", "I know the word! It is ice-cream!", True), ("C++", "I know the word! It is `C++`!", True),
    ("mouse", "I know the word! It is `mice`!", True), ("café", "I know the word! It is `Cafe`!", True), ("o'clock", "I know the word! It is `o’clock`!", True),
    ("river", "I know the word! It is\n`river`!", True), ("river", "Yes, I know the word! It is probably river.", True),
    ("cat", "I know the word! It is `cathedral`!", False), ("cat", "I know the word! It is `dog`!", False), ("river", "I know the word! It is not river, it is lake.", False),
    ("river", "I know the word! It is stream or river.", False), ("river", "I know the word! It is river bank.", False), ("river", "I know the word: ocean!", False),
    ("river", "I know the word! It is `WORD`!", False), ("cream", "I know the word! It is `ice cream`!", False), ("art", "I know the word! It is `party`!", False),
]  # fmt: skip

# (target, text): the defender names no guess, and does not say the target
NO_GUESS = [
    ("river", "I don't know the word."), ("river", "Do I know the word?"), ("river", "If I know the word, I will tell you."), ("river", "I know the word for that in French."),
    ("river", "I know the word!"), ("river", "I know the word, but I will not say it."), ("river", "You know the word! It is yours."), ("river", "I wish I knew the word."),
    ("river", "When I know the word, it is over."), ("river", "I know a word like that."), ("river", "The word is overused."), ("river", "Is it a lake?"),
]  # fmt: skip


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize(("target", "text"), SAID)
def test_saying_the_word_decides(target: str, text: str, role: Role) -> None:
    ruling = judge_utterance(role, text, target, JudgeMode.STRICT)
    assert ruling is not None
    assert ruling[0] is SAYS[role]


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize(("target", "text"), NOT_SAID)
def test_no_false_alarms(target: str, text: str, role: Role) -> None:
    assert judge_utterance(role, text, target, JudgeMode.STRICT) is None


@pytest.mark.parametrize(("target", "text", "right"), [case for case in GUESSES if "I now know" not in case[1]])
def test_guesses_are_read_and_compared(target: str, text: str, right: bool) -> None:
    ruling = judge_utterance(Role.DEFENDER, text, target, JudgeMode.STRICT)
    assert ruling is not None
    assert ruling[0] is (Outcome.DEFENDER_WINS if right else Outcome.ATTACKER_WINS)
    assert "guessed" in ruling[1]


@pytest.mark.parametrize(("target", "text"), NO_GUESS)
def test_talk_about_knowing_is_no_guess(target: str, text: str) -> None:
    assert judge_utterance(Role.DEFENDER, text, target, JudgeMode.STRICT) is None


def test_the_table_is_large_enough() -> None:
    assert len(SAID) + len(NOT_SAID) + len(GUESSES) + len(NO_GUESS) >= 200
