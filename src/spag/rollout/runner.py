"""Keeping many games in flight over one or two engines.

Each game is a small state machine that always waits for one utterance, so the loop is: ask for the next utterance of every game, take what
comes back in whatever order, apply it, and start a new game when one ends. A game's draws depend on its own seed alone, not on which games
run beside it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import islice

from spag.core.episodes import Episode, PlayerInfo
from spag.core.seeds import derive_seed
from spag.core.types import Game, GameState, Utterance
from spag.engines.base import Completion, Engine, Request, Sampling
from spag.games.taboo.prompts import PromptSet, play_prompt, stop_strings
from spag.games.taboo.rules import AdversarialTaboo
from spag.games.taboo.types import Role

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

    def add(self, other: "PlayStats") -> None:
        """Count what ``other`` counted, too."""
        for entry in fields(self):
            setattr(self, entry.name, getattr(self, entry.name) + getattr(other, entry.name))


@dataclass(slots=True)
class _Table:
    """A game in flight."""

    spec: GameSpec
    state: GameState
    attempt: int = 0


def game_specs(words: Iterable[str], repeats: int, seed: int) -> list[GameSpec]:
    """Return ``repeats`` games for each word; a game's seed comes from (run seed, word, repeat)."""
    return [GameSpec(f"{word}-{repeat}", word, derive_seed(seed, word, repeat)) for word in words for repeat in range(repeats)]


def next_request(
    id: str, seed: int, state: GameState, attempt: int, *, game: Game, prompts: PromptSet, sampling: Sampling, stop: tuple[str, ...]
) -> Request:
    """Return what to ask of the player to move; the draw depends on the game's seed, the moment in it and the attempt alone."""
    return Request(
        id=id,
        prompt=play_prompt(game.observe(state, state.role_to_move), prompts),
        sampling=sampling,
        seed=derive_seed(seed, len(state.history), attempt),
        stop=stop,
    )


def deserves_another(completion: Completion, attempt: int, sampling: Sampling) -> bool:
    """Whether to draw again: a sampled utterance came back empty, and not for the third time."""
    return not completion.text and attempt < EMPTY_RETRIES and sampling.temperature > 0


@dataclass(frozen=True, slots=True)
class PlayRules:
    """What all games share. ``in_flight`` games are kept going at once; ``None`` takes as many as the engines work on together."""

    game: Game = field(default_factory=AdversarialTaboo)
    max_turns: int = 5
    prompts: PromptSet = field(default_factory=PromptSet.default)
    in_flight: int | None = None


class Hall:
    """Games in flight over one or two engines. ``open`` starts one, ``poll`` moves all of them on."""

    def __init__(self, players: Mapping[Role, Player], rules: PlayRules, stats: PlayStats) -> None:
        self.players, self.rules, self.stats = players, rules, stats
        self.tables: dict[str, _Table] = {}
        self._stop = stop_strings(rules.prompts)
        self._engines = list({id(player.engine): player.engine for player in players.values()}.values())
        self._owed = {id(engine): 0 for engine in self._engines}

    @property
    def free(self) -> int:
        """How many games there is room for."""
        return (self.rules.in_flight or sum(engine.concurrency for engine in self._engines)) - len(self.tables)

    def open(self, spec: GameSpec) -> None:
        """Begin a game."""
        if spec.id in self.tables:
            raise ValueError(f"two games with the id {spec.id!r}")
        self.tables[spec.id] = table = _Table(spec, self.rules.game.initial_state(spec.target_word, self.rules.max_turns))
        self._ask(table)

    def poll(self) -> list[Episode]:
        """Take what the engines have finished, and return the games that ended with it."""
        ended = []
        for engine in self._engines:
            if self._owed[id(engine)]:
                for completion in engine.poll():
                    self._owed[id(engine)] -= 1
                    episode = self._take(completion)
                    if episode is not None:
                        ended.append(episode)
        return ended

    def _ask(self, table: _Table) -> None:
        player, spec = self.players[table.state.role_to_move], table.spec
        rules = self.rules
        request = next_request(
            spec.id,
            spec.seed,
            table.state,
            table.attempt,
            game=rules.game,
            prompts=rules.prompts,
            sampling=player.sampling,
            stop=self._stop,
        )
        player.engine.submit(request)
        self._owed[id(player.engine)] += 1

    def _take(self, completion: Completion) -> Episode | None:
        """Apply a finished utterance; return the episode when it ended the game."""
        table = self.tables[completion.id]
        role = table.state.role_to_move
        self.stats.prompt_tokens += completion.prompt_tokens
        self.stats.completion_tokens += completion.completion_tokens
        if deserves_another(completion, table.attempt, self.players[role].sampling):
            table.attempt += 1
            self.stats.retries += 1
            self._ask(table)
            return None
        self.stats.utterances += 1
        self.stats.empty += not completion.text
        said = Utterance(role, completion.text, str(completion.finish_reason), completion.token_ids, completion.logprobs)
        table.state = self.rules.game.apply(table.state, said)
        table.attempt = 0
        if table.state.verdict is None:
            self._ask(table)
            return None
        del self.tables[completion.id]
        return self._episode(table)

    def _episode(self, table: _Table) -> Episode:
        assert table.state.verdict is not None
        return Episode(
            id=table.spec.id,
            game=self.rules.game.name,
            target_word=table.spec.target_word,
            max_turns=table.state.max_turns,
            history=table.state.history,
            outcome=table.state.verdict.outcome,
            reason=table.state.verdict.reason,
            seed=table.spec.seed,
            players={role: PlayerInfo(player.model, asdict(player.sampling)) for role, player in self.players.items()},
        )


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
    rules = PlayRules(game or AdversarialTaboo(), max_turns, prompts or PromptSet.default(), in_flight)
    for batch in play_by(rules, specs, players, stats or PlayStats()):
        yield from batch


def play_by(rules: PlayRules, specs: Iterable[GameSpec], players: Mapping[Role, Player], stats: PlayStats) -> Iterator[list[Episode]]:
    """As ``play``, with the rules in one piece and the games that end at the same time together."""
    hall, queue = Hall(players, rules, stats), iter(specs)
    while True:
        for spec in islice(queue, hall.free):
            hall.open(spec)
        if not hall.tables:
            return
        if ended := hall.poll():
            yield ended
