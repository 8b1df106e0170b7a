"""A player's thoughts: split from its speech, kept from everybody, stored, shown folded."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from samplings import sampling_with
from spag import games
from spag.adapters.opponent import Opponent
from spag.algorithms.winners import RewardSettings, assign_rewards
from spag.cli.tables import print_game
from spag.core.episodes import Episode
from spag.core.options import SamplingConfig
from spag.core.thinking import SplitReply, speech_spans, split_thought
from spag.core.types import Observation, Split, Utterance
from spag.engines.base import Completion, FinishReason, Player, Request, text_before_stop, token_limit
from spag.engines.scripted import ScriptedEngine
from spag.engines.thread import ModelThread, Reply
from spag.evaluation.health import health
from spag.games.base import Game
from spag.games.registry import SHIPPED
from spag.report.html import environment
from spag.report.run_tables import health_tables
from spag.rollout.runner import PlayStats, game_specs, play, without_thought
from spag.storage.episodes import MAX_UTTERANCE, read_episodes
from spag.storage.store import write_rows
from taboo_games import TABOO, episode_of

THINKING = sampling_with(thought_tokens=100)


@pytest.mark.parametrize(
    ("text", "thought", "speech", "is_cut"),
    [
        ("Hello.", "", "Hello.", False),  # no mark
        ("<think>\nIt is a river.\n</think>\n\nHello.", "It is a river.", "\n\nHello.", False),
        ("<think>It is", "It is", "", True),  # cut
        ("<think>", "", "", True),
        ("It is a river.</think>Hello.", "It is a river.", "Hello.", False),  # opened by the template
        ("<think><think>a</think>b", "a", "b", False),  # opened by the template and by the model
        ("<think>a</think>b<think>c</think>d", "a\nc", "bd", False),  # several
        ("<think>a</think>b</think>c", "a\nb", "c", False),  # nobody opened the second
        ("<think>a</think>b<think>c", "a\nc", "", True),  # the last one is cut
        ("<think>a</think>", "a", "", False),  # nothing to say
        ("<think>\n\n</think>Hello.", "", "Hello.", False),
        ("", "", "", False),
    ],
)
def test_a_reply_is_thought_and_speech(text: str, thought: str, speech: str, is_cut: bool) -> None:
    assert split_thought(text) == SplitReply(thought, speech, is_cut)


def test_only_speech_holds_stop_strings() -> None:
    assert text_before_stop("<think>a\nb</think>c\nd", ("\n",), thinking=True) == "<think>a\nb</think>c"
    assert text_before_stop("<think>a\nb", ("\n",), thinking=True) is None
    assert text_before_stop("a\nb", ("\n",), thinking=True) == "a"
    labelled = "<think>a</think>\n\nUser: b"  # no line before the label: the speech begins there
    assert text_before_stop(labelled, ("\nUser:",), thinking=True) is None
    assert text_before_stop(f"{labelled}\nUser: c", ("\nUser:",), thinking=True) == labelled
    texts = "a", "<think>a", "<think>a</think>b", "a<think>b</think>c<think>d", "a</think>b"
    said = [[text[start:end] for start, end in speech_spans(text)] for text in texts]
    assert said == [["a"], [""], ["", "b"], ["a", "c"], ["b"]]


def test_what_follows_the_first_stop_is_not_looked_at() -> None:
    """vLLM gets no stop strings while players think, and goes on behind them."""
    for more in ("\nUser: well?\n<think>So", "\nUser: well?\n<think>So</think> then\nUser:"):
        assert text_before_stop(f"<think>a\nUser:</think>I bet{more}", ("\nUser:",), thinking=True) == (
            "<think>a\nUser:</think>I bet"
        )
        answer = f"<think>a</think><answer>Bet</answer>{more}"
        assert text_before_stop(answer, (), thinking=True, tagged=True) == "<think>a</think><answer>Bet"


@pytest.mark.parametrize(
    ("text", "closed_at", "limit"),
    [("Hello", None, 8), ("", None, 100), ("<thi", None, 100), ("<think>so", None, 100), ("</think>yes", 40, 48)],
)
def test_thought_and_speech_have_limits_of_their_own(text: str, closed_at: int | None, limit: int) -> None:
    assert token_limit(sampling_with(max_new_tokens=8, thought_tokens=100), text, closed_at) == limit
    assert token_limit(SamplingConfig(max_new_tokens=8), text, closed_at) == 8  # thinking is off


def test_settings_say_how_long_a_thought_may_be() -> None:
    assert (SamplingConfig().thinks, SamplingConfig().thought_tokens) == (False, 0)
    config = SamplingConfig.model_validate({"max_new_tokens": 8, "thinking": {"enabled": True, "max_tokens": 100}})
    assert (config.thinks, config.thought_tokens, config.most_tokens) == (True, 100, 108)


def secretly(game: Game, requests: list[Request]) -> ScriptedEngine:
    """Return an engine that thinks a secret before each of a bot's utterances."""
    bot = next(iter(game.bots.values()))

    def reply(request: Request) -> str:
        requests.append(request)
        assert request.observation is not None
        stops = "".join(game.stop_strings())
        said = bot(request.observation, random.Random(request.seed))
        return f"<think>zebra of {request.role}{stops}</think>\n\n{said}"

    return ScriptedEngine(reply)


