"""The online loop's side of the games: what each step plays, what it is worth, and how the policy stands against others.

    online/  episodes/step-00001.jsonl  metrics.jsonl (a row a step)  evaluations.jsonl (a row a game and opponent)
             evaluations/step-00010.jsonl (their games)  warnings.jsonl (a row whenever the signs of a collapse change)
             snapshots/  checkpoint/  state/

``spag.training.online`` trains on what ``OnlineSelfplay`` hands it. Credit, baselines and figures are computed by every process alike, from
the same files; the first one writes.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from spag.algorithms.reinforce import Baselines, CreditSettings, credit, role_reward
from spag.config.schema import PayConfig, RunConfig
from spag.core.episodes import Episode, TrainingSample, read_episodes
from spag.core.seeds import derive_seed
from spag.core.types import Split
from spag.evaluation.arena.games import arena_report
from spag.evaluation.collapse import signs
from spag.evaluation.yardsticks import MoveProbabilities, figures_of, probabilities_of
from spag.games.base import Game, SolvedGame
from spag.models.roles import adapter_name
from spag.models.tokens import PromptStyle
from spag.rollout.matchmaking import Pairing
from spag.rollout.runner import game_specs
from spag.rollout.steps import POLICY, MixedGame, StepPlayer
from spag.runs.records import read_rows
from spag.training.base import Row
from spag.training.online_run import Opening
from spag.training.state import MetricsLog

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

LEAST_ADVANTAGE = 0.01
"""Below it a sample has no advantage: what is left of a baseline when all games end alike, which AdamW still turns into full steps."""


def games_of(config: RunConfig) -> list[MixedGame]:
    """Return the games of an online run."""
    weights = [part.weight for part in config.online.mix] or [1.0]
    return [MixedGame(game, weight) for game, weight in zip(config.online_games(), weights, strict=True)]


def roles_of(games: Sequence[MixedGame]) -> list[str]:
    """Return every ``GAME/ROLE`` of the games."""
    return [f"{part.game.name}/{role}" for part in games for role in part.game.roles]


class OnlineSelfplay:
    """Satisfies ``spag.training.selfplay.Selfplay``."""

    def __init__(self, config: RunConfig, folder: Path, opening: Opening, player: StepPlayer) -> None:
        self.config, self.folder, self.opening, self.player = config, folder, opening, player
        self.settings = config.online
        state = opening.state or {}
        self.baselines = Baselines(self.settings.baseline_decay, dict(state.get("baselines", {})))
        self.figures: dict[str, float] = {}
        self.weights: Mapping[str, Tensor] = {}
        is_first = opening.rank == 0
        self.metrics = MetricsLog(folder / "metrics.jsonl", opening.step) if is_first else None
        self.evaluations = MetricsLog(folder / "evaluations.jsonl", opening.step) if is_first else None
        self.watch = CollapseWatch(folder, opening.step) if is_first else None
        self.stopped = ""

    def update_weights(self, weights: "Mapping[str, Tensor]") -> None:
        self.weights = weights
        self.player.update_weights(weights)

    def play(self, step: int) -> None:
        self.player.play(step)

    def samples(self, step: int) -> list[TrainingSample]:
        samples: list[TrainingSample] = []
        self.figures = {}
        for game, episodes in self.player.episodes(step):
            settings = self._credit_settings(game)
            made = credit(episodes, game, settings, self.baselines)
            self.figures |= _figures(episodes, game, settings, made)
            samples += made
        self.figures |= {f"{key}/baseline": value for key, value in self.baselines.values.items()}
        return samples

    def needs_weights(self, step: int) -> bool:
        return self._evaluates(step) or step % self.settings.snapshot_every == 0

    def finish_step(self, step: int, row: Row, policy: "PreTrainedModel | None") -> bool:
        row |= self.figures
        if self.metrics is None or self.watch is None:
            return True
        if step % self.settings.snapshot_every == 0:
            self.player.save_snapshot(step, self.weights)
        began = time.perf_counter()
        if self._evaluates(step):
            for part in self.player.mix:
                self._evaluate(step, part.game, policy)
        row["evaluate_s"] = time.perf_counter() - began
        self.metrics.append(row)
        found = self.watch.look(row)
        if found and self.settings.stop_on_collapse and step < self.settings.steps:
            self.stopped = f"step {step}: {'; '.join(found.values())}"
        return not self.stopped

    def state(self) -> dict[str, Any]:
        return {"baselines": self.baselines.values}

    def results(self) -> dict[str, Any]:
        return {"stopped": self.stopped} if self.stopped else {}

    def describe(self) -> str:
        rewards = {name.removesuffix("/reward"): value for name, value in self.figures.items() if name.endswith("/reward")}
        told = "  ".join(f"{name.rpartition('/')[2]} {value:+.2f}" for name, value in rewards.items())
        found = [name.partition("/")[2] or name for name in self.watch.found] if self.watch else []
        return f"{told}  signs of collapse: {', '.join(found)}" if found else told

    def _evaluates(self, step: int) -> bool:
        every = self.settings.evaluate_every
        return every is not None and (step % every == 0 or step == self.settings.steps)

    def _credit_settings(self, game: Game) -> CreditSettings:
        pay = self.settings.pay.get(game.name, PayConfig())
        roles = None if self.settings.roles == "both" else frozenset({self.settings.roles})
        return CreditSettings(
            discount=self.settings.discount,
            normalize=self.settings.normalize_advantages,
            tie_reward=pay.tie_reward,
            illegal_reward=pay.illegal_reward,
            roles=roles,
            learner=POLICY,
        )

    def _evaluate(self, step: int, game: Game, policy: "PreTrainedModel | None") -> None:
        """Play held-out tasks against each opponent, in both roles; add the exact figures of a solved game."""
        assert self.evaluations is not None
        exact: dict[str, float] = {}
        if isinstance(game, SolvedGame) and policy is not None:
            exact = figures_of(self._probabilities(policy.eval(), game), game)
        tasks = game.tasks(Split.HELD_OUT, self.settings.evaluation_tasks, derive_seed(self.config.seed, "evaluation"))
        for opponent in self.settings.evaluation_opponents:
            path = self.folder / "evaluations" / f"step-{step:05d}-{game.name.replace(':', '-')}-{_file_name(opponent)}.jsonl"
            for pairing in (Pairing((POLICY, opponent)), Pairing((opponent, POLICY))):
                specs = game_specs(tasks, 1, derive_seed(self.config.seed, "evaluation", pairing.title))
                named = [type(spec)(f"{pairing.title}: {spec.task.id}", spec.task, spec.seed) for spec in specs]
                self.player.play_into(path, game, pairing, named, {POLICY: f"step {step}"})
            report = arena_report(read_episodes(path), game, (POLICY, opponent))
            own = [row for row in report["roles"] if row["name"] == POLICY]
            self.evaluations.append(
                {"step": step, "game": game.name, "opponent": opponent, "roles": own, "pair": report["pairs"], "exact": exact}
            )

    def _probabilities(self, policy: "PreTrainedModel", game: SolvedGame) -> MoveProbabilities:
        from spag.models.adapters import use_adapter  # noqa: PLC0415 - imports torch

        found = MoveProbabilities({}, {})
        for role in game.roles:
            if self.settings.per_role:
                use_adapter(policy, adapter_name(f"{game.name}/{role}"))
            found |= probabilities_of(policy, self.opening.tokenizer, PromptStyle(self.config.model.prompt_style), game, [role])
        return found


class CollapseWatch:
    """The signs of a collapse after each step, and their record. Rows after the step that training resumes from are dropped."""

    def __init__(self, folder: Path, step: int) -> None:
        self.rows = read_rows(folder / "metrics.jsonl")  # MetricsLog has dropped the later ones
        self.log = MetricsLog(folder / "warnings.jsonl", step)
        self.found = signs(self.rows)

    def look(self, row: Row) -> Mapping[str, str]:
        """Take the row of a step and return the signs after it."""
        before, self.rows = self.found.keys(), [*self.rows, row]
        self.found = signs(self.rows)
        if self.found.keys() != before:
            self.log.append({"step": row["step"], "signs": self.found})
        return self.found


def _figures(episodes: Sequence[Episode], game: Game, settings: CreditSettings, samples: Sequence[TrainingSample]) -> dict[str, float]:
    """Return the step's figures of one game by ``GAME/ROLE/FIGURE``; shares are of its games, or of the role's utterances."""
    found: dict[str, float] = {f"{game.name}/games": len(episodes)}
    outcomes = Counter(episode.outcome for episode in episodes)
    for role in game.roles:
        key = f"{game.name}/{role}"
        said = [utterance for episode in episodes for utterance in episode.history if utterance.role == role]
        own = [sample for sample in samples if sample.role == key]
        found |= {
            f"{key}/reward": fmean(role_reward(episode, game, role, settings) for episode in episodes),
            f"{key}/win": sum(outcomes[name] for name, outcome in game.outcomes.items() if role in outcome.winners) / len(episodes),
            f"{key}/illegal": sum(outcomes[name] for name, outcome in game.outcomes.items() if outcome.fault == role) / len(episodes),
            f"{key}/length": fmean(len(utterance.token_ids or ()) for utterance in said) if said else 0.0,
            f"{key}/no_advantage": fmean(abs(sample.reward) < LEAST_ADVANTAGE for sample in own) if own else 1.0,
            f"{key}/distinct": len({utterance.content for utterance in said}) / max(len(said), 1),
        }
    return found


def _file_name(opponent: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in opponent)


@contextmanager
def open_selfplay(config: RunConfig, folder: Path, opening: Opening) -> Iterator[OnlineSelfplay]:
    """Open the engines, in this process or on Ray, and yield what trains by them."""
    kind: Callable[..., StepPlayer] = StepPlayer
    if config.cluster.address is not None and config.cluster.online_workers is not None:
        from spag.rollout.ray.steps import RayStepPlayer  # noqa: PLC0415 - ray is optional

        kind = partial(RayStepPlayer, cluster=config.cluster)
    player = kind(
        folder=folder,
        mix=games_of(config),
        policy=config.model.model_copy(update={"name": opening.policy}),
        engine=config.engine,
        settings=config.online,
        seed=config.seed,
        rank=opening.rank,
        world_size=opening.world_size,
    )
    with player:
        yield OnlineSelfplay(config, folder, opening, player)
