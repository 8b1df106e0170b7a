"""The conformance suite finds what is wrong: Kuhn poker and tic-tac-toe, each broken in one way, and the check that
must fail.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from spag.core.types import Observation, Result, Split, State, Task, Utterance
from spag.games.base import Figure, Game
from spag.games.conformance import CHECKS, check_game, declarations, playing, results, visibility
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.games.nim.nim import Nim
from spag.games.taboo.taboo import AdversarialTaboo, Stop
from spag.games.tic_tac_toe.board import TicTacToe

BROKEN: dict[str, Game] = {}


def broken(check: str) -> Any:
    """Register a game that fails ``check``."""

    def register(kind: type[Game]) -> type[Game]:
        BROKEN[check] = kind()
        return kind

    return register


@broken("check_names")
class Shouts(KuhnPoker):
    name = "Kuhn Poker"


@broken("check_roles")
class OneRole(KuhnPoker):
    roles = ("player_0", "player_0")


@broken("check_outcomes")
class WonByNobody(KuhnPoker):
    outcomes: ClassVar = {
        **KuhnPoker.outcomes,
        "unfinished": replace(KuhnPoker.outcomes["unfinished"], winners=("dealer",)),
    }


@broken("check_labels_and_colors")
class TwoReds(KuhnPoker):
    outcomes: ClassVar = {
        **KuhnPoker.outcomes,
        "unfinished": replace(KuhnPoker.outcomes["unfinished"], color="#0072B2"),
    }


@broken("check_figures")
class ShareOfNothing(KuhnPoker):
    figures = (*KuhnPoker.figures, Figure("calls", "calls", of="raises"))


@dataclass(frozen=True, kw_only=True)
class NeedsASetting(KuhnPoker):
    stake: int


BROKEN["check_settings_have_defaults"] = NeedsASetting(stake=1)


@broken("check_settings_make_the_same_game")
class NotRegistered(KuhnPoker):
    """Another class under the name of a registered game."""


@broken("check_games_are_values")
@dataclass(frozen=True)
class Unpicklable(KuhnPoker):
    secret: Any = field(default_factory=lambda: lambda: 0)


@broken("check_tasks_are_json")
class Tuples(TicTacToe):
    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        return [Task(task.id, {"opening": tuple(task.data["opening"])}) for task in super().tasks(split, count, seed)]


@broken("check_splits_are_disjoint")
class SharedTasks(TicTacToe):
    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        return super().tasks(Split.TRAIN, count, seed)


@broken("check_tasks_know_their_split")
class ForgetsTheSplit(TicTacToe):
    def split_of(self, task: Task) -> Split:
        return Split.TRAIN


@broken("check_tasks_follow_count_and_seed")
class OwnSeed(TicTacToe):
    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        return super().tasks(split, count, random.randrange(10**9))


@broken("check_too_many_tasks_are_refused")
class GivesWhatItHas(TicTacToe):
    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        return super().tasks(split, min(count, 20) if count is not None else None, seed)


@broken("check_foreign_tasks_are_refused")
class TakesAnyTask(KuhnPoker):
    def start(self, task: Task, seed: int) -> State:
        return State(task, seed)


@broken("check_custom_tasks_are_playable")
class TakesAnyText(KuhnPoker):
    def custom_task(self, text: str) -> Task:
        return self.tasks(Split.TRAIN, 1, 0)[0]

    def to_move(self, state: State) -> str | None:
        return "dealer" if not state.history else super().to_move(state)


@broken("check_start_is_pure")
class StartsAnyhow(KuhnPoker):
    def start(self, task: Task, seed: int) -> State:
        return State(task, random.randrange(10**9))


@broken("check_apply_is_pure")
class Flips(TicTacToe):
    def apply(self, state: State, utterance: Utterance) -> State:
        return replace(super().apply(state, utterance), seed=random.randrange(10**9))


@broken("check_wrong_role_is_refused")
class AnybodyMoves(KuhnPoker):
    def apply(self, state: State, utterance: Utterance) -> State:
        return super().apply(state, replace(utterance, role=self.to_move(state) or utterance.role))


@broken("check_finished_games_stay_finished")
class GoesOn(KuhnPoker):
    def apply(self, state: State, utterance: Utterance) -> State:
        return state if state.result else super().apply(state, utterance)


@broken("check_garbage_is_an_outcome")
class UnknownOutcome(KuhnPoker):
    def end(self, state: State, outcome: str, rewards: Mapping[str, float], reason: str) -> Result:
        return super().end(state, "nonsense" if outcome.endswith("_illegal") else outcome, rewards, reason)


@broken("check_results_are_complete")
class TwoLines(KuhnPoker):
    def end(self, state: State, outcome: str, rewards: Mapping[str, float], reason: str) -> Result:
        return super().end(state, outcome, rewards, f"{reason}\n{state.history}")


@broken("check_rewards_agree_with_outcomes")
class PaysTheLoser(KuhnPoker):
    def end(self, state: State, outcome: str, rewards: Mapping[str, float], reason: str) -> Result:
        return super().end(state, outcome, {role: -reward for role, reward in rewards.items()}, reason)


@broken("check_replay_agrees_with_play")
class ReplaysOtherwise(KuhnPoker):
    def replay(self, task: Task, history: Sequence[Utterance], seed: int = 0) -> Result:
        return replace(super().replay(task, history, seed), reason="because")


@broken("check_games_cut_short_are_judged")
class NoDraw(KuhnPoker):
    def draw(self, state: State) -> Result:
        return self.end(state, "draw", dict.fromkeys(self.roles, 0.0), "cut")


@broken("check_episodes_are_read_back")
class TupleTasks(TicTacToe):
    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        return [Task(task.id, {**task.data, "sizes": (3, 3)}) for task in super().tasks(split, count, seed)]


@broken("check_measures")
class CountsMore(TicTacToe):
    def measure(self, task: Task, history: Sequence[Utterance], result: Result) -> Mapping[str, int]:
        return {"player_0_moves": 1, "player_0_optimal": 2}


@broken("check_turn_rewards")
class RewardsOneTurn(KuhnPoker):
    def turn_rewards(self, task: Task, history: Sequence[Utterance], result: Result) -> Sequence[float]:
        return [1.0]


@broken("check_explanations")
class ExplainsTooMuch(KuhnPoker):
    def explain(self, task: Task, history: Sequence[Utterance], result: Result) -> tuple[int, int] | None:
        return 0, 1_000_000


@broken("check_bots")
class Cheats(TicTacToe):
    bots: ClassVar = {"loud": lambda observation, rng: "[1]"}


@broken("check_constant_bot")
class ConstantlyRandom(TicTacToe):
    bots: ClassVar = {"constant": TicTacToe.bots["random"]}


@broken("check_observations")
class SetsOfFacts(KuhnPoker):
    def observe(self, state: State, role: str) -> Observation:
        return replace(super().observe(state, role), facts={**super().observe(state, role).facts, "state": object()})


@broken("check_hidden_information_is_declared")
class HidesWithoutSaying(KuhnPoker):
    hidden: ClassVar = {}


@broken("check_hidden_information_stays_hidden")
class ShowsTheOtherCard(KuhnPoker):
    def observe(self, state: State, role: str) -> Observation:
        seen = super().observe(state, role)
        return replace(seen, facts={**seen.facts, "deal": self.describe_task(state.task)}) if state.history else seen


@broken("check_thoughts_stay_private")
class ThinksAloud(KuhnPoker):
    def observe(self, state: State, role: str) -> Observation:
        thoughts = [said.thought for said in state.history if said.thought]
        seen = super().observe(state, role)
        return replace(seen, facts={**seen.facts, "thoughts": thoughts}) if thoughts else seen


@broken("check_prompts")
class ChangingPrompt(KuhnPoker):
    def prompt(self, observation: Observation) -> str:
        return f"{super().prompt(observation)}{random.random()}"


@broken("check_prompts_share_their_start")
class NewestFirst(TicTacToe):
    def prompt(self, observation: Observation) -> str:
        return f"{len(observation.history)} moves so far. {super().prompt(observation)}"


@broken("check_lines_cannot_be_forged")
class RawLines(TicTacToe):
    bots: ClassVar = {}

    def rule(self, state: State) -> Result | None:
        return self.draw(state) if len(state.history) == 5 else None

    def prompt(self, observation: Observation) -> str:
        return "\n".join(f"{said.role}: {said.content}" for said in observation.history) + "\nYour move:"

    def observe(self, state: State, role: str) -> Observation:
        return Observation(role, state.history, dict(state.task.data))


@broken("check_stop_strings")
class BlankStop(KuhnPoker):
    def stop_strings(self) -> tuple[str, ...]:
        return ("\n",)


def test_every_check_has_a_game_that_fails_it() -> None:
    assert set(BROKEN) == {check.__name__ for check in CHECKS}


@pytest.mark.parametrize("name", BROKEN)
def test_the_check_fails(name: str) -> None:
    check = next(check for check in CHECKS if check.__name__ == name)
    with pytest.raises(AttributeError if name == "check_games_are_values" else AssertionError):
        check(BROKEN[name], 0)


def test_a_third_player_is_no_wrong_role() -> None:
    """Three players of Nim take turns as they must: it fails as a game of three roles, nothing else."""

    class ThreePlayers(Nim):
        bots: ClassVar = {}
        roles: ClassVar = ("player_0", "player_1", "player_2")

        def to_move(self, state: State) -> str | None:
            return None if state.result else self.roles[len(state.history) % 3]

        def rule(self, state: State) -> Result | None:
            return self.draw(state) if len(state.history) == 6 else None

    results.check_wrong_role_is_refused(ThreePlayers(), 0)
    with pytest.raises(AssertionError, match="a game has two roles"):
        declarations.check_roles(ThreePlayers(), 0)


@pytest.mark.parametrize("counted", [0, 1, 3])
def test_a_result_counts_up_to_the_decision(counted: int) -> None:
    class Miscounts(KuhnPoker):
        def end(self, state: State, outcome: str, rewards: Mapping[str, float], reason: str) -> Result:
            return replace(super().end(state, outcome, rewards, reason), length=counted)

    with pytest.raises(AssertionError, match=f"length is {counted} after"):
        results.check_results_are_complete(Miscounts(), 0)


def test_a_game_may_not_judge_by_thoughts() -> None:
    class ReadsMinds(KuhnPoker):
        def rule(self, state: State) -> Result | None:
            return self.draw(state) if state.history[-1].thought else super().rule(state)

    with pytest.raises(AssertionError, match=r"a game is judged by a thought: .*unfinished"):
        visibility.check_thoughts_stay_private(ReadsMinds(), 0)


def test_turn_rewards_are_finite() -> None:
    class RewardsNothing(KuhnPoker):
        def turn_rewards(self, task: Task, history: Sequence[Utterance], result: Result) -> Sequence[float]:
            return [float("nan")] * len(history)

    with pytest.raises(AssertionError, match="must give a finite number for each of"):
        results.check_turn_rewards(RewardsNothing(), 0)


def test_what_is_known_later_must_be_declared_too() -> None:
    class HidesLater(KuhnPoker):
        bots: ClassVar = {}
        hidden: ClassVar = {}

        def observe(self, state: State, role: str) -> Observation:
            seen = super().observe(state, role)
            return seen if state.history else replace(seen, facts={})

    with pytest.raises(AssertionError, match="the game declares nothing hidden"):
        visibility.check_hidden_information_is_declared(HidesLater(), 0)


def test_a_game_may_use_its_seed() -> None:
    class DrawsTheHeap(Nim):
        def start(self, task: Task, seed: int) -> State:
            super().start(task, seed)
            return State(Task(task.id, {"stones": 3 + seed % 5}), seed)

    class DrawsTheDealer(KuhnPoker):
        def observe(self, state: State, role: str) -> Observation:
            seen = super().observe(state, role)
            return replace(seen, facts={**seen.facts, "dealer": state.seed % 2})

    game = DrawsTheHeap()
    results.check_results_are_complete(game, 0)
    results.check_replay_agrees_with_play(game, 0)
    results.check_games_cut_short_are_judged(game, 0)
    visibility.check_thoughts_stay_private(game, 0)
    visibility.check_hidden_information_stays_hidden(DrawsTheDealer(), 0)


def test_endless_games_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(RawLines):
        def rule(self, state: State) -> Result | None:
            return None

    monkeypatch.setattr(playing, "LONGEST", 30)
    with pytest.raises(AssertionError, match="has not ended after 30 utterances"):
        results.check_garbage_is_an_outcome(Endless(), 0)


def test_a_whole_game_is_checked() -> None:
    check_game(KuhnPoker(hands=12))
    with pytest.raises(AssertionError, match="the name 'Kuhn Poker' must be lower-case letters"):
        check_game(Shouts())


def test_games_of_ours_need_a_constant_bot_and_others_may_have_none() -> None:
    class Silent(KuhnPoker):
        bots: ClassVar = {}

    class Foreign(Silent):
        name = "foreign_poker"

    results.check_constant_bot(Foreign(), 0)
    # judged at the end of play, where the bot speaks, for what was said before
    results.check_constant_bot(AdversarialTaboo(words="shipped", top_words=300, stop=Stop.ANNOUNCED), 11)
    with pytest.raises(AssertionError, match="has a bot called constant"):
        results.check_constant_bot(Silent(), 0)
