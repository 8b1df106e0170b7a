"""Checks that find errors in a run before its first minute of work, instead of after hours.

Settings are checked against the game, the files that they name, the models' configs, the installed packages, and the
machine. Only configs of models are loaded or downloaded, and tokenizers of local ones loaded; nothing is converted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from spag.algorithms import get as get_algorithm
from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import IterationSettings, OfflineSettings, TeacherSettings, UpdateSettings
from spag.config.schema import PhaseConfig, RunConfig
from spag.core.errors import ConfigError
from spag.core.types import Split
from spag.engines.players import Kind, kind_of
from spag.engines.vllm.setup import MAX_TEMPERATURE, Backend
from spag.games.base import Game, is_competitive, tasks_of
from spag.models.finding import read_adapter, resolve_model
from spag.models.roles import adapter_names, model_of_role, models_of, read_roles
from spag.rollout.matchmaking import groups_by_weight, training_specs
from spag.rollout.ray import require_ray
from spag.runs.layout import arena_entrants, last_models
from spag.runs.machine_checks import backend_here, check_machine, check_players, is_elsewhere, players
from spag.runs.teachers import teacher_file
from spag.storage.episodes import is_file_of_samples, read_episodes, read_sft
from spag.storage.home import expanded


def check_run(config: RunConfig, game: Game) -> None:
    """Raise the ``SpagError`` with which a stage of the run would fail, as far as this is known beforehand."""
    from spag.learning.devices import check_packages  # noqa: PLC0415 - imports torch

    arena_entrants(config)
    _check_tasks(config, game)
    check_machine(config)
    for number, phase in enumerate(config.phases):
        with naming(f"phases.{number} ({phase.algorithm})"):
            _check_files(config, phase)
            _check_roles(config, phase)
            _check_mix(config, phase)
            _check_length(config, phase)
            _check_opponents(phase.settings)
            _check_training(phase.settings, config)
    _check_adapters(config)
    if config.cluster.address is not None:
        require_ray(config.cluster.address)
        _check_online_workers(config)
    check_packages(config.report_to)
    _check_samplings(config)
    check_players(config, players(config))


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Name a phase or an option in errors about it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def _check_tasks(config: RunConfig, game: Game) -> None:
    """Draw the tasks of the run. Raises ``ConfigError`` naming the option."""
    with naming("arena.tasks"):
        game.tasks(Split.HELD_OUT, config.arena.tasks, 0)
    for number, phase in enumerate(config.phases):
        settings, place = phase.settings, f"phases.{number}"
        if isinstance(settings, IterationSettings):
            played = config.game_of(phase).build()
            with naming(f"{place}.tasks"):
                if not tasks_of(played, settings.splits, settings.tasks, 0):
                    training_specs(played, 1, 0)  # refuses it
        if isinstance(settings, OnlineSettings):
            for played, _ in phase.mix(config.game_of(phase)):
                training_specs(played, 1, 0)
                if settings.evaluate_every:
                    with naming(f"{place}.evaluation_tasks ({played.name})"):
                        played.tasks(Split.HELD_OUT, settings.evaluation_tasks, 0)


def _check_mix(config: RunConfig, phase: PhaseConfig) -> None:
    """Raise ``ConfigError`` if a game of the mix would never be played, is named twice, or ranks no opponents."""
    settings = phase.settings
    if not isinstance(settings, OnlineSettings):
        return
    mix = phase.mix(config.game_of(phase))
    names = [game.name for game, _ in mix]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ConfigError(f"mix: {twice[0]} is named more than once; name each game once, with its weight")
    groups = groups_by_weight([weight for _, weight in mix], settings.games // settings.repeats)
    for (game, weight), share in zip(mix, groups, strict=True):
        if not share:
            what = f"weight {weight:g} gives {game.name} none of the {settings.games} games of a step"
            raise ConfigError(f"mix: {what}; raise the weight or games")
        if settings.matchmaking == "results" and not is_competitive(game):
            what = f"in {game.name} players win together, so results say nothing about an opponent"
            raise ConfigError(f"matchmaking=results: {what}; set it to weights")


def _check_files(config: RunConfig, phase: PhaseConfig) -> None:
    """Read the beginning of every file that the phase learns from, and credit its first game."""
    settings = phase.settings
    if isinstance(settings, TeacherSettings):
        game = config.game_of(phase).build()
        for source in settings.episodes:
            path = teacher_file(source, game)
            if path is None:
                training_specs(game, 1, 0)
            elif not is_file_of_samples(path):
                get_algorithm(phase.algorithm)(settings).credit([*islice(read_episodes(path), 1)], game, None)
        if not settings.episodes and not settings.sft_data:
            raise ConfigError(
                "episodes and sft_data are empty, so there is nothing to learn; name one, or drop the phase"
            )
    if isinstance(settings, OfflineSettings) and settings.sft_data:
        read_sft(settings.sft_data, settings.sft_samples, 0)


def _check_length(config: RunConfig, phase: PhaseConfig) -> None:
    """Refuse a ``max_length`` with which sampled utterances would be trained after another prompt.

    Only training can tell whether other prompts are too long; it counts them and warns.
    """
    settings = phase.settings
    if not isinstance(settings, IterationSettings) or settings.completions != "sampled":
        return
    sampling = settings.sampling
    prompt = sampling.max_prompt_tokens if settings.template == "play" else 0
    if settings.max_length < (needed := max(prompt, 1) + sampling.most_tokens):
        what = f"an utterance may have {sampling.most_tokens} tokens"
        what += f" after a prompt of {prompt}" if prompt else ", which leaves none for its prompt"
        raise ConfigError(f"max_length={settings.max_length}: {what}; set max_length to {needed} at least")


def _check_adapters(config: RunConfig) -> None:
    """Refuse a phase's adapter of another shape than the one it trains further: the start's, or an earlier phase's."""
    loras = [(number, phase.settings.lora) for number, phase in enumerate(config.phases) if phase.settings.lora]
    if not loras:
        return
    options = ("rank", "alpha", "target_modules")
    known = {option: ("an earlier one's adapter", getattr(loras[0][1], option)) for option in options}
    if start := next(filter(None, (read_adapter(expanded(part)) for part in models_of(config.model.name))), None):
        whose = f"the adapter of {config.model.name}"
        known |= {"rank": (whose, start.rank), "alpha": (whose, start.alpha)}
    for number, own in loras:
        for option, (whose, value) in known.items():
            asked, has = (sorted(one) if isinstance(one, list) else one for one in (getattr(own, option), value))
            if asked != has:
                what = f"this phase trains {whose} further; set it to {has}, its value there"
                raise ConfigError(f"phases.{number}.lora.{option}={asked}: {what}")


