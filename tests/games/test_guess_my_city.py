"""Guess My City: naming the city, giving it away, the form of an answer, what each role sees, and the list of
cities.
"""

import random
from collections import Counter
from itertools import chain

import pytest
from name_lists import names_said_by_others

from spag.core.errors import DataError
from spag.core.types import Result, Split, State, Utterance
from spag.games import get
from spag.games.guess_my_city.cities import GuessMyCity, cities
from spag.games.guessing import find_name

GAME = GuessMyCity()


def play(city: str, *said: str) -> State:
    state = GAME.start(GAME.custom_task(city), 0)
    for text in said:
        state = GAME.apply(state, Utterance(GAME.to_move(state) or "", text))
    return state


@pytest.mark.parametrize(
    ("city", "question", "piece"),
    [
        ("Paris", "Is it Paris?", "paris"),
        ("Paris", "Are you a Parisian?", "parisian"),
        ("Paris", "Is it P-A-R-I-S?", "p-a-r-i-s"),
        ("New York", "NYC?", "nyc"),
        ("New York", "Is it New York City?", "new york"),
        ("Los Angeles", "Is it L.A.?", "l.a"),
        ("Los Angeles", "Is it LA?", "LA"),
        ("Mumbai", "Is it Bombay?", "bombay"),
        ("Kyiv", "Is it Kiev?", "kiev"),
        ("São Paulo", "Is it Sao Paulo?", "sao paulo"),
        ("Bogotá", "Is it Bogota?", "bogota"),
        ("Zurich", "Is it Zürich?", "zurich"),
        ("Copenhagen", "Is it København?", "kobenhavn"),
        ("Saint Petersburg", "Is it St Petersburg?", "st petersburg"),
        ("Xi'an", "Is it Xian?", "xian"),
        ("Ho Chi Minh City", "Is it Saigon?", "saigon"),
        ("Lima", "Quito, La Paz, Lima or Bogotá?", "lima"),
    ],
)
def test_a_question_names_the_city(city: str, question: str, piece: str) -> None:
    result = GAME.result(play(city, question))
    assert result == Result("named", {"questioner": 1.0, "answerer": 1.0}, 1, f'the questioner named "{piece}"')


@pytest.mark.parametrize(
    ("city", "question"),
    [
        ("Paris", "Is it in France?"),
        ("Mexico City", "Is it in Mexico?"),
        ("Los Angeles", "Is it la capital?"),
        ("Rome", "Is it roaming?"),
        ("Rome", "Was it once part of the Roman Empire?"),
    ],
)
def test_other_words_do_not_name_it(city: str, question: str) -> None:
    assert play(city, question).result is None


@pytest.mark.parametrize(
    ("city", "answer", "piece"),
    [
        ("Paris", "It is Paris.", "paris"),
        ("Paris", "People there are Parisians.", "parisians"),
        ("Paris", "It is the capital of France.", "france"),
        ("Paris", "They speak French.", "french"),
        ("Paris", "Many Frenchmen live there.", "frenchmen"),
        ("Paris", "It is in F.R.A.N.C.E", "f.r.a.n.c.e"),
        ("Mumbai", "It used to be called Bombay.", "bombay"),
        ("Amsterdam", "It is in Holland.", "holland"),
        ("Rome", "You can see Roman ruins.", "roman"),
        ("Chicago", "It is in the U.S. somewhere.", "u.s"),
        ("Chicago", "It is in the US.", "US"),
        ("Chicago", "It is in the usa.", "usa"),
        ("Chicago", "Americans love it.", "americans"),
        ("London", "It is in the UK.", "uk"),
        ("Glasgow", "Scottish people live there.", "scottish"),
        ("Abidjan", "It is in Cote d'Ivoire.", "cote d'ivoire"),
        ("Kinshasa", "It lies on the Congo River.", "congo"),
    ],
)
def test_the_answerer_may_not_give_it_away(city: str, answer: str, piece: str) -> None:
    result = GAME.result(play(city, "Where is it?", answer))
    reason = f'the answerer said "{piece}" before the city was named'
    assert result == Result("answerer_violation", {"questioner": 0.0, "answerer": -1.0}, 2, reason)


@pytest.mark.parametrize(
    ("city", "answer"),
    [
        ("Paris", "It is a large city on a river in Europe."),
        ("Paris", "It is not far from Germany. Belgian people like it."),
        ("Chicago", "It is a North American city."),
        ("Chicago", "It is in the Americas."),
        ("Chicago", "Let us say it lies in north america."),
        ("Cape Town", "It lies in Africa."),
        ("Cape Town", " ".join(["word"] * 50)),
    ],
)
def test_answers_that_are_accepted(city: str, answer: str) -> None:
    assert play(city, "Where is it?", answer).result is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(" ".join(["word"] * 51), "used 51 words; 50 are allowed"), (" \n", "said nothing")],
    ids=["long", "empty"],
)
def test_the_form_of_an_answer(answer: str, reason: str) -> None:
    state = play("Paris", "Where is it?", answer)
    assert (GAME.result(state).outcome, GAME.result(state).reason) == ("answerer_violation", f"the answerer {reason}")
    assert GAME.measure(state.task, state.history, GAME.result(state)) == {"questions": 1, "illegal_answer": 1}


