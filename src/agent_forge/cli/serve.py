"""`agent-forge serve`: the API, the intake of traces, metrics and the dashboard."""

from __future__ import annotations

import secrets
from typing import Any

import click

from agent_forge.cli._app import home_option
from agent_forge.errors import MissingExtraError


@click.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; beyond loopback, a token is asked."
)
@click.option("--port", default=8321, show_default=True, type=click.IntRange(0, 65535))
@home_option
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="[NAME=]M",
    help="A checkpoint to serve: a name or digest of the registry, a folder, or smollm2; repeatable.",
)
@click.option("--device", default="cpu", show_default=True, help="Where models run: cpu, cuda, cuda:1.")
@click.option("--tools", metavar="MODULE", help="Tools that runs may use. Without it, the embedded ones.")
@click.option(
    "--token", envvar="AGENT_FORGE_TOKEN", help="Ask for this token. Beyond loopback one is made up and printed once."
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Another name this server is known by; repeatable.",
)
@click.option(
    "--allow-origin", "origins", multiple=True, metavar="ORIGIN", help="A web origin that may call the API; repeatable."
)
@click.option(
    "--slots", default=64, show_default=True, type=click.IntRange(min=1), help="Requests a model works on at once."
)
@click.option("--otlp-endpoint", metavar="URL", help="Send the spans of our own work there as well, such as Jaeger.")
@click.option(
    "--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"])
)
def command(host: str, token: str | None, **options: Any) -> None:
    """Serve models, runs, traces, metrics and the dashboard, until interrupted."""
    try:
        from agent_forge.server.serving import serve
        from agent_forge.server.settings import ServerSettings, is_loopback
    except ImportError as error:
        raise MissingExtraError("the server", "server") from error
    if options["tools"] is not None:
        from agent_forge.agents.tools import Toolbox

        Toolbox.from_module(options["tools"])  # what is wrong with it is told now, not to whoever starts the first run
    made_up = token is None and not is_loopback(host)
    settings = ServerSettings(host=host, token=secrets.token_urlsafe(32) if made_up else token, **options)
    serve(settings, say=lambda text: click.echo(text, err=True), show_token=made_up)
