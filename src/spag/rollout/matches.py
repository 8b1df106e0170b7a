"""Plays into a file: opens engines for the players' models, here or on a Ray cluster, and appends finished games."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from spag.config.schema import ClusterConfig, EngineConfig, RunConfig
from spag.core.episodes import Episode
from spag.core.progress import Reporter
from spag.engines.base import Player
from spag.engines.opening import KeptModels, OpenModels, open_matches, open_models
from spag.engines.players import PlayerConfig, endpoint_environment, gpus_of, identity_of
from spag.games.base import Game
from spag.models.finding import cache_folder
from spag.rollout.matchmaking import Match
from spag.rollout.provenance import check_games, records_of
from spag.rollout.ray import require_ray
from spag.rollout.runner import PlayStats, play_together
from spag.rollout.writer import PlaySummary, collect_episodes
from spag.storage.disk import lock_file


@dataclass(frozen=True, slots=True)
class PlaySetup:
    """Everything but the players: the game, the engines' settings, and the reporter of progress.

    ``open_models`` opens the models that play in this process; tests pass a function that returns scripted engines.
    """

    game: Game
    engine: EngineConfig
    reporter: Reporter
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    open_models: OpenModels = open_models

    @staticmethod
    def of(config: RunConfig, reporter: Reporter, open_models: OpenModels = open_models) -> "PlaySetup":
        """Return the setup described by the settings."""
        return PlaySetup(config.game.build(), config.engine, reporter, config.cluster, open_models)

    def __post_init__(self) -> None:
        """Read the prompts. Raises ``DataError`` for a faulty prompt file."""
        self.game.stop_strings()


def play_matches(
    path: Path, matches: Sequence[Match], setup: PlaySetup, *, force: bool = False, keep_others: bool = False
) -> PlaySummary:
    """Play the games of ``matches`` into ``path``; games already in it stay.

    Equal models share one engine, adapters their base model, and matches of the same models are played together. Raises
    ``RunError`` while another process plays into the file, and if it holds other games, or games with other players,
    sampling, prompts or game settings, unless ``force`` removes those. With ``keep_others``, other games stay.
    """
    with lock_file(path):
        models = dict.fromkeys(player.model for match in matches for player in match.players.values())
        identities = {model: identity_of(model) for model in models}
        wanted = records_of(matches, setup.game, lambda player: identities[player.model])
        check_games(path, wanted, setup.game, setup.reporter.note, force=force, keep_others=keep_others)
        summary = PlaySummary()
        with closing(KeptModels(models, setup.open_models)) as kept:
            for group in _groups(matches):
                summary += _play_group(path, group, wanted, replace(setup, open_models=kept))
    if summary.overflows:
        setup.reporter.note(f"{path}: utterances left empty because prompts filled the context: {summary.overflows}")
    return summary


def _groups(matches: Sequence[Match]) -> list[list[Match]]:
    """Group matches so that a group needs no more models than one of its matches.

    The last games of a match leave its engines almost idle; together, matches have fewer such ends.
    """
    groups, left = list[list[Match]](), list(matches)
    while left:
        models = max((match.models for match in left), key=len)
        groups.append([match for match in left if match.models <= models])
        left = [match for match in left if not match.models <= models]
    return groups


def _play_group(path: Path, matches: Sequence[Match], wanted: Mapping[str, Episode], setup: PlaySetup) -> PlaySummary:
    with ExitStack() as stack:

        def play(left: Sequence[Match], stats: PlayStats) -> Iterator[Sequence[Episode]]:
            in_flight = setup.engine.games_in_flight(len({model for match in left for model in match.models}))
            if setup.cluster.address is not None:
                return _play_on_cluster(stack, left, setup, in_flight, stats)
            return _play_here(left, setup, in_flight, stats)

        return collect_episodes(path, matches, play, setup.game, records=wanted, reporter=setup.reporter)


def _play_here(
    matches: Sequence[Match], setup: PlaySetup, in_flight: int, stats: PlayStats
) -> Iterator[Sequence[Episode]]:
    opened = open_matches([match.players for match in matches], setup.game, setup.engine, setup.open_models)
    games = ((spec, players) for match, players in zip(matches, opened, strict=True) for spec in match.specs)
    return play_together(setup.game, games, stats, in_flight)


def _play_on_cluster(
    stack: ExitStack, matches: Sequence[Match], setup: PlaySetup, in_flight: int, stats: PlayStats
) -> Iterator[Sequence[Episode]]:
    """Play match by match on the cluster; with ``cluster.storage``, weights in local folders are copied there first."""
    cluster = setup.cluster
    require_ray(str(cluster.address))
    from spag.rollout.ray.driver import RayPlayers  # noqa: PLC0415 - ray is optional
    from spag.rollout.ray.weights import publish  # noqa: PLC0415
    from spag.rollout.ray.worker import PlayJob  # noqa: PLC0415

    players = {f"{at}/{role}": player for at, match in enumerate(matches) for role, player in match.players.items()}
    models = {player.model for player in players.values()}
    shared = {model: publish(model, cluster.storage) for model in models}
    players = {name: replace(player, model=shared[player.model]) for name, player in players.items()}
    opener, gpus = partial(_open_on_node, players, setup.game, setup.engine), gpus_of([*models], setup.engine)
    job = PlayJob(opener, in_flight, gpus, endpoint_environment(shared.values()))
    most = sum(len(match.specs) for match in matches)
    workers = RayPlayers(job, cluster, stack, setup.reporter.note, most=most)
    return chain.from_iterable(
        workers.play(match.specs, stats, setup.game, {role: f"{at}/{role}" for role in match.players})
        for at, match in enumerate(matches)
    )


def _open_on_node(
    players: Mapping[str, PlayerConfig], game: Game, engine: EngineConfig, stack: ExitStack
) -> dict[str, Player]:
    from spag.rollout.ray.weights import fetch  # noqa: PLC0415

    fetched = {role: replace(player, model=fetch(player.model, cache_folder())) for role, player in players.items()}
    [opened] = open_matches([fetched], game, engine)
    for player in opened.values():
        stack.callback(player.engine.close)
    return opened
