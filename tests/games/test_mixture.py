"""Mixtures of policies: exploitability worked out by hand, and values that must be the mean of the policies' own."""

import random
from collections.abc import Mapping
from statistics import fmean

import pytest

from spag.evaluation.exact_metrics import MoveProbabilities, figures_of, mixture_of
from spag.games.base import SolvedGame
from spag.games.kuhn_poker import solver as kuhn
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.games.leduc_poker import solver as leduc
from spag.games.leduc_poker.leduc import LeducPoker
from spag.games.mixture import Policy, mixture
from spag.games.nim.nim import Nim

KUHN, LEDUC = KuhnPoker(), LeducPoker()


def always(game: SolvedGame, *wanted: str) -> Policy:
    """The policy that makes the first of the ``wanted`` moves that is legal."""
    chosen = {one.key: next(f"[{move}]" for move in wanted if f"[{move}]" in one.moves) for one in game.decisions()}
    return {one.key: {move: float(move == chosen[one.key]) for move in one.moves} for one in game.decisions()}


def drawn(game: SolvedGame, rng: random.Random) -> Policy:
    parts = {one.key: {move: rng.random() for move in one.moves} for one in game.decisions()}
    return {key: {move: part / sum(row.values()) for move, part in row.items()} for key, row in parts.items()}


def bare(policy: Policy) -> Mapping[str, Mapping[str, float]]:
    return {key: {move.strip("[]"): chance for move, chance in moves.items()} for key, moves in policy.items()}


BOLD, TIMID = always(KUHN, "bet", "call"), always(KUHN, "check", "fold")


def test_only_the_policies_that_get_there_are_mixed() -> None:
    mixed = mixture(KUHN.decisions(), [BOLD, TIMID])
    assert mixed["Q"] == mixed["Q check"] == {"[check]": 0.5, "[bet]": 0.5}
    assert mixed["Q bet"] == {"[fold]": 0.5, "[call]": 0.5}  # player_1's first decision: both get there
    assert mixed["Q check bet"] == {"[fold]": 1.0, "[call]": 0.0}  # after its own check, which bold never makes
    weighed = mixture(KUHN.decisions(), [BOLD, BOLD, BOLD, TIMID])
    assert weighed["K"] == {"[check]": 0.25, "[bet]": 0.75} and weighed["K check bet"]["[fold]"] == 1.0
    # Where neither gets, both count: bold and a policy that always bets, then folds.
    assert mixture(KUHN.decisions(), [BOLD, always(KUHN, "bet", "fold")])["K check bet"]["[call]"] == 0.5


def test_kuhn_poker_by_hand() -> None:
    """Always bet and call, or always check and fold, half of the hands each.

    Player_1's best response: a check is bet at, and always folds, 1 chip; a bet is called with K (2 chips) and Q (0),
    and folded to with J (-1). (1 + 1/3) / 2 = 2/3. Player_0's: bet, called in half of the hands: K 1.5, Q 0.5, J -0.5,
    mean 1/2; a check is no better. Exploitability (2/3 + 1/2) / 2 = 7/12.

    The average move by move calls half of the bets after a check: K bets for 1.5, Q for 0.5, J for -0.5, mean 1/2.
    (1/2 + 1/3) / 2 = 5/12 for player_1, and (5/12 + 1/2) / 2 = 11/24.
    """
    scores = KUHN.score_policy(mixture(KUHN.decisions(), [BOLD, TIMID]))
    expected = {"exploitability": 7 / 12, "player_0_worst_case": -2 / 3, "player_1_worst_case": -1 / 2}
    assert scores == pytest.approx(expected)
    by_move = {key: {move: (BOLD[key][move] + TIMID[key][move]) / 2 for move in BOLD[key]} for key in BOLD}
    assert KUHN.score_policy(by_move)["exploitability"] == pytest.approx(11 / 24)


@pytest.mark.slow
def test_leduc_poker_by_hand() -> None:
    """Neither ever bets; facing a bet, one always folds, the other always calls. The best response bets at once.

    Half of the time that wins 1. Else 3 chips are at stake, every later bet of 4 is called, and the board decides: with
    d = P(win) - P(lose), a bet is worth 7 d, a check 3 d, so it bets where d > 0. A pair (1/5) has d = 1. Without one,
    K has 1/4 on either board (the four other cards lose but for one tie and one pair, or two lose, one pairs, one
    ties), Q 1/4 on K and -3/4 on J, J -3/4. So K: 7/5 + 4/5 * 7/4 = 2.8; Q: 7/5 + 2/5 * 7/4 - 2/5 * 9/4 = 1.2; J:
    7/5 - 4/5 * 9/4 = -0.4. (1 + these) / 2 = 1.9, 1.1, 0.3, mean 1.1, more than to check first (1.5, 0.75, 0).
    """
    mixed = mixture(LEDUC.decisions(), [always(LEDUC, "check", "fold"), always(LEDUC, "check", "call")])
    assert mixed["K check bet call | Q"]["[check]"] == mixed["K check bet call check bet | Q"]["[call]"] == 1.0
    expected = {"exploitability": 1.1, "player_0_worst_case": -1.1, "player_1_worst_case": -1.1}
    assert LEDUC.score_policy(mixed) == pytest.approx(expected)


@pytest.mark.slow
def test_a_mixture_is_worth_the_mean_of_its_policies() -> None:
    rng = random.Random(0)
    for _ in range(3):
        policies, other = [drawn(KUHN, rng) for _ in range(3)], bare(drawn(KUHN, rng))
        mixed, parts = bare(mixture(KUHN.decisions(), policies)), [bare(policy) for policy in policies]
        assert kuhn.value(other, 0, mixed) == pytest.approx(fmean(kuhn.value(other, 0, one) for one in parts))
        assert kuhn.value(mixed, 0, other) == pytest.approx(fmean(kuhn.value(one, 0, other) for one in parts))
    policies, other = [drawn(LEDUC, rng) for _ in range(3)], bare(drawn(LEDUC, rng))
    mixed = bare(mixture(LEDUC.decisions(), policies))
    for player in (0, 1):
        mean = fmean(leduc.value(other, player, bare(policy)) for policy in policies)
        assert leduc.value(other, player, mixed) == pytest.approx(mean)


def test_the_exact_figures_of_several_models() -> None:
    found = [MoveProbabilities(policy, dict.fromkeys(policy, mass)) for policy, mass in ((BOLD, 1.0), (TIMID, 0.5))]
    figures = figures_of(mixture_of(found, KUHN), KUHN)
    assert figures["exploitability"] == pytest.approx(7 / 12) and figures["legal_mass"] == pytest.approx(0.75)


def test_positions_that_are_reached_in_several_ways_are_refused() -> None:
    game = Nim()
    with pytest.raises(ValueError, match="has no own moves"):
        mixture(game.decisions(), [drawn(game, random.Random(0))])
