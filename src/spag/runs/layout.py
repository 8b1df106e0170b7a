"""The names in a run folder: the models that a run trains, with their folders and stages.

A phase is a folder: ``1-imitation/``, ``2-spag/iteration-1/``, ``3-reinforce/``. A model is named after the algorithm
of its phase: ``imitation``, ``spag-1`` (its first iteration), ``reinforce``; if several phases have one algorithm, the
phase's number is part of the name: ``reinforce-3``.
"""

from dataclasses import dataclass
from pathlib import Path

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import IterationSettings, TeacherSettings
from spag.config.schema import GameConfig, PhaseConfig, RunConfig
from spag.core.errors import ConfigError, RunError
from spag.core.visible import counted
from spag.engines.players import CONSTANT, MODEL_FILES, Kind, bot_names, kind_of, split_name
from spag.games.base import Game
from spag.storage.manifest import MANIFEST, Manifest

BASE = "base"
EPISODES = "episodes.jsonl"
HEALTH = "health.json"


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model that a run trains: by a phase, or by an iteration of one.

    ``start``: the name of the model from which its training starts. ``iteration`` counts from 1 over the whole run;
    ``None`` in a phase without iterations. ``first``: the name of the model from which its phase starts.
    """

    name: str
    folder: str
    start: str
    phase: PhaseConfig
    game: GameConfig
    first: str
    iteration: int | None = None

    @property
    def label(self) -> str:
        """The run's name for its phase: the algorithm, numbered if several phases have it."""
        return self.name if self.iteration is None else self.name.rpartition("-")[0]

    @property
    def games(self) -> list[Game]:
        """The games it is trained on: those of its online mix, or its phase's game."""
        return [game for game, _ in self.phase.mix(self.game)]

    @property
    def is_online(self) -> bool:
        return isinstance(self.phase.settings, OnlineSettings)

    @property
    def plays(self) -> bool:
        """Whether games are first played into a file: an iteration's self-play, or the games of a bot to learn from."""
        settings = self.phase.settings
        if isinstance(settings, TeacherSettings):
            return any(kind_of(source) is Kind.BOT for source in settings.episodes)
        return isinstance(settings, IterationSettings)

    @property
    def stages(self) -> list[str]:
        """The stages that lead to the model, in order."""
        return [*([f"{self.folder}/play"] if self.plays else []), f"{self.folder}/train"]


def planned_models(config: RunConfig) -> list[PlannedModel]:
    """Return the models of a run, in training order."""
    found: list[PlannedModel] = []
    algorithms = [phase.algorithm for phase in config.phases]
    iterations, start = 0, BASE
    for number, phase in enumerate(config.phases, start=1):
        label = phase.algorithm if algorithms.count(phase.algorithm) == 1 else f"{phase.algorithm}-{number}"
        folder, first, game = f"{number}-{phase.algorithm}", start, config.game_of(phase)
        if isinstance(settings := phase.settings, IterationSettings):
            for own in range(1, settings.iterations + 1):
                iterations += 1
                name, place = f"{label}-{own}", f"{folder}/iteration-{own}"
                found.append(PlannedModel(name, place, start, phase, game, first, iterations))
                start = name
        else:
            found.append(PlannedModel(label, folder, start, phase, game, first))
            start = label
    return found


def describe_phases(config: RunConfig) -> list[str]:
    """Return a line for each phase of a run, saying what it does."""
    lines = []
    for number, phase in enumerate(config.phases, start=1):
        settings, game = phase.settings, config.game_of(phase).name
        if isinstance(settings, OnlineSettings):
            games = ", ".join(played.name for played, _ in phase.mix(config.game_of(phase)))
            what = f"{counted(settings.steps, 'online step')} of {counted(settings.games, 'game')} of {games}"
        elif isinstance(settings, IterationSettings):
            tasks = "all tasks" if settings.tasks is None else counted(settings.tasks, "task")
            what = f"{settings.iterations} x self-play on {tasks} of {game}, then training"
        else:
            limit = f", {counted(settings.max_episodes, 'game')}" if settings.max_episodes else ""
            what = f"learns {game} from {', '.join(settings.episodes) or 'instruction data'}{limit}"
        lines.append(f"{number}. {phase.algorithm}: {what}")
    return lines


def last_models(config: RunConfig) -> list[str]:
    """Return the last model of each phase."""
    return [*{id(model.phase): model.name for model in planned_models(config)}.values()]


def mixed_model(config: RunConfig, name: str) -> PlannedModel | None:
    """Return the run's model whose snapshots make up ``mixture:MODEL``; ``None`` for any other player."""
    kind, of = split_name(name)
    return next((one for one in planned_models(config) if kind is Kind.MIXTURE and one.name == of), None)


def arena_entrants(config: RunConfig) -> list[str]:
    """Return the entrants of a run's arena. Raises ``ConfigError`` for an unknown name, or fewer than two."""
    has, chosen = [BASE, *(model.name for model in planned_models(config))], config.arena.entrants
    for name in chosen:
        if (model := mixed_model(config, name)) is not None:
            settings = model.phase.settings
            every = settings.keeps_snapshots_every if isinstance(settings, OnlineSettings) else None
            if every is None or every > settings.steps:
                fix = "set snapshot_every of its phase to fewer than its steps"
                raise ConfigError(f"arena.entrants: {name}: {model.name} keeps no snapshots; {fix}")
        elif name not in has and not set(name) & {"/", ":"}:  # a model's or bot's name has one of them
            known = f"{', '.join(has)}, or a model or bot: ORG/NAME, ./FOLDER, openai:MODEL, bot:NAME, mixture:MODEL"
            raise ConfigError(f"arena.entrants: this run has no model {name!r}; it has {known}")
    if chosen and len(set(chosen)) < max(2, len(chosen)):
        raise ConfigError(f"arena.entrants: {', '.join(chosen)}: name two or more, each once")
    constant = [CONSTANT] if CONSTANT in bot_names(config.game.build()) else []
    return chosen or [BASE, *last_models(config), *constant]


def planned_stages(config: RunConfig) -> list[str]:
    """Return the stages of a run, in order."""
    return [*(stage for model in planned_models(config) for stage in model.stages), "arena"]


def check_free(output: Path) -> None:
    """Raise ``RunError`` if ``output`` is in the folder of a run's training, where only the run may write."""
    inside = output.resolve()
    for run in inside.parents:
        ours = (run / MANIFEST).is_file() and (run / "config.yaml").is_file()  # other tools have a manifest.json
        stages = Manifest.open(run).stages if ours else ()
        folders = [run / stage.removesuffix("/train") for stage in stages if stage.endswith("/train")]
        if any(map(inside.is_relative_to, folders)):
            what = f"{output}: belongs to the run {run}, whose later stages build on it"
            raise RunError(f"{what}; choose another --output")


def trained_models(config: RunConfig, folder: Path) -> dict[str, str]:
    """Return the checkpoints of finished trainings in the run ``folder``, by name, in order; none to be redone."""
    valid = Manifest.open(folder).valid_stages()
    done = [model for model in planned_models(config) if f"{model.folder}/train" in valid]
    places = {model.name: folder / model.folder / "checkpoint" for model in done}
    return {name: str(at) for name, at in places.items() if any((at / file).is_file() for file in MODEL_FILES)}
