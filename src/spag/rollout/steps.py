"""Play for online training: step by step, with engines that stay open while their weights change.

    episodes/step-00001.jsonl            the games that the first process played
    episodes/step-00001.part1.jsonl      games of the second, and so on

A step's games and their order are determined by the run's seed and the step: games on disk are not played again,
however many processes share the rest.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import SNAPSHOT, START, opponent_group, step_of_snapshot
from spag.config.schema import EngineConfig, ModelConfig
from spag.core.episodes import Episode
from spag.core.errors import DataError
from spag.engines.base import Engine, Player
from spag.engines.opening import open_copies, open_player
from spag.engines.players import Kind, PlayerConfig, identity_of, kind_of
from spag.games.base import Game
from spag.models.saved import saved_weights
from spag.rollout.matchmaking import Match, Opponents, Pairing, draw_opponents, make_matches, step_specs
from spag.rollout.provenance import records_of
from spag.rollout.runner import GameSpec, PlayStats, play_together
from spag.rollout.writer import PlaySummary, collect_episodes
from spag.storage.episodes import read_episodes
from spag.storage.machine import free_objects, trim_heap

if TYPE_CHECKING:
    from torch import Tensor

POLICY = "policy"
SNAPSHOTS = "snapshots"
OF_THE_POLICY = (POLICY, START, SNAPSHOT)
"""Engines of the policy's model, each with its own weights: all snapshots take turns in one."""
_STEP = "step "


def models_of(players: Iterable[str]) -> set[str]:
    """Return the engines of ``players`` that are not bots."""
    return {opponent_group(name) for name in players if kind_of(name) is not Kind.BOT}


def _both(pairing: Pairing) -> list[str]:
    """Return the two players, in one order for both role assignments."""
    return sorted(pairing.players)


def engine_key(name: str, game: Game) -> str:
    """Return the key of a player's engine: each game has its own bots, and all snapshots share an engine."""
    return f"{game.name}/{name}" if kind_of(name) is Kind.BOT else opponent_group(name)


def weights_after(step: int) -> str:
    """Return the record, in games, of the weights after ``step``; step 0 means the start's."""
    return f"{_STEP}{step}"


def step_of_weights(recorded: str) -> int:
    """Return the step recorded by ``weights_after``."""
    return int(recorded.removeprefix(_STEP))


