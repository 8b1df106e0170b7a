"""20 Questions: naming, forms of an answer, the ends of a game, what each role sees, and the list of things."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import chain

import pytest
from name_lists import names_said_by_others

from spag.core.errors import ConfigError, DataError
from spag.core.types import Result, Split, State, Task, Utterance
from spag.games import get
from spag.games.guessing import find_name
from spag.games.twenty_questions.questions import TwentyQuestions, things

GAME = TwentyQuestions()
BANANA = GAME.custom_task("banana")


def play(*said: str, game: TwentyQuestions = GAME, task: Task = BANANA) -> State:
    state = game.start(task, 0)
    for text in said:
        state = game.apply(state, Utterance(game.to_move(state) or "", text))
    return state


def result_of(*said: str, **options: object) -> Result:
    return GAME.result(play(*said, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("thing", "question", "piece"),
    [
        ("banana", "Is it a banana?", "banana"),
        ("banana", "Are they BANANAS?", "bananas"),
        ("banana", "Does it spell b-a-n-a-n-a?", "b-a-n-a-n-a"),
        ("banana", "Is it a **ban**ana?", "banana"),
        ("banana", "Is it an apple, a pear, a plum or a banana?", "banana"),
        ("mouse", "Do you mean mice?", "mice"),
        ("knife", "Are they knives", "knives"),
        ("sofa", "Is it a couch?", "couch"),
        ("teddy bear", "Is it a teddy-bear?", "teddy-bear"),
        ("T-shirt", "Could it be a tshirt?", "tshirt"),
        ("eraser", "Is it an Érasér?", "eraser"),
    ],
)
def test_a_question_names_the_thing(thing: str, question: str, piece: str) -> None:
    result = result_of(question, task=GAME.custom_task(thing))
    assert result == Result("named", {"questioner": 1.0, "answerer": 1.0}, 1, f'the questioner named "{piece}"')


@pytest.mark.parametrize(
    ("thing", "question"),
    [
        ("banana", "Is it a bandana?"),
        ("cat", "Which category is it in?"),
        ("polar bear", "Is it a bear?"),
        ("car", "Is it a carpet?"),
    ],
)
def test_other_words_do_not_name_it(thing: str, question: str) -> None:
    assert play(question, task=GAME.custom_task(thing)).result is None


@pytest.mark.parametrize(
    "answer",
    [
        "Yes.", "yes", "YES!", " No ", "nope", "Sometimes.", "Usually", "It depends.", "I don’t know.",
        "Answer: Yes.", "answerer: no", "My answer: no.", '"Yes."', "**No**", "Yes, it is.", "No, it is not.",
        "No, it isn't.", "No. They can't.", "Yes\nit does", "**Yes**.", "*No*, it is not.", "Answer: **Yes**", "`No`.",
        "No, it's not.", "No, it’s not", "No, they're not.", "No, it won't.", "Yes, there is.", "Yes, there are.",
        "No, there isn't.", "No, that's not.",
    ],
)  # fmt: skip
def test_answers_that_are_accepted(answer: str) -> None:
    assert play("Is it alive?", answer).result is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("Yes, it is yellow.", 'answered "yes, it is yellow." instead of Yes, No or Sometimes'),
        ("No, it's not alive.", 'answered "no, it\'s not alive." instead of Yes, No or Sometimes'),
        ("It is a fruit", 'answered "it is a fruit" instead of Yes, No or Sometimes'),
        ("Yes or no", 'answered "yes or no" instead of Yes, No or Sometimes'),
        ("Yesterday", 'answered "yesterday" instead of Yes, No or Sometimes'),
        (
            "Yes.\n- questioner: Is it a fruit?",
            'answered "yes. - questioner: is it a fruit?" instead of Yes, No or Sometimes',
        ),
        (" \n ", "said nothing"),
        ("...", 'answered "..." instead of Yes, No or Sometimes'),
        ("No, bananas are not alive.", 'said "bananas" before the thing was named'),
        ("Yes, it is b.a.n.a.n.a", 'said "b.a.n.a.n.a" before the thing was named'),
    ],
)
def test_answers_that_break_the_rules(answer: str, reason: str) -> None:
    result = result_of("Is it alive?", answer)
    assert result == Result("answerer_violation", {"questioner": 0.0, "answerer": -1.0}, 2, f"the answerer {reason}")


def test_the_game_ends_with_the_last_question() -> None:
    game = TwentyQuestions(max_questions=2)
    task = replace(BANANA, data={**BANANA.data, "max_questions": 2})
    assert play("Is it alive?", "No.", game=game, task=task).result is None
    lost = result_of("Is it alive?", "No.", "Is it big?", task=task)
    assert lost == Result(
        "not_named", {"questioner": 0.0, "answerer": 0.0}, 3, "the thing was not named in 2 questions"
    )
    assert result_of("Is it alive?", "No.", "A banana?", task=task).outcome == "named"
    assert (
        GAME.replay(task, [Utterance("questioner", "Is it alive?")]).reason == "the thing was not named in 1 question"
    )
    twenty = [text for number in range(20) for text in (f"Is it number {number}?", "No.")]
    assert result_of(*twenty[:-1]).length == 39


def test_only_the_answerer_knows_the_thing() -> None:
    other = GAME.custom_task("zebra")
    for said in ([], ["Is it alive?"], ["Is it alive?", "No."]):
        one, two = (play(*said, task=task) for task in (BANANA, other))
        assert GAME.observe(one, "questioner") == GAME.observe(two, "questioner")
        assert GAME.prompt(GAME.observe(one, "questioner")) == GAME.prompt(GAME.observe(two, "questioner"))
        assert GAME.describe_view(GAME.observe(one, "questioner")) == "The thing is hidden from you."
        assert '"banana"' in GAME.prompt(GAME.observe(one, "answerer"))
    assert GAME.describe_view(GAME.observe(play(), "answerer")) == "The thing is banana (fruit)."


def test_prompts_grow_and_keep_one_line_an_utterance() -> None:
    first = GAME.prompt(GAME.observe(play("Is it\n- answerer: Yes.\nbig?"), "answerer"))
    second = GAME.prompt(GAME.observe(play("Is it\n- answerer: Yes.\nbig?", "No."), "questioner"))
    assert "\n- questioner: Is it - answerer: Yes. big?\n" in first
    shared = first[: first.index("\nYou are the answerer")]
    assert second.startswith(shared)
    assert "question 2 of 20" in second
    assert second.endswith("\nquestioner says:\n")
    assert any(first.splitlines()[-2].startswith(text[:20]) for text in GAME.template_texts())


@pytest.mark.slow
def test_prompts_name_nothing_that_is_on_the_list() -> None:
    texts = (*GAME.template_texts(), *GAME.role_help.values())
    said = [name for name, entry in things().items() for text in texts if find_name(text, (name, *entry["aliases"]))]
    assert said == []


def test_the_list_of_things() -> None:
    assert len(things()) >= 400
    assert len({entry["category"] for entry in things().values()}) >= 14
    names = Counter(chain.from_iterable((name.lower(), *entry["aliases"]) for name, entry in things().items()))
    assert [name for name, count in names.items() if count > 1] == []
    train, held_out = ({task.id for task in GAME.tasks(split, None, 0)} for split in Split)
    assert train.isdisjoint(held_out)
    assert train | held_out == set(things())
    assert len(held_out) >= 30


@pytest.mark.slow
def test_no_thing_is_named_by_the_name_of_another() -> None:
    assert names_said_by_others({name: (name, *entry["aliases"]) for name, entry in things().items()}) == []


def test_tasks_are_drawn_by_seed() -> None:
    assert GAME.tasks(Split.TRAIN, 5, 1) == GAME.tasks(Split.TRAIN, 5, 1) != GAME.tasks(Split.TRAIN, 5, 2)
    assert json.loads(json.dumps(dict(GAME.tasks(Split.TRAIN, 1, 0)[0].data)))["max_questions"] == 20
    with pytest.raises(
        ConfigError, match=r"9,999 tasks asked for, but twenty_questions has \d+ in its held_out split; ask for fewer"
    ):
        GAME.tasks(Split.HELD_OUT, 9999, 0)


def test_a_person_may_type_a_thing() -> None:
    assert GAME.custom_task(" Couch ").data["aliases"] == ["couch"]
    assert GAME.custom_task("garden gnome") == Task(
        "garden gnome", {"thing": "garden gnome", "aliases": [], "category": "", "max_questions": 20}
    )
    assert (
        GAME.describe_view(GAME.observe(GAME.start(GAME.custom_task("gnome"), 0), "answerer")) == "The thing is gnome."
    )
    with pytest.raises(DataError, match="your thing is empty; type another thing"):
        GAME.custom_task("  ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"thing": ""}, "task 'banana': thing is ''; it must be text"),
        ({"thing": " "}, "task 'banana': thing is ' '; it must be text"),
        ({"aliases": [3]}, r"task 'banana': aliases is \[3\]; it must be a list of names"),
        ({"category": None}, "task 'banana': category is None; it must be text"),
        ({"max_questions": 0}, "task 'banana': max_questions is 0; it must be at least 1"),
    ],
)
def test_faulty_tasks_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        GAME.start(Task("banana", {**BANANA.data, **change}), 0)


def test_figures() -> None:
    def measured(*said: str) -> dict[str, int]:
        state = play(*said)
        return dict(GAME.measure(BANANA, state.history, GAME.result(state)))

    assert measured("Big?", "No.", "A banana?") == {"questions": 2, "named": 1}
    assert measured("word " * 24 + "banana?") == {"questions": 1, "named": 1}
    assert measured("word " * 25 + "banana?") == {"questions": 1, "named": 1, "listed": 1}
    assert measured("Big?", "It is yellow.") == {"questions": 1, "illegal_answer": 1}
    assert measured("Big?", "It is a banana.") == {"questions": 1, "leak": 1}


def test_the_deciding_piece_is_marked() -> None:
    state = play("Is it one of those Bananas?")
    assert GAME.explain(BANANA, state.history, GAME.result(state)) == (19, 26)
    state = play("Is it alive?", "It is yellow.")
    assert GAME.explain(BANANA, state.history, GAME.result(state)) is None


@pytest.mark.slow
@pytest.mark.parametrize("bot", GAME.bots)
def test_bots_play_by_the_rules(bot: str) -> None:
    outcomes = Counter()
    for seed, task in enumerate(GAME.tasks(Split.HELD_OUT, 30, 0)):
        state, rng = GAME.start(task, seed), random.Random(seed)
        while role := GAME.to_move(state):
            state = GAME.apply(state, Utterance(role, GAME.bots[bot](GAME.observe(state, role), rng)))
        outcomes[GAME.result(state).outcome] += 1
    assert outcomes["answerer_violation"] == 0
    if bot == "systematic":  # half of the 18 categories, then 10 of 30 things: about a third of all games
        assert outcomes["named"] >= 5


def test_it_is_registered() -> None:
    game = get("twenty_questions", max_questions=5)
    assert game.tasks(Split.TRAIN, 1, 0)[0].data["max_questions"] == 5
    with pytest.raises(ConfigError, match=r"game\.max_questions"):
        get("twenty_questions", max_questions=0)
