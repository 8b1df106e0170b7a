"""Adversarial Taboo as a game: tasks, what each side sees, order and end, replay and figures. Whole games are in
test_playthroughs.py.
"""

from pathlib import Path

import pytest

from spag.algorithms.reinforce import trained_turns
from spag.algorithms.winners import assign_rewards
from spag.config.files import load_config
from spag.core.episodes import Episode
from spag.core.errors import ConfigError, DataError
from spag.core.types import Split, State, Task, Utterance
from spag.games.taboo.judge import JudgeMode
from spag.games.taboo.taboo import AdversarialTaboo, Stop
from spag.games.taboo.types import Role, TabooOutcome
from spag.text.words import split_of

GAME = AdversarialTaboo(words="shipped")


def play(word: str, turns: int, *texts: str, game: AdversarialTaboo = GAME) -> State:
    state = game.start(Task(word, {"target_word": word, "max_turns": turns}), 0)
    for text in texts:
        role = game.to_move(state)
        assert role is not None
        state = game.apply(state, Utterance(role, text))
    return state


def test_only_the_attacker_sees_the_word() -> None:
    state = play("river", 5, "Hi")
    assert GAME.observe(state, Role.ATTACKER).facts == {"max_turns": 5, "target_word": "river"}
    assert GAME.observe(state, Role.DEFENDER).facts == {"max_turns": 5}
    assert GAME.observe(state, Role.DEFENDER).history == state.history
    assert GAME.describe_view(GAME.observe(state, Role.ATTACKER)) == "The word is river."
    assert GAME.describe_view(GAME.observe(state, Role.DEFENDER)) == "The word is hidden from you."


def test_order_and_end_are_kept() -> None:
    with pytest.raises(ValueError, match="it is the attacker's move, not the defender's"):
        GAME.apply(play("river", 1), Utterance(Role.DEFENDER, "Hi"))
    state = play("river", 1, "Hi", "Hello")
    assert (GAME.result(state).outcome, GAME.result(state).length) == (TabooOutcome.TIE, 2)
    with pytest.raises(ValueError, match="the game is over"):
        GAME.apply(state, Utterance(Role.ATTACKER, "Hi"))


