"""``spag web``: browse a run and play against its checkpoints."""

from contextlib import suppress
from pathlib import Path

import click

from spag.cli.options import address_options, needs_extra, open_reporter


@click.command("web")
@click.argument("run", type=click.Path(path_type=Path))
@address_options(8080)
def web_command(run: Path, host: str, port: int, token: str | None) -> None:
    """Browse a run, follow it while it works, and play.

    RUN is a run folder (finished, running or just begun), or a file of episodes.
    """
    with needs_extra("web", "spag web"):
        import uvicorn

        from spag.web.app import create_app, listen
        from spag.web.security import Access

    open_reporter()  # logs what cannot be followed
    app = create_app(run, Access(host, token or None))
    with listen(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"http://{shown}:{listener.getsockname()[1]}  (Ctrl-C stops)", err=True)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2)
        )
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
