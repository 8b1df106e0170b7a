"""Everything about a run that can be found wrong before its first minute of work, instead of after hours of it.

Settings are checked against the game, the files that they name, the models' configs, the packages that are installed, and what the machine
has. Nothing is loaded, converted or downloaded but models' configs.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spag.config.schema import OPPONENTS, ModelConfig, RunConfig, TrainingConfig, UpdateConfig
from spag.core.episodes import read_episodes
from spag.core.errors import ConfigError, ModelError
from spag.core.machine import core_count, memory_bytes, open_files
from spag.core.sft import read_sft
from spag.core.types import Split
from spag.engines.bot import BOT_PREFIX, bot_of
from spag.engines.opening import OPENAI_PREFIX
from spag.engines.vllm.setup import choose_backend, installed_vllm
from spag.games.base import Game
from spag.models.finding import EMBEDDED_NAME, adapter_base, resolve_model
from spag.models.roles import adapter_names, model_of_role, models_of, read_roles
from spag.rollout.ray import require_ray
from spag.runs.folder import ONLINE, arena_entrants, imitates, learns_online, offline_iterations
from spag.runs.stages import selfplay_tasks, teacher_file

MOST_GAMES = 10_000_000
"""Games an iteration; their list alone takes gigabytes."""
SLOT_TOKENS = 128
"""Tokens that the transformers engine makes room for, for each utterance at once, before the first is generated (``slots.GROWTH``)."""
_CONNECT_S = 5.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FILES = 64  # that a process has open beside its connections


def check_run(config: RunConfig, game: Game) -> None:
    """Raise the ``SpagError`` that a stage of the run would end with, as far as that can be known now."""
    arena_entrants(config)
    arena_entrants(config)
    _check_tasks(config, game)
    _check_files(config, game)
    _check_bots(config, game)
    if config.cluster.address is not None:
        require_ray(config.cluster.address)
        _check_online_workers(config)
    check_machine(config)
    _check_roles(config)
    for option, training in trainings(config).items():
        _check_training(option, training, config)
    check_players(config, players(config))


def check_players(config: RunConfig, names: Iterable[str]) -> None:
    """Raise the ``SpagError`` that play with the models ``names`` would end with, as far as that can be known from their configs."""
    _check_backend(config)
    game = config.game.build()
    for name in names:
        if name.startswith(OPENAI_PREFIX):
            _check_endpoint()
        elif not name.startswith(BOT_PREFIX):
            for one in models_of(name):
                _check_model(config.model.model_copy(update={"name": one}), config)
            for role in game.roles:
                model_of_role(name, game.name, role)


def trainings(config: RunConfig) -> dict[str, UpdateConfig]:
    """Return the trainings of a run by the option that sets them."""
    found: dict[str, UpdateConfig] = {"imitation.training": config.imitation.training} if imitates(config) else {}
    found |= {"offline_rl": config.offline_rl} if offline_iterations(config) else {}
    return found | ({"online": config.online} if learns_online(config) else {})


def players(config: RunConfig) -> list[str]:
    """Return the names of all models and bots that the settings of a run name."""
    named = [config.model.name]
    if offline_iterations(config):
        named += [name for name in config.selfplay.opponents if name not in OPPONENTS]
    if learns_online(config):
        named += [name for name in config.online.opponents if name not in ("self", "start", "snapshot")]
        named += [name for name in config.online.evaluation_opponents if name != "start"]
    return list(dict.fromkeys(named))


def _check_tasks(config: RunConfig, game: Game) -> None:
    play = config.selfplay
    wanted: dict[str, Callable[[], Any]] = {"arena.tasks": lambda: game.tasks(Split.HELD_OUT, config.arena.tasks, 0)}
    if offline_iterations(config):
        wanted["selfplay.tasks"] = lambda: selfplay_tasks(game, play, play.tasks, 0)
    if learns_online(config) and config.online.evaluate_every:
        for played in config.online_games():
            wanted[f"online.evaluation_tasks ({played.name})"] = partial(played.tasks, Split.HELD_OUT, config.online.evaluation_tasks, 0)
    found: dict[str, int] = {}
    for option, draw in wanted.items():
        try:
            found[option] = len(draw())
        except ConfigError as error:
            raise ConfigError(f"{option}: {error}") from error
    if (games := found.get("selfplay.tasks", 0) * play.repeats) > MOST_GAMES:
        raise ConfigError(f"selfplay.repeats={play.repeats}: {games:,} games an iteration; at most {MOST_GAMES:,} can be played")


def _check_files(config: RunConfig, game: Game) -> None:
    for source in config.imitation.episodes:
        if path := teacher_file(source, game):
            next(iter(read_episodes(path)), None)
    for training in trainings(config).values():
        if isinstance(training, TrainingConfig) and training.sft_data:
            read_sft(training.sft_data, training.sft_samples, 0)


def _check_bots(config: RunConfig, game: Game) -> None:
    online = config.online_games()
    for name in players(config):
        if name.startswith(BOT_PREFIX):
            for played in [game, *online] if name in config.selfplay.opponents or name == config.model.name else online:
                bot_of(played, name)


def _check_roles(config: RunConfig) -> None:
    """Check what has an adapter for each role: those of a start model are trained each by itself, and play no other games."""
    per_role = learns_online(config) and config.online.per_role
    if read_roles(config.model.name) and (not per_role or len(trainings(config)) > 1):
        resolve_model(config.model.name)  # refuses it
    if not per_role:
        return
    games = {game.name: game for game in config.online_games()}
    if config.game.name not in games and ONLINE in arena_entrants(config):
        what = f"the arena plays {config.game.name}, and adapters are trained for {', '.join(games)}"
        raise ConfigError(f"online.lora.per_role: {what}; add the game to online.mix, or leave online out of arena.entrants")
    for role in adapter_names(f"{name}/{role}" for name, game in games.items() for role in game.roles):
        model_of_role(config.model.name, *role.rsplit("/", 1))


def _check_training(option: str, training: UpdateConfig, config: RunConfig) -> None:
    from spag.training.launch import process_count  # noqa: PLC0415 - imports torch
    from spag.training.setup import check_settings  # noqa: PLC0415 - imports torch

    model = config.model.model_copy(update={"dtype": "float32"}) if config.model.dtype == "auto" else config.model
    on_cluster = config.cluster.address is not None
    try:
        check_settings(model, training, (training.processes or 1) if on_cluster else process_count(model, training))
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from error
    if option == "offline_rl" and config.offline_rl.objective == "sft" and min(config.rewards.loser_reward, config.rewards.tie_reward) < 0:
        what = "would imitate samples with negative rewards"
        raise ConfigError(f"offline_rl.objective=sft {what}; set rewards.loser_reward and rewards.tie_reward to 0")


def _check_online_workers(config: RunConfig) -> None:
    if config.cluster.online_workers and config.online.processes is None and learns_online(config):
        what = "online.processes=null trains on every GPU and leaves none to play"
        raise ConfigError(f"cluster.online_workers={config.cluster.online_workers}: {what}; set online.processes")


def _check_backend(config: RunConfig) -> None:
    from spag.models.loading import checked_device  # noqa: PLC0415 - imports torch

    device = checked_device(config.model.device)
    if config.engine.backend == "vllm":
        choose_backend("vllm", vllm=installed_vllm(), device=device)


def check_machine(config: RunConfig) -> None:
    """Raise ``ConfigError`` for the first count that is above what this machine has, unless the settings say that it may be."""
    for option, asked, has, what in _counts(config):
        if asked > has and not config.oversubscribe:
            raise ConfigError(f"{option}={asked:,}: this machine has {has:,} {what}; lower it, or set oversubscribe=true")


def _counts(config: RunConfig) -> Iterator[tuple[str, int, int, str]]:
    """Yield (option, asked for, there, of what)."""
    from spag.training.launch import gpu_count  # noqa: PLC0415 - imports torch

    engine, gpus = config.engine, gpu_count(config.model)
    has, what = (gpus, "GPUs") if gpus else (core_count(), "CPU cores")
    if config.cluster.address in (None, "local"):
        for option, training in trainings(config).items():
            yield f"{option}.processes", training.processes or 1, has, what
        yield "engine.tensor_parallel", engine.tensor_parallel, has, what
        yield "engine.data_parallel", engine.data_parallel, has // engine.tensor_parallel, f"{what} for each {engine.tensor_parallel}"
    if config.cluster.address == "local":
        yield "cluster.workers", config.cluster.workers or 1, has, what
        if (count := config.cluster.online_workers) and learns_online(config):
            yield "cluster.online_workers", count, has - (config.online.processes or 1), f"{what} beside online.processes"
    if any(name.startswith(OPENAI_PREFIX) for name in players(config)):
        yield "engine.concurrency", engine.concurrency, max(open_files() - _FILES, 1), "connections (ulimit -n)"


def _check_endpoint() -> None:
    """Check address and key of the endpoint, and on this machine also that something listens there."""
    from spag.engines.openai.client import open_client, shown_address  # noqa: PLC0415 - imports HTTP libraries

    address = urlsplit(shown_address())
    asyncio.run(open_client(None, concurrency=1, max_retries=0, timeout_s=_CONNECT_S).close())
    if address.hostname in _LOOPBACK:
        try:
            socket.create_connection((address.hostname, address.port or 80), timeout=_CONNECT_S).close()
        except OSError as error:
            what = f"{address.geturl()}: nothing answers there ({error.strerror or error})"
            raise ConfigError(f"{what}; start the endpoint, or correct OPENAI_BASE_URL") from error


def _check_model(model: ModelConfig, config: RunConfig) -> None:
    """Read a model's config, and an adapter's; see that there are weights, and room for as many utterances as are generated at once."""
    from transformers import AutoConfig  # noqa: PLC0415 - slow to import

    import spag.models.baichuan  # noqa: F401, PLC0415 - registers its config
    from spag.models.refusals import loading  # noqa: PLC0415 - slow to import

    folder = Path(model.name).expanduser()
    if model.name == EMBEDDED_NAME or (folder.suffix == ".gguf" and folder.is_file()):
        return  # loading converts it, once
    source = resolve_model(adapter_base(folder) or model.name)
    with loading(model.name, source, trust_remote_code=model.trust_remote_code):
        found = AutoConfig.from_pretrained(source, trust_remote_code=model.trust_remote_code).get_text_config(decoder=True)
    if Path(source).is_dir() and not any(Path(source).glob("*.safetensors")):
        raise ModelError(f"{model.name}: no safetensors weights found (pickled weights are never loaded); convert it first")
    if not config.oversubscribe:
        _check_slots(config, found)


def _check_slots(config: RunConfig, model: Any) -> None:
    """Raise ``ConfigError`` for more utterances at once than there is memory for, whatever they turn out to be."""
    heads = int(getattr(model, "num_attention_heads", 0) or 0)
    size = int(getattr(model, "head_dim", 0) or getattr(model, "hidden_size", 0) // max(heads, 1))
    width = int(getattr(model, "num_key_value_heads", 0) or heads) * size
    slot = 2 * (4 if config.model.dtype == "float32" else 2) * int(getattr(model, "num_hidden_layers", 0)) * width * SLOT_TOKENS
    needed, has = config.engine.concurrency * slot, memory_bytes()
    if needed > has and config.engine.backend != "vllm":
        what = f"{config.engine.concurrency:,} utterances at once take {needed / 2**30:,.0f} GiB before the first is generated"
        raise ConfigError(f"engine.concurrency: {what}, and this machine has {has / 2**30:,.0f}; lower it, or set oversubscribe=true")
