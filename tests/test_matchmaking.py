"""Who meets whom in an arena, and with which seeds."""

from itertools import pairwise

import pytest

from spag.core.seeds import derive_seed
from spag.core.types import Task
from spag.rollout.matchmaking import Pairing, match_specs, pairings


def test_every_pair_meets_in_both_role_assignments_with_the_same_seeds() -> None:
    assert [p.title for p in pairings(["a", "b", "c"])] == ["a vs b", "b vs a", "a vs c", "c vs a", "b vs c", "c vs b"]
    tasks = [Task("river"), Task("bread")]
    one, other = (match_specs(Pairing(players), tasks, seed=3) for players in (("a", "b"), ("c", "a")))
    assert (
        [spec.seed for spec in one]
        == [spec.seed for spec in other]
        == [derive_seed(3, "arena", task.id) for task in tasks]
    )
    assert [(spec.id, spec.task) for spec in other] == [("c vs a: river", tasks[0]), ("c vs a: bread", tasks[1])]


@pytest.mark.parametrize("players", range(2, 8))
def test_neighbouring_pairings_share_a_player(players: int) -> None:
    order = pairings("abcdefg"[:players])
    assert len(set(order)) == players * (players - 1)
    assert all({*one.players} & {*two.players} for one, two in pairwise(order))
