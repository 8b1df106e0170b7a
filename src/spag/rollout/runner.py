"""The runner: many games in flight over the engines of their players.

Each game is a small state machine that always waits for one utterance. The loop requests the next utterance of every
game, applies completions in whatever order they arrive, and starts a new game when one ends. A game's random draws
depend only on its own seed, not on concurrent games.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Self

from spag.algorithms.credit import prompt_digest
from spag.core.episodes import Episode, PlayerInfo
from spag.core.errors import SpagError
from spag.core.options import SamplingConfig
from spag.core.seeds import derive_seed
from spag.core.thinking import split_thought
from spag.core.types import State, Task, Utterance
from spag.engines.base import Completion, Engine, FinishReason, Player, Request, RequestError
from spag.games.base import Game
from spag.games.registry import DEFAULT, get
from spag.storage.episodes import MAX_UTTERANCE


@dataclass(frozen=True, slots=True)
class GameSpec:
    """A game to play. ``id`` is unique within a file of episodes; ``seed`` determines every random draw.

    ``opponent_seed`` determines the learner's opponent and role; if ``None``, ``seed`` does.
    """

    id: str
    task: Task
    seed: int
    opponent_seed: int | None = None


@dataclass(slots=True)
class Summable:
    """Totals: ``+=`` adds every field."""

    def __iadd__(self, other: Self) -> Self:
        for entry in fields(self):
            total = getattr(self, entry.name)
            total += getattr(other, entry.name)
            setattr(self, entry.name, total)
        return self


@dataclass(slots=True)
class PlayStats(Summable):
    """Totals over utterances."""

    utterances: int = 0
    empty: int = 0
    retries: int = 0
    unknown_tokens: int = 0  # utterances that ended before a token outside the tokenizer
    cut_thoughts: int = 0  # those that are empty because their thought did not end
    prompt_tokens: int = 0
    completion_tokens: int = 0


def game_specs(tasks: Iterable[Task], repeats: int, seed: int) -> list[GameSpec]:
    """Return ``repeats`` games for each task; a game's seed comes from (run seed, task, repeat)."""
    return [
        GameSpec(f"{task.id}-{repeat}", task, derive_seed(seed, task.id, repeat))
        for task in tasks
        for repeat in range(repeats)
    ]


def next_request(id: str, game: Game, state: State, attempt: int, sampling: SamplingConfig) -> Request:
    """Return the request to the player to move. Game seed, position and attempt determine the draw."""
    role = game.to_move(state)
    assert role is not None
    observation = game.observe(state, role)
    return Request(
        id=id,
        prompt=game.prompt(observation),
        sampling=sampling,
        seed=derive_seed(state.seed, len(state.history), attempt),
        stop=game.stop_strings(),
        observation=observation,
        role=f"{game.name}/{role}",
    )


def without_thought(completion: Completion, sampling: SamplingConfig) -> Completion:
    """Return a completion with only the speech in ``text``, stripped of white space unless ``sampling.published``, and
    the ``thought`` separate if ``sampling`` allows thoughts. A text longer than files allow is cut; its tokens, which
    are trained, stay.
    """
    text, thought, reason = completion.text, None, completion.finish_reason
    if sampling.thinks:
        private, text, is_cut = split_thought(text)
        thought, reason = private[:MAX_UTTERANCE], FinishReason.THOUGHT if is_cut else reason
    text = text if sampling.published else text.strip()
    if len(text) > MAX_UTTERANCE:
        text, reason = text[:MAX_UTTERANCE], FinishReason.LENGTH
    return replace(completion, text=text, thought=thought, finish_reason=reason)


def utterance_of(completion: Completion, request: Request, state: State, attempt: int) -> Utterance | None:
    """Return the utterance in the completion of ``request``, made at ``state``; ``None`` if it is empty and must be
    resampled. A cut thought and the reply to an overlong prompt stay empty: the game's rules decide what follows.

    Raises ``RequestError`` if a role's first prompt already leaves no room: the context is too short for the game.
    """
    assert request.observation is not None
    role, sampling = request.observation.role, request.sampling
    completion = without_thought(completion, sampling)
    if completion.finish_reason is FinishReason.CONTEXT and not any(said.role == role for said in state.history):
        raise RequestError(f"{completion.id}: {completion.refusal}")
    stands = completion.finish_reason in (FinishReason.CONTEXT, FinishReason.THOUGHT) or sampling.temperature == 0
    if not completion.text.strip() and not stands and attempt < sampling.empty_retries:
        return None
    drawn = completion.sampling_logprobs if completion.sampling_logprobs != completion.logprobs else None
    return Utterance(
        role,
        completion.text,
        str(completion.finish_reason),
        completion.token_ids,
        completion.logprobs,
        prompt_digest(request.prompt),
        drawn,
        completion.prompt_ids if completion.prompt_truncated else None,
        completion.thought,
        completion.unknown_token or None,
    )


