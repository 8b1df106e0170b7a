"""The plan of a run on this machine, used by ``spag plan``, dry runs, ``spag doctor`` and the run itself."""

from spag.algorithms.online_settings import OnlineSettings
from spag.config.schema import PlannedEngine, RunConfig
from spag.core.errors import ConfigError, ModelError
from spag.core.visible import counted
from spag.engines.vllm.setup import GPU_MEMORY, Backend, choose_backend, installed_vllm
from spag.planning.hours import Assumptions
from spag.planning.plan import Planner
from spag.planning.samples import NoExamplesError
from spag.planning.sharing import engine_players
from spag.planning.specs import ModelShape, at_hand, gpus_at_hand, read_shape
from spag.planning.stage import phases_of
from spag.runs.machine_checks import cluster_gpus, is_elsewhere
from spag.storage.machine import memory_bytes


def plan_here(config: RunConfig, assumed: Assumptions | None = None) -> Planner:
    """Return the plan of a run on this machine, with vLLM only if it is installed. Raises ``ModelError`` if the model's
    shape is not known.
    """
    shape, (device, count) = shape_in(config), at_hand(config.model)
    if config.engine.backend == "auto" and _backend(config, "cpu" if device.is_cpu else "cuda") is not Backend.VLLM:
        engine = config.engine.model_copy(update={"backend": "transformers"})
        config = config.model_copy(update={"engine": engine})
    return Planner(config, shape, device, count, assumed or Assumptions(), float(memory_bytes()))


def shape_in(config: RunConfig) -> ModelShape:
    """Return the shape of a run's model. Raises ``ModelError``."""
    return read_shape(config.model.name, trust_remote_code=config.model.trust_remote_code)


def _backend(config: RunConfig, device: str) -> Backend:
    return choose_backend(config.engine.backend, vllm=installed_vllm(), device=device)[0]


def planned_engines(config: RunConfig) -> dict[str, PlannedEngine]:
    """Return the engines of each online phase in which trainer and vLLM share a GPU, by the name of its model.

    A run without online phases or GPUs, and one that plays with transformers, have no plan. Raises ``ConfigError`` if
    trainer and engines do not fit, the model's shape is not known, nothing stands in for a game's play, or only other
    nodes of a cluster have GPUs, unless ``engine.memory`` is set: then each engine gets an equal part of it. In the
    last three cases actors, whose GPUs train nothing, need no setting.
    """
    online = any(isinstance(phase.settings, OnlineSettings) for phase in config.phases)
    if not online or config.engine.backend == "transformers" or config.model.device == "cpu":
        return {}
    needs_plan = config.engine.memory is None and not config.cluster.actors  # else vLLM takes what the trainer needs
    share = "to the share of each GPU that vLLM gets, such as 0.4"
    if gpus_at_hand(config.model) is None:
        if not is_elsewhere(config):
            return {}
        address = str(config.cluster.address)
        gpus = cluster_gpus(address) if config.engine.memory is None else 1
        if gpus and needs_plan:
            what = f"{counted(gpus, 'GPU')} on other nodes, and none here to plan their memory for"
            fix = f"set engine.memory {share}; spag plan --gpu KIND computes one"
            raise ConfigError(f"cluster.address={address}: {what}; {fix}")
        return _equal_parts(config) if gpus else {}
    if _backend(config, "cuda") is not Backend.VLLM:
        return {}
    try:
        return engines_of(plan_here(config))
    except (ModelError, NoExamplesError) as error:
        if needs_plan:
            either = "or " if isinstance(error, NoExamplesError) else ""  # its line names two fixes
            raise ConfigError(
                f"trainer and vLLM share a GPU, and {error}; {either}set engine.memory {share}"
            ) from error
        return _equal_parts(config)


def _equal_parts(config: RunConfig) -> dict[str, PlannedEngine]:
    """Return engines that share ``engine.memory`` equally, without a plan."""
    found, engine = {}, config.engine
    for label, phase in phases_of(config).items():
        if isinstance(online := phase.settings, OnlineSettings):
            count = len(engine_players(online, together=online.lora is not None))
            found[label] = PlannedEngine(**engine.model_dump() | {"memory": (engine.memory or GPU_MEMORY) / count})
    return found


def engines_of(planner: Planner) -> dict[str, PlannedEngine]:
    """Like ``planned_engines``, for the online phases of a plan."""
    found, engine = {}, planner.config.engine
    for play in planner.stages:
        if (share := play.sharing) is None:
            continue
        if share.shortage and engine.memory is None:
            fixes = "; ".join(one for one in play.advice if "--gpus" not in one)
            remedy = f"{fixes or 'use a larger GPU'} (engine.memory=SHARE tries it all the same)"
            raise ConfigError(f"{play.name}: {play.shortage}; {remedy}")
        options = engine.model_dump() | {"memory": share.each, "sleep": share.sleep, "in_turn": share.in_turn}
        found[play.name.removesuffix(" play")] = PlannedEngine(**options)
    return found
