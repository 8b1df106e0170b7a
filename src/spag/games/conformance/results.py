"""Conformance of a game in play: positions, results, replay, figures, bots."""

import math
import pickle
import random
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import msgspec

from spag.core.episodes import Episode
from spag.core.types import Result, Split, Task, Utterance
from spag.games.base import Game
from spag.games.conformance.playing import ended_games, odd_texts, play, played_games, raises, unfinished
from spag.games.registry import SHIPPED
from spag.storage.episodes import episode_of


def check_start_is_pure(game: Game, seed: int) -> None:
    for task in game.tasks(Split.TRAIN, 2, seed):
        state = game.start(task, seed)
        assert state == game.start(task, seed), "start gives different positions for the same task and seed"
        assert not state.history, "a game must start without utterances"
        assert game.to_move(state) in game.roles, "a game must start with a player to move"


def check_apply_is_pure(game: Game, seed: int) -> None:
    for states in played_games(game, seed):
        for before, after in pairwise(states):
            copy = pickle.loads(pickle.dumps(before))
            assert game.apply(before, after.history[-1]) == after, "apply gives different positions for the same move"
            assert before == copy, "apply changes the position that it was given"


def check_wrong_role_is_refused(game: Game, seed: int) -> None:
    for state, role in unfinished(game, seed):
        for other in set(game.roles) - {role}:
            refused = raises(ValueError, partial(game.apply, state, Utterance(other, "Hi")))
            assert refused, f"{other} may move when it is the {role}'s turn"


def check_finished_games_stay_finished(game: Game, seed: int) -> None:
    for first, *_, last in played_games(game, seed):
        for role in game.roles:
            refused = raises(ValueError, partial(game.apply, last, Utterance(role, "Hi")))
            assert refused, f"the {role} may move after the end"
        assert raises(ValueError, partial(game.result, first)), "result must raise ValueError while the game goes on"


def check_garbage_is_an_outcome(game: Game, seed: int) -> None:
    [task] = game.tasks(Split.TRAIN, 1, seed)
    for text in odd_texts(game, task):
        [*_, last] = play(game, task, seed, lambda _, rng, text=text: text)  # type: ignore[misc]
        outcome = game.result(last).outcome
        assert outcome in game.outcomes, f"a game of {text[:40]!r} ends with the undeclared outcome {outcome!r}"


def check_results_are_complete(game: Game, seed: int) -> None:
    low, high = game.reward_range
    for task, history, result, own_seed in ended_games(game, seed):
        name, rewards, reason = result.outcome, dict(result.rewards), result.reason
        assert name in game.outcomes, f"the outcome {name!r} is not declared"
        assert set(rewards) == set(game.roles), f"{name}: rewards are of {set(rewards)}, not of every role"
        assert all(map(math.isfinite, rewards.values())), f"{name}: rewards must be finite: {rewards}"
        in_range = all(low <= reward <= high for reward in rewards.values())
        assert in_range, f"{name}: {rewards} is outside reward_range, {game.reward_range}"
        whole = _ends_where_decided(game, task, history, result, own_seed)
        assert whole, f"{name}: length is {result.length} after {len(history)} utterances"
        assert reason.strip() and "\n" not in reason, f"{name}: the reason must be one line: {reason!r}"


def check_rewards_agree_with_outcomes(game: Game, seed: int) -> None:
    for _, _, result, _ in ended_games(game, seed):
        name, rewards = result.outcome, dict(result.rewards)
        winners, fault = game.outcomes[name].winners, game.outcomes[name].fault
        won = [rewards[role] for role in winners]
        lost = [rewards[role] for role in game.roles if role not in winners]
        assert not won or not lost or min(won) > max(lost), f"{name}: {winners} win, but the rewards are {rewards}"
        lowest = min(rewards.values())
        assert fault is None or rewards[fault] == lowest, f"{name}: {fault} breaks a rule, but {rewards}"


def check_replay_agrees_with_play(game: Game, seed: int) -> None:
    for task, history, result, own_seed in ended_games(game, seed):
        assert game.replay(task, history, own_seed) == result, f"replay of {task.id!r} differs from {result}"
        later = [*history, *(Utterance(role, "And another thing.") for role in game.roles)]
        assert game.replay(task, later, own_seed).length == result.length, "replay counts what was said after the end"