@dataclass(slots=True)
class _Running:
    """A game in flight, waiting for ``player``, whose engine has the ``request``."""

    spec: GameSpec
    state: State
    players: Mapping[str, Player]
    attempt: int = 0
    player: Player = field(init=False)
    request: Request = field(init=False)


class Runner:
    """Games in flight over any number of engines: ``start`` begins one, ``poll`` advances all of them.

    ``in_flight``: how many games run at once.
    """

    def __init__(self, game: Game, stats: PlayStats, in_flight: int) -> None:
        self.game, self.stats, self._in_flight = game, stats, in_flight
        self.running: dict[str, _Running] = {}
        self._engines: dict[int, Engine] = {}
        self._pending: Counter[int] = Counter()
        self._error: SpagError | None = None

    @property
    def capacity(self) -> int:
        """How many more games may start."""
        return self._in_flight - len(self.running)

    def start(self, spec: GameSpec, players: Mapping[str, Player]) -> None:
        """Start a game between ``players``, by role."""
        if spec.id in self.running:
            raise ValueError(f"two games with the id {spec.id!r}")
        self.running[spec.id] = running = _Running(spec, self.game.start(spec.task, spec.seed), players)
        self._engines |= {id(player.engine): player.engine for player in players.values()}
        self._submit(running)

    def poll(self) -> list[Episode]:
        """Return the games that ended since the last call. If there are any, an engine's error waits for the next."""
        if self._error is not None:
            raise self._error
        ended = list[Episode]()
        try:
            for key, engine in self._engines.items():
                if self._pending[key]:
                    going_on = []
                    for completion in engine.poll():
                        self._pending[id(self.running[completion.id].player.engine)] -= 1  # it may share the polled one
                        running = self._apply(completion)
                        if running.state.result is None:
                            going_on.append(running)
                        else:
                            ended.append(self._episode(self.running.pop(completion.id)))
                    for running in going_on:
                        self._submit(running)
        except SpagError as error:
            if not ended:
                raise
            self._error = error
        return ended

    def _submit(self, running: _Running) -> None:
        role = self.game.to_move(running.state)
        assert role is not None
        player = running.players[role]
        request = next_request(running.spec.id, self.game, running.state, running.attempt, player.sampling)
        player.engine.submit(request)
        running.player, running.request = player, request
        self._pending[id(player.engine)] += 1

    def _apply(self, completion: Completion) -> _Running:
        """Apply a finished utterance, unless it is to be sampled again; return its game."""
        running = self.running[completion.id]
        self.stats.prompt_tokens += completion.prompt_tokens
        self.stats.completion_tokens += completion.completion_tokens
        self.stats.unknown_tokens += completion.unknown_token
        said = utterance_of(completion, running.request, running.state, running.attempt)
        if said is None:
            running.attempt += 1
            self.stats.retries += 1
            return running
        self.stats.utterances += 1
        self.stats.empty += not said.content.strip()
        self.stats.cut_thoughts += said.finish_reason == FinishReason.THOUGHT
        running.state = self.game.apply(running.state, said)
        running.attempt = 0
        return running

    def _episode(self, running: _Running) -> Episode:
        result = self.game.result(running.state)
        return Episode(
            id=running.spec.id,
            game=self.game.name,
            task=running.spec.task,
            history=running.state.history,
            outcome=result.outcome,
            rewards=result.rewards,
            reason=result.reason,
            length=result.length,
            seed=running.spec.seed,
            players={
                role: PlayerInfo(player.model, player.sampling.model_dump()) for role, player in running.players.items()
            },
        )


def play(
    specs: Iterable[GameSpec],
    players: Mapping[str, Player],
    *,
    game: Game | None = None,
    in_flight: int | None = None,
    stats: PlayStats | None = None,
) -> Iterator[Episode]:
    """Yield episodes of ``game`` (by default Adversarial Taboo) as they finish, in no particular order.

    ``in_flight`` games run at once; by default as many as the engines can process together. An empty sampled utterance
    is resampled up to twice; after that it stays empty, and the game continues. If you stop before the end, close the
    engines: they may hold replies for the games that were in flight.
    """
    games, most = ((spec, players) for spec in specs), in_flight or total_concurrency(players)
    for batch in play_together(game or get(DEFAULT), games, stats or PlayStats(), most):
        yield from batch


def play_together(
    game: Game, games: Iterable[tuple[GameSpec, Mapping[str, Player]]], stats: PlayStats, in_flight: int
) -> Iterator[list[Episode]]:
    """Like ``play``, for games that each have their own players; yields lists of games that end at the same time."""
    runner, queue = Runner(game, stats, in_flight), iter(games)
    while True:
        for spec, players in islice(queue, runner.capacity):
            runner.start(spec, players)
        if not runner.running:
            return
        if ended := runner.poll():
            yield ended


def total_concurrency(players: Mapping[str, Player]) -> int:
    """Return how many utterances the engines of ``players`` generate at once."""
    return sum({id(player.engine): player.engine.concurrency for player in players.values()}.values())