@dataclass
class StepPlayer:
    """The engines of this process, and their games. Use as a context manager.

    ``mix``: the games with their weights. ``policy``: the model whose weights ``update_weights`` replaces. ``rank`` of
    ``world_size``: this process's share. ``stopped``: set by another thread to end play; unfinished games are dropped.
    """

    folder: Path
    mix: Sequence[tuple[Game, float]]
    policy: ModelConfig
    engine: EngineConfig
    settings: OnlineSettings
    seed: int
    rank: int = 0
    world_size: int = 1
    stopped: bool = False

    def __enter__(self) -> "StepPlayer":
        self._stack = ExitStack()
        self._engines: dict[str, Engine] = {}
        self._snapshot: int | None = None  # the step of the snapshot that the engine of snapshots holds
        self._identity_of = cache(identity_of)  # of what was opened, hashed once
        self.opponents = Opponents(self.settings, POLICY, self.episodes)
        self._stack.callback(lambda: self._close(self._engines))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def update_weights(self, weights: "Mapping[str, Tensor]", name: str = POLICY) -> None:
        """Give the engine of the player ``name`` new weights."""
        engine = self._engine(name, self.mix[0][0])  # which plays all games of the mix
        if self.settings.overlap:  # shared ones would change while it plays
            engine.update_weights(weights)
        else:
            engine.share_weights(weights)

    def copy_weights(self, weights: "Mapping[str, Tensor]") -> "Mapping[str, Tensor]":
        """Return a copy of the present ``weights`` in CPU memory, for a later ``update_weights``."""
        return {name: weight.detach().to("cpu", copy=True) for name, weight in weights.items()}

    def rest(self) -> None:
        """Let engines release memory that the trainer needs now; the next games reclaim it."""
        for name, engine in self._engines.items():
            if engine.rest() and name == SNAPSHOT:
                self._snapshot = None

    def specs(self, step: int) -> list[tuple[Game, GameSpec]]:
        """Return the games of ``step`` in order."""
        return step_specs(self.mix, self.settings.games, step, self.seed, self.settings.repeats)

    def share(self, specs: Sequence[tuple[Game, GameSpec]]) -> Sequence[tuple[Game, GameSpec]]:
        """Return the part of ``specs`` that this process plays."""
        return specs[self.rank :: self.world_size]

    def play(self, step: int, weights_of: int) -> None:
        """Play this process's share of the games of ``step`` that are not on disk.

        ``weights_of``: the step that produced the policy's weights, recorded in the games.
        """
        done = self._on_disk(step)
        left = [(game, spec) for game, spec in self.share(self.specs(step)) if spec.id not in done]
        if not left:
            return
        self._close_evaluation()
        path = self.folder / "episodes" / f"step-{step:05d}{f'.part{self.rank}' if self.rank else ''}.jsonl"
        parts: list[tuple[Game, dict[Pairing, list[GameSpec]]]] = []  # of games of the same two players
        for game in {id(game): game for game, _ in left}.values():
            specs = [spec for own, spec in left if own is game]
            matches = draw_opponents(specs, POLICY, self.opponents.weights(step, game), self.seats(game))
            for _, pairings in groupby(sorted(matches, key=_both), _both):
                parts.append((game, {pairing: matches[pairing] for pairing in pairings}))
        for game, met in sorted(parts, key=lambda part: _both(next(iter(part[1])))):  # each snapshot loads once
            played_by = {POLICY: weights_after(weights_of)} | self._load_snapshots(next(iter(met)))
            self.play_into(path, game, met, played_by)

    def episodes(self, step: int) -> list[tuple[Game, list[Episode]]]:
        """Return the games of ``step`` on disk, in order, by game. Raises ``DataError`` when one is missing.

        A torn last line is skipped: with fewer processes than before, nobody appends to its file and cuts it off.
        """
        found = self._on_disk(step)
        specs = self.specs(step)
        if missing := [spec.id for _, spec in specs if spec.id not in found]:
            raise DataError(
                f"{self.folder}: step {step} lacks {len(missing)} of its {len(specs)} games, {missing[0]!r} first"
            )
        games = {id(game): game for game, _ in specs}.values()
        return [(game, [found[spec.id] for own, spec in specs if own is game]) for game in games]

    def _on_disk(self, step: int) -> dict[str, Episode]:
        files = sorted((self.folder / "episodes").glob(f"step-{step:05d}*.jsonl"))
        return {episode.id: episode for path in files for episode in read_episodes(path, torn_ok=True)}

    def play_into(
        self, path: Path, game: Game, pairs: Mapping[Pairing, Sequence[GameSpec]], played_by: Mapping[str, str]
    ) -> PlaySummary:
        """Play the games of pairings of the same two players into ``path``. ``played_by``: their weights, by name."""
        models = {name: self.model_of(name) for pairing in pairs for name in pairing.players}
        matches = make_matches(pairs, models, self.settings.sampling, game.roles, "online play")

        def play_them(left: Sequence[Match], stats: PlayStats) -> Iterator[Sequence[Episode]]:
            games = self.play_games(game, left, stats)
            while not self.stopped and (ended := next(games, None)) is not None:
                yield ended

        def identity(player: PlayerConfig) -> dict[str, str]:
            if player.name not in played_by:
                return self._identity_of(player.model)
            about = {"dtype": self.policy.dtype, "prompt_style": self.policy.prompt_style}
            return {"weights": played_by[player.name], **about}

        records = records_of(matches, game, identity)
        summary = collect_episodes(path, matches, play_them, game, records=records)
        for engine in self._engines.values():  # the policy trains next, after which its engine gets new weights
            engine.forget()
        trim_heap()
        return summary

    def play_games(self, game: Game, matches: Sequence[Match], stats: PlayStats) -> Iterator[Sequence[Episode]]:
        """Yield the games of ``matches`` as they end."""
        players = [{role: self.player(one.name, game) for role, one in match.players.items()} for match in matches]
        games = ((spec, by_role) for match, by_role in zip(matches, players, strict=True) for spec in match.specs)
        models = models_of(one.name for match in matches for one in match.players.values())
        return play_together(game, games, stats, self.engine.games_in_flight(len(models)))

    def player(self, name: str, game: Game) -> Player:
        """Return the player ``name`` of ``game``; its engine opens on first use."""
        return Player(self._engine(name, game), name, self.settings.sampling)

    def model_of(self, name: str) -> ModelConfig:
        """Return the initial model of the player ``name``."""
        return self.policy if name in OF_THE_POLICY else self.policy.model_copy(update={"name": name})

    def snapshot_folder(self, step: int) -> Path:
        """Return the folder of the policy saved after ``step``."""
        return self.folder / SNAPSHOTS / f"step-{step:05d}"

    def _load_snapshots(self, pairing: Pairing) -> dict[str, str]:
        """Load the snapshot in ``pairing``, if any, into the engine of snapshots; return its identity by name."""
        steps = {name: step for name in pairing.players if (step := step_of_snapshot(name)) is not None}
        for step in steps.values():
            if step != self._snapshot:
                self.update_weights(saved_weights(self.snapshot_folder(step)), SNAPSHOT)
                self._snapshot = step
        return {name: weights_after(step) for name, step in steps.items()}

    def seats(self, game: Game) -> Sequence[int]:
        """Return the policy's seats against others: the trained role's if only one is trained, else both."""
        return [at for at, role in enumerate(game.roles) if self.settings.roles == role] or [0, 1]

    def _engine(self, name: str, game: Game) -> Engine:
        key = engine_key(name, game)
        if key not in self._engines and key in OF_THE_POLICY:
            known = dict.fromkeys((key, POLICY, *self.settings.met))
            names = [one for one in known if one in OF_THE_POLICY and one not in self._engines]
            self._engines.update(open_copies(self.policy, names, self.engine))
        elif key not in self._engines:
            self._engines[key] = open_player(self.model_of(name), game, self.engine)
        return self._engines[key]

    def _close_evaluation(self) -> None:
        """Close engines of this process used only by evaluations; others would take long to reopen."""
        tested = {*self.settings.evaluation_opponents} - {*self.settings.opponents}
        self._close([key for key, one in self._engines.items() if key in tested and one.trains_here])

    def _close(self, keys: Collection[str]) -> None:
        closed = list(keys)
        for key in closed:
            self._engines.pop(key).close()
        if closed:
            free_objects()
