"""Leases: every game finished exactly once, whatever order engines report and die in."""

from hypothesis import given
from hypothesis import strategies as st

from spag.rollout.ray.ledger import Ledger
from spag.rollout.runner import GameSpec
from taboo_games import task_of

SPECS = [GameSpec(f"g{number}", task_of("river"), number) for number in range(30)]
MOVES = st.lists(st.tuples(st.sampled_from(["lease", "finish", "lose", "late"]), st.integers(0, 3), st.integers(0, 29)), max_size=80)


@given(MOVES)
def test_every_game_is_finished_once(moves: list[tuple[str, int, int]]) -> None:
    ledger, finished = Ledger(SPECS, most=5), list[str]()
    held: dict[int, list[str]] = {engine: [] for engine in range(4)}
    for move, engine, pick in moves:
        if move == "lease":
            held[engine] += [spec.id for spec in ledger.lease(engine, 4)]
        elif move == "finish" and held[engine]:
            game = held[engine].pop(pick % len(held[engine]))
            assert ledger.finish(engine, game)
            finished.append(game)
        elif move == "lose":
            lost, held[engine] = held[engine], []
            assert ledger.take_back(engine) == len(lost)
            assert not any(ledger.finish(engine, game) for game in lost)
        elif move == "late" and finished:
            assert not ledger.finish(engine, finished[pick % len(finished)])
        assert all(ledger.held(number) == len(games) <= 5 for number, games in held.items())
        assert ledger.left == len(SPECS) - len(finished)
    while ledger.left:
        for engine in range(4):
            held[engine] += [spec.id for spec in ledger.lease(engine, 4)]
            finished += [game for game in held[engine] if ledger.finish(engine, game)]
            held[engine] = []
    assert sorted(finished) == sorted(spec.id for spec in SPECS)


def test_few_games_are_shared_out_evenly() -> None:
    ledger = Ledger(SPECS[:8], most=48)
    assert [len(ledger.lease(engine, 4)) for engine in range(4)] == [2, 2, 2, 2]


def test_games_of_a_lost_engine_come_first() -> None:
    ledger = Ledger(SPECS, most=3)
    lost = ledger.lease(0, 4)
    ledger.take_back(0)
    assert ledger.lease(1, 4) == lost
