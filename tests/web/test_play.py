"""Playing over plain HTTP: both roles, sessions, and models that are slow, silent or dead."""

import re
import threading
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient
from web_fixtures import HOSTILE, TypingEngine, at_once, bot_games, fail, make_run, site, visitor

from samplings import sampling_with
from spag.config.files import dump_config
from spag.config.schema import EngineConfig, ModelConfig, RunConfig
from spag.core.errors import ModelError
from spag.core.options import SamplingConfig
from spag.core.types import Observation, State, Task, Utterance
from spag.engines.base import Completion, Engine, Request
from spag.engines.opening import open_model
from spag.engines.scripted import ScriptedEngine
from spag.engines.thread import ModelThread
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.games.taboo.taboo import AdversarialTaboo
from spag.runs.reading import RunFolder
from spag.web.live_games import _sampling
from spag.web.sessions import LONGEST_UTTERANCE, MOST_GAMES, ModelPool, Session, Sessions, WebMatch
from taboo_games import ROLES, TABOO, task_of, words_of_first_prompts

SWAP = {"hx-request": "true"}


def begin(client: TestClient, role: str, task: str = "", opponent: str = "imitation") -> str:
    answer = client.post("/play", data={"role": role, "opponent": opponent, "task": task}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def settled(client: TestClient, address: str) -> str:
    """Return the page of a game once the opponent has answered."""
    while "hx-retarget" not in client.get(f"{address}/reply?seen=1000000", headers=SWAP).headers:
        pass  # an answer comes when there is news, or after ten seconds
    return client.get(address).text


def test_a_game_as_attacker_is_won_and_explained(client: TestClient) -> None:
    address = begin(client, "attacker", "River")
    assert "You speak first." in client.get(address).text
    assert (
        client.post(f"{address}/say", data={"text": "What runs to the sea?"}, follow_redirects=False).status_code == 303
    )
    page = settled(client, address)
    for piece in ("You win", "What a lovely <mark>river</mark>.", "The defender said", "number 2"):
        assert piece in page
    assert client.post(f"{address}/say", data={"text": "More."}).status_code == 422


def test_what_is_hidden_is_in_no_answer_before_the_end(run: Path) -> None:
    with visitor(site(run, at_once(lambda request: "Tell me about water."))) as client:
        address = begin(client, "defender", "ignored")
        answers = [
            settled(client, address),
            client.get("/play").text,
            client.get(f"{address}/reply", headers=SWAP).text,
        ]
        answers.append(client.post(f"{address}/say", data={"text": "Is it wet?"}, headers=SWAP).text)
        answers.append(settled(client, address))
        assert not any("river" in answer.lower() for answer in answers)
        page = client.post(f"{address}/say", data={"text": "I know the word! It is `river`!"}).text
        assert "You win" in page
        assert 'Task: <bdi class="task">river' in page


def test_an_utterance_from_an_older_tab_is_kept_for_reading_on(client: TestClient) -> None:
    address = begin(client, "attacker", "stone")
    [after] = re.findall(r'name="after" value="(\d+)"', client.get(address).text)
    client.post(f"{address}/say", data={"text": "What is hard?", "after": after})
    assert 'name="after" value="2"' in settled(client, address)
    answer = client.post(f"{address}/say", data={"text": "What is heavy?", "after": after})
    assert answer.status_code == 422
    assert "another tab" in answer.text and "What is heavy?</textarea>" in answer.text


def test_utterances_and_tasks_have_limits(client: TestClient) -> None:
    address = begin(client, "attacker", "river")
    for text, message in (("  ", "is empty"), ("x" * (LONGEST_UTTERANCE + 1), "2,001 characters")):
        answer = client.post(f"{address}/say", data={"text": text})
        assert (answer.status_code, message in answer.text) == (422, True)
    for form, message in (
        ({"role": "attacker", "opponent": "imitation", "task": "x" * 41}, "at most 40"),
        ({"role": "attacker", "opponent": "../../etc", "task": "river"}, "choose an opponent"),
        ({"role": "attacker", "opponent": "bot:perfect", "task": "river"}, "choose an opponent"),
        ({"role": "judge", "opponent": "imitation"}, "choose an opponent"),
        ({}, "choose an opponent"),
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
        for answer in (
            second.get(address),
            second.post(f"{address}/say", data={"text": "Hi."}),
            second.get(f"{address}/reply"),
        ):
            assert answer.status_code == 404
        assert address not in second.get("/play").text
        begin(second, "attacker", "bread")
        assert "bread" not in first.get("/play").text


def test_sessions_and_their_games_are_bounded(client: TestClient) -> None:
    sessions, games = Sessions(most=2), [SimpleNamespace(id=str(number)) for number in range(4)]
    first, second = (sessions.add("", game) for game in games[:2])
    assert sessions.find(first) is not None and sessions.find("guessed") is None
    third = sessions.add("guessed", games[2])
    assert third != "guessed" and sessions.find(second) is None
    assert sessions.add(first, games[3]) == first and list(sessions.find(first)) == ["0", "3"]
    expired = Sessions(lifetime_s=-1)
    assert expired.find(expired.add("", games[0])) is None
    addresses = [begin(client, "attacker", "river") for _ in range(MOST_GAMES + 1)]
    assert [client.get(address).status_code for address in (addresses[0], addresses[1])] == [404, 200]


def test_a_dead_engine_is_told_and_the_game_can_go_on(run: Path) -> None:
    answers = iter([fail, lambda request: "A fine river."])
    with visitor(site(run, lambda name: ScriptedEngine(next(answers)))) as client:
        address = begin(client, "attacker", "river")
        client.post(f"{address}/say", data={"text": "What runs?"})
        page = settled(client, address)
        assert "No reply from imitation" in page
        assert "localhost does not answer" in page
        client.post(f"{address}/retry")
        assert "You win" in settled(client, address)


def test_a_game_that_outgrows_the_context_goes_on(run: Path) -> None:
    engine = ScriptedEngine(lambda request: "Hm.", context=words_of_first_prompts() + 50)
    with visitor(site(run, lambda name: engine)) as client:
        address = begin(client, "attacker", "river")
        for text in ("What runs?", "And then? " * 100, "What else?"):  # the second fills the context
            assert client.post(f"{address}/say", data={"text": text}, follow_redirects=False).status_code == 303
            page = settled(client, address)
            assert text.strip() in page and "No reply from" not in page
        assert page.count("Hm.") == 1


def test_a_context_too_short_for_a_games_first_prompt_is_told(run: Path) -> None:
    with visitor(site(run, lambda name: ScriptedEngine(lambda request: "Hm.", context=5))) as client:
        page = settled(client, begin(client, "defender"))
        assert "exceeds the context length of 5" in page


def test_a_model_that_cannot_be_loaded_is_told(run: Path) -> None:
    def broken(name: str) -> ScriptedEngine:
        raise ModelError(f"{name}: no such model")

    with visitor(site(run, broken)) as client:
        address = begin(client, "defender")
        assert "imitation: no such model" in settled(client, address)


@pytest.mark.slow
def test_a_slow_engine_is_told(run: Path) -> None:
    engine = TypingEngine(lambda request: "Late.")
    with visitor(site(run, lambda name: engine, limit_s=0.2)) as client:
        address = begin(client, "defender")
        assert "has not answered within 0 s" in settled(client, address)
    engine.close()


@pytest.mark.slow
def test_a_reply_is_watched_while_it_grows(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spag.web.live_games.HOLD_S", 600.0)
    engine = TypingEngine(lambda request: "one two three")
    with visitor(site(run, lambda name: engine)) as client:
        address = begin(client, "defender")
        seen = 0
        for text in ("one", "one two", "one two three"):
            engine.say(1)
            answer = client.get(f"{address}/reply?seen={seen}", headers=SWAP)
            assert re.findall(r'<bdi class="text">([a-z ]*)<', answer.text) == [text]
            seen = len(text)
        engine.say(1)
        answer = client.get(f"{address}/reply?seen={seen}", headers=SWAP)
        assert answer.headers["hx-retarget"] == "#match"
        assert "one two three" in answer.text


def test_a_model_of_kuhn_poker_gives_nothing_away(tmp_path: Path) -> None:
    engine = TypingEngine(lambda request: "I hold the king, so [bet] it is")
    path = bot_games("kuhn_poker", tmp_path / "games.jsonl")
    app = site(path, lambda name: engine)
    with visitor(app) as client:
        lobby = client.get("/play").text
        assert "bot:random" in lobby and "own task" not in lobby  # the deal is hidden from both
        address = begin(client, "player_1", task="K Q", opponent="bot:random")
        [match] = (match for _, session in app.state.site.sessions._sessions.values() for match in session.values())
        match.state = KuhnPoker().start(Task("x", {"player_0": "K", "player_1": "J"}), 0)
        answers = [client.get(address).text]
        for words in (3, 3, 100):  # a part without the move, a part with it, the whole
            engine.say(words)
            answers.append(client.get(f"{address}/reply?seen=-1", headers=SWAP).text)
        answers.append(settled(client, address))
        assert "Your card is J." in answers[0] and "[bet]" in answers[-1]
        assert not any(re.search(r"\bking\b|I hold|K against", answer) for answer in answers)
        over = client.post(f"{address}/say", data={"text": "Never mind. [fold]"}).text
        assert "I hold the king" in over and "K against J" in over and "You lose" in over


def test_a_bot_is_played_on_a_board(tmp_path: Path) -> None:
    with visitor(site(bot_games("tic_tac_toe", tmp_path / "games.jsonl"))) as client:
        address = begin(client, "player_0", task="1 5", opponent="bot:perfect")
        page = client.get(address).text
        assert "You speak first." in page and re.search(r'<span class="board">X.*\n.*O.*\n', page)
        client.post(f"{address}/say", data={"text": "I take [9]."})
        page = settled(client, address)
        assert "Player 1 <bdi>bot:perfect</bdi>" in page.replace("</b>", "")
        client.post(f"{address}/say", data={"text": "[1]"})
        page = client.get(address).text
        assert "You broke a rule" in page and "player_0 said [1]; legal moves:" in page.lower()


def test_an_empty_reply_is_drawn_again_twice_and_then_stands(run: Path) -> None:
    asked: list[Request] = []

    def silent(request: Request) -> str:
        asked.append(request)
        return ""

    with visitor(site(run, at_once(silent))) as client:
        address = begin(client, "defender")
        assert "(silence)" in settled(client, address)
    assert len({request.seed for request in asked}) == 3


def test_a_reply_that_stays_hidden_is_not_shown_where_it_repeats_the_visitor() -> None:
    """As in docs/games.md, where both players choose before either sees the other's choice."""

    class Simultaneous(AdversarialTaboo):
        def observe(self, state: State, role: str) -> Observation:
            seen = super().observe(state, role)
            hides = role == "defender" and len(state.history) % 2
            return replace(seen, history=seen.history[:-1]) if hides else seen

    game, models, shown = Simultaneous(), ModelPool(at_once(lambda request: "Red.")), []
    for past in ((), ("Hello.", "Red.")):
        state = game.start(task_of("river"), 0)
        for role, text in zip(ROLES, past, strict=False):
            state = game.apply(state, Utterance(role, text))
        match = WebMatch(game, state, "defender", "imitation", models, SamplingConfig())
        match.reply = SimpleNamespace(text_so_far="Red.")
        shown.append(match.reply_so_far)
    models.close()
    assert shown == ["", ""]


def test_a_cut_thought_is_marked() -> None:
    state, models = TABOO.start(task_of("river"), 0), ModelPool(at_once(lambda request: "<think>Water, but"))
    match = WebMatch(TABOO, state, "defender", "imitation", models, sampling_with(thought_tokens=5))
    while match.reply:
        match.advance()
    [said] = match.state.history
    assert (said.content, said.thought, said.finish_reason) == ("", "Water, but", "thought")
    models.close()


def test_an_opponent_samples_as_in_the_last_phase_of_the_game(tmp_path: Path) -> None:
    spag = {"algorithm": "spag", "sampling": {"temperature": 0.9}}
    poker = {"algorithm": "reinforce", "game": {"name": "kuhn_poker"}, "sampling": {"temperature": 0.1}}
    (tmp_path / "config.yaml").write_text(dump_config(RunConfig.model_validate({"phases": [spag, poker]})))
    assert _sampling(RunFolder(tmp_path)).temperature == 0.9


def test_two_models_are_kept_and_the_one_unused_for_longest_goes() -> None:
    opened: list[str] = []
    closed: SimpleQueue[str] = SimpleQueue()

    class Watched(ScriptedEngine):
        def __init__(self, name: str) -> None:
            super().__init__(lambda request: name)
            self.name = name
            opened.append(name)

        def close(self) -> None:
            closed.put(self.name)

    models = ModelPool(Watched, most_open=2)
    first = models.get("a")
    models.get("b")
    assert models.get("a") is first
    models.get("c")
    assert closed.get(timeout=120) == "b"
    models.close()
    assert sorted((closed.get(timeout=120), closed.get(timeout=120))) == ["a", "c"]
    assert sorted(opened) == ["a", "b", "c"]


def test_a_model_that_was_trained_again_is_opened_again(tmp_path: Path) -> None:
    opened: list[str] = []

    def open_next(name: str) -> ScriptedEngine:
        opened.append(name)
        return ScriptedEngine(lambda request: f"Reply {len(opened)}.")

    folder = make_run(tmp_path / "run")
    checkpoint = folder / "1-imitation" / "checkpoint"
    with visitor(site(folder, open_next)) as client:
        address = begin(client, "attacker", "river")
        for text in ("Hello.", "Good day."):
            client.post(f"{address}/say", data={"text": text})
            assert "Reply 1." in settled(client, address)
        checkpoint.rename(folder / "old")
        checkpoint.mkdir()
        (checkpoint / "config.json").write_text("{}")
        client.post(f"{address}/say", data={"text": "Once more."})
        page = settled(client, address)
    assert (page.count("Reply 1."), page.count("Reply 2.")) == (2, 1)
    assert opened == ["imitation"] * 2


@pytest.mark.slow
def test_a_local_model_can_be_watched_while_it_speaks(model_folder: Path) -> None:
    looked, first = threading.Event(), iter(range(40))

    def opened() -> Engine:
        engine: Any = open_model(
            ModelConfig(name=str(model_folder), dtype="float32", device="cpu"), EngineConfig(concurrency=2)
        )
        decode = engine._decode

        def decode_when_seen() -> list[Completion]:
            if next(first, None) is not None:
                looked.wait(300)
                looked.clear()
            return decode()

        engine._decode = decode_when_seen
        return engine

    thread, pause = ModelThread(opened), threading.Event()
    reply = thread.ask(Request("a", "Hello", SamplingConfig(max_new_tokens=300, min_new_tokens=300), 1))
    seen = {""}
    while reply.completion is None and reply.error is None:
        seen.add(reply.text_so_far)
        looked.set()
        pause.wait(0.01)  # leaves the model its time
    assert reply.error is None
    assert reply.completion is not None
    assert len(seen) > 3
    assert all(reply.completion.text.strip().startswith(text.rstrip("\ufffd").rstrip()) for text in seen)
    thread.close()


def test_sessions_are_looked_up_in_the_event_loop(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their dictionary has no lock, so no worker thread may change it."""
    find, threads = Sessions.find, set[int]()

    def noting(sessions: Sessions, name: str) -> Session | None:
        threads.add(threading.get_ident())
        return find(sessions, name)

    monkeypatch.setattr(Sessions, "find", noting)
    with visitor(site(run, at_once(lambda request: "Well."))) as client:
        assert client.portal is not None
        loop = client.portal.call(threading.get_ident)
        client.get(begin(client, "attacker"))
        assert threads == {loop}
