"""Online steps played by Ray actors, on GPUs and nodes that do not train: ``RayStepPlayer``.

The first training process controls the actors: it hands out the games of a step, writes them as they end, and sends new
weights once per step through Ray's object store. The other training processes only train. A step's games are
determined by seed and step, so they are the same games that the training processes would play.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from spag.algorithms.settings import SELF
from spag.config.schema import ClusterConfig, ModelConfig
from spag.core.episodes import Episode
from spag.engines.base import Player
from spag.engines.players import endpoint_environment, gpus_of
from spag.games.base import Game
from spag.models.finding import cache_folder
from spag.rollout.matchmaking import Match
from spag.rollout.ray.driver import RayPlayers
from spag.rollout.ray.weights import fetch, publish
from spag.rollout.ray.worker import PlayJob
from spag.rollout.runner import GameSpec, PlayStats
from spag.rollout.steps import OF_THE_POLICY, POLICY, StepPlayer, engine_key, models_of

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)


@dataclass
class RayStepPlayer(StepPlayer):
    """A ``StepPlayer`` whose engines are in ``cluster.online_workers`` actors; ``world_size`` processes train."""

    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __enter__(self) -> "RayStepPlayer":
        super().__enter__()
        self._actors = self._open() if self.rank == 0 else None
        return self

    def update_weights(self, weights: "Mapping[str, Tensor]", name: str = POLICY) -> None:
        if self._actors is not None:
            dtype = None if self.settings.lora else self.policy.dtype  # as the engines will have them
            self._actors.update_weights(weights, name, dtype)

    def copy_weights(self, weights: "Mapping[str, Tensor]") -> "Mapping[str, Tensor]":
        return {} if self._actors is None else super().copy_weights(weights)

    def share(self, specs: Sequence[tuple[Game, GameSpec]]) -> Sequence[tuple[Game, GameSpec]]:
        return specs if self.rank == 0 else ()

    def play_games(self, game: Game, matches: Sequence[Match], stats: PlayStats) -> Iterator[Sequence[Episode]]:
        assert self._actors is not None  # the other processes play nothing
        for match in matches:
            keys = {role: engine_key(player.name, game) for role, player in match.players.items()}
            yield from self._actors.play(match.specs, stats, game, keys)

    def _open(self) -> RayPlayers:
        """Start the actors. On a cluster without GPUs, training processes get shares of the cores like actors."""
        count = self.cluster.online_workers or 1
        models = {name: self.model_of(name) for name in {POLICY, *self.settings.met} - {SELF}}
        gpus = gpus_of(list(models.values()), self.engine)
        models = {name: publish(model, self.cluster.storage) for name, model in models.items()}
        own = StepPlayer(self.folder, self.mix, models[POLICY], self.engine, self.settings, self.seed)
        in_flight = self.engine.games_in_flight(len(models_of(models)))
        opener = partial(_open_players, own, models)
        job = PlayJob(opener, in_flight, gpus, endpoint_environment(models.values()))
        cluster = self.cluster.model_copy(update={"workers": count + self.world_size})
        return RayPlayers(job, cluster, self._stack, logger.info, most=count)


def _open_players(own: StepPlayer, models: Mapping[str, ModelConfig], stack: ExitStack) -> dict[str, Player]:
    """Open all players' engines on a node; return the players by their keys."""
    here = {name: fetch(model, cache_folder()) for name, model in models.items()}
    own = stack.enter_context(replace(own, policy=here[POLICY]))
    opened_as = {name: name if name in OF_THE_POLICY else model.name for name, model in here.items()}
    return {engine_key(name, game): own.player(opened_as[name], game) for game, _ in own.mix for name in models}
