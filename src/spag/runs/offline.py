"""The whole loop as one resumable run: imitation -> (play -> rewards -> train) x iterations -> arena.

Each stage reads files and writes files of the run folder, so it can be stopped anywhere and looked at afterwards. ``manifest.py`` decides
what is left to do; ``stages.py`` does it.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spag.config.files import dump_config
from spag.config.schema import FREE_TO_CHANGE, OPPONENTS, ModelConfig, RewardsConfig, RunConfig, TrainingConfig
from spag.core.episodes import Episode, SampleType, read_episodes
from spag.core.errors import ConfigError
from spag.core.manifest import Manifest
from spag.core.progress import Reporter
from spag.core.seeds import derive_seed
from spag.core.sft import read_sft
from spag.core.store import FolderLock, file_digest, storage_errors, write_atomically, write_json
from spag.core.types import Split
from spag.engines.bot import BOT_PREFIX, bot_of
from spag.evaluation.health import health
from spag.games.base import Game
from spag.rollout.matchmaking import draw_opponents
from spag.rollout.play import PlaySetup, pair_up, play_matches
from spag.rollout.runner import game_specs
from spag.runs.folder import BASE, HEALTH, IMITATION, iteration_name
from spag.runs.sft import mix_warning
from spag.runs.stages import play_arena, resolve_dtype, teacher_episodes, teacher_file, write_samples
from spag.training.launch import train_on

Results = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A run in progress: what every stage needs."""

    config: RunConfig
    folder: Path
    manifest: Manifest
    setup: PlaySetup

    def checkpoint(self, name: str) -> str:
        """Return the model of ``base``, ``imitation`` or ``iteration-k``."""
        return self.config.model.name if name == BASE else str(self.folder / name / "checkpoint")

    def model(self, name: str) -> ModelConfig:
        return self.config.model.model_copy(update={"name": self.checkpoint(name)})

    def settings(self, *sections: str, **more: Any) -> dict[str, Any]:
        """Return those sections of the config, as a stage's settings, with the digests of the files they name."""
        dumped = self.config.model_dump(mode="json", include=set(sections))
        named = (self.config.game.model_extra or {}).items() if "game" in sections else ()
        files = {name: Path(value) for name, value in named if isinstance(value, str) and Path(value).is_file()}
        return {**dumped, **more, "files": {name: file_digest(path) for name, path in files.items()}}

    def stage(
        self, name: str, settings: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str], work: Callable[[], Results]
    ) -> None:
        """Do ``work`` unless the manifest says that it is done; a forced redo removes ``outputs`` first."""
        if self.manifest.force and self.manifest.is_stale(name, settings, inputs):
            for output in outputs:
                _remove(self.folder / output)
        if not self.manifest.begin(name, settings, inputs):
            self.setup.reporter.note(f"{name}: done before")
            return
        with self.manifest.running(name) as results:
            results.update(work())


def run(config: RunConfig, folder: Path, reporter: Reporter, *, force: bool = False) -> None:
    """Run or resume everything. Raises ``RunError`` when another process works in ``folder`` or a stage's settings changed."""
    with FolderLock(folder):
        setup = PlaySetup.of(config, reporter)
        manifest = Manifest.open(folder, force=force)
        if not manifest.stages:
            _check_early(config, setup.game)
            for training in (config.imitation.training, *([config.offline_rl] if config.iterations else [])):
                if warning := mix_warning(training):
                    reporter.note(warning)
        config = resolve_dtype(config, lambda measure: manifest.remember("dtype", measure))
        state = Run(config, folder, manifest, setup)
        imitate(state)
        renew_arena(state)
        for number in range(1, config.iterations + 1):
            iterate(state, number)
        compete(state)


def _check_early(config: RunConfig, game: Game) -> None:
    """Raise ``ConfigError`` now for what a late stage would find wrong after hours of work."""
    wanted = {"selfplay.tasks": (Split.TRAIN, config.selfplay.tasks), "arena.tasks": (Split.HELD_OUT, config.arena.tasks)}
    for option, (split, count) in wanted.items():
        try:
            game.tasks(split, count, 0)
        except ConfigError as error:
            raise ConfigError(f"{option}: {error}") from error
    for opponent in config.selfplay.opponents:
        if opponent.startswith(BOT_PREFIX):
            bot_of(game, opponent)


def imitate(run: Run) -> None:
    """Teacher play -> samples -> the imitation checkpoint."""
    config, shared = run.config.imitation, run.config.rewards
    rewards = RewardsConfig(discount=shared.discount, template=shared.template, completions=shared.completions)  # winners only

    def samples() -> Results:
        seed = run.config.seed
        keep, note = config.keep_held_out, run.setup.reporter.note
        episodes = teacher_episodes(config.episodes, config.max_episodes, seed, run.setup.game, keep_held_out=keep, note=note)
        sft_seed, kind = derive_seed(seed, IMITATION, "sft"), SampleType.IMITATION
        return _write_samples(run, IMITATION, episodes, rewards, config.training, seed=seed, sft_seed=sft_seed, sample_type=kind)

    digests = [file_digest(path) if (path := teacher_file(source, run.setup.game)) else source for source in config.episodes]
    sources = {"max_episodes": config.max_episodes, "episodes": config.episodes, "digests": digests, **_sft_settings(config.training)}
    if config.keep_held_out:  # as a run from before this option has it, where it is off
        sources["keep_held_out"] = True
    settings = run.settings("seed", "game", rewards=rewards.model_dump(mode="json"), **sources)
    run.stage(f"{IMITATION}/samples", settings, (), [f"{IMITATION}/samples.jsonl"], samples)
    write_atomically(run.folder / "config.yaml", dump_config(run.config))
    _train(run, IMITATION, config.training, start_from=BASE)


