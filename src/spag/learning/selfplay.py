"""The games of the current policy, step by step: the source of online phases.

    PHASE/  episodes/step-00001.jsonl  metrics.jsonl (a row a step)  evaluations.jsonl (a row a game and opponent)
            evaluations/step-00010.jsonl (their games)  warnings.jsonl (a row whenever the warnings change)
            opponents.jsonl (a row a step: ratings, where the policy meets others)
            snapshots/  checkpoint/  state/

Games are on disk before they count: a killed run returns to its last checkpoint and trains on the files again. Every
process plays its share and reads all games; the first one writes. With ``overlap`` n, a thread plays the next n steps
while the current one is trained. Step k has the weights after step k-1-n (at first: the start's), never older ones, so
no game is ever dropped; importance weights correct for the n steps between. A checkpoint waits for the games played
ahead, so that it need not keep their older weights.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import broadcast_object_list

from spag.algorithms.base import Algorithm
from spag.algorithms.online_settings import RewardOverride
from spag.algorithms.settings import SELF
from spag.config.schema import PlannedEngine
from spag.core.episodes import Episode, TrainingSample
from spag.core.seeds import derive_seed
from spag.core.types import Split
from spag.engines.base import FinishReason
from spag.evaluation.arena.standings import arena_report
from spag.evaluation.exact_metrics import MoveProbabilities, figures_of, probabilities_of
from spag.games.base import Game, SolvedGame
from spag.learning.metrics import MetricsLog, Row
from spag.learning.policy import TrainedPolicy
from spag.learning.sharding import is_sharded
from spag.learning.sources import Source
from spag.learning.step_figures import CollapseWatch, figures, staleness
from spag.models.adapters import use_adapter
from spag.models.roles import adapter_name
from spag.models.tokens import PromptStyle
from spag.rollout.matchmaking import match_specs, pairings
from spag.rollout.steps import POLICY, StepPlayer, weights_after
from spag.storage.episodes import read_episodes

logger = logging.getLogger(__name__)


class SelfplaySource(Source):
    """The games of online steps. ``player`` opens the engines that play. The first process writes, and has the log."""

    def __init__(self, player: StepPlayer, log: MetricsLog | None, step: int) -> None:
        settings = player.settings
        self.player, self.settings, self.seed = player, settings, player.seed
        self.folder, self.is_first = player.folder, player.rank == 0
        self.figures: dict[str, float] = {}
        self.seconds = dict.fromkeys(("play_s", "update_weights_s", "evaluate_s"), 0.0)
        self.stopped = ""
        self.games: Sequence[tuple[Game, Sequence[Episode]]] = ()
        self.evaluations = MetricsLog(self.folder / "evaluations.jsonl", step) if self.is_first else None
        records = self.is_first and settings.opponents.keys() != {SELF}
        self.opponents = MetricsLog(self.folder / "opponents.jsonl", step) if records else None
        self.watch = CollapseWatch(self.folder, log.rows, step) if log else None
        on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        device = (torch.cuda.set_device, (torch.cuda.current_device(),)) if on_gpu else ()  # a thread begins with GPU 0
        self._thread = ThreadPoolExecutor(1, "spag-play", *device)
        self._ahead: dict[int, Future[None]] = {}  # by step
        self._holds: int | None = None  # the step of the engines' weights once all of these are played

    def __enter__(self) -> "SelfplaySource":
        self.player.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.player.stopped = True  # else an interrupted command would play its steps ahead to their ends
        try:
            self._thread.shutdown(cancel_futures=True)
        finally:
            self.player.__exit__(*error)

    def next(self, step: int, policy: TrainedPolicy, algorithm: Algorithm) -> list[TrainingSample]:
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        if step in self._ahead:
            with self._timed("play_s"):
                self._ahead.pop(step).result()
        else:
            self._make_room()
            self._update_engines(policy, step - 1)
            with self._timed("play_s"):
                self.player.play(step, step - 1)
                self.player.rest()
        with self._timed("play_s"):
            policy.accelerator.wait_for_everyone()  # then the other processes' games are on disk
            self.games = self.player.episodes(step)
            self.player.opponents.add(step, self.games)
        for ahead in range(step + 1, min(step + self.settings.overlap, self.settings.steps) + 1):
            if ahead not in self._ahead:
                self._play_ahead(policy, ahead, step - 1)
        return [one for game, episodes in self.games for one in algorithm.credit(episodes, game, POLICY)]

    def finish(self, step: int, row: Row, samples: Sequence[TrainingSample], policy: TrainedPolicy) -> bool:
        self.figures = {}
        for game, episodes in self.games:
            own = self.settings.rewards.get(game.name, RewardOverride())
            self.figures |= figures(episodes, game, own, samples)
        played = [one for _, episodes in self.games for one in episodes]
        unknown = sum(bool(said.unknown_token) for one in played for said in one.history)
        overflows = sum(said.finish_reason == FinishReason.CONTEXT for one in played for said in one.history)
        if overflows and self.is_first:
            logger.warning("step %d: utterances left empty because prompts filled the context: %d", step, overflows)
        spoken = sum(len(said.token_ids or ()) for one in played for said in one.history)
        counts = {"completion_tokens": spoken, "unknown_tokens": unknown, "context_overflows": overflows}
        row |= counts | self.figures
        row["staleness"] = staleness(step, played)
        stops = self._stops(step, row)
        if (kept := self.settings.keeps_snapshots_every) and step % kept == 0:
            policy.save(self.player.snapshot_folder(step))
        if self.settings.evaluates_after(step) or (stops and self.settings.evaluate_every):
            self.settle()  # then the engines are free
            self._make_room()
            with self._timed("evaluate_s"), policy.final():
                self.player.update_weights(policy.weights())
                self._holds = None
                for game, _ in self.player.mix if self.is_first else ():
                    row["completion_tokens"] += self._evaluate(step, game, policy)
                self.player.rest()
        row |= self.seconds
        if self.opponents is not None:
            self.opponents.append({"step": step, "opponents": self._ratings(step)})
        return not stops

    def settle(self) -> None:
        for games in self._ahead.values():
            games.result()
        self._ahead = {}

    def results(self) -> dict[str, Any]:
        rows = self.watch.rows if self.watch else ()
        spoken = {"completion_tokens": sum(row.get("completion_tokens", 0) for row in rows)}
        return spoken | ({"stopped": self.stopped} if self.stopped else {})

    def describe(self) -> str:
        rewards = [(name, value) for name, value in self.figures.items() if name.endswith("/reward")]
        text = "  ".join(f"{self._shown(name).removesuffix('/reward')} {value:+.2f}" for name, value in rewards)
        found = [self._shown(name) for name in self.watch.found] if self.watch else []
        return f"{text}  collapse? {', '.join(found)}" if found else text

    def _shown(self, metric: str) -> str:
        """Return the name of a metric, ``GAME/ROLE/FIGURE`` or of the whole step, with the game only in a mix."""
        game, _, own = metric.partition("/")
        titles = {played.name: played.title for played, _ in self.player.mix}
        return f"{titles[game]}: {own}" if own and len(titles) > 1 else own or metric

    def _stops(self, step: int, row: Row) -> bool:
        """Return whether a warning of a collapse ends the phase, the same on every process."""
        found = self.watch.look(row) if self.watch else {}
        if found and self.settings.stop_on_collapse and step < self.settings.steps:
            self.stopped = f"step {step}: {'; '.join(found.values())}"
        return bool(broadcast_object_list([self.stopped])[0])

    def _play_ahead(self, policy: TrainedPolicy, step: int, weights_of: int) -> None:
        """Let the thread play ``step`` with the current weights, or with a copy of them if it is still busy."""
        if not self._ahead or self._holds == weights_of:
            self._update_engines(policy, weights_of)
            self._ahead[step] = self._thread.submit(self.player.play, step, weights_of)
            return
        with self._timed("update_weights_s"):
            copies = self.player.copy_weights(policy.weights())

        def play() -> None:
            self.player.update_weights(copies)
            self.player.play(step, weights_of)

        self._ahead[step], self._holds = self._thread.submit(play), weights_of

    def _make_room(self) -> None:
        """Release memory that PyTorch caches after updates, for engines that released theirs."""
        if isinstance(self.player.engine, PlannedEngine) and self.player.engine.sleep:
            torch.cuda.empty_cache()

    def _update_engines(self, policy: TrainedPolicy, step: int) -> None:
        """Give the engines the weights after ``step``, unless they have them."""
        if self._holds != step:
            with self._timed("update_weights_s"):
                self.player.update_weights(policy.weights())
            self._holds = step

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to an entry."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - began

    def _evaluate(self, step: int, game: Game, policy: TrainedPolicy) -> int:
        """Play held-out tasks against each opponent, in both roles; add the exact metrics of a solved game. Return how
        many tokens were said.
        """
        assert self.evaluations is not None
        exact: dict[str, float] = {}
        spoken = 0
        if isinstance(game, SolvedGame) and not is_sharded(policy.bare):  # else no process has all of the model
            exact = figures_of(self._probabilities(policy, game), game)
        seed = derive_seed(self.seed, "evaluation")
        tasks = game.tasks(Split.HELD_OUT, self.settings.evaluation_tasks, seed)
        for opponent in self.settings.evaluation_opponents:
            name = f"step-{step:05d}-{_file_name(game.name)}-{_file_name(opponent)}.jsonl"
            path = self.folder / "evaluations" / name
            matches = {pairing: match_specs(pairing, tasks, seed) for pairing in pairings([POLICY, opponent])}
            spoken += self.player.play_into(path, game, matches, {POLICY: weights_after(step)}).tokens
            met = {POLICY, opponent}  # the file may also hold games of a name that gives the same file
            games = (one for one in read_episodes(path) if {info.model for info in one.players.values()} == met)
            report = arena_report(games, game, (POLICY, opponent))
            own = [row for row in report["roles"] if row["name"] == POLICY]
            about = {"step": step, "game": game.name, "opponent": opponent}
            self.evaluations.append({**about, "roles": own, "pair": report["pairs"], "exact": exact})
        return spoken

    def _ratings(self, step: int) -> list[Row]:
        """Return the policy's results against each opponent after ``step``, and its share of the next step's draws."""
        found: list[Row] = []
        for game, _ in self.player.mix:
            shares = self.player.opponents.weights(step + 1 + self.settings.overlap, game)
            for name, result in sorted(self.player.opponents.results(step, game, shares).items()):
                figures = {"games": result.met, "score": result.score, "rating": result.rating}
                share = shares[name] / sum(shares.values())
                found.append({"game": game.name, "opponent": name, **figures, "share": share})
        return found

    def _probabilities(self, policy: TrainedPolicy, game: SolvedGame) -> MoveProbabilities:
        model, found = policy.bare.eval(), MoveProbabilities({}, {})
        style = PromptStyle(self.player.policy.prompt_style)
        for role in game.roles:
            if self.settings.per_role:
                use_adapter(model, adapter_name(f"{game.name}/{role}"))
            found |= probabilities_of(model, policy.tokenizer, style, game, [role])
        return found


def _file_name(text: str) -> str:
    """Return ``text`` as a part of a file's name: a path may be longer than any name."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text)[-60:]