def test_what_gives_a_city_away_is_marked_and_counted() -> None:
    state = play("Paris", "Where is it?", "It is in the French north.")
    assert GAME.explain(state.task, state.history, GAME.result(state)) == (13, 19)
    assert GAME.measure(state.task, state.history, GAME.result(state)) == {"questions": 1, "leak": 1}


def test_the_game_ends_with_the_last_question() -> None:
    said = [text for number in range(20) for text in (f"Question {number}?", "I would rather not say.")]
    assert play("Paris", *said[:38]).result is None
    assert GAME.result(play("Paris", *said[:39])).reason == "the city was not named in 20 questions"
    assert GAME.result(play("Paris", *said[:38], "Paris?")).outcome == "named"


def test_only_the_answerer_knows_the_city() -> None:
    for said in ([], ["Where is it?"], ["Where is it?", "Far away."]):
        paris, lima = play("Paris", *said), play("Lima", *said)
        assert GAME.observe(paris, "questioner") == GAME.observe(lima, "questioner")
        assert GAME.prompt(GAME.observe(paris, "questioner")) == GAME.prompt(GAME.observe(lima, "questioner"))
        assert "Paris (France)" in GAME.prompt(GAME.observe(paris, "answerer"))
    assert GAME.describe_view(GAME.observe(paris, "questioner")) == "The city is hidden from you."
    assert GAME.describe_view(GAME.observe(paris, "answerer")) == "The city is Paris (France)."


def test_the_list_of_cities() -> None:
    assert len(cities()) >= 200
    assert {entry["continent"] for entry in cities().values()} == {
        "Africa",
        "Asia",
        "Europe",
        "North America",
        "Oceania",
        "South America",
    }
    assert all(entry["country"] and entry["people"] for entry in cities().values())
    train, held_out = ({task.id for task in GAME.tasks(split, None, 0)} for split in Split)
    assert train.isdisjoint(held_out)
    assert train | held_out == set(cities())
    assert len(held_out) >= 15


@pytest.mark.slow
def test_no_city_is_named_by_the_name_of_another() -> None:
    assert names_said_by_others({name: (name, *entry["aliases"]) for name, entry in cities().items()}) == []


@pytest.mark.slow
def test_prompts_name_nothing_that_is_on_the_list() -> None:
    names = set(
        chain.from_iterable(
            (name, *entry["aliases"], entry["country"], *entry["people"]) for name, entry in cities().items()
        )
    )
    assert [text for text in (*GAME.template_texts(), *GAME.role_help.values()) if find_name(text, sorted(names))] == []


def test_the_continent_may_always_be_said() -> None:
    for name, entry in cities().items():
        assert play(name, "Where is it?", f"It lies in {entry['continent']}.").result is None


@pytest.mark.slow
@pytest.mark.parametrize("bot", GAME.bots)
def test_bots_play_by_the_rules(bot: str) -> None:
    outcomes = Counter()
    for seed, name in enumerate(cities()):
        state, rng = play(name), random.Random(seed)
        while role := GAME.to_move(state):
            state = GAME.apply(state, Utterance(role, GAME.bots[bot](GAME.observe(state, role), rng)))
        outcomes[GAME.result(state).outcome] += 1
    assert outcomes["answerer_violation"] == 0
    if bot == "systematic":  # 3 or 4 continents, then 16 of 8 to 90 cities
        assert outcomes["named"] >= 60


def test_a_person_may_type_a_city_of_the_list() -> None:
    assert GAME.custom_task(" bombay ").id == "Mumbai"
    assert GAME.custom_task("sao paulo").id == "São Paulo"
    with pytest.raises(
        DataError, match=r"'Pariss' is not one of the \d+ cities of Guess My City; did you mean Paris\?"
    ):
        GAME.custom_task("Pariss")
    with pytest.raises(DataError, match=r"'' is not one of the .* type one such as London"):
        GAME.custom_task("")
    with pytest.raises(DataError, match=rf"'{'x' * 40}' is not one of the"):
        GAME.custom_task("x" * 10_000)


def test_it_is_registered() -> None:
    assert get("guess_my_city", max_questions=3).tasks(Split.TRAIN, 1, 0)[0].data["max_questions"] == 3
