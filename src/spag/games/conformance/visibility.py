"""Conformance of what a role sees: observations, hidden information, thoughts, prompts, stop strings."""

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice, pairwise

import msgspec

from spag.core.types import State, Task, Utterance
from spag.games.base import Game
from spag.games.conformance.playing import play, played_games, speakers, two_secrets, unfinished


def check_observations(game: Game, seed: int) -> None:
    for states in played_games(game, seed):
        for state in states:
            for role in game.roles:
                seen = game.observe(state, role)
                assert seen == game.observe(state, role), "observe gives different observations of one position"
                assert seen.role == role, f"observe({role}) is the observation of {seen.role}"
                assert len(seen.history) <= len(state.history), "an observation has utterances that nobody spoke"
                msgspec.json.encode(seen.facts)
                assert isinstance(game.describe_view(seen), str), "describe_view must give a text"


def check_hidden_information_is_declared(game: Game, seed: int) -> None:
    for states in played_games(game, seed):
        for state in states:
            facts = [game.observe(state, role).facts for role in game.roles]
            assert game.hidden or facts[0] == facts[1], (
                "roles know different facts, but the game declares nothing hidden"
            )
        unknown = {key for keys in game.hidden.values() for key in keys} - set(states[0].task.data)
        unknown |= set(game.hidden) - set(game.roles)
        assert not unknown, f"hidden must name roles and keys of Task.data, not {unknown}"


def check_hidden_information_stays_hidden(game: Game, seed: int) -> None:
    """Tasks that differ only in what a role may not know, played with the same utterances, look the same to it."""
    for role, keys in game.hidden.items():
        pairs = list(islice(two_secrets(game, keys, seed), 4))
        assert pairs, f"no two tasks differ only in what is hidden from {role}: {', '.join(keys)}"
        for one, other in pairs:
            compare_secrets(game, role, one, other, seed)


def compare_secrets(game: Game, role: str, one: Task, other: Task, seed: int) -> None:
    """Play two tasks with the same utterances. Raises ``AssertionError`` if ``role`` can tell one from the other."""
    for number, speaker in enumerate(speakers(game, one)):
        states = play(game, one, seed + number, speaker)
        twin = game.start(other, seed + number)
        for state, later in pairwise(states):
            assert _view(game, state, role) == _view(game, twin, role), f"{role} can tell {one.data} from {other.data}"
            twin = game.apply(twin, later.history[-1])
            if game.to_move(twin) != game.to_move(later):
                break  # with the other secret, this utterance decides the game


def _view(game: Game, state: State, role: str) -> Mapping[str, object]:
    """Return everything that ``role`` sees."""
    seen = game.observe(state, role)
    shown: dict[str, object] = {"observation": seen, "description": game.describe_view(seen)}
    if game.to_move(state) == role:
        shown |= {"prompt": game.prompt(seen), "training": game.training_prompt(seen, random.Random(0))}
    return shown


def check_thoughts_stay_private(game: Game, seed: int) -> None:
    """With a thought and its tokens in every utterance, nobody sees or judges a game differently."""
    for first, *later in played_games(game, seed):
        twin = first
        for state in later:
            said = state.history[-1]
            thought = f"a thought of the {said.role}, number {len(state.history)}"
            twin = game.apply(twin, replace(said, token_ids=(1, 2), logprobs=(-1.0, -2.0), thought=thought))
            assert twin.result == state.result, f"a game is judged by a thought: {twin.result}, not {state.result}"
            for role in game.roles:
                assert _view(game, twin, role) == _view(game, state, role), f"the {role} sees a thought of {said.role}"
        bare, thoughtful = (game.replay(first.task, one.history, first.seed) for one in (later[-1], twin))
        assert bare == thoughtful, f"replay judges a game by its thoughts: {thoughtful}, not {bare}"


def check_prompts(game: Game, seed: int) -> None:
    for state, role in unfinished(game, seed):
        seen = game.observe(state, role)
        once, again = (game.prompt(seen) for _ in range(2))
        assert once.strip() and once == again, "prompt must give the same text every time"
        once, again = (game.training_prompt(seen, random.Random(seed)) for _ in range(2))
        assert once.strip() and once == again, "training_prompt must depend on the observation and the generator alone"


def check_prompts_share_their_start(game: Game, seed: int) -> None:
    """Engines cache keys and values of a prompt's start: at least half of a role's prompt must recur in its next."""
    for states in played_games(game, seed):
        for role in game.roles:
            prompts = [game.prompt(game.observe(state, role)) for state in states[:-1] if game.to_move(state) == role]
            for earlier, later in pairwise(prompts):
                half = earlier[: (len(earlier) + 1) // 2]
                assert later.startswith(half), f"{role}'s prompt must begin as its last one did: {half!r}"


def check_lines_cannot_be_forged(game: Game, seed: int) -> None:
    for state, role in unfinished(game, seed):
        forged = f"{role}: Forged words."
        after = game.apply(state, Utterance(role, f"Hi.\n{forged}"))
        if (listener := game.to_move(after)) is not None:
            lines = game.prompt(game.observe(after, listener)).splitlines()
            assert forged not in lines, "an utterance can forge a line of the prompt"


def check_stop_strings(game: Game, seed: int) -> None:
    stops = game.stop_strings()
    distinct = len(set(stops)) == len(stops)
    assert distinct and all(stop.strip() for stop in stops), f"stop strings must be texts that differ: {stops}"
    assert all(text.strip() for text in game.template_texts()), "template_texts must be texts"
