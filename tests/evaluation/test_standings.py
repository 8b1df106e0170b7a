"""Arena: the figures of a table worked out by hand, for games that one wins and games that both win."""

from dataclasses import astuple

import pytest
from arena_games import FOUL, GUESS, HANDSHAKE, LOSS, TIE, WIN, ending, game, shake

from spag.core.episodes import Episode, PlayerInfo
from spag.core.errors import DataError
from spag.core.types import Utterance
from spag.evaluation.arena.standings import arena_report, role_tables, tally
from spag.evaluation.health import health
from spag.games import get
from taboo_games import TABOO, episode_of

GAMES = [
    game("a", "b", "Hi", "A river."),  # a wins
    game("a", "b", "Hi", GUESS.format("bread"), word="bread"),  # b wins
    game("a", "b", "Hi", "", word="piano"),  # tie, b empty
    game("b", "a", "The river!"),  # b breaks the rules
    game("b", "a", "Hi", GUESS.format("lake"), word="bread"),  # b wins by a's wrong guess
    game("b", "a", "Hi", "Hello", word="piano"),  # tie
]


def test_tables_count_by_player_and_role() -> None:
    rows = {(row.name, row.role): row for row in role_tables(tally(GAMES, TABOO), TABOO, ["a", "b"])}
    attacker_a, defender_a = rows["a", "attacker"], rows["a", "defender"]
    attacker_b, defender_b = rows["b", "attacker"], rows["b", "defender"]
    assert [r.count for r in (attacker_a.win, attacker_a.loss, attacker_a.tie, attacker_a.violation)] == [1, 1, 1, 0]
    assert [r.count for r in (attacker_b.win, attacker_b.loss, attacker_b.tie, attacker_b.violation)] == [1, 0, 1, 1]
    assert [r.count for r in (defender_a.win, defender_a.loss, defender_a.tie)] == [0, 1, 1]
    guess, right = defender_a.figures["guess"], defender_a.figures["guessed_right"]
    assert (guess.count, guess.total, right.count, right.total) == (1, 3, 0, 1)
    assert [rate.count for rate in defender_b.figures.values()] == [1, 1]
    announced = attacker_a.figures["announced"]
    assert (announced.count, announced.total) == (0, 3)
    assert (attacker_a.reward.mean, defender_a.reward.mean) == (0.0, pytest.approx(-1 / 3))
    # a opens with "Hi" on three tasks; as defender it says "Hello" and a guess, once each
    assert (attacker_a.repeated.count, attacker_a.repeated.total) == (3, 3)
    assert (defender_a.repeated.count, defender_a.repeated.total) == (0, 2)
    assert all(row.win.total == 3 for row in rows.values())


def test_a_mean_reward_is_uncertain_also_where_all_games_end_alike() -> None:
    """8 rewards of 1 of -1 to 1: 8 / 11.8415 = 0.6756; 8 x 0.3244^2 + 3.8415 x (1 + 0.6756^2) = 6.4367, root 2.5371,
    times 1.96 over 11.8415 is 0.4199.
    """
    won = [game("a", "b", "Hi", word, word=word) for word in ("river", "piano", "lamp", "bread", *"wxyz")]
    [row] = role_tables(tally(won, TABOO), TABOO, ["a"])
    assert astuple(row.reward) == pytest.approx((1.0, 0.6756 - 0.4199, 1.0), abs=1e-4)


def test_only_an_opener_that_knows_the_task_repeats_itself_from_task_to_task() -> None:
    """A questioner may begin every game with the same questions: it does not know the task."""
    questions = get("twenty_questions", max_questions=3)
    players = {"questioner": PlayerInfo("asks"), "answerer": PlayerInfo("answers")}
    texts = ("Is it alive?", "Yes.", "Can it swim?", "No.", "Is it alive?")
    games = [
        Episode(
            task=questions.custom_task(thing),
            history=tuple(Utterance(questions.roles[at % 2], text) for at, text in enumerate(texts)),
            game=questions.name,
            id=thing,
            players=players,
        )
        for thing in ("banana", "hammer")
    ]
    [asks, _] = role_tables(tally(games, questions), questions, ["asks", "answers"])
    assert (asks.repeated.count, asks.repeated.total) == (2, 6)


def test_bare_moves_repeat_nothing_in_a_game_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("[check]", "[bet]", " [check]\n", "I bet. [bet]", "[fold] [fold]", "I bet. [bet]")
    games = [game("a", "b", *lines, max_turns=3)]
    monkeypatch.setattr(type(TABOO), "moves_in_brackets", True)
    attacks, defends = role_tables(tally(games, TABOO), TABOO, ["a", "b"])
    assert (attacks.repeated.count, attacks.repeated.total) == (0, 3)
    assert (defends.repeated.count, defends.repeated.total) == (1, 3)


