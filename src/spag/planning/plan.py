"""A run's stages before it starts: work, hours and memory, and what to change if a stage does not fit."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil

from spag.algorithms import get
from spag.algorithms.online_settings import MovingReference, OnlineSettings
from spag.algorithms.settings import SELF, IterationSettings, LoraConfig
from spag.config.schema import PhaseConfig, RunConfig
from spag.engines.players import Kind, kind_of
from spag.engines.vllm.setup import GPU_MEMORY
from spag.games.base import Game, tasks_of
from spag.games.registry import DEFAULT
from spag.planning.engines import ASLEEP, USABLE, Demand, Sharing, engine_players, share_out, sleep_level
from spag.planning.memory import Memory, resident_memory, transfer_memory
from spag.planning.samples import iteration_work, longest_text, online_work, teacher_work
from spag.planning.specs import GIB
from spag.planning.stage import StagePlan, StagePlanner, labels, set_words
from spag.runs.layout import arena_entrants

_BLOCK, _MARGIN = 256, 1.25
"""Advice on ``engine.max_length`` is a multiple of this many tokens, with room beyond the longest text counted here."""


def with_adapters(config: RunConfig) -> RunConfig:
    """Return a run whose phases name the adapter that they train: later phases train the first one further."""
    first: LoraConfig | None = None
    phases: list[PhaseConfig] = []
    for phase in config.phases:
        own: LoraConfig | None = phase.settings.lora
        first = first or own
        loading = {"quantize": own is not None and own.quantize, "per_role": phase.settings.per_role}
        phases.append(phase.model_copy(update={"lora": first and first.model_copy(update=loading)}))
    return config.model_copy(update={"phases": phases})


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
                found.append(self._training(label, phase, 1, teacher_work(phase, settings, game)))
        entrants, arena = arena_entrants(self.config), self.config.arena
        pairs = len(entrants) * (len(entrants) - 1)  # in both assignments
        plays = {self.config.game.build(): pairs * arena.tasks}
        return [*found, self._play("arena", 1, plays, arena.sampling, self._loaded(entrants))]

    def _loaded(self, players: Iterable[str]) -> int:
        """Return how many engines play at once, of ``players`` by name, two of whom meet in a game."""
        return max(1, min(2 - self._one_engine, sum(kind_of(name) in (Kind.LOCAL, Kind.MIXTURE) for name in players)))

    def _iterations(
        self, label: str, phase: PhaseConfig, settings: IterationSettings, game: Game
    ) -> Iterator[StagePlan]:
        games = (settings.tasks or len(tasks_of(game, settings.splits, None, 0))) * settings.repeats
        models = self._loaded({SELF, *settings.opponents})
        sampling = max((settings.sampling, *settings.sampling_by_role.values()), key=lambda one: one.most_tokens)
        yield self._play(f"{label} self-play", settings.iterations, {game: games}, sampling, models)
        own = settings.opponents.get(SELF, 0.0) / sum(settings.opponents.values())
        learned = games * (1 + own) / 2 * (self.assumed.decided if game.name == DEFAULT else 1.0)
        work = iteration_work(phase, game, learned, *self._usual(sampling))
        yield self._training(label, phase, settings.iterations, self._at_most(work, [game], sampling))

    def _online(self, label: str, phase: PhaseConfig, online: OnlineSettings) -> Iterator[StagePlan]:
        """Yield play and training of all online steps. Engines and trainer stay loaded and alternate."""
        mix, sampling = phase.mix(self.config.game_of(phase)), online.sampling
        evaluations = ceil(online.steps / (online.evaluate_every or 1))  # the last step has one
        tested = 2 * len(online.tested_against) * online.evaluation_tasks * evaluations
        share = online.steps * online.games / sum(weight for _, weight in mix)
        plays = {game: round(weight * share) + tested for game, weight in mix}
        engine, cluster, processes = self.config.engine, self.config.cluster, online.processes or self.devices
        actors = (cluster.online_workers or 0) if cluster.address else 0
        engines = len(engine_players(online, together=self._on_vllm and online.lora is not None))
        play = self._play(f"{label} play", 1, plays, sampling, 1, actors or processes, engines if actors else 1)
        if actors and (needed := processes + actors * engine.tensor_parallel * self._copies(actors)) > self.devices:
            play.problems.append(f"training and the actors that play need {needed} GPUs, but there are {self.devices}")
        work = online_work(online, mix, *self._usual(sampling)) * (online.steps * online.epochs)
        work = self._at_most(work, [game for game, _ in mix], sampling)
        in_file = self.device.is_cpu and not isinstance(online.reference, MovingReference)  # a fixed reference
        reference = get(phase.algorithm)(online, seed=0).needs.reference and not in_file
        training = partial(self._training, label, phase, 1, work, copies=reference + (online.average_decay > 0))
        if self._on_vllm and not self.device.is_cpu and not actors:
            yield from self._shared(play, label, online, plays, training)
        elif actors:
            if self._on_vllm:
                play = replace(
                    play, engines=engines, sharing=Sharing(engines, (engine.memory or GPU_MEMORY) / engines, 0)
                )
            yield from (play, training())
        else:  # an evaluation's transformers engines are closed before the next update
            held = engines if self._on_vllm else len(engine_players(online.model_copy(update={"evaluate_every": None})))
            beside = self._engines(plays, sampling, held) + Memory(policies=self._waiting_weights(online))
            yield from (play, training(beside=beside))

    def _waiting_weights(self, online: OnlineSettings) -> float:
        """Return the bytes of the weight copies that wait in this memory for steps played more than one ahead; below 0,
        those of the trainer's weights that the policy's engine shares (``SharingEngine``).
        """
        weights = 0.0 if online.lora else 4.0 * self.shape.parameters
        if online.overlap:
            return weights * online.overlap if self.device.is_cpu and online.overlap > 1 else 0.0
        return -weights if not self._on_vllm and online.parallel == "replicas" and self.number == 4 else 0.0

    def _shared(
        self,
        play: StagePlan,
        label: str,
        online: OnlineSettings,
        plays: Mapping[Game, int],
        training: Callable[..., StagePlan],
    ) -> Iterator[StagePlan]:
        """Yield play and ``training``, which share each GPU with vLLM."""
        gpu, alone = self.device.memory, training()
        resident = resident_memory(alone.memory, online, online.processes or self.devices)
        if not online.lora:
            resident += transfer_memory(self.shape, self.number, gathered=online.parallel == "fsdp")
        demand = self._demand(alone.memory.total, online, plays, resident.total)
        sharing = share_out(demand, gpu)
        if sharing is None and self._may_take_turns(online):
            fewer = replace(demand, engines=len(engine_players(online, together=True)))
            if found := share_out(fewer, gpu):
                demand, sharing = fewer, replace(found, in_turn=True)
        wanted = demand.engines * demand.least if demand.share is None else demand.share * gpu
        awake = wanted if sharing is None else sharing.engines * sharing.each * gpu
        play = replace(
            play, memory=resident + Memory(engines=awake), room=gpu * USABLE, engines=demand.engines, sharing=sharing
        )
        if sharing is None:
            play.problems.append(
                f"trainer and vLLM do not fit together: while playing {resident.total / GIB:.1f} GiB and "
                f"{demand.engines} x {demand.least / GIB:.1f} GiB at least, while training "
                f"{alone.memory.total / GIB:.1f} GiB, of {gpu * USABLE / GIB:.1f} GiB"
            )
            play.advice.extend(self._more_room(self.place_of(label), online, plays, demand))
        else:
            play.notes.append(sharing.describe())
        asleep = sharing is not None and sharing.sleep > 0
        yield from (play, training(beside=Memory(engines=demand.engines * ASLEEP if asleep else awake)))

    def _may_take_turns(self, online: OnlineSettings) -> bool:
        """Whether one engine can serve the policy's copies: the trainer's weights are whole and constant in play."""
        alone = len(engine_players(online)) == len(engine_players(online, together=True))
        return not (alone or online.overlap or online.lora or online.parallel != "replicas")

    def _demand(self, training: float, online: OnlineSettings, plays: Mapping[Game, int], resident: float) -> Demand:
        engine, processes, adapters = self.config.engine, online.processes or self.devices, online.lora is not None
        engines = len(engine_players(online, together=adapters))
        least = self._engines(plays, online.sampling, 1)
        text = max(self._play_work(game, online.sampling).largest[0] for game in plays)
        at_once = min(engine.concurrency, ceil(online.games / processes))
        cache = max(least.cache, at_once * text * self.shape.kv_bytes(self.number) / engine.tensor_parallel)
        weights = self.number * self.shape.parameters * engines * processes
        return Demand(
            engines=engines, least=least.total, roomy=least.total - least.cache + cache, resident=resident,
            training=training, share=engine.memory,
            sleep=sleep_level(online, weights, self.host, adapters=adapters),
        )  # fmt: skip

    def _more_room(
        self, place: str, online: OnlineSettings, plays: Mapping[Game, int], demand: Demand
    ) -> Iterator[str]:
        """Yield single changes of settings with which trainer and vLLM would fit."""
        sampling = online.sampling
        text = max(longest_text(game, sampling.max_new_tokens) for game in plays) + sampling.thought_tokens
        shorter = min(_BLOCK * ceil(_MARGIN * text / _BLOCK), self.config.engine.max_length)
        engine = self.config.engine.model_copy(update={"max_length": shorter})
        planner = replace(self, config=self.config.model_copy(update={"engine": engine}))
        changes: dict[str, Demand] = {
            f"{set_words('engine', 'memory', 'null')}: the share that training leaves": replace(demand, share=None),
            f"{set_words(place, 'overlap', 0)}: vLLM then sleeps while training":
                replace(demand, sleep=1) if online.overlap else demand,
            "no start, snapshot or other model in opponents and evaluation_opponents: one engine":
                replace(demand, engines=1),
            f"{set_words('engine', 'max_length', shorter)}: less cache at least":
                replace(demand, least=planner._engines(plays, online.sampling, 1).total),
        }  # fmt: skip
        yield from (said for said, changed in changes.items() if share_out(changed, self.device.memory))