@pytest.mark.parametrize("name", SHIPPED)
def test_nobody_hears_a_thought(name: str) -> None:
    game = games.get(name)
    requests: list[Request] = []
    engine = secretly(game, requests)
    players = {role: Player(engine, role, THINKING) for role in game.roles}
    played = list(play(game_specs(game.tasks(Split.TRAIN, 2, 0), 2, 0), players, game=game))
    assert len(played) == 4 and any(len(episode.history) > 2 for episode in played)
    for request in requests:
        assert "zebra" not in request.prompt and "zebra" not in repr(request.observation)
    for said in (said for episode in played for said in episode.history):
        assert said.thought is not None and said.thought.startswith(f"zebra of {name}/{said.role}")
        assert "zebra" not in said.content and "think>" not in said.content
    for episode in played:  # and the judge rules on speech alone
        bare = tuple(Utterance(said.role, said.content) for said in episode.history)
        assert game.replay(episode.task, bare, episode.seed or 0).outcome == episode.outcome


def test_an_observation_has_neither_thoughts_nor_tokens() -> None:
    said = Utterance("attacker", "Hi.", "eos", (1, 2), (-1.0, -2.0), thought="river")
    assert Observation("defender", (said,)).history == (Utterance("attacker", "Hi."),)


def play_taboo(text: str, stats: PlayStats) -> Episode:
    players = {role: Player(ScriptedEngine(lambda _: text), role, THINKING) for role in TABOO.roles}
    [episode] = play(game_specs(TABOO.tasks(Split.TRAIN, 1, 0), 1, 0), players, game=TABOO, stats=stats)
    return episode


def test_a_cut_thought_leaves_an_empty_utterance_and_is_counted() -> None:
    stats = PlayStats()
    episode = play_taboo("<think>zebra", stats)
    assert {(said.content, said.thought, said.finish_reason) for said in episode.history} == {("", "zebra", "thought")}
    count = len(episode.history)
    assert (stats.cut_thoughts, stats.empty, stats.utterances, stats.retries) == (count, count, count, 0)
    figures = health([episode], TABOO)
    assert figures["cut_thoughts"] == 1.0
    assert ("thoughts cut, %", "100.0") in health_tables({"one": figures})[0].rows


def test_a_thought_longer_than_files_allow_is_cut_after_its_end_was_found() -> None:
    said = Completion("game", f"<think>{'x' * (MAX_UTTERANCE + 1)}</think> [check]", FinishReason.EOS, token_ids=(5, 6))
    kept = without_thought(said, sampling_with(thought_tokens=8))
    assert kept == replace(said, text="[check]", thought="x" * MAX_UTTERANCE)