def check_games_cut_short_are_judged(game: Game, seed: int) -> None:
    for task, history, _, own_seed in ended_games(game, seed):
        for length in range(len(history)):
            short = history[:length]
            result = game.replay(task, short, own_seed)
            complete = result.outcome in game.outcomes and set(result.rewards) == set(game.roles)
            assert complete, f"cut after {length} utterances: {result}"
            whole = _ends_where_decided(game, task, short, result, own_seed)
            assert whole, f"cut after {length} utterances, yet the length is {result.length}"


def _ends_where_decided(game: Game, task: Task, history: Sequence[Utterance], result: Result, seed: int) -> bool:
    """Tell whether ``result`` counts the utterances up to the decision: all, unless play continues after it."""
    if result.length == len(history):
        return True
    decided = 0 < result.length < len(history) and not game.outcomes[result.outcome].is_draw
    return decided and game.replay(task, history[: result.length], seed) == result


def check_episodes_are_read_back(game: Game, seed: int) -> None:
    for task, history, result, _ in ended_games(game, seed):
        outcome, rewards = result.outcome, result.rewards
        episode = Episode(task=task, history=tuple(history), game=game.name, outcome=outcome, rewards=rewards)
        row = msgspec.json.decode(msgspec.json.encode(episode))
        assert episode_of(row, "row 1") == episode, f"an episode of {task.id!r} does not survive its file"


def check_measures(game: Game, seed: int) -> None:
    shares = {figure.name: figure.of for figure in game.figures}
    for task, history, result, _ in ended_games(game, seed):
        found = game.measure(task, history, result)
        assert set(found) <= set(shares), f"measure gives figures that are not declared: {set(found) - set(shares)}"
        for name, count in found.items():
            assert isinstance(count, int) and count >= 0, f"figure {name} must be a count, not {count!r}"
            of = shares[name]
            assert of is None or count <= found.get(of, 0), f"figure {name} is {count}, more than {of} as a whole"


def check_turn_rewards(game: Game, seed: int) -> None:
    for task, history, result, _ in ended_games(game, seed):
        rewards = game.turn_rewards(task, history, result)
        assert len(rewards) == len(history) and all(map(math.isfinite, rewards)), (
            f"turn_rewards must give a finite number for each of {len(history)} utterances, not {list(rewards)}"
        )


def check_explanations(game: Game, seed: int) -> None:
    for task, history, result, _ in ended_games(game, seed):
        if result.length and not game.outcomes[result.outcome].is_draw:
            span = game.explain(task, history[: result.length], result)
            end = len(history[result.length - 1].content)
            assert span is None or 0 <= span[0] < span[1] <= end, f"explain gives no span of the text: {span}"


def check_bots(game: Game, seed: int) -> None:
    for name, bot in game.bots.items():
        for task in game.tasks(Split.TRAIN, None, seed)[:20]:
            [*_, last] = play(game, task, seed, bot)
            result = game.result(last)
            assert game.outcomes[result.outcome].fault is None, f"the bot {name} breaks a rule: {result.reason}"
            again = play(game, task, seed, bot)[-1]
            assert again == last, f"the bot {name} does not depend on observation and generator alone"


def check_constant_bot(game: Game, seed: int) -> None:
    """``bot:constant`` always says one harmless thing: every game of ours has it, others may."""
    bot = game.bots.get("constant")
    if bot is None:
        assert game.name not in SHIPPED, "a game of spag has a bot called constant"
        return
    for state, role in unfinished(game, seed):
        seen = game.observe(state, role)
        text = bot(seen, random.Random(seed))
        assert text == bot(seen, random.Random(seed + 1)), f"the bot constant draws what it says: {text!r}"
        result = game.apply(state, Utterance(role, text)).result
        decided = result if result and result.length > len(state.history) else None  # not by an earlier utterance
        fault = game.outcomes[decided.outcome].fault if decided else None
        assert fault is None, f"the bot constant breaks a rule: {text!r}"
