"""Arena: pairing, seeds, and the figures of a table worked out by hand."""

from itertools import pairwise

import pytest
from arena_games import GUESS, ending, game

from spag.core.errors import DataError
from spag.evaluation.arena.games import Pairing, announces_guess, arena_report, match_specs, pairings, role_tables, tally
from spag.games.taboo.judge.judge import JudgeMode
from spag.games.taboo.types import Outcome, Role

GAMES = [
    game("a", "b", "Hi", "A river."),  # a wins
    game("a", "b", "Hi", GUESS.format("bread"), word="bread"),  # b wins
    game("a", "b", "Hi", "", word="piano"),  # tie, b empty
    game("b", "a", "The river!"),  # b breaks the rules
    game("b", "a", "Hi", GUESS.format("lake"), word="bread"),  # b wins by a's wrong guess
    game("b", "a", "Hi", "Hello", word="piano"),  # tie
]


def test_every_pair_meets_in_both_role_assignments_with_the_same_seeds() -> None:
    assert [p.title for p in pairings(["a", "b", "c"])] == ["a vs b", "b vs a", "a vs c", "c vs a", "b vs c", "c vs b"]
    one, other = (match_specs(Pairing(*sides), ["river", "bread"], seed=3) for sides in (("a", "b"), ("c", "a")))
    assert [spec.seed for spec in one] == [spec.seed for spec in other]
    assert not {spec.id for spec in one} & {spec.id for spec in other}


@pytest.mark.parametrize("players", range(2, 8))
def test_neighbouring_pairings_share_an_entrant(players: int) -> None:
    order = pairings("abcdefg"[:players])
    assert len(set(order)) == players * (players - 1)
    assert all({one.attacker, one.defender} & {two.attacker, two.defender} for one, two in pairwise(order))


def test_tables_count_by_player_and_role() -> None:
    rows = {(row.name, row.role): row for row in role_tables(tally(GAMES), ["a", "b"])}
    attacker_a, defender_a = rows["a", Role.ATTACKER], rows["a", Role.DEFENDER]
    attacker_b, defender_b = rows["b", Role.ATTACKER], rows["b", Role.DEFENDER]
    assert [r.count for r in (attacker_a.win, attacker_a.loss, attacker_a.tie, attacker_a.violation)] == [1, 1, 1, 0]
    assert [r.count for r in (attacker_b.win, attacker_b.loss, attacker_b.tie, attacker_b.violation)] == [1, 0, 1, 1]
    assert [r.count for r in (defender_a.win, defender_a.loss, defender_a.tie, defender_a.other_violation)] == [0, 1, 1, 1]
    assert (defender_a.guess.count, defender_a.guessed_right.count, defender_a.guessed_right.total) == (1, 0, 1)
    assert (defender_b.guess.count, defender_b.guessed_right.count) == (1, 1)
    assert (defender_b.empty.count, defender_b.empty.total) == (1, 3)
    assert all(row.win.total == 3 for row in rows.values())


def test_the_report_of_six_games() -> None:
    report = arena_report(GAMES, JudgeMode.STRICT)
    [pair] = report["pairs"]
    # points of a less b: river 1 - 0.5, bread 0 - 1, piano 0.5 - 0.5; sums of -1, +1 and the like come up in every flip but none
    assert (pair["players"], pair["games"], pair["wins"], pair["undecided"]) == (("a", "b"), 6, (1, 2), 3)
    assert pair["score"]["mean"] == pytest.approx((0.5 - 1 + 0) / 3)
    assert pair["score"]["p_value"] == pytest.approx(1.0)  # all four flips, +-0.5 +-1, are at least 0.5 away from 0
    assert [tuple(cell.values()) for cell in report["matrix"]] == [("a", "b", 3, 1, 1, 1, 0), ("b", "a", 3, 1, 0, 1, 1)]
    assert [row["name"] for row in report["ratings"]] == ["a", "b"]
    assert (report["words"], report["judge"]) == (3, "strict")
    assert "undecided" in report["note"]


def test_the_first_named_player_is_the_zero_of_the_ratings() -> None:
    report = arena_report(GAMES, JudgeMode.STRICT, ["b", "nobody", "a"])
    assert [(row["name"], row["points"] > 0) for row in report["ratings"]] == [("b", False), ("a", False)]
    assert report["pairs"][0]["wins"] == (2, 1)


def test_the_same_seed_gives_the_same_report() -> None:
    games = [ending(*sides, f"word{i}", list(Outcome)[i * k % 7 % 4]) for i in range(60) for k, sides in ((3, "ab"), (5, "ba"))]
    first, again, other = (arena_report(games, JudgeMode.STRICT, "ab", seed=seed) for seed in (0, 0, 1))
    assert first == again == arena_report(games[::-1], JudgeMode.STRICT, "ab")  # the order of play changes nothing
    assert first["ratings"] != other["ratings"]


def test_a_game_twice_or_without_players_and_no_game_are_errors() -> None:
    with pytest.raises(DataError, match="a vs b plays 'river' twice"):
        tally([*GAMES, GAMES[0]])
    foreign = GAMES[0].__class__(target_word="river", max_turns=1, history=())
    with pytest.raises(DataError, match="names no attacker"):
        tally([foreign])
    with pytest.raises(DataError, match="holds no games"):
        arena_report([], JudgeMode.STRICT)


def test_what_counts_as_a_guess_is_the_judges_choice() -> None:
    assert announces_guess("The word is river!", "lake", JudgeMode.STRICT)
    assert not announces_guess("The word is river!", "lake", JudgeMode.PAPER)
    assert announces_guess(GUESS.format("lake"), "lake", JudgeMode.PAPER)
    assert not announces_guess("A lake.", "lake", JudgeMode.PAPER)
