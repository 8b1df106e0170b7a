"""Many games in flight: the same games whatever the engine's order, batch size or interruptions."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import forked
from game_files import games_in
from scripted_run import config_for, run_until
from spag.algorithms.online_settings import OnlineSampling
from spag.config.schema import EngineConfig, ModelConfig, RunConfig
from spag.core.episodes import Episode
from spag.core.errors import DataError, EngineError, RunError
from spag.core.options import SamplingConfig
from spag.core.progress import SilentReporter
from spag.core.seeds import derive_seed
from spag.engines.base import Completion, Engine, Player, Request, RequestError
from spag.engines.players import PlayerConfig
from spag.engines.scripted import ScriptedEngine
from spag.games.taboo.types import TabooOutcome
from spag.games.taboo.words import shipped_words
from spag.rollout.matches import PlaySetup, play_matches
from spag.rollout.matchmaking import Match, make_matches, pairings
from spag.rollout.runner import GameSpec, PlayStats, play, play_together
from spag.rollout.runner import game_specs as specs_of
from spag.rollout.writer import collect_episodes
from spag.storage.episodes import JsonlStore, read_episodes
from taboo_games import ROLES, TABOO, task_of, words_of_first_prompts

WORDS = ["river", "bread", "piano", "ice cream", "window"]
LINES = [
    "Tell me about your day.",
    "What do you see outside?",
    "I know the word! It is `river`!",
    "I play the piano.",
    "No idea.",
    "Bread, maybe.",
]


def game_specs(words: Sequence[str], repeats: int, seed: int) -> list[GameSpec]:
    return specs_of(map(task_of, words), repeats, seed)


def chatter(request: Request) -> str:
    return random.Random(request.seed).choice(LINES)


def players(concurrency: int = 4, order: int = 0, sampling: SamplingConfig = SamplingConfig()) -> Mapping[str, Player]:  # noqa: B008
    engine = ScriptedEngine(chatter, concurrency=concurrency, shuffle_seed=order)
    return {role: Player(engine, "chatter", sampling) for role in ROLES}


def by_id(episodes: object) -> dict[str, Episode]:
    return {episode.id: episode for episode in episodes}  # type: ignore[attr-defined]


def test_games_do_not_depend_on_order_or_batch() -> None:
    specs = game_specs(WORDS, repeats=8, seed=1)
    one = by_id(play(specs, players(concurrency=1)))
    many = by_id(play(list(reversed(specs)), players(concurrency=64, order=9)))
    assert one == many
    assert len(one) == 40
    assert len({episode.outcome for episode in one.values()}) >= 3


def test_a_game_ends_at_its_judged_end_and_says_why() -> None:
    for episode in play(game_specs(WORDS, 8, seed=2), players()):
        assert episode.outcome is not None
        assert episode.reason
        assert len(episode.history) <= 10
        assert [said.role for said in episode.history] == [ROLES[i % 2] for i in range(len(episode.history))]
        if episode.outcome == TabooOutcome.TIE:
            assert len(episode.history) == 10


def test_seeds_come_from_run_word_and_repeat() -> None:
    specs = game_specs(["a", "b"], 2, seed=7)
    assert [spec.id for spec in specs] == ["a-0", "a-1", "b-0", "b-1"]
    assert specs[3].seed == derive_seed(7, "b", 1)
    assert len({spec.seed for spec in specs} | {spec.seed for spec in game_specs(["a", "b"], 2, seed=8)}) == 8


def test_two_engines_each_speak_for_their_role() -> None:
    attacker, defender = (
        ScriptedEngine(lambda r: "Guess it."),
        ScriptedEngine(lambda r: "I know the word! It is `river`!"),
    )
    sides = {
        "attacker": Player(attacker, "a", SamplingConfig()),
        "defender": Player(defender, "d", SamplingConfig(temperature=0)),
    }
    (episode,) = play([GameSpec("g", task_of("river"), 0)], sides)
    assert [said.content for said in episode.history] == ["Guess it.", "I know the word! It is `river`!"]
    assert episode.outcome == TabooOutcome.DEFENDER_WINS
    assert episode.players["defender"].model == "d"
    assert episode.players["defender"].sampling["temperature"] == 0


def test_games_that_ended_before_an_engine_failed_count() -> None:
    def refuse(request: Request) -> str:
        raise EngineError("the endpoint is gone")

    says = {"g": "Guess it.", "h": "river"}  # saying the word ends the second game
    attacker, defender = ScriptedEngine(lambda request: says[request.id]), ScriptedEngine(refuse)
    sides = {role: Player(one, "m", SamplingConfig()) for role, one in zip(ROLES, (attacker, defender), strict=True)}
    games = [(GameSpec(name, task_of("river"), 0), sides) for name in says]
    batches = play_together(TABOO, games, PlayStats(), in_flight=2)
    assert [episode.id for episode in next(batches)] == ["h"]
    with pytest.raises(EngineError, match="gone"):
        next(batches)


def test_empty_utterances_are_resampled_then_kept_and_counted() -> None:
    asked: list[int] = []

    def mute(request: Request) -> str:
        asked.append(request.seed)
        return ""

    engine = ScriptedEngine(mute)
    stats = PlayStats()
    (episode,) = play(
        [GameSpec("g", task_of("river", 2), 0)],
        dict.fromkeys(ROLES, Player(engine, "m", SamplingConfig())),
        stats=stats,
    )
    assert (episode.outcome, [said.content for said in episode.history]) == (TabooOutcome.TIE, [""] * 4)
    assert (stats.utterances, stats.empty, stats.retries) == (4, 4, 8)
    assert len(set(asked)) == 12  # each attempt has a seed of its own


@pytest.mark.parametrize(
    ("text", "sampling", "said", "expected"),
    [
        ("", SamplingConfig(published=True), "", (4, 4, 0)),
        (" ", SamplingConfig(published=True), " ", (4, 4, 0)),
        (" a", SamplingConfig(published=True), " a", (4, 0, 0)),
        (" ", SamplingConfig(), "", (4, 4, 8)),
        (" a", SamplingConfig(), "a", (4, 0, 0)),
        (" ", OnlineSampling(), "", (4, 4, 0)),
    ],
)
def test_empty_utterances_are_drawn_as_often_as_asked(
    text: str, sampling: SamplingConfig, said: str, expected: tuple[int, int, int]
) -> None:
    """Blank ones are empty, too, where white space stays."""
    player = Player(ScriptedEngine(lambda request: text), "m", sampling)
    stats = PlayStats()
    (episode,) = play([GameSpec("g", task_of("river", 2), 0)], dict.fromkeys(ROLES, player), stats=stats)
    assert [one.content for one in episode.history] == [said] * 4
    assert (stats.utterances, stats.empty, stats.retries) == expected


def test_an_utterance_is_cut_to_what_files_may_hold(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    collect(path, game_specs(["river"], 1, seed=1), lambda request: "x" * 100_001)
    [episode] = read_episodes(path)
    assert {(said.content, said.finish_reason, said.token_ids) for said in episode.history} == {
        ("x" * 100_000, "length", None)
    }


def test_a_prompt_that_outgrows_the_context_gets_an_empty_utterance(tmp_path: Path) -> None:
    """Games go on to their end, and others are not affected: the same command would stop at the same game again."""
    engine = ScriptedEngine(lambda request: "a word of mine", context=words_of_first_prompts() + 15)
    narrow = dict.fromkeys(ROLES, Player(engine, "m", SamplingConfig()))
    specs = game_specs(["river", "bread"], 1, seed=1)

    def play_them(left: Sequence[Match], stats: PlayStats) -> Iterator[list[Episode]]:
        return play_together(TABOO, ((spec, narrow) for match in left for spec in match.specs), stats, in_flight=2)

    matches = [Match("play", specs, {})]
    summary = collect_episodes(tmp_path / "games.jsonl", matches, play_them, TABOO)
    episodes = list(read_episodes(tmp_path / "games.jsonl"))
    assert [episode.outcome for episode in episodes] == [TabooOutcome.TIE] * 2
    for episode in episodes:
        cut = [said.finish_reason == "context" for said in episode.history]
        assert len(cut) == 10 and not any(cut[:2]) and all(cut[-2:])
        assert all(own == sorted(own) for own in (cut[::2], cut[1::2]))  # by role
        assert all(said.content == "" for said, is_cut in zip(episode.history, cut, strict=True) if is_cut)
    said = [one for episode in episodes for one in episode.history]
    assert summary.overflows == summary.empty == sum(one.finish_reason == "context" for one in said)
    assert (summary.stats.utterances, summary.stats.retries) == (len(said), 0)
    again = collect_episodes(tmp_path / "games.jsonl", matches, play_them, TABOO)
    assert (again.overflows, again.played_now) == (summary.overflows, 0)


def test_a_first_prompt_without_room_is_an_error() -> None:
    player = Player(ScriptedEngine(chatter, context=5), "m", SamplingConfig())
    with pytest.raises(RequestError, match=r"^g: a prompt of \d+ words exceeds the context length of 5$"):
        list(play([GameSpec("g", task_of("river"), 0)], dict.fromkeys(ROLES, player)))


def test_a_player_that_has_no_room_to_begin_is_an_error() -> None:
    """It would lose every game, whoever opens it."""
    engines = {"attacker": ScriptedEngine(chatter), "defender": ScriptedEngine(chatter, context=5)}
    sides = {role: Player(engine, "m", SamplingConfig()) for role, engine in engines.items()}
    with pytest.raises(RequestError, match="exceeds the context length of 5"):
        list(play([GameSpec("g", task_of("bird"), 0)], sides))


def test_a_game_in_flight_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="two games with the id 'g'"):
        list(play([GameSpec("g", task_of("river"), 0), GameSpec("g", task_of("bread"), 1)], players()))


def collect(path: Path, specs: list[GameSpec], reply: object = chatter, **options: object) -> object:
    def play_them(left: Sequence[Match], stats: PlayStats) -> Iterator[list[Episode]]:
        engine = ScriptedEngine(reply, concurrency=4)  # type: ignore[arg-type]
        players = {role: Player(engine, "chatter", SamplingConfig()) for role in ROLES}
        games = ((spec, players) for match in left for spec in match.specs)
        return play_together(TABOO, games, stats, in_flight=4)

    return collect_episodes(path, [Match("play", specs, {})], play_them, TABOO, **options)  # type: ignore[arg-type]


def test_resuming_plays_only_what_is_missing(tmp_path: Path) -> None:
    path, specs = tmp_path / "e.jsonl", game_specs(WORDS, 4, seed=1)
    collect(path, specs)
    whole = by_id(read_episodes(path))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:7]) + lines[7][:30])  # killed while writing the eighth game
    asked: set[str] = set()

    def watch(request: Request) -> str:
        asked.add(request.id)
        return chatter(request)

    summary = collect(path, specs, watch)
    assert by_id(read_episodes(path)) == whole
    assert len(list(read_episodes(path))) == 20
    assert asked == set(whole) - {episode.id for episode in list(read_episodes(path))[:7]}
    assert (summary.games, summary.played_now) == (20, 13)  # type: ignore[attr-defined]


def test_a_resumed_file_counts_the_empty_utterances_of_all_its_games(tmp_path: Path) -> None:
    path, specs = tmp_path / "e.jsonl", game_specs(WORDS, 1, seed=1)
    collect(path, specs[:2], lambda request: " ")
    silent = sum(len(episode.history) for episode in read_episodes(path))
    summary = collect(path, specs)
    assert (summary.empty, summary.stats.empty) == (silent, 0)  # type: ignore[attr-defined]


def test_a_complete_file_loads_no_model(tmp_path: Path) -> None:
    path, specs = tmp_path / "e.jsonl", game_specs(WORDS, 1, seed=1)
    collect(path, specs)

    def fail(*_: object) -> Iterator[list[Episode]]:
        raise AssertionError("a model was loaded")

    summary = collect_episodes(path, [Match("play", specs, {})], fail, TABOO)
    assert (summary.games, summary.played_now) == (5, 0)


def test_corruption_in_the_middle_is_named_not_skipped(tmp_path: Path) -> None:
    path, specs = tmp_path / "e.jsonl", game_specs(WORDS, 1, seed=1)
    collect(path, specs)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"#!garbage\n" + b"".join(lines[2:]))
    with pytest.raises(DataError, match=r"e\.jsonl:2: not JSON"):
        collect(path, specs)


def test_a_word_listed_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="a task is listed twice"):
        collect(tmp_path / "e.jsonl", game_specs(["river", "river"], 1, seed=1))


def test_a_cut_prompt_and_unknown_tokens_are_recorded(tmp_path: Path) -> None:
    """A prompt's tokens are kept where the engine cut it, since its text is not what the model saw."""

    class Cutting(ScriptedEngine):
        def poll(self) -> list[Completion]:
            return [
                replace(
                    done,
                    prompt_ids=(7, 8),
                    prompt_truncated="attacker" in done.text,
                    unknown_token="defender" in done.text,
                )
                for done in super().poll()
            ]

    def name_role(request: Request) -> str:
        return request.role.rpartition("/")[2]

    stats, engine = PlayStats(), Cutting(name_role)
    both = {role: Player(engine, "m", SamplingConfig()) for role in ROLES}
    [[episode]] = play_together(TABOO, ((spec, both) for spec in game_specs(WORDS[:1], 1, seed=1)), stats, in_flight=1)
    with JsonlStore(tmp_path / "games.jsonl") as store:
        store.append(episode)
    [read] = read_episodes(tmp_path / "games.jsonl")
    assert [said.prompt_ids for said in read.history] == [
        (7, 8) if said.role == "attacker" else None for said in episode.history
    ]
    assert {(said.role, said.unknown_token) for said in read.history} == {("attacker", None), ("defender", True)}
    assert (stats.unknown_tokens, stats.utterances) == (len(read.history) // 2, len(read.history))


def play_command(config: RunConfig, folder: Path) -> None:
    options = ("model.dtype=float32", "model.device=cpu", "game.max_turns=2", "spag.sampling.max_new_tokens=12")
    chosen = [part for option in options for part in ("--set", option)]
    words = str((config.game.model_extra or {})["words"])
    forked.run_command("play", config.model.name, "--words", words, *chosen, "--output", str(folder / "games.jsonl"))


def logprobs_of(episodes: Mapping[str, Episode]) -> list[float]:
    return [logprob for name in sorted(episodes) for said in episodes[name].history for logprob in said.logprobs or ()]


@pytest.mark.long
def test_games_of_a_model_survive_kill_9(tmp_path: Path, model_folder: Path) -> None:
    words, whole, killed = tmp_path / "words.txt", tmp_path / "whole", tmp_path / "killed"
    words.write_text("".join(f"{word}\n" for word in shipped_words()[:60]))
    config = config_for(model_folder, words, [])
    assert not run_until(None, config, whole, play_command)
    assert run_until(("games.jsonl", 2, 0.0), config, killed, play_command)
    undisturbed, file = whole / "games.jsonl", killed / "games.jsonl"
    before = by_id(read_episodes(file, torn_ok=True))
    assert 2 <= len(before) < len(games_in(undisturbed))
    assert not run_until(None, config, killed, play_command)
    assert games_in(file) == games_in(undisturbed)  # every word, token, outcome and seed
    resumed = by_id(read_episodes(file))
    assert before.items() <= resumed.items()
    expected = logprobs_of(by_id(read_episodes(undisturbed)))
    assert logprobs_of(resumed) == pytest.approx(expected, abs=1e-3)  # the last digits depend on what shared the batch


@pytest.mark.slow
def test_in_flight_games_may_be_more_than_utterances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``engine.in_flight`` counts games where models play; without it, ``engine.concurrency`` does."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    class Counting(ScriptedEngine):
        most = waiting = 0

        def submit(self, request: Request) -> None:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            super().submit(request)

        def poll(self) -> list[Completion]:
            done = super().poll()
            self.waiting -= len(done)
            return done

    for in_flight, most in ((7, 7), (None, 3)):
        engine = Counting(chatter, concurrency=3)

        def scripted(models: Sequence[ModelConfig], *_: object, engine: Engine = engine) -> list[Engine]:
            return [engine] * len(models)

        setup = PlaySetup(
            TABOO, EngineConfig(concurrency=3, in_flight=in_flight), SilentReporter(), open_models=scripted
        )
        player = PlayerConfig("m", ModelConfig(name="openai:m"), SamplingConfig())
        match = Match("play", game_specs(WORDS, 2, seed=1), dict.fromkeys(ROLES, player))
        assert play_matches(tmp_path / f"{most}.jsonl", [match], setup).games == 10
        assert engine.most == most


@pytest.mark.slow
def test_matches_of_the_same_models_are_played_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    opened, first_poll = list[list[str]](), list[set[str]]()

    class Noting(ScriptedEngine):
        def poll(self) -> list[Completion]:
            first_poll.append({request.id.partition(": ")[0] for _, request in self._waiting})
            return super().poll()

    def scripted(models: Sequence[ModelConfig], *_: object) -> list[Engine]:
        opened.append([model.name.removeprefix("openai:") for model in models])
        return [Noting(chatter) for _ in models]

    entrants = {name: ModelConfig(name=f"openai:{name}") for name in "abc"}
    entrants["bot:constant"] = ModelConfig(name="bot:constant")
    pairs = {
        pairing: [replace(spec, id=f"{pairing.title}: {spec.id}") for spec in game_specs(WORDS, 1, seed=1)]
        for pairing in pairings(list(entrants))
    }
    matches = make_matches(pairs, entrants, SamplingConfig(), TABOO.roles, "arena")
    setup = PlaySetup(TABOO, EngineConfig(in_flight=100), SilentReporter(), open_models=scripted)
    path = tmp_path / "e.jsonl"

    assert play_matches(path, matches, setup).games == 12 * len(WORDS)
    assert [sorted(names) for names in opened] == [["a", "b"], ["a", "c"], ["b", "c"]]
    assert first_poll[0] == {"a vs b", "a vs bot:constant"}  # of the first engine, before anybody has answered
    whole = by_id(read_episodes(path))
    names = {id: tuple(info.model for info in one.players.values()) for id, one in whole.items()}
    assert names == {spec.id: pairing.players for pairing, specs in pairs.items() for spec in specs}

    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"id":"b vs bot:constant' not in line))
    opened.clear()
    assert play_matches(path, matches, setup).played_now == len(WORDS)
    assert opened == [["b"]]  # no model that has no game left
    assert by_id(read_episodes(path)) == whole
