"""An online step, play and training: steps an hour against a plain loop, where the time goes, and tokens a second
against offline training.

Both sides play the same number of full games of 3 turns, 6 utterances of 32 tokens, of SmolLM2-135M against itself
(nobody wins: the judge is switched off, so that all games are equally long; a draw pays 1), and train every utterance
with REINFORCE, once, by AdamW. The plain loop is what one writes with transformers alone: all games
of the step take their next utterance in one ``generate`` of left-padded prompts, nothing is kept between turns, texts
are tokenised again, and right-padded batches of 4, which take about the memory of our packed rows, compute all logits.
One in six of these batches is trained, and its time is taken for all, by their tokens. Ours is the learning loop as
it runs, files included. Each runs in a process of its own.

    python -m benchmarks --only online
    python -m benchmarks.online ours --games 8      # one contestant
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.corpus import teacher_utterances
from benchmarks.harness import Contest, Reading, alone, peak_mib, print_reading
from benchmarks.play import MODEL, EndlessTaboo
from benchmarks.steps import Ours
from benchmarks.steps import Work as OfflineWork
from benchmarks.training import held_gib, now
from spag.algorithms.base import Algorithm
from spag.algorithms.reinforce import Reinforce, ReinforceSettings
from spag.config.schema import EngineConfig, GameConfig, ModelConfig, PhaseConfig
from spag.core.episodes import Episode, PlayerInfo, TrainingSample
from spag.core.types import State, Utterance
from spag.learning.job import TrainingJob
from spag.learning.loop import Loop
from spag.learning.metrics import MetricsLog, Row
from spag.learning.policy import TrainedPolicy
from spag.learning.selfplay import SelfplaySource
from spag.models.loading import load_model, load_tokenizer
from spag.models.samples import encode_samples
from spag.models.tokens import PromptStyle, encode_prompt, stop_token_ids
from spag.rollout.matchmaking import step_specs
from spag.rollout.steps import POLICY, StepPlayer, weights_after
from spag.storage.episodes import JsonlStore

TOKENS, TURNS = 32, 3
GAMES, STEPS = 16, 1  # a step of the demo
MICRO_BATCH, PLAIN_MICRO_BATCH = 16, 4
PLAIN_SHARE = 6  # of so many of its batches, one is trained
LEARNING_RATE = 1e-6
PARTS = ("play_s", "logprobs_s", "train_s", "update_weights_s")
GAME = EndlessTaboo(max_turns=TURNS, words="shipped")
SEED = 0


@dataclass(frozen=True, slots=True)
class Work:
    """So many steps of so many games; ``micro_batch`` samples are trained at once, ``plain_micro_batch`` in the plain
    loop.
    """

    model: str = MODEL.name
    dtype: str = MODEL.dtype
    games: int = GAMES
    steps: int = STEPS
    micro_batch: int = MICRO_BATCH
    plain_micro_batch: int = PLAIN_MICRO_BATCH


def settings_of(work: Work) -> ReinforceSettings:
    return ReinforceSettings.model_validate(
        {
            "steps": work.steps,
            "games": work.games,
            "learning_rate": LEARNING_RATE,
            "warmup_ratio": 0.0,
            "micro_batch_size": work.micro_batch,
            "sampling": {"temperature": 1.0, "max_new_tokens": TOKENS, "min_new_tokens": TOKENS},
            "rewards": {GAME.name: {"tie": 1.0}},
            "baseline_decay": 1.0,  # or all advantages were 0, and such utterances are not trained
            "evaluate_every": None,
            "save_steps": work.steps + 1,
            "snapshot_every": work.steps + 1,
        }
    )


class Clock:
    """Seconds, and CPU seconds of this process, since ``start``."""

    def start(self) -> None:
        self.began, self.cpu_began = now(torch.device(str(MODEL.device))), time.process_time()

    def read(self) -> dict[str, float]:
        return {
            "seconds": now(torch.device(str(MODEL.device))) - self.began,
            "cpu_seconds": time.process_time() - self.cpu_began,
        }


class TimedSelfplay(SelfplaySource):
    """Opens the engine, starts the clock with the first step, and reads it after each."""

    clock: Clock | None = None
    described: Mapping[str, float] = {}

    def __enter__(self) -> "TimedSelfplay":
        super().__enter__()
        self.player.update_weights({})  # opens the engine
        return self

    def next(self, step: int, policy: TrainedPolicy, algorithm: Algorithm) -> list[TrainingSample]:
        if self.clock is None:
            self.clock = Clock()
            self.clock.start()
        return super().next(step, policy, algorithm)

    def finish(self, step: int, row: Row, samples: Sequence[TrainingSample], policy: TrainedPolicy) -> bool:
        goes_on = super().finish(step, row, samples, policy)
        assert self.clock is not None
        self.described = self.clock.read()
        return goes_on

    def results(self) -> dict[str, float]:
        return dict(self.described)


def open_endless(
    work: Work, job: TrainingJob, policy: TrainedPolicy, log: MetricsLog | None, step: int
) -> TimedSelfplay:
    """Open the self-play of games without a judge."""
    player = StepPlayer(
        folder=job.output,
        mix=[(GAME, 1.0)],
        policy=ModelConfig(name=policy.as_engines_load_it(job.output), dtype=work.dtype, device=MODEL.device),
        engine=EngineConfig(backend="transformers", concurrency=min(work.games, 32), in_flight=work.games),
        settings=settings_of(work),
        seed=SEED,
        rank=policy.accelerator.process_index,
        world_size=policy.accelerator.num_processes,
    )
    return TimedSelfplay(player, log, step)


def train(work: Work, folder: Path) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Train online in ``folder``; return the seconds of all steps, and the rows of metrics.jsonl."""
    job = TrainingJob(
        model=ModelConfig(name=work.model, dtype=work.dtype, device=MODEL.device, prompt_style="plain"),
        phase=PhaseConfig.model_validate({"algorithm": "reinforce", **settings_of(work).model_dump()}),
        game=GameConfig(name=GAME.name),
        start_from=work.model,
        output=folder,
        seed=SEED,
    )
    result = Loop(job, partial(open_endless, work), None).run()
    described = {name: result[name] for name in ("seconds", "cpu_seconds")}
    return described, [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def ours(work: Work) -> Reading:
    """Steps an hour, and of a step's seconds the share of each part."""
    with tempfile.TemporaryDirectory() as folder:
        described, rows = train(work, Path(folder))
    shares = {
        f"{part.removesuffix('_s')}_share": sum(row[part] for row in rows) / described["seconds"] for part in PARTS
    }
    shares["rest_share"] = 1.0 - sum(shares.values())
    return _steps_per_hour(work, described, shares)


def online_training(work: Work) -> Reading:
    """Trained tokens a second of the updates of online steps, whose games are on disk before. CPU seconds are those of
    whole steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, work.steps + 1):
            with JsonlStore(Path(folder) / "episodes" / f"step-{step:05d}.jsonl") as store:
                store.append(*made_up_games(work, step))
        described, rows = train(work, Path(folder))
    return _tokens_per_second(
        sum(row["tokens"] for row in rows), sum(row["train_s"] for row in rows), described["cpu_seconds"]
    )


def offline_training(work: Work) -> Reading:
    """Trained tokens a second of offline RL on the same samples; its reference pass is not counted."""
    tokenizer, tokens, seconds, cpu_seconds = load_tokenizer(work.model), 0, 0.0, 0.0
    policy: Ours | None = None
    for step in range(1, work.steps + 1):
        samples = encode_samples(
            Reinforce(settings_of(work)).credit(made_up_games(work, step), GAME, None),
            tokenizer,
            PromptStyle.PLAIN,
            2048,
        )
        policy = policy or Ours(OfflineWork(work.model, dtype=work.dtype, micro_batch=work.micro_batch), samples)
        policy.samples = samples
        policy.policy.train()
        began, cpu_began = now(policy.device), time.process_time()
        policy.learn(dict.fromkeys(range(len(samples)), -1.0))
        policy.step()
        seconds += now(policy.device) - began
        cpu_seconds += time.process_time() - cpu_began
        tokens += sum(len(row.completion) for row in samples)
    return _tokens_per_second(tokens, seconds, cpu_seconds)


def made_up_games(work: Work, step: int) -> list[Episode]:
    """Return the games of an online step as if they had been played: full ones, of the teacher's words."""
    tokenizer, rng = load_tokenizer(work.model), random.Random(step)
    said = [tokenizer.encode(text, add_special_tokens=False) for text in teacher_utterances()]
    players = {role: PlayerInfo(POLICY, identity={"weights": weights_after(step - 1)}) for role in GAME.roles}
    games = []
    for _, spec in step_specs([(GAME, 1.0)], work.games, step, SEED):
        state = GAME.start(spec.task, spec.seed)
        while (role := GAME.to_move(state)) is not None:
            ids = [token for text in rng.sample(said, TOKENS) for token in text][:TOKENS]
            state = GAME.apply(
                state, Utterance(role, tokenizer.decode(ids).strip(), "length", tuple(ids), (-1.0,) * TOKENS)
            )
        games.append(_episode(state, spec.id, players))
    return games


class PlainLoop:
    """The loop that needs nothing but transformers."""

    def __init__(self, work: Work) -> None:
        self.work, self.device = work, torch.device(str(MODEL.device))
        self.tokenizer = load_tokenizer(work.model)
        self.model = load_model(work.model, dtype="float32", device=self.device.type)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
        self.stop_ids = sorted(stop_token_ids(self.model.generation_config, self.tokenizer, PromptStyle.PLAIN))
        self.algorithm = Reinforce(settings_of(work))

    def __call__(self) -> Reading:
        total, play_seconds = dict.fromkeys(("seconds", "cpu_seconds"), 0.0), 0.0
        for _ in range(self.work.steps):
            clock = Clock()
            clock.start()
            samples = self.algorithm.credit(self.play(), GAME, None)
            played = clock.read()
            rows = [self.tokens(sample) for sample in samples]
            batches = self.batches(len(rows))
            run = batches[: max(len(batches) // PLAIN_SHARE, 1)]
            self.gradients(rows, [sample.reward for sample in samples], run)
            trained, more = clock.read(), _padded(rows, batches) / _padded(rows, run) - 1.0
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            ended = clock.read()
            for name in total:
                total[name] += ended[name] + more * (trained[name] - played[name])
            play_seconds += played["seconds"]
        return _steps_per_hour(self.work, total, {"play_share": play_seconds / total["seconds"]})

    def play(self) -> list[Episode]:
        """Play a step's games, one utterance of all of them after another."""
        self.model.eval()
        states = [GAME.start(task, number) for number, task in enumerate(GAME.some_tasks(self.work.games))]
        while (role := GAME.to_move(states[0])) is not None:
            answers = self._generate([GAME.prompt(GAME.observe(state, role)) for state in states])
            states = [GAME.apply(state, said) for state, said in zip(states, self._said(role, answers), strict=True)]
        return [_episode(state, state.task.id) for state in states]

    def tokens(self, sample: TrainingSample) -> tuple[list[int], int]:
        """Return the sample's texts, tokenised again, and how many of the tokens are the prompt's."""
        prompt = encode_prompt(self.tokenizer, sample.prompt, PromptStyle.PLAIN)
        return [*prompt, *self.tokenizer.encode(sample.completion, add_special_tokens=False)], len(prompt)

    def batches(self, count: int) -> list[list[int]]:
        """Return the indices of ``count`` samples in random batches."""
        order, size = list(range(count)), self.work.plain_micro_batch
        random.Random(0).shuffle(order)
        return [order[at : at + size] for at in range(0, count, size)]

    def gradients(
        self, rows: Sequence[tuple[list[int], int]], advantages: Sequence[float], batches: Sequence[Sequence[int]]
    ) -> float:
        """Add up the gradients of the step's loss, and return the loss: at ratio 1, minus the mean advantage of all
        tokens.
        """
        self.model.train()
        total = 0.0
        for part in batches:
            logprobs, trained = self._logprobs([rows[index] for index in part])
            advantage = torch.tensor([advantages[index] for index in part], device=self.device)[:, None]
            ratio = (logprobs - logprobs.detach()).exp()
            loss = -(advantage * ratio * trained).sum() / (len(rows) * TOKENS)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def _logprobs(self, rows: Sequence[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
        """Return the log-probability of every token but the first, (B, T - 1), and which are trained; rows are padded
        on the right.
        """
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([[*row, *[self.stop_ids[0]] * (width - len(row))] for row, _ in rows], device=self.device)
        at = torch.arange(width, device=self.device)
        lengths, starts = (
            torch.tensor(values, device=self.device)[:, None]
            for values in ([len(row) for row, _ in rows], [n for _, n in rows])
        )
        with self._autocast():
            logits = self.model(input_ids=ids, attention_mask=(at < lengths).long(), use_cache=False).logits[:, :-1]
        logprobs = -functional.cross_entropy(logits.float().transpose(1, 2), ids[:, 1:], reduction="none")
        return logprobs, ((at >= starts) & (at < lengths))[:, 1:]

    def _generate(self, prompts: Sequence[str]) -> list[list[int]]:
        encoded = [encode_prompt(self.tokenizer, prompt, PromptStyle.PLAIN) for prompt in prompts]
        width = max(map(len, encoded))
        ids = torch.tensor([[*[self.stop_ids[0]] * (width - len(row)), *row] for row in encoded], device=self.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in encoded], device=self.device)
        with torch.inference_mode(), self._autocast():
            found = self.model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=TOKENS,
                min_new_tokens=TOKENS,
                eos_token_id=self.stop_ids,
                pad_token_id=self.stop_ids[0],
            )
        answers: list[list[int]] = found[:, width:].tolist()
        return answers

    def _said(self, role: str, answers: Sequence[list[int]]) -> Iterator[Utterance]:
        for ids in answers:
            text = self.tokenizer.decode(ids, skip_special_tokens=True)
            yield Utterance(role, text.strip(), "length", tuple(ids), (0.0,) * len(ids))

    def _autocast(self) -> AbstractContextManager[None]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.work.dtype == "bfloat16")


def _episode(state: State, name: str, players: Mapping[str, PlayerInfo] | None = None) -> Episode:
    result = GAME.result(state)
    return Episode(
        id=name,
        game=GAME.name,
        task=state.task,
        history=state.history,
        outcome=result.outcome,
        rewards=result.rewards,
        seed=state.seed,
        players=dict(players or {}),
    )


def _padded(rows: Sequence[tuple[list[int], int]], batches: Sequence[Sequence[int]]) -> int:
    return sum(len(batch) * max(len(rows[index][0]) for index in batch) for batch in batches)


def _tokens_per_second(tokens: float, seconds: float, cpu_seconds: float) -> Reading:
    return Reading(tokens / seconds, {"tokens": tokens, "seconds": seconds, "cpu_seconds": cpu_seconds})


def _steps_per_hour(work: Work, described: Mapping[str, float], more: Mapping[str, float]) -> Reading:
    per_step = {f"{name}_per_step": value / work.steps for name, value in described.items()}
    device = torch.device(str(MODEL.device))
    peak = held_gib(device, peak=True) if device.type == "cuda" else peak_mib() / 1024
    return Reading(3600 * work.steps / described["seconds"], {**per_step, **more, "peak_gib": peak})


CONTESTANTS = {
    "plain": lambda work: PlainLoop(work)(),
    "ours": ours,
    "offline-training": offline_training,
    "online-training": online_training,
}


def contests(work: Work) -> Iterator[Contest]:
    label = f"online step, {work.games} games"
    plain, ours, offline, online = (partial(alone, "online", name, work) for name in CONTESTANTS)
    yield Contest(label, "steps/h", plain, ours, 3.0)
    yield Contest(f"{label}: its training over offline training", "trained tokens/s", offline, online, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Let one contestant take its steps, and print its reading as JSON.")
    parser.add_argument("contestant", choices=CONTESTANTS)
    for option in fields(Work):
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default)
    chosen = vars(parser.parse_args())
    reading = CONTESTANTS[chosen.pop("contestant")](Work(**chosen))
    print_reading(reading)


if __name__ == "__main__":
    main()
