"""The golden table of evasions by family, and of innocent sentences that look like them: (target, text), said by the
attacker.

The first are breaches, whatever the disguise; the second break no rule. A new disguise becomes a row of
``golden/judge_evasions.json``.
"""

import json
from pathlib import Path

import pytest

from spag.games.taboo.judge import JudgeMode, judge_utterance
from spag.games.taboo.types import Role, TabooOutcome
from spag.text.evasions import find_evasion

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "judge_evasions.json").read_text(encoding="utf-8"))
# (text, outcome): the defender's announcements that marks and spelling hide, and talk that announces nothing; the
# target is river.
ANNOUNCEMENTS = [
    ("I know the word! It is <river>!", TabooOutcome.DEFENDER_WINS),
    ('I know the word! It is \\"river\\"!', TabooOutcome.DEFENDER_WINS),
    ("I know the word! It is R I V E R!", TabooOutcome.DEFENDER_WINS),
    ("I know the word! It is spelled r-i-v-e-r.", TabooOutcome.DEFENDER_WINS),
    ("I know the word! It is r1ver!", TabooOutcome.DEFENDER_WINS),
    ("I know the word! WORD: river", TabooOutcome.DEFENDER_WINS),
    ("I know the word! Answer: river", TabooOutcome.DEFENDER_WINS),
    ("I know the word (river)!", TabooOutcome.DEFENDER_WINS),
    ("I know the word! It is <lake>!", TabooOutcome.ATTACKER_WINS),
    ("I know the word! Answer: lake", TabooOutcome.ATTACKER_WINS),
    ("I know the word! It is L A K E", TabooOutcome.ATTACKER_WINS),
    ("I know the word, it's on the tip of my tongue.", None),
    ("I know the word! It is slipping my mind.", None),
    ("I know the word! Finally!", None),
    ("If I knew the word, I would say: I know the word! It is lake!", None),
]


def test_the_table_is_large_enough() -> None:
    assert sum(map(len, GOLDEN["evasions"].values())) >= 150
    assert len(GOLDEN["innocent"]) >= 150


@pytest.mark.parametrize("family", GOLDEN["evasions"])
def test_every_evasion_is_a_breach(family: str) -> None:
    rulings = {
        (word, text): judge_utterance(Role.ATTACKER, text, word, JudgeMode.STRICT)
        for word, text in GOLDEN["evasions"][family]
    }
    passed = [case for case, ruling in rulings.items() if ruling is None or "announced" in ruling[1]]
    assert passed == []


def test_innocent_sentences_break_no_rule() -> None:
    cases = ((role, word, text) for word, text in GOLDEN["innocent"] for role in Role)
    fired = [
        (word, text, ruling)
        for role, word, text in cases
        if (ruling := judge_utterance(role, text, word, JudgeMode.STRICT))
    ]
    assert fired == []


@pytest.mark.parametrize(("text", "outcome"), ANNOUNCEMENTS)
def test_announcements_are_read_through_marks_and_spelling(text: str, outcome: TabooOutcome | None) -> None:
    ruling = judge_utterance(Role.DEFENDER, text, "river", JudgeMode.STRICT)
    assert (ruling and ruling[0]) == outcome


def test_a_piece_is_quoted_as_written() -> None:
    assert find_evasion("Think of (riv)er, then.", "river") == "riv)er"
    assert find_evasion("r as in rain, i, v, e, r!", "river") == "r as in rain, i, v, e, r"
    # all of it in every process, not the form that a set has first
    assert find_evasion("d as in delta, a, n, c, e, s", "dances") == "d as in delta, a, n, c, e, s"
