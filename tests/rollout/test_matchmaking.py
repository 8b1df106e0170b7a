"""Who meets whom in an arena, and with which seeds."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from spag.config.schema import RunConfig
from spag.core.errors import ConfigError
from spag.core.seeds import derive_seed
from spag.core.types import Split, Task
from spag.games.nim.nim import Nim
from spag.games.registry import get
from spag.rollout.matchmaking import Pairing, match_specs, pairings, training_specs
from spag.runs.checks import check_run


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


def test_only_a_game_with_too_few_tasks_makes_all_of_them() -> None:
    asked: list[int | None] = []

    class Watched(Nim):
        def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
            asked.append(count)
            return super().tasks(split, count, seed)

    game = Watched()
    most = len(Nim().tasks(Split.TRAIN, None, 0))
    assert len({spec.task.id for spec in training_specs(game, most, 0)}) == most and asked == [most]
    twice = Counter(spec.task.id for spec in training_specs(game, most + 3, 0))
    assert sorted(twice.values()) == [1] * (most - 3) + [2] * 3


@pytest.mark.parametrize("players", range(2, 8))
def test_neighbouring_pairings_share_a_player(players: int) -> None:
    order = pairings("abcdefg"[:players])
    assert len(set(order)) == players * (players - 1)
    assert all({*one.players} & {*two.players} for one, two in pairwise(order))


@pytest.mark.parametrize(
    "phase",
    [
        {"algorithm": "reinforce", "games": 4, "evaluate_every": None},
        {"algorithm": "imitation", "episodes": ["bot:constant"]},
        {"algorithm": "spag", "sft_coef": 0},
    ],
)
def test_a_game_whose_tasks_are_all_held_out_is_refused_before_it_is_played(
    phase: dict[str, object], tmp_path: Path
) -> None:
    [task] = get("adversarial_taboo").tasks(Split.HELD_OUT, 1, 0)
    (tmp_path / "words.txt").write_text(f"{task.data['target_word']}\n")
    game = {"name": "adversarial_taboo", "words": str(tmp_path / "words.txt")}
    config = RunConfig.model_validate({"game": game, "phases": [phase], "arena": {"tasks": 1}})
    with pytest.raises(ConfigError, match="adversarial_taboo has no task to train on: all of its tasks are held out"):
        check_run(config, config.game.build())