def test_the_report_of_six_games() -> None:
    report = arena_report(GAMES, TABOO)
    [pair] = report["pairs"]
    # a less b, of at most 4: river 2 as attacker and 1 for b's fault, bread -2 twice, piano 0
    assert (pair["players"], pair["games"], pair["wins"], pair["undecided"]) == (("a", "b"), 6, (1, 2), 3)
    assert pair["score"]["mean"] == pytest.approx((3 - 4 + 0) / 4 / 3)
    assert pair["score"]["p_value"] == pytest.approx(1.0)  # all four flips, +-3 +-4, are at least 1 away from 0
    assert report["matrix"] == [
        {"players": ("a", "b"), "games": 3, "outcomes": {WIN: 1, LOSS: 1, FOUL: 0, TIE: 1}},
        {"players": ("b", "a"), "games": 3, "outcomes": {WIN: 1, LOSS: 0, FOUL: 1, TIE: 1}},
    ]
    assert [row["name"] for row in report["ratings"]] == ["a", "b"]
    assert (report["tasks"], report["game"], report["settings"]["judge"]) == (3, "adversarial_taboo", "strict")
    assert [(row["role"], row["outcome"]) for row in report["paired"]] == [
        ("attacker", None),
        ("attacker", WIN),
        ("attacker", FOUL),
        ("defender", None),
        ("defender", LOSS),
    ]


def test_the_first_named_player_is_the_zero_of_the_ratings() -> None:
    report = arena_report(GAMES, TABOO, ["b", "nobody", "a"])
    assert [(row["name"], row["points"] > 0) for row in report["ratings"]] == [("b", False), ("a", False)]
    assert report["pairs"][0]["wins"] == (2, 1)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_report() -> None:
    order = (WIN, LOSS, FOUL, TIE)
    games = [ending(*sides, f"word{i}", order[i * k % 7 % 4]) for i in range(60) for k, sides in ((3, "ab"), (5, "ba"))]
    first, again, other = (arena_report(games, TABOO, "ab", seed=seed) for seed in (0, 0, 1))
    assert first == again == arena_report(games[::-1], TABOO, "ab")  # the order of play changes nothing
    assert first["ratings"] != other["ratings"]


def test_a_game_twice_or_without_players_or_of_another_kind_and_no_game_are_errors() -> None:
    with pytest.raises(DataError, match="a vs b plays 'river' twice"):
        tally([*GAMES, GAMES[0]], TABOO)
    with pytest.raises(DataError, match="names no attacker"):
        tally([episode_of("river", max_turns=1)], TABOO)
    with pytest.raises(DataError, match="the game '' is adversarial_taboo, not handshake"):
        health([game("a", "b", "Hi")], HANDSHAKE)
    with pytest.raises(DataError, match="holds no games"):
        arena_report([], TABOO)


def test_what_counts_as_a_guess_is_the_judges_choice() -> None:
    games = [
        game("a", "b", "Hi", "The word is river!", word="lake"),
        game("a", "b", "Hi", GUESS.format("bread"), word="bread"),
    ]
    rows = {
        judge: arena_report(games, get("adversarial_taboo", judge=judge))["roles"][1]["figures"]
        for judge in ("strict", "paper")
    }
    assert [(rows[judge]["guess"]["count"], rows[judge]["guessed_right"]["count"]) for judge in rows] == [
        (2, 1),
        (1, 1),
    ]


SHAKEN = [
    shake("a", "b", "1", "2 4 6", "1"),  # both win
    shake("a", "b", "2", "1", "mine"),  # b wins
    shake("a", "b", "3", "", "?"),  # b breaks a rule, for which a is paid
    shake("b", "a", "1", "7 8", "8"),  # nothing
    shake("b", "a", "2", "3", "2"),  # both win
    shake("b", "a", "3", "5 6", "3"),  # both win
]


def test_a_game_that_players_win_together() -> None:
    report = arena_report(SHAKEN, HANDSHAKE)
    rows = {(row["name"], row["role"]): row for row in report["roles"]}
    figures = ("win", "loss", "tie", "violation")
    assert [rows["a", "ask"][key]["count"] for key in figures] == [1, 1, 0, 0]
    assert [rows["b", "tell"][key]["count"] for key in figures] == [2, 0, 0, 1]
    assert [rows["b", "ask"][key]["count"] for key in figures] == [2, 0, 1, 0]
    [pair] = report["pairs"]
    assert (pair["wins"], pair["undecided"]) == ((1, 1), 4)  # a by the fault that b pays for, b by "mine"
    compared = [
        (row["role"], row["outcome"], round(3 * row["one"]), round(3 * row["other"]))
        for row in report["paired"]
        if row["outcome"]
    ]
    assert compared == [
        ("ask", "together", 1, 2),
        ("tell", "together", 2, 1),
        ("tell", "mine", 0, 1),
        ("tell", "fault", 0, 1),
    ]


def test_counts_are_means_and_shares_of_counts_are_rates() -> None:
    found = next(row["figures"] for row in arena_report(SHAKEN, HANDSHAKE)["roles"] if row["role"] == "ask")
    # 3, 1 and 0 numbers in three games: mean 4/3, squares of the distances 25/9 + 1/9 + 16/9 = 42/9, times 3/2 = 7,
    # root 2.6458, over 3 games 0.8819, times Student's 4.3027 for 2 degrees of freedom
    assert (found["numbers"]["count"], found["numbers"]["total"]) == (4, 3)
    assert [found["numbers"][key] for key in ("rate", "low", "high")] == pytest.approx(
        [4 / 3, 0, 4 / 3 + 3.7946], abs=1e-4
    )
    assert (found["even"]["count"], found["even"]["total"]) == (3, 4)
