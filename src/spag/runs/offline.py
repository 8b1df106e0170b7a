"""Imitation, and the paper's offline iterations: play -> rewards -> train. Each stage reads files and writes files of the run folder."""

from collections.abc import Iterable
from typing import Any

from spag.config.schema import FREE_TO_CHANGE, OPPONENTS, RewardsConfig, TrainingConfig
from spag.core.episodes import Episode, SampleType, read_episodes
from spag.core.seeds import derive_seed
from spag.core.sft import read_sft
from spag.core.store import file_digest, write_json
from spag.evaluation.health import health
from spag.rollout.matchmaking import draw_opponents
from spag.rollout.play import pair_up, play_matches
from spag.rollout.runner import game_specs
from spag.runs.folder import BASE, HEALTH, IMITATION, iteration_name
from spag.runs.run import Results, Run
from spag.runs.stages import model_of_play, selfplay_tasks, teacher_episodes, teacher_file, write_samples
from spag.training.launch import train_on


def imitate(run: Run) -> None:
    """Teacher play -> samples -> the imitation checkpoint."""
    config, shared = run.config.imitation, run.config.rewards
    rewards = RewardsConfig(discount=shared.discount, template=shared.template, completions=shared.completions)  # winners only

    def samples() -> Results:
        seed = run.config.seed
        keep, note = config.keep_held_out, run.setup.reporter.note
        episodes = teacher_episodes(config.episodes, config.max_episodes, seed, run.setup.game, keep_held_out=keep, note=note)
        kind = {"sample_type": SampleType.IMITATION, "everyone": config.utterances == "all"}
        sft_seed = derive_seed(seed, IMITATION, "sft")
        return _write_samples(run, IMITATION, episodes, rewards, config.training, seed=seed, sft_seed=sft_seed, **kind)

    digests = [file_digest(path) if (path := teacher_file(source, run.setup.game)) else source for source in config.episodes]
    sources = {"max_episodes": config.max_episodes, "episodes": config.episodes, "digests": digests, **_sft_settings(config.training)}
    if config.keep_held_out:  # as a run from before this option has it, where it is off
        sources["keep_held_out"] = True
    if config.utterances != "winners":
        sources["utterances"] = config.utterances
    settings = run.settings("seed", "game", rewards=rewards.model_dump(mode="json"), **sources)
    run.stage(f"{IMITATION}/samples", settings, (), [f"{IMITATION}/samples.jsonl"], samples)
    run.keep_settings()
    _train(run, IMITATION, config.training, start_from=BASE)


def iterate(run: Run, number: int) -> None:
    """One iteration: self-play, rewards, offline RL."""
    name, config = iteration_name(number), run.config
    earlier = [run.first, *map(iteration_name, range(1, number))]
    previous = earlier.pop()
    episodes_path = run.folder / name / "episodes.jsonl"
    seed = derive_seed(config.seed, name)

    def play() -> Results:
        tasks = selfplay_tasks(run.setup.game, config.selfplay, config.selfplay.tasks, derive_seed(seed, "words"))
        specs = game_specs(tasks, config.selfplay.repeats, seed)
        pairs = draw_opponents(specs, previous, config.selfplay.opponents, earlier)
        models = {player: run.model(player) for player in (BASE, *earlier, previous)}
        models |= {name: config.model.model_copy(update={"name": name}) for name in config.selfplay.opponents if name not in OPPONENTS}
        models = {player: model_of_play(model, config.selfplay) for player, model in models.items()}
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
    run.stage(f"{name}/play", run.settings("seed", "game", "selfplay"), run.trained(previous), outputs, play)
    settings = run.settings("rewards", **_sft_settings(config.offline_rl))
    run.stage(f"{name}/samples", settings, [f"{name}/play"], [f"{name}/samples.jsonl"], samples)
    _train(run, name, config.offline_rl, start_from=previous)


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
    run.stage(f"{name}/train", settings, [f"{name}/samples", *run.trained(start_from)], outputs, train, kept=[f"{name}/checkpoint"])


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
