"""`agent-forge serve`: the API, trace intake, metrics and the dashboard."""

from __future__ import annotations

import secrets
from typing import Any

import click

from agent_forge.cli._options import home_option, mask_option, sample_option, tools_option
from agent_forge.cli._output import echo
from agent_forge.errors import MissingExtraError


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address to listen on; any but loopback requires a token.")  # fmt: skip
@click.option("--port", default=8321, show_default=True, type=click.IntRange(0, 65535),
              help="Port to listen on (0: any free one).")  # fmt: skip
@home_option
@click.option("--events", envvar="AGENT_FORGE_EVENTS", metavar="URL",
              help="Redis server that carries events to other servers [default: the PostgreSQL store].")  # fmt: skip
@click.option("--model", "models", multiple=True, metavar="[NAME=]M",
              help="Model to serve: a name or digest of the registry, a folder, or smollm2 (repeatable).")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="Where models run: cpu, cuda, cuda:1.")
@tools_option
@click.option("--token", envvar="AGENT_FORGE_TOKEN",
              help="Token to require [default: beyond loopback, a random one, printed once].")  # fmt: skip
@click.option("--allow-host", "allowed_hosts", multiple=True, metavar="NAME",
              help="Another host name of this server (repeatable).")  # fmt: skip
@click.option("--allow-origin", "origins", multiple=True, metavar="ORIGIN",
              help="Web origin that may call the API (repeatable).")  # fmt: skip
@click.option("--slots", default=64, show_default=True, type=click.IntRange(min=1),
              help="Maximum number of concurrent requests per model.")  # fmt: skip
@click.option("--otlp-endpoint", metavar="URL", help="Also send the server's own spans there, e.g. to Jaeger.")
@mask_option
@sample_option
@click.option("--log-level", default="info", show_default=True,
              type=click.Choice(["debug", "info", "warning", "error"]), help="Minimum severity to log.")  # fmt: skip
def command(host: str, token: str | None, **options: Any) -> None:
    """Serve models, runs, traces, metrics and the dashboard until interrupted."""
    try:
        from agent_forge.server.serving import serve
        from agent_forge.server.settings import ServerSettings, is_loopback
    except ImportError as error:
        raise MissingExtraError("the server", "server") from error
    if options["tools"] is not None:
        from agent_forge.agents.tools import Toolbox

        Toolbox.from_module(options["tools"])  # a mistake shows now, not when the first run starts
    generated = token is None and not is_loopback(host)
    settings = ServerSettings(host=host, token=secrets.token_urlsafe(32) if generated else token, **options)
    serve(settings, say=lambda text: echo(text, err=True), show_token=generated)
