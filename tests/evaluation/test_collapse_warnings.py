"""Every warning of a collapse: seen where it should be, and not a little before."""

from typing import Any

import pytest

from spag.evaluation.warnings import LEAST_STEPS, WINDOW, collapse_warnings

HEALTHY = {
    "reward": 0.0,
    "win": 0.4,
    "illegal": 0.02,
    "length": 12.0,
    "no_advantage": 0.1,
    "distinct": 0.9,
    "entropy": 1.0,
    "samples": 40,
}
ONE, TWO = "talk/asker", "talk/teller"


def run(steps: int = LEAST_STEPS + 4, begins: dict[str, Any] | None = None, **ends: Any) -> list[dict[str, Any]]:
    """Rows of a healthy run, with figures ``begins`` in the first steps and ``ends`` in the last; ``asker__win`` is one
    role's.
    """
    healthy = {f"{key}/{name}": value for key in (ONE, TWO) for name, value in HEALTHY.items()}
    rows = [{"step": step, "kl": 0.05, "mismatch_kl": 1e-6, **healthy} for step in range(1, steps + 1)]
    for part, figures in ((rows[:WINDOW], begins or {}), (rows[-WINDOW:], ends)):
        for row in part:
            row |= {
                name if name in ("kl", "mismatch_kl") else f"talk/{name.replace('__', '/')}": value
                for name, value in figures.items()
            }
    return rows


def test_a_healthy_run_shows_none_and_neither_do_no_steps() -> None:
    assert collapse_warnings(run()) == {} and collapse_warnings([]) == {}
    assert collapse_warnings(run(begins={"asker__illegal": 0.3}, asker__illegal=0.3, teller__length=14.0)) == {}


@pytest.mark.parametrize(
    ("name", "begins", "seen", "unseen", "says"),
    [
        ("asker/length", 12.0, 36.0, 35.9, "asker of talk: utterances have grown from 12.0 to 36.0 tokens"),
        ("asker/length", 12.0, 4.0, 4.1, "asker of talk: utterances have shrunk from 12.0 to 4.0 tokens"),
        ("teller/entropy", 1.0, 0.099, 0.1, "teller of talk: entropy is 0.099 nats per token, at first 1.000: the"),
        ("teller/entropy", 0.02, 0.009, 0.01, "teller of talk: entropy is 0.009 nats per token, at first 0.020: the"),
        ("asker/no_advantage", 0.0, 0.91, 0.9, "asker of talk: 91 % of samples have no advantage and teach nothing"),
        (
            "teller/illegal",
            0.01,
            0.31,
            0.3,
            "teller of talk: 31 % of games end with it breaking the rules, at first 1 %",
        ),
        (
            "teller/illegal",
            0.8,
            0.8,
            0.79,
            "teller of talk: 80 % of games end with it breaking the rules, at first 80 %",
        ),
        (
            "asker/distinct",
            0.9,
            0.44,
            0.45,
            "asker of talk: distinct utterances have fallen from 90 to 44 % of a step's",
        ),
        (
            "asker/win",
            0.4,
            0.97,
            0.35,
            "asker of talk: has 98 % of the policy's wins",
        ),  # 0.97 of 0.99; 0.35 of 0.37
        ("kl", 0.0, 0.51, 0.5, "the policy is 0.51 nats per token away from the reference"),
        ("mismatch_kl", 0.0, 0.06, 0.05, "engine and trainer disagree about sampled tokens by 0.06 nats each"),
    ],
)
def test_each_warning_is_seen_and_not_a_little_before(
    name: str, begins: float, seen: float, unseen: float, says: str
) -> None:
    key = name.replace("/", "__")
    more = {"teller__win": 0.02} if name == "asker/win" else {}
    found = collapse_warnings(run(begins={key: begins}, **{key: seen}, **more))
    full = name if "/" not in name else f"talk/{name}"
    assert set(found) == {full}
    assert found[full].startswith(says)
    assert collapse_warnings(run(begins={key: begins}, **{key: unseen}, **more)) == {}


def test_few_steps_and_a_single_odd_one_say_nothing() -> None:
    rows = run(LEAST_STEPS - 1, asker__no_advantage=1.0, kl=2.0, teller__illegal=1.0)
    assert collapse_warnings(rows) == {}
    assert set(collapse_warnings(run(LEAST_STEPS, asker__no_advantage=1.0))) == {"talk/asker/no_advantage"}
    rows = run()
    rows[-1]["talk/asker/entropy"] = 0.0  # the mean of four is 0.75
    assert collapse_warnings(rows) == {}


def test_what_says_nothing_of_a_game() -> None:
    few_moves = run(begins={"asker__distinct": 0.2}, asker__distinct=0.02)  # of 500 moves, 10: then 100
    hardly_won = run(asker__win=0.09, teller__win=0.0)
    together = run(asker__win=0.9, teller__win=0.9)  # players who win together
    untrained = run(asker__no_advantage=None, asker__samples=0)
    lost = run(kl=float("nan"), asker__length=float("nan"))
    bare = [{"step": row["step"], "loss": 1.0} for row in run()]
    for rows in (few_moves, hardly_won, together, untrained, lost, bare):
        assert collapse_warnings(rows) == {}


def test_wholly_dead_play_of_a_trained_role_is_a_collapse() -> None:
    """Without KL term and entropy bonus no token is trained then, so there is no entropy, but the row says it all."""
    dead = {"asker__no_advantage": 1.0, "asker__entropy": None}
    assert set(collapse_warnings(run(**dead))) == {"talk/asker/no_advantage"}


def test_what_opponents_do_is_no_sign_of_the_policy() -> None:
    theirs = {"talk/teller/bot:bad/illegal": 1.0, "talk/teller/start/illegal": 1.0, "talk/teller/start/win": 0.9}
    theirs |= {"talk/asker against start/win": 1.0, "talk/asker against start/reward": 1.0}
    assert collapse_warnings([row | theirs for row in run()]) == {}


def test_a_policy_that_always_takes_one_role_may_win_all_its_games_in_it() -> None:
    rows = [{name: value for name, value in row.items() if "/teller/" not in name} for row in run(asker__win=1.0)]
    assert collapse_warnings(rows) == {}
    assert collapse_warnings([row | {"talk/teller/entropy": None} for row in rows]) == {}  # as in the rows of a run


def test_the_games_of_a_mix_are_judged_apart() -> None:
    rows = [row | {"dice/high/win": 0.5, "dice/low/win": 0.0} for row in run()]
    assert collapse_warnings(rows) == {"dice/high/win": "high of dice: has 100 % of the policy's wins"}