@pytest.mark.parametrize(
    ("word", "turns", "message"), [("  ", 5, "the target word is empty"), ("river", 0, "max_turns is 0")]
)
def test_impossible_games_are_refused(word: str, turns: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        play(word, turns)


def test_tasks_are_words_of_a_split(tmp_path: Path) -> None:
    tasks = GAME.tasks(Split.HELD_OUT, None, 0)
    assert len(tasks) + len(GAME.tasks(Split.TRAIN, None, 0)) == 2000
    assert all(split_of(task.id) is Split.HELD_OUT for task in tasks)
    assert tasks[0].data == {"target_word": tasks[0].id, "max_turns": 5}
    assert GAME.tasks(Split.TRAIN, 9, 1) != GAME.tasks(Split.TRAIN, 9, 2)
    words = tmp_path / "words.txt"
    words.write_text("river\nbread\npiano\n")
    for top, fix in ((3, "raise game.top_words"), (50_000, "use another list")):
        game = AdversarialTaboo(words=str(words), top_words=top, max_turns=3)
        count = sum(split_of(word) is Split.TRAIN for word in ("river", "bread", "piano"))
        with pytest.raises(ConfigError, match=f"has {count} in its train split; ask for fewer or {fix}"):
            game.tasks(Split.TRAIN, 4, 0)
    words.write_text("river\n")
    with pytest.raises(ConfigError, match=r"^1 word asked for, but .*words\.txt has 0 in its held_out split"):
        AdversarialTaboo(words=str(words)).tasks(Split.HELD_OUT, 1, 0)


def test_a_person_may_type_a_word() -> None:
    assert GAME.custom_task(" river ") == Task("river", {"target_word": "river", "max_turns": 5})
    for empty in ("  ", "\ufeff"):  # the second is a byte-order mark
        with pytest.raises(DataError, match=r"^your word is empty; type another word$"):
            GAME.custom_task(empty)
    with pytest.raises(
        DataError, match=r"^'x{40}'\.\.\. has 41 characters; a target word has at most 40; type another word$"
    ):
        GAME.custom_task("x" * 41)


def test_replay_judges_by_the_recorded_roles() -> None:
    """Upstream's files may repeat a role."""
    history = (Utterance(Role.ATTACKER, "Hi"), Utterance(Role.ATTACKER, "A wide river"))
    result = GAME.replay(Task("river", {"target_word": "river", "max_turns": 5}), history)
    assert (result.outcome, result.length, result.rewards) == (
        TabooOutcome.ATTACKER_VIOLATION,
        2,
        {"attacker": -1.0, "defender": 0.0},
    )


def test_rewards_of_the_outcomes() -> None:
    assert GAME.result(play("river", 1, "Hi", "A river!")).rewards == {"attacker": 1.0, "defender": -1.0}
    assert GAME.result(play("river", 1, "Hi", "I know the word! It is river!")).rewards == {
        "attacker": -1.0,
        "defender": 1.0,
    }
    assert GAME.result(play("river", 1, "Hi", "Hello")).rewards == {"attacker": 0.0, "defender": 0.0}


@pytest.mark.parametrize(
    ("texts", "figures"),
    [
        (("Hi", "A river!"), {"induced": 1}),
        (("Hi", "I know the word! It is bread!"), {"guess": 1, "wrong_guess": 1, "first_wrong_guess": 1}),
        (("Hi", "Hello", "Hm", "I know the word! It is bread!"), {"guess": 1, "wrong_guess": 1}),
        (("Hi", "I know the word! It is river!"), {"guess": 1, "guessed_right": 1}),
        (("I know the word! It is bread!",), {"announced": 1}),
        (("It is a river.",), {}),
        (("I know the word! Is it bread?",), {"announced": 1}),  # no leak, though the published judge sees nothing
        (("It is a r-i-v-e-r.",), {"hidden_leaks": 1}),  # the published judge looks for the bare letters
    ],
)
def test_figures(texts: tuple[str, ...], figures: dict[str, int]) -> None:
    state = play("river", 5, *texts)
    found = GAME.measure(state.task, state.history, GAME.result(state))
    assert {name: count for name, count in found.items() if count} == figures


def test_judges_differ() -> None:
    strict, paper = (play("cat", 5, "Hi", "Which category?", game=AdversarialTaboo(judge=mode)) for mode in JudgeMode)
    assert strict.result is None
    assert paper.result is not None and paper.result.outcome == TabooOutcome.ATTACKER_WINS


def test_the_deciding_words_are_found() -> None:
    state = play("river", 5, "Hi", "Two days on a gentle river would suit her.")
    span = GAME.explain(state.task, state.history, GAME.result(state))
    assert span is not None and state.history[-1].content[slice(*span)] == "river"


@pytest.mark.parametrize(
    ("judge", "texts", "outcome", "length"),
    [
        # judged at the third utterance, played on to the announcement
        ("strict", ["Hi", "Hello", "A river.", "Hm", "So?", "I know the word! It is lake."], "attacker_violation", 3),
        ("strict", ["Hi", "I know the word! It is river."], "defender_wins", 2),
        ("strict", ["Hi", "I know the word but will not say it."], "tie", 2),  # stopped, though nothing was guessed
        ("paper", ["Hi", "I KNOW THE WORDS of it."], "tie", 2),
        ("paper", ["I know the words.", "A lake.", "Well?", "A river.", "Yes?", "No."], "attacker_wins", 4),
    ],
)
def test_upstreams_play_stops_at_an_announcement_and_on_nothing_else(
    judge: str, texts: list[str], outcome: str, length: int
) -> None:
    game = AdversarialTaboo(judge=JudgeMode(judge), stop=Stop.ANNOUNCED)
    assert play("river", 3, *texts[:-1], game=game).result is None
    state = play("river", 3, *texts, game=game)
    assert (GAME.result(state).outcome, GAME.result(state).length) == (outcome, length)
    later = (*state.history, Utterance(Role.ATTACKER, "A river"), Utterance(Role.DEFENDER, "A river"))
    assert game.replay(state.task, later) == state.result


def test_nothing_behind_the_decision_is_paid_where_play_went_on() -> None:
    game = AdversarialTaboo(stop=Stop.ANNOUNCED, words="shipped")
    texts = ["Where do you swim?", "In the river.", "I see.", "You do?", "Yes.", "I know the word! It is `lake`!"]
    state = play("river", 5, *texts, game=game)
    result = game.result(state)
    assert (result.outcome, result.length, len(state.history)) == (TabooOutcome.ATTACKER_WINS, 2, 6)
    for length in (None, result.length):  # judged anew, and as recorded
        played = Episode(
            task=state.task, history=state.history, outcome=result.outcome, rewards=result.rewards, length=length
        )
        assert [sample.completion for sample in assign_rewards([played], game=game)] == ["Where do you swim?"]
    online = {role: [turn.at for turn in trained_turns([played], role, None)] for role in game.roles}
    assert online == {"attacker": [0], "defender": [1]}


@pytest.mark.parametrize("name", ["llama2-7b", "llama2-7b-lora", "llama2-7b-qlora", "baichuan2-13b"])
def test_the_papers_presets_play_as_the_published_loop(name: str) -> None:
    game = load_config(name).game.build()
    assert isinstance(game, AdversarialTaboo)
    assert (game.stop, game.judge, game.max_turns) == (Stop.ANNOUNCED, JudgeMode.STRICT, 5)
    other = load_config("demo").game.build()
    assert isinstance(other, AdversarialTaboo) and other.stop is Stop.JUDGED