def iterate(run: Run, number: int) -> None:
    """One iteration: self-play, rewards, offline RL."""
    name, config = iteration_name(number), run.config
    earlier = [IMITATION, *map(iteration_name, range(1, number))]
    previous = earlier.pop()
    episodes_path = run.folder / name / "episodes.jsonl"
    seed = derive_seed(config.seed, name)

    def play() -> Results:
        tasks = run.setup.game.tasks(Split.TRAIN, config.selfplay.tasks, derive_seed(seed, "words"))
        specs = game_specs(tasks, config.selfplay.repeats, seed)
        pairs = draw_opponents(specs, previous, config.selfplay.opponents, earlier)
        models = {player: run.model(player) for player in (BASE, *earlier, previous)}
        models |= {name: config.model.model_copy(update={"name": name}) for name in config.selfplay.opponents if name not in OPPONENTS}
        matches = pair_up(pairs, models, config.selfplay.sampling_of, run.setup.game.roles, f"{name} self-play")
        summary = play_matches(episodes_path, matches, run.setup, force=run.manifest.force)
        found = health(read_episodes(episodes_path), run.setup.game)
        write_json(run.folder / name / HEALTH, found)
        for warning in found["warnings"]:
            run.setup.reporter.note(f"{name} self-play: {warning}")
        told, stats = summary.describe(run.setup.game), summary.stats
        run.setup.reporter.note(f"{name} self-play: {summary.games} games, {told}, {stats.empty} empty utterances")
        return {
            "games": summary.games,
            "outcomes": dict(summary.outcomes),
            "games_per_hour": round(summary.games_per_hour),
            "empty_utterances": stats.empty,
            "completion_tokens": stats.completion_tokens,
        }

    def samples() -> Results:
        games, sft_seed = read_episodes(episodes_path), derive_seed(seed, "sft")
        return _write_samples(run, name, games, config.rewards, config.offline_rl, seed=seed, sft_seed=sft_seed, learner=previous)

    outputs = [f"{name}/episodes.jsonl", f"{name}/{HEALTH}"]
    run.stage(f"{name}/play", run.settings("seed", "game", "selfplay"), [f"{previous}/train"], outputs, play)
    settings = run.settings("rewards", **_sft_settings(config.offline_rl))
    run.stage(f"{name}/samples", settings, [f"{name}/play"], [f"{name}/samples.jsonl"], samples)
    _train(run, name, config.offline_rl, start_from=previous)


def compete(run: Run) -> None:
    """The arena: every pair of base, imitation and the last iteration, on held-out words."""

    def play() -> Results:
        entrants = {name: run.model(name) for name in _entrants(run)}
        results = play_arena(run.folder / "arena", entrants, run.config, run.setup, force=True)  # an earlier last iteration's games go
        return {"games": sum(pair["games"] for pair in results["pairs"])}

    run.stage("arena", _arena_settings(run), [f"{name}/train" for name in _entrants(run)[1:]], ["arena"], play)


def renew_arena(run: Run) -> None:
    """Make a finished arena due again when the run has become longer or shorter, and refuse now what it would refuse at the end."""
    run.manifest.renew("arena", _arena_settings(run), free="names")


def _entrants(run: Run) -> list[str]:
    last = [iteration_name(run.config.iterations)] if run.config.iterations else []
    return [BASE, IMITATION, *last]


def _arena_settings(run: Run) -> dict[str, Any]:
    return run.settings("seed", "game", "arena", names=_entrants(run))


def _train(run: Run, name: str, training: TrainingConfig, start_from: str) -> None:
    """Train ``start_from`` on the samples of ``name``."""
    folder = run.folder / name

    def train() -> Results:
        return train_on(
            folder / "samples.jsonl",
            run.config.model,
            training,
            start_from=run.checkpoint(start_from),
            output=folder,
            seed=run.config.seed,
            reporter=run.setup.reporter,
            title=f"{name} training",
            cluster=run.config.cluster,
        )

    settings = run.settings("seed", "model", training=training.model_dump(mode="json", exclude=set(FREE_TO_CHANGE)))
    outputs = [f"{name}/{part}" for part in ("checkpoint", "state", "metrics.jsonl", "reference.jsonl", "tensorboard")]
    before = [] if start_from == BASE else [f"{start_from}/train"]
    run.stage(f"{name}/train", settings, [f"{name}/samples", *before], outputs, train)


def _sft_settings(training: TrainingConfig) -> dict[str, Any]:
    return {"sft_digest": file_digest(training.sft_data) if training.sft_data else None, "sft_samples": training.sft_samples}


def _write_samples(
    run: Run,
    name: str,
    episodes: Iterable[Episode],
    rewards: RewardsConfig,
    training: TrainingConfig,
    *,
    seed: int,
    sft_seed: int,
    **kind: Any,
) -> Results:
    """Write the training samples of ``name`` with the SFT mix of ``training``."""
    sft = read_sft(training.sft_data, training.sft_samples, sft_seed) if training.sft_data else []
    path = run.folder / name / "samples.jsonl"
    stats = write_samples(path, episodes, rewards, game=run.setup.game, seed=seed, sft=sft, **kind)
    weights = {role: round(weight, 3) for role, weight in stats.role_weights.items()}
    counts = dict(stats.samples)
    run.setup.reporter.note(f"{name} samples: {sum(counts.values())} ({counts}), role weights {weights}")
    return {"outcomes": dict(stats.outcomes), "samples": counts, "role_weights": weights, "sft": len(sft), "held_out": stats.held_out}


def _remove(path: Path) -> None:
    with storage_errors(path):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
