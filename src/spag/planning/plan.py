"""A run's stages before it starts: work, hours and memory, and what to change if a stage does not fit."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import ceil

from spag.algorithms import get
from spag.algorithms.online_settings import MovingReference, OnlineSettings
from spag.algorithms.settings import SELF, IterationSettings
from spag.config.schema import PhaseConfig
from spag.core.options import SamplingConfig
from spag.core.types import Split
from spag.engines.players import Kind, kind_of
from spag.engines.vllm.setup import GPU_MEMORY
from spag.games.base import Game, tasks_of
from spag.games.registry import DEFAULT
from spag.planning.advice import Change, engine_changes, fitting, nearest, sharing_changes, training_changes
from spag.planning.engines import ASLEEP, USABLE, Sharing, engine_players, share_out, sleep_level
from spag.planning.memory import Memory, resident_memory, transfer_memory
from spag.planning.samples import Work, iteration_work, longest_text, online_work, teacher_work
from spag.planning.specs import GIB
from spag.planning.stage import LACKS, StagePlan, StagePlanner, labels, with_adapters
from spag.runs.layout import arena_entrants


@lru_cache(maxsize=16)
def _task_count(game: Game, splits: tuple[Split, ...]) -> int:
    return len(tasks_of(game, splits, None, 0))


@dataclass(frozen=True)
class Planner(StagePlanner):
    """Plans all stages of a run."""

    @cached_property
    def stages(self) -> list[StagePlan]:
        """The stages in order: those of each phase, then the arena."""
        found: list[StagePlan] = []
        for label, phase in zip(labels(self.config), with_adapters(self.config).phases, strict=True):
            settings, game = phase.settings, self.config.game_of(phase).build()
            if isinstance(settings, OnlineSettings):
                found += self._online(label, phase, settings)
            elif isinstance(settings, IterationSettings):
                found += self._iterations(label, phase, settings, game)
            else:
                found.append(self._trained(label, 1, teacher_work(phase, settings, game)))
        entrants, arena = arena_entrants(self.config), self.config.arena
        pairs = len(entrants) * (len(entrants) - 1)  # in both assignments
        plays = {self.config.game.build(): pairs * arena.tasks}
        return [*found, self._played("arena", 1, plays, arena.sampling, self._loaded(entrants))]

    def _advised(self, plan: Callable[["Planner"], StagePlan], changes: Iterable[Change]) -> StagePlan:
        """Return a stage, with the nearest of ``changes`` with which it would fit if it lacks memory."""
        stage = plan(self)
        if LACKS in stage.problems:
            stage.advice.extend(nearest(fitting(self, plan, changes)))
        return stage

    def _trained(self, label: str, times: int, work: Work) -> StagePlan:
        """Plan training on samples that all exist."""
        return self._advised(lambda planner: planner._training(label, times, work), training_changes(self, label))

    def _played(
        self, name: str, times: int, plays: Mapping[Game, int], sampling: SamplingConfig, models: int
    ) -> StagePlan:
        """Plan play whose engines have the devices to themselves."""
        cluster = self.config.cluster
        return self._advised(
            lambda planner: planner._play(name, times, plays, sampling, models),
            engine_changes(self, (cluster.workers or 1) if cluster.address else 1),
        )

    def _loaded(self, players: Iterable[str]) -> int:
        """Return how many engines play at once, of ``players`` by name, two of whom meet in a game; adapters of one
        base share vLLM.
        """
        most = 1 if self.on_vllm and self.config.phases[0].settings.lora else 2
        return max(1, min(most, sum(kind_of(name) in (Kind.LOCAL, Kind.MIXTURE) for name in players)))

    def _iterations(
        self, label: str, phase: PhaseConfig, settings: IterationSettings, game: Game
    ) -> Iterator[StagePlan]:
        games = (settings.tasks or _task_count(game, tuple(settings.splits))) * settings.repeats
        models = self._loaded({SELF, *settings.opponents})
        sampling = settings.sampling
        yield self._played(f"{label} self-play", settings.iterations, {game: games}, sampling, models)
        own = settings.opponents.get(SELF, 0.0) / sum(settings.opponents.values())
        learned = games * (1 + own) / 2 * (self.assumed.decided if game.name == DEFAULT else 1.0)
        work = iteration_work(phase, game, learned, *self._usual(sampling))
        yield self._trained(label, settings.iterations, self._at_most(work, [game], sampling))

    def _online(self, label: str, phase: PhaseConfig, online: OnlineSettings) -> Iterator[StagePlan]:
        """Yield play and training of all online steps."""
        mix, sampling = phase.mix(self.config.game_of(phase)), online.sampling
        evaluations = ceil(online.steps / (online.evaluate_every or 1))  # the last step has one
        tested = 2 * len(online.tested_against) * online.evaluation_tasks * evaluations
        share = online.steps * online.games / sum(weight for _, weight in mix)
        plays = {game: round(weight * share) + tested for game, weight in mix}
        work = online_work(online, mix, *self._usual(sampling)) * (online.steps * online.epochs)
        work = self._at_most(work, [game for game, _ in mix], sampling)

        def part(planner: "Planner", at: int) -> StagePlan:
            return planner._step(label, plays, work)[at]

        actors = self.config.cluster.actors
        beside = (actors, online.processes or self.devices) if actors else (1, 0)
        play = self._advised(partial(part, at=0), engine_changes(self, *beside))
        if play.engines and play.sharing is None:
            text = max(longest_text(game, sampling.max_new_tokens) for game in plays) + sampling.thought_tokens
            changes = sharing_changes(self, label, text)
            play.advice.extend(said for _, said in fitting(self, partial(part, at=0), changes))
        yield from (play, self._advised(partial(part, at=1), training_changes(self, label)))

    def _step(self, label: str, plays: Mapping[Game, int], work: Work) -> tuple[StagePlan, StagePlan]:
        """Plan play and training of all online steps. Engines and trainer stay loaded and alternate."""
        phase, engine, actors = self.phase(label), self.config.engine, self.config.cluster.actors
        online: OnlineSettings = phase.settings
        processes = online.processes or self.devices
        engines = len(engine_players(online, together=self.on_vllm and online.lora is not None))
        share, loaded = ceil(online.games / (actors or processes)), engines if actors else 1
        play = self._play(f"{label} play", 1, plays, online.sampling, 1, actors or processes, loaded, share)
        needed = processes + actors * engine.gpus
        if actors and needed > self.devices and not self.device.is_cpu:
            play.problems.append(f"training and the actors that play need {needed} GPUs, but there are {self.devices}")
        in_file = self.device.is_cpu and not isinstance(online.reference, MovingReference)  # a fixed reference
        reference = get(phase.algorithm)(online, seed=0).needs.reference and not in_file
        training = partial(self._training, label, 1, work, copies=reference + (online.average_decay > 0))
        if actors:
            sharing = Sharing(engines, (engine.memory or GPU_MEMORY) / engines, 0)
            play = replace(play, engines=engines, sharing=sharing) if self.on_vllm else play
            return play, self._with_gathered(training(), online, Memory())
        if self.on_vllm and not self.device.is_cpu:
            return self._shared(play, online, plays, training)
        # an evaluation's transformers engines are closed before the next update
        held = engines if self.on_vllm else len(engine_players(online.model_copy(update={"evaluate_every": None})))
        beside = self._engines(plays, online.sampling, held) + Memory(policies=self._waiting_weights(online))
        return play, self._with_gathered(training(beside=beside), online, beside)

    def _with_gathered(self, plan: StagePlan, online: OnlineSettings, beside: Memory) -> StagePlan:
        """Return training, planned with engines ``beside``, with the memory between updates if that is more: each
        process of FSDP2 then gathers the weights of a whole model for the engines.
        """
        if online.lora or online.parallel != "fsdp":
            return plan
        kept = resident_memory(plan.memory, online, 1) + replace(beside, policies=0.0)  # these are kept already
        between = kept + transfer_memory(self.shape, self.number, gathered=True)
        if between.total <= plan.memory.total:
            return plan
        problems = [*plan.problems, *([LACKS] if between.total > plan.room else [])]
        return replace(plan, memory=between, problems=[*dict.fromkeys(problems)])

    def _waiting_weights(self, online: OnlineSettings) -> float:
        """Return the bytes of the weight copies that wait in this memory for steps played more than one ahead; below 0,
        those of the trainer's weights that the policy's engine shares (``Engine.share_weights``).
        """
        weights = 0.0 if online.lora else 4.0 * self.shape.parameters
        if online.overlap:
            return weights * online.overlap if self.device.is_cpu and online.overlap > 1 else 0.0
        return -weights if not self.on_vllm and online.parallel == "replicas" and self.number == 4 else 0.0

    def _shared(
        self,
        play: StagePlan,
        online: OnlineSettings,
        plays: Mapping[Game, int],
        training: Callable[..., StagePlan],
    ) -> tuple[StagePlan, StagePlan]:
        """Return play and ``training``, which share each GPU with vLLM."""
        gpu, alone = self.device.memory, training()
        resident = resident_memory(alone.memory, online, online.processes or self.devices)
        if not online.lora:
            resident += transfer_memory(self.shape, self.number, gathered=online.parallel == "fsdp")
        engines, least, sharing = self._sharing(online, plays, resident.total, alone.memory.total)
        share = self.config.engine.memory
        awake = sharing.each * engines * gpu if sharing else share * gpu if share else engines * least
        problems = [one for one in play.problems if one != LACKS]  # an engine alone: ``least`` counts it, too
        memory = resident + Memory(engines=awake)
        play = replace(play, engines=engines, sharing=sharing, problems=problems, memory=memory, room=gpu * USABLE)
        if sharing is None:
            play.problems.append(
                f"trainer and vLLM do not fit together: while playing {resident.total / GIB:.1f} GiB and "
                f"{engines} x {least / GIB:.1f} GiB at least, while training {alone.memory.total / GIB:.1f} GiB, of "
                f"{gpu * USABLE / GIB:.1f} GiB"
            )
        else:
            play.notes.append(sharing.describe())
        asleep = sharing is not None and sharing.sleep > 0
        return play, training(beside=Memory(engines=engines * ASLEEP if asleep else awake))

    def _sharing(
        self, online: OnlineSettings, plays: Mapping[Game, int], resident: float, training: float
    ) -> tuple[int, float, Sharing | None]:
        """Return the number of engines, the bytes that each needs at least, and how they share a GPU with the trainer,
        if they fit; ``resident`` and ``training`` are the trainer's bytes.
        """
        engine, processes, adapters = self.config.engine, online.processes or self.devices, online.lora is not None
        engines, fewest = (len(engine_players(online, together=one)) for one in (adapters, True))
        least = self._engines(plays, online.sampling, 1)
        text = max(self._play_work(game, online.sampling).largest[0] for game in plays)
        at_once = min(engine.concurrency, ceil(online.games / processes))
        cache = max(least.cache, at_once * text * self.shape.kv_bytes(self.number, engine.tensor_parallel))
        weights = self.number * self.shape.parameters * engines * processes
        shared = partial(
            share_out, self.device.memory, least=least.total, roomy=least.total - least.cache + cache,
            resident=resident, training=training, share=engine.memory,
            sleep=sleep_level(online, weights, self.host, adapters=adapters),
        )  # fmt: skip
        found = shared(engines)
        # copies of the policy may take turns in one engine if the trainer's weights are whole and constant in play
        in_turn = fewest < engines and not online.overlap and online.parallel == "replicas"
        if found is None and in_turn and (turns := shared(fewest)):
            return fewest, least.total, replace(turns, in_turn=True)
        return engines, least.total, found
