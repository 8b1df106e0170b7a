"""The queue of games: every game finished exactly once, whatever order engines report and die in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spag.rollout.ray.queue import GameQueue
from spag.rollout.runner import GameSpec
from taboo_games import task_of

SPECS = [GameSpec(f"g{number}", task_of("river"), number) for number in range(30)]
MOVES = st.lists(
    st.tuples(st.sampled_from(["take", "finish", "lose", "late"]), st.integers(0, 3), st.integers(0, 29)), max_size=80
)


@pytest.mark.slow
@given(MOVES)
def test_every_game_is_finished_once(moves: list[tuple[str, int, int]]) -> None:
    queue, finished = GameQueue(SPECS, most=5), list[str]()
    held: dict[int, list[str]] = {engine: [] for engine in range(4)}
    for move, engine, pick in moves:
        if move == "take":
            held[engine] += [spec.id for spec in queue.take(engine, 4)]
        elif move == "finish" and held[engine]:
            game = held[engine].pop(pick % len(held[engine]))
            assert queue.finish(engine, game)
            finished.append(game)
        elif move == "lose":
            lost, held[engine] = held[engine], []
            assert queue.put_back(engine) == len(lost)
            assert not any(queue.finish(engine, game) for game in lost)
        elif move == "late" and finished:
            assert not queue.finish(engine, finished[pick % len(finished)])
        assert all(queue.held(number) == len(games) <= 5 for number, games in held.items())
        assert queue.left == len(SPECS) - len(finished)
    while queue.left:
        for engine in range(4):
            held[engine] += [spec.id for spec in queue.take(engine, 4)]
            finished += [game for game in held[engine] if queue.finish(engine, game)]
            held[engine] = []
    assert sorted(finished) == sorted(spec.id for spec in SPECS)


def test_few_games_are_shared_out_evenly() -> None:
    queue = GameQueue(SPECS[:8], most=48)
    assert [len(queue.take(engine, 4)) for engine in range(4)] == [2, 2, 2, 2]


def test_games_of_a_lost_engine_come_first() -> None:
    queue = GameQueue(SPECS, most=3)
    lost = queue.take(0, 4)
    queue.put_back(0)
    assert queue.take(1, 4) == lost
