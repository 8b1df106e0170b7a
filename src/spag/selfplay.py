"""Keeping many games in flight over one or two engines.

Each game is a small state machine that always waits for one utterance, so the loop is: ask for the next utterance of every game, take what
comes back in whatever order, apply it, and start a new game when one ends. A game's draws depend on its own seed alone, not on which games
run beside it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice

from spag.engines.base import Completion, Engine, Request, Sampling
from spag.episodes import Episode, PlayerInfo
from spag.game.base import Game, GameState, Role, Utterance
from spag.game.prompts import PromptSet, play_prompt, stop_strings
from spag.game.taboo import AdversarialTaboo
from spag.seeding import derive_seed

EMPTY_RETRIES = 2


@dataclass(frozen=True, slots=True)
class Player:
    """A side's model: the engine that speaks for it, its name for the record, and how it samples."""

    engine: Engine
    model: str
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class GameSpec:
    """A game to play. ``id`` is unique within a file of episodes; ``seed`` decides every draw."""

    id: str
    target_word: str
    seed: int


@dataclass(slots=True)
class PlayStats:
    """Running totals over all finished utterances."""

    utterances: int = 0
    empty: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(slots=True)
class _Table:
    """A game in flight."""

    spec: GameSpec
    state: GameState
    attempt: int = 0


@dataclass(slots=True)
class _Hall:
    """All games in flight and what they need to go on."""

    players: Mapping[Role, Player]
    game: Game
    prompts: PromptSet
    stats: PlayStats
    stop: tuple[str, ...] = ()
    tables: dict[str, _Table] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)  # id(engine) -> requests it owes us


def game_specs(words: Iterable[str], repeats: int, seed: int) -> list[GameSpec]:
    """Return ``repeats`` games for each word; a game's seed comes from (run seed, word, repeat)."""
    return [GameSpec(f"{word}-{repeat}", word, derive_seed(seed, word, repeat)) for word in words for repeat in range(repeats)]


def play(
    specs: Iterable[GameSpec],
    players: Mapping[Role, Player],
    *,
    max_turns: int = 5,
    game: Game | None = None,
    prompts: PromptSet | None = None,
    in_flight: int | None = None,
    stats: PlayStats | None = None,
) -> Iterator[Episode]:
    """Yield episodes as they finish, in no particular order.

    ``in_flight`` games are kept going at once; by default as many as the engines can work on together. A sampled utterance that comes back
    empty is drawn again up to twice; then it stands, and the game goes on.
    """
    prompts = prompts or PromptSet.default()
    hall = _Hall(players, game or AdversarialTaboo(), prompts, stats or PlayStats(), stop_strings(prompts))
    engines = list({id(player.engine): player.engine for player in players.values()}.values())
    limit = in_flight or sum(engine.concurrency for engine in engines)
    queue = iter(specs)
    while True:
        for spec in islice(queue, limit - len(hall.tables)):
            _open_table(hall, spec, max_turns)
        if not hall.tables:
            return
        for engine in engines:
            if hall.waiting.get(id(engine)):
                for completion in engine.poll():
                    hall.waiting[id(engine)] -= 1
                    episode = _take(hall, completion)
                    if episode is not None:
                        yield episode


def _open_table(hall: _Hall, spec: GameSpec, max_turns: int) -> None:
    if spec.id in hall.tables:
        raise ValueError(f"two games with the id {spec.id!r}")
    hall.tables[spec.id] = table = _Table(spec, hall.game.initial_state(spec.target_word, max_turns))
    _ask(hall, table)


def _ask(hall: _Hall, table: _Table) -> None:
    """Ask the player to move for its next utterance."""
    role = table.state.role_to_move
    player = hall.players[role]
    moment = len(table.state.history)
    request = Request(
        id=table.spec.id,
        prompt=play_prompt(hall.game.observe(table.state, role), hall.prompts),
        sampling=player.sampling,
        seed=derive_seed(table.spec.seed, moment, table.attempt),
        stop=hall.stop,
    )
    player.engine.submit(request)
    hall.waiting[id(player.engine)] = hall.waiting.get(id(player.engine), 0) + 1


def _take(hall: _Hall, completion: Completion) -> Episode | None:
    """Apply a finished utterance; return the episode when it ended the game."""
    table = hall.tables[completion.id]
    role = table.state.role_to_move
    hall.stats.prompt_tokens += completion.prompt_tokens
    hall.stats.completion_tokens += completion.completion_tokens
    if not completion.text and table.attempt < EMPTY_RETRIES and hall.players[role].sampling.temperature > 0:
        table.attempt += 1
        hall.stats.retries += 1
        _ask(hall, table)
        return None
    hall.stats.utterances += 1
    hall.stats.empty += not completion.text
    said = Utterance(role, completion.text, str(completion.finish_reason), completion.token_ids, completion.logprobs)
    table.state = hall.game.apply(table.state, said)
    table.attempt = 0
    if table.state.verdict is None:
        _ask(hall, table)
        return None
    del hall.tables[completion.id]
    return _episode(hall, table)


def _episode(hall: _Hall, table: _Table) -> Episode:
    assert table.state.verdict is not None
    return Episode(
        id=table.spec.id,
        game=hall.game.name,
        target_word=table.spec.target_word,
        max_turns=table.state.max_turns,
        history=table.state.history,
        outcome=table.state.verdict.outcome,
        reason=table.state.verdict.reason,
        seed=table.spec.seed,
        players={role: PlayerInfo(player.model, asdict(player.sampling)) for role, player in hall.players.items()},
    )
