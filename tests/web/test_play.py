"""Playing over plain HTTP: both roles, sessions, and models that are slow, silent or dead."""

import re
import time
from pathlib import Path

from starlette.testclient import TestClient
from web_fixtures import HOSTILE, TypingEngine, at_once, fail, site, visitor

from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import ModelError
from spag.engines.base import Engine, Request, Sampling
from spag.engines.opening import open_engine
from spag.engines.scripted import ScriptedEngine
from spag.web.games import LONGEST_UTTERANCE, MOST_GAMES, Sessions
from spag.web.speakers import Speaker, Speakers


def begin(client: TestClient, role: str, word: str = "", checkpoint: str = "imitation") -> str:
    answer = client.post("/play", data={"role": role, "checkpoint": checkpoint, "word": word}, follow_redirects=False)
    assert answer.status_code == 303
    return answer.headers["location"]


def settled(client: TestClient, address: str) -> str:
    """Return the page of a game once the model has answered."""
    for _ in range(400):
        page = client.get(address).text
        if 'id="reply"' not in page:
            return page
        time.sleep(0.02)
    raise AssertionError("no reply")


def test_a_game_as_attacker_is_won_and_explained(client: TestClient) -> None:
    address = begin(client, "attacker", "River")
    assert "Lead the model to say" in client.get(address).text
    assert client.post(f"{address}/say", data={"text": "What runs to the sea?"}, follow_redirects=False).status_code == 303
    page = settled(client, address)
    for piece in ("You win", "What a lovely <mark>river</mark>.", "The defender said", "number 2"):
        assert piece in page
    assert client.post(f"{address}/say", data={"text": "More."}).status_code == 422


def test_the_hidden_word_is_in_no_answer_before_the_end(run: Path) -> None:
    with visitor(site(run, at_once(lambda request: "Tell me about water."))) as client:
        address = begin(client, "defender", "ignored")
        answers = [settled(client, address), client.get("/play").text, client.get(f"{address}/reply", headers={"hx-request": "1"}).text]
        answers.append(client.post(f"{address}/say", data={"text": "Is it wet?"}, headers={"hx-request": "1"}).text)
        answers.append(settled(client, address))
        assert not any("river" in answer.lower() for answer in answers)
        page = client.post(f"{address}/say", data={"text": "I know the word! It is `river`!"}).text
        assert "You win" in page
        assert "The word was <bdi" in page


def test_utterances_and_words_have_limits(client: TestClient) -> None:
    address = begin(client, "attacker", "river")
    for text, message in (("  ", "is empty"), ("x" * (LONGEST_UTTERANCE + 1), "2,001 characters")):
        answer = client.post(f"{address}/say", data={"text": text})
        assert (answer.status_code, message in answer.text) == (422, True)
    for form, message in (
        ({"role": "attacker", "checkpoint": "imitation", "word": "x" * 41}, "at most 40"),
        ({"role": "attacker", "checkpoint": "../../etc", "word": "river"}, "choose a checkpoint"),
        ({"role": "judge", "checkpoint": "imitation"}, "choose a checkpoint"),
        ({}, "choose a checkpoint"),
    ):
        answer = client.post("/play", data=form)
        assert (answer.status_code, message in answer.text) == (422, True)


def test_what_a_visitor_types_is_shown_as_text(client: TestClient) -> None:
    address = begin(client, "attacker", "ocean")
    client.post(f"{address}/say", data={"text": HOSTILE[0] + HOSTILE[1]})
    page = settled(client, address)
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "U+202E" in page


def test_sessions_do_not_see_each_other(run: Path) -> None:
    app = site(run, at_once(lambda request: "Well."))
    with visitor(app) as first:
        second = TestClient(app, base_url="http://localhost", headers={"origin": "http://localhost"})
        address = begin(first, "attacker", "river")
        assert first.get(address).status_code == 200
        for answer in (second.get(address), second.post(f"{address}/say", data={"text": "Hi."}), second.get(f"{address}/reply")):
            assert answer.status_code == 404
        assert address not in second.get("/play").text
        begin(second, "attacker", "bread")
        assert "bread" not in first.get("/play").text


