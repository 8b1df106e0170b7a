"""Arena: pairing, seeds, and the figures of a table worked out by hand."""

import pytest

from spag.episodes import Episode, PlayerInfo
from spag.evaluation.arena import Pairing, head_to_head, match_specs, pairings, tabulate
from spag.evaluation.stats import wilson
from spag.game.base import Role, Utterance

GUESS = "I know the word! It is `{}`!"


def game(attacker: str, defender: str, *lines: str, word: str = "river") -> Episode:
    history = tuple(Utterance((Role.ATTACKER, Role.DEFENDER)[i % 2], line) for i, line in enumerate(lines))
    players = {Role.ATTACKER: PlayerInfo(attacker), Role.DEFENDER: PlayerInfo(defender)}
    return Episode(target_word=word, max_turns=1, history=history, players=players)


GAMES = [
    game("a", "b", "Hi", "A river."),  # a wins
    game("a", "b", "Hi", GUESS.format("river")),  # b wins
    game("a", "b", "Hi", ""),  # tie, b empty
    game("b", "a", "The river!"),  # b breaks the rules
    game("b", "a", "Hi", GUESS.format("lake")),  # b wins by a's wrong guess
    game("b", "a", "Hi", "Hello"),  # tie
]


def test_wilson_interval_is_the_textbooks() -> None:
    # Newcombe 1998, Statistics in Medicine 17: 81 of 263 gives 0.2553 to 0.3662; 0 of 20 gives 0 to 0.1611
    rate = wilson(81, 263)
    assert (rate.rate, rate.low, rate.high) == pytest.approx((0.30798, 0.2553, 0.3662), abs=1e-4)
    assert (wilson(0, 20).low, wilson(0, 20).high) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)


def test_every_pair_meets_in_both_role_assignments_with_the_same_seeds() -> None:
    assert [p.title for p in pairings(["a", "b", "c"])] == ["a vs b", "b vs a", "a vs c", "c vs a", "b vs c", "c vs b"]
    one, other = (match_specs(Pairing(*sides), ["river", "bread"], seed=3) for sides in (("a", "b"), ("c", "a")))
    assert [spec.seed for spec in one] == [spec.seed for spec in other]
    assert not {spec.id for spec in one} & {spec.id for spec in other}


def test_tables_count_by_player_and_role() -> None:
    rows = {(row.name, row.role): row for row in tabulate(GAMES)}
    attacker_a, defender_a = rows["a", Role.ATTACKER], rows["a", Role.DEFENDER]
    attacker_b, defender_b = rows["b", Role.ATTACKER], rows["b", Role.DEFENDER]
    assert [r.count for r in (attacker_a.win, attacker_a.loss, attacker_a.tie, attacker_a.violation)] == [1, 1, 1, 0]
    assert [r.count for r in (attacker_b.win, attacker_b.loss, attacker_b.tie, attacker_b.violation)] == [1, 0, 1, 1]
    assert [r.count for r in (defender_a.win, defender_a.loss, defender_a.tie, defender_a.other_violation)] == [0, 1, 1, 1]
    assert (defender_a.guess.count, defender_a.guessed_right.count, defender_a.guessed_right.total) == (1, 0, 1)
    assert (defender_b.guess.count, defender_b.guessed_right.count) == (1, 1)
    assert (defender_b.empty.count, defender_b.empty.total) == (1, 3)
    assert all(row.win.total == 3 for row in rows.values())


def test_head_to_head_adds_both_roles() -> None:
    assert head_to_head(GAMES) == {("a", "b"): {"games": 6, "a": 1, "b": 2, "undecided": 3}}
