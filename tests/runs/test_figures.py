"""A step's figures by role: of the policy's play alone, with its opponents' beside it."""

from dataclasses import replace

import pytest

from spag.algorithms.online_settings import RewardOverride
from spag.core.episodes import Episode, PlayerInfo, TrainingSample
from spag.core.types import State, Task, Utterance
from spag.evaluation.warnings import LEAST_STEPS, collapse_warnings
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.learning.step_figures import figures

KUHN = KuhnPoker()
BOT = "bot:bad"


def hand(players: tuple[str, str], *moves: str) -> Episode:
    """A hand of king against queen."""
    state = State(Task("KQ", {"player_0": "K", "player_1": "Q"}))
    for move in moves:
        state = KUHN.apply(state, Utterance(KUHN.to_move(state) or "", f"[{move}]", token_ids=(1, 2)))
    result = KUHN.result(state)
    return Episode(
        id=f"{players} {moves}",
        game=KUHN.name,
        task=state.task,
        history=state.history,
        outcome=result.outcome,
        rewards=result.rewards,
        length=result.length,
        players={role: PlayerInfo(name) for role, name in zip(KUHN.roles, players, strict=True)},
    )


def made_of(games: list[Episode], *advantages: float, role: str = "player_0") -> dict[str, float]:
    samples = [
        TrainingSample(prompt="", completion="", role=f"kuhn_poker/{role}", reward=reward) for reward in advantages
    ]
    return figures(games, KUHN, RewardOverride(), samples)


GAMES = [
    hand(("policy", "policy"), "bet", "call"),  # player_0 wins 2
    hand(("policy", BOT), "bet", "nonsense"),  # the bot breaks a rule: player_0 wins 2
    hand(("policy", BOT), "bet", "nonsense"),
    hand((BOT, "policy"), "nonsense"),
]


def test_an_opponent_that_breaks_rules_is_no_figure_of_the_policy() -> None:
    found = made_of(GAMES, 0.0, 0.0, 1.0)
    own = {name: found[f"kuhn_poker/player_0/{name}"] for name in ("win", "illegal", "reward")}
    assert own == {"win": pytest.approx(1 / 3), "illegal": 0.0, "reward": 2.0}
    assert found["kuhn_poker/player_1/illegal"] == 0.0
    theirs = {name: value for name, value in found.items() if BOT in name}
    assert theirs == {
        f"kuhn_poker/player_0/{BOT}/win": 0.0,
        f"kuhn_poker/player_0/{BOT}/illegal": 1.0,
        f"kuhn_poker/player_1/{BOT}/win": 0.0,
        f"kuhn_poker/player_1/{BOT}/illegal": 1.0,
        f"kuhn_poker/player_0 against {BOT}/reward": 2.0,
        f"kuhn_poker/player_0 against {BOT}/win": 0.0,
        f"kuhn_poker/player_1 against {BOT}/reward": 2.0,
        f"kuhn_poker/player_1 against {BOT}/win": 0.0,
    }
    rows = [{"step": step, **found} for step in range(1, LEAST_STEPS + 5)]
    assert not [name for name in collapse_warnings(rows) if name.endswith("illegal")]
    swapped = [replace(game, players={role: PlayerInfo("policy") for role in KUHN.roles}) for game in GAMES]
    rows = [{"step": step, **made_of(swapped)} for step in range(1, LEAST_STEPS + 5)]
    assert "kuhn_poker/player_1/illegal" in collapse_warnings(rows)


def test_samples_without_advantage_are_counted_and_dead_play_is_seen() -> None:
    found = made_of(GAMES[:1], 0.0, 0.0, 1.0, 0.0)
    counts = [found[f"kuhn_poker/player_0/{name}"] for name in ("samples", "no_advantage_samples", "no_advantage")]
    assert counts == [4, 3, 0.75]
    assert found["kuhn_poker/player_1/samples"] == 0  # it is not trained
    dead = made_of(GAMES[:1], 0.0, 0.0)
    signs = collapse_warnings([{"step": step, **dead} for step in range(1, LEAST_STEPS + 5)])
    assert "kuhn_poker/player_0/no_advantage" in signs and "kuhn_poker/player_1/no_advantage" not in signs


def test_steps_in_which_a_role_never_spoke_are_no_fall_of_its_texts() -> None:
    """Its opponents ended all games before its turn."""
    spoken, silent = (made_of([hand((BOT, "policy"), *moves)]) for moves in (("bet", "fold"), ("nonsense",)))
    names = {f"kuhn_poker/player_1/{name}" for name in ("length", "distinct")}
    assert names <= spoken.keys() and not names & silent.keys()
    rows = [{"step": step, **(spoken if step <= LEAST_STEPS else silent)} for step in range(1, LEAST_STEPS + 5)]
    assert not names & collapse_warnings(rows).keys()


def test_steps_in_which_a_role_never_spoke_have_no_share_of_samples_without_advantage() -> None:
    name = "kuhn_poker/player_1/no_advantage"
    spoken = made_of([hand((BOT, "policy"), "bet", "fold")], 0.0, 0.0, 0.0, 1.0, role="player_1")
    silent = made_of([hand((BOT, "policy"), "nonsense")])
    assert spoken[name] == 0.75 and name not in silent
    rows = [{"step": step, **(silent if step % 4 else spoken)} for step in range(1, LEAST_STEPS + 5)]
    assert name not in collapse_warnings(rows)  # as shares of 1, the silent steps would make it 0.94