def test_players_that_do_not_think_have_no_thoughts() -> None:
    stats = PlayStats()
    player = Player(ScriptedEngine(lambda _: "<think>a</think>b"), "m", SamplingConfig())
    [episode] = play(
        game_specs(TABOO.tasks(Split.TRAIN, 1, 0), 1, 0), dict.fromkeys(TABOO.roles, player), game=TABOO, stats=stats
    )
    assert {(said.content, said.thought) for said in episode.history} == {("<think>a</think>b", None)}
    assert "cut_thoughts" not in health([episode], TABOO)
    *others, last = episode.history
    cut = replace(episode, history=(*others, replace(last, content="", finish_reason="thought")))
    assert health([cut], TABOO)["cut_thoughts"] == 1 / len(episode.history)  # an endpoint's, which nobody asked for


def test_an_opponent_of_another_trainer_speaks_without_its_thoughts() -> None:
    state = TABOO.start(TABOO.tasks(Split.TRAIN, 1, 0)[0], 0)
    with Opponent(TABOO, lambda: ScriptedEngine(lambda _: "<think>a</think>\nHi."), THINKING) as opponent:
        [said] = opponent.replies([state])
    assert (said.content, said.thought) == ("Hi.", "a")


@pytest.mark.parametrize(
    ("text", "seen"), [("<think>zeb", ""), ("<think>zebra</think>\nHi, th", "Hi, th"), ("Hi", "Hi")]
)
def test_a_visitor_sees_no_thought_grow(text: str, seen: str) -> None:
    engine = ScriptedEngine(lambda _: text, latency_s=60.0)
    engine.partial = lambda _: text  # type: ignore[method-assign]
    model = ModelThread(lambda: engine)
    model.opened.wait()
    reply = Reply(Request("a", "Say.", THINKING, 0), model)
    assert reply.text_so_far == seen
    reply.finish(Completion("a", text, FinishReason.EOS))
    assert reply.text_so_far == seen


def test_thoughts_are_stored(tmp_path: Path) -> None:
    stats = PlayStats()
    played = [play_taboo("<think>zebra</think>Hello.", stats), play_taboo("Hello.", stats)]
    write_rows(tmp_path / "games.jsonl", [(played[0])])
    [read] = read_episodes(tmp_path / "games.jsonl")
    assert read == played[0]
    assert {said.thought for said in read.history} == {"zebra"}
    assert {said.thought for said in played[1].history} == {""}


def test_winners_samples_hold_thought_and_speech_as_sampled() -> None:
    won = episode_of("river", "Hi.", "I know the word! It is `river`!")
    said = Utterance("defender", won.history[1].content, "eos", (7, 8, 9), thought="zebra")
    thoughtful = Episode(task=won.task, history=(won.history[0], said), id="g")
    [sample] = assign_rewards([thoughtful])
    assert (sample.completion, sample.completion_ids, sample.thinking) == (said.content, (7, 8, 9), True)
    [text] = assign_rewards([thoughtful], settings=RewardSettings(completions="text"))
    assert (text.completion, text.completion_ids, text.thinking) == (said.content, None, False)


@pytest.mark.parametrize("package", ["spag.report", "spag.web"])
def test_pages_fold_and_escape_a_thought(package: str) -> None:
    shown = vars(environment(package).get_template("talk.html").module)["utterance"]
    page = str(shown(Utterance("attacker", "Hi.", thought="<script>zebra</script>"), 0, TABOO))
    assert '<details class="thought"><summary>Thought</summary><bdi>&lt;script&gt;zebra' in page
    assert "<details open" not in page and "<script>" not in page
    cut = str(shown(Utterance("attacker", "", str(FinishReason.THOUGHT), thought="zebra"), 0, TABOO))
    assert "Thought, cut" in cut and "(silence)" in cut
    assert "details" not in str(shown(Utterance("attacker", "Hi.", thought=""), 0, TABOO))


def test_the_terminal_shows_the_beginning_of_a_thought(capsys: pytest.CaptureFixture[str]) -> None:
    said = Utterance("attacker", "The river.", thought="zebra " * 100)
    print_game(TABOO, Episode(task=episode_of("river").task, history=(said,), outcome="tie", reason="nobody won"))
    out = capsys.readouterr().out
    assert "thinks" in out and out.count("zebra") == 50 and "..." in out