def test_sessions_and_their_games_are_bounded(client: TestClient) -> None:
    sessions = Sessions(most=2, lifetime_s=60)
    (first, _), (second, _), (third, _) = sessions.create(), sessions.create(), sessions.create()
    assert sessions.find(first) is None
    assert sessions.find(second) is not None
    assert sessions.find(third) is not None
    expired = Sessions(lifetime_s=-1)
    assert expired.find(expired.create()[0]) is None
    addresses = [begin(client, "attacker", "river") for _ in range(MOST_GAMES + 1)]
    assert [client.get(address).status_code for address in (addresses[0], addresses[1])] == [404, 200]


def test_a_dead_engine_is_told_and_the_game_can_go_on(run: Path) -> None:
    answers = iter([fail, lambda request: "A fine river."])
    with visitor(site(run, lambda checkpoint: ScriptedEngine(next(answers)))) as client:
        address = begin(client, "attacker", "river")
        client.post(f"{address}/say", data={"text": "What runs?"})
        page = settled(client, address)
        assert "No reply from imitation" in page
        assert "localhost does not answer" in page
        client.post(f"{address}/retry")
        assert "You win" in settled(client, address)


def test_a_model_that_cannot_be_loaded_is_told(run: Path) -> None:
    def broken(checkpoint: str) -> ScriptedEngine:
        raise ModelError(f"{checkpoint}: no such model")

    with visitor(site(run, broken)) as client:
        address = begin(client, "defender")
        assert "imitation: no such model" in settled(client, address)


def test_a_slow_engine_is_told(run: Path) -> None:
    with visitor(site(run, lambda checkpoint: ScriptedEngine(lambda request: "Late.", latency_s=1.0), limit_s=0.2)) as client:
        address = begin(client, "defender")
        assert "has not answered within 0 s" in settled(client, address)


def test_a_reply_is_watched_while_it_grows(run: Path) -> None:
    with visitor(site(run, lambda checkpoint: TypingEngine(lambda request: "one two three four", 0.15))) as client:
        address = begin(client, "defender")
        seen, texts = 0, []
        while True:
            answer = client.get(f"{address}/reply?seen={seen}", headers={"hx-request": "1"})
            if "hx-retarget" in answer.headers:
                break
            texts.append("".join(re.findall(r'<bdi class="text">(one[a-z ]*)<', answer.text)))
            seen = len(texts[-1])
        assert len(texts) >= 2
        assert texts == sorted(set(texts), key=len)
        assert "one two three four" in answer.text
        assert answer.headers["hx-retarget"] == "#table"


def test_an_empty_reply_is_drawn_again_twice_and_then_stands(run: Path) -> None:
    asked: list[Request] = []

    def silent(request: Request) -> str:
        asked.append(request)
        return ""

    with visitor(site(run, at_once(silent))) as client:
        address = begin(client, "defender")
        assert "(silence)" in settled(client, address)
    assert len({request.seed for request in asked}) == 3


def test_two_models_are_kept_and_the_one_unused_for_longest_goes() -> None:
    opened, closed = [], []

    class Watched(ScriptedEngine):
        def __init__(self, name: str) -> None:
            super().__init__(lambda request: name)
            self.name = name
            opened.append(name)

        def close(self) -> None:
            closed.append(self.name)

    speakers = Speakers(Watched, most_open=2)
    first = speakers.get("a")
    speakers.get("b")
    assert speakers.get("a") is first
    speakers.get("c")
    until = time.monotonic() + 5
    while closed != ["b"] and time.monotonic() < until:
        time.sleep(0.01)
    assert sorted(opened) == ["a", "b", "c"]
    assert closed == ["b"]
    speakers.close()


def test_a_local_model_can_be_watched_while_it_speaks(model_folder: Path) -> None:
    def opened() -> Engine:
        return open_engine(ModelConfig(name=str(model_folder), dtype="float32", device="cpu"), EngineConfig(concurrency=2))

    speaker = Speaker(opened)
    reply = speaker.ask(Request("a", "Hello", Sampling(max_new_tokens=300, min_new_tokens=300), 1))
    seen = {""}
    while not reply.is_done:
        seen.add(speaker.text_so_far(reply))
        time.sleep(0.01)
    assert reply.error is None
    assert reply.completion is not None
    assert len(seen) > 3
    assert all(reply.completion.text.startswith(text.rstrip("\ufffd").rstrip()) for text in seen)
    speaker.close()