def _check_opponents(settings: UpdateSettings) -> None:
    """Raise ``ConfigError`` for a mixture among the opponents of a phase."""
    for name in getattr(settings, "met", ()):  # a teacher meets nobody
        if kind_of(name) is Kind.MIXTURE:
            raise ConfigError(f"{name}: a mixture can only play in an arena; name snapshot in opponents")


def _check_roles(config: RunConfig, phase: PhaseConfig) -> None:
    """Check per-role adapters: those of a start model are trained separately, and play no other games."""
    per_role = phase.settings.per_role
    if read_roles(config.model.name) and (not per_role or len(config.phases) > 1):
        resolve_model(config.model.name)  # refuses it
    if not per_role:
        return
    if phase is not config.phases[-1]:
        raise ConfigError("lora.per_role: only the last phase can train adapters for each role; move it to the end")
    games = {game.name: game for game, _ in phase.mix(config.game_of(phase))}
    if config.game.name not in games and last_models(config)[-1] in arena_entrants(config):
        what = f"the arena plays {config.game.name}, and adapters are trained for {', '.join(games)}"
        raise ConfigError(f"lora.per_role: {what}; add the game to mix, or name arena.entrants without the last model")
    for role in adapter_names(f"{name}/{role}" for name, game in games.items() for role in game.roles):
        model_of_role(config.model.name, *role.rsplit("/", 1))


def _check_training(settings: UpdateSettings, config: RunConfig) -> None:
    from spag.learning.devices import check_settings  # noqa: PLC0415 - imports torch

    model = config.model.model_copy(update={"dtype": "float32"}) if config.model.dtype == "auto" else config.model
    check_settings(model, settings, elsewhere=is_elsewhere(config))


def _check_online_workers(config: RunConfig) -> None:
    online = [phase.settings for phase in config.phases if isinstance(phase.settings, OnlineSettings)]
    if config.cluster.online_workers and any(settings.processes is None for settings in online):
        what = "processes=null trains on every GPU and leaves none to play"
        fix = "set processes of the online phase"
        raise ConfigError(f"cluster.online_workers={config.cluster.online_workers}: {what}; {fix}")


def _check_samplings(config: RunConfig) -> None:
    """Refuse sampling that vLLM would refuse at its first request, or that a playing endpoint lacks."""
    on_vllm = backend_here(config) is Backend.VLLM
    asked = {"arena": (config.arena.sampling, config.arena.entrants)}
    for number, phase in enumerate(config.phases):
        if not isinstance(settings := phase.settings, TeacherSettings):
            asked[f"phases.{number}"] = settings.sampling, settings.met
    for place, (sampling, names) in asked.items():  # names: the players besides the run's own
        option = f"{place}.sampling"
        if on_vllm and sampling.temperature > MAX_TEMPERATURE:
            raise ConfigError(
                f"{option}.temperature={sampling.temperature:g}: vLLM allows at most {MAX_TEMPERATURE:g}; lower it"
            )
        if on_vllm and sampling.most_tokens >= config.engine.max_length:
            thought = f"thinking.max_tokens={sampling.thought_tokens} and " if sampling.thought_tokens else ""
            what = f"{option}: {thought}max_new_tokens={sampling.max_new_tokens} leave no room for a prompt"
            raise ConfigError(f"{what} in engine.max_length={config.engine.max_length}; raise it, or lower the others")
        lacks = {"top_k": sampling.top_k, "published": sampling.published}
        given = [f"{option}.{name}={value}" for name, value in lacks.items() if value]
        if given and (endpoint := next((name for name in names if kind_of(name) is Kind.ENDPOINT), None)):
            what = f"{given[0]}: {endpoint} plays with it, and its protocol does not have it"
            raise ConfigError(f"{what}; omit it")
