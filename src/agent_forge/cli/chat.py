"""`agent-forge chat`: a session with an agent in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import agent_option, home_option, model_option, tools_option
from agent_forge.cli._output import call_again, echo

if TYPE_CHECKING:
    from agent_forge.agents.agent import Agent, AgentEvent

LEAVE = ("/exit", "/quit")


@click.command()
@agent_option
@tools_option
@model_option
@click.option("--session", metavar="NAME", help="Conversation to continue [default: a new one].")
@click.option("--approve", type=click.Choice(["ask", "all", "none"]), default="ask", show_default=True,
              help="Whether tools with side effects are called: after a question, always or never.")  # fmt: skip
@home_option
def command(
    agent: str | None, tools: str | None, model: str | None, session: str | None, approve: str, home: str | None
) -> int:
    """Talk to an agent: one message per line, from the terminal or a pipe. /exit ends the conversation.

    The answer goes to stdout, tool calls to stderr. Exits with 1 if a message could not be answered.
    """
    from agent_forge.agents.agent import Agent
    from agent_forge.cli.running import asker, can_ask
    from agent_forge.runtime import new_run_id
    from agent_forge.urls import without_credentials

    session = session or new_run_id()
    asked = asker() if approve == "ask" and can_ask() else approve
    talker = Agent(agent, tools, model, approve=asked, home=home)
    if sys.stdin.isatty():
        echo(
            f"{talker.profile.name} on {talker.model.name}, tools: {', '.join(talker.tools.names) or 'none'}", err=True
        )
        echo("/exit ends the conversation.", err=True)
    answered = True
    for line in _lines():
        answered &= _answer(talker, line, session)
    shown = None if model is None else without_credentials(model)
    named = {"--agent": agent, "--tools": tools, "--model": shown, "--session": session}
    words = [word for option, value in named.items() if value is not None for word in (option, value)]
    echo(f"session {session}; continue with: {call_again('chat', *words, home=home)}", err=True)
    return 0 if answered else 1


def _lines() -> Iterator[str]:
    """The messages, up to /exit or the end of the input."""
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        if prompt:
            click.echo(prompt, nl=False, err=True)
        line = sys.stdin.readline()
        if not line or line.strip() in LEAVE:
            return
        if line.strip():
            yield line.strip()


def _answer(agent: Agent, request: str, session: str) -> bool:
    """Streams the answer to one message; whether there was one."""
    import asyncio

    from agent_forge.errors import ModelError

    try:
        return asyncio.run(_stream(agent, request, session))
    except ModelError as error:  # the conversation can go on
        echo(f"agent-forge: {error}", err=True)
        return False


async def _stream(agent: Agent, request: str, session: str) -> bool:
    from agent_forge.terminal import printable

    event: AgentEvent | None = None
    async for event in agent.astream(request, session=session):
        if event.kind == "text":
            click.echo(printable(event.text, lines=True), nl=False)
        elif event.call is not None:
            shown = event.text if event.kind == "observation" else _call(event.call)
            echo(f"  {'→' if event.kind == 'call' else '←'} {shown[:200]}", err=True)
    click.echo()
    result = event.result if event is not None else None
    if result is not None and not result.ok:
        echo(f"agent-forge: {result.state}: {result.error}", err=True)
    return result is not None and result.ok


def _call(call: Any) -> str:
    return f"{call.tool}({', '.join(f'{name}={value!r}' for name, value in call.args.items())})"
