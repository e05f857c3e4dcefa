"""A run as it happens, on stderr: a live tree on a terminal, a line for each task that ends elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from agent_forge.runtime import Event

SHOWN = 40  # tasks in the live tree; of more, those that run and the latest to end
_MARKS = {"done": "[green]✓[/]", "started": "[yellow]●[/]", "planned": "[dim]○[/]", "retrying": "[yellow]↻[/]"}
OnEvent = Callable[["Event"], None]


@contextmanager
def live_view(*, quiet: bool = False, goals: Mapping[str, str] | None = None) -> Iterator[OnEvent | None]:
    """Gives what to hand to `on_event`; nothing where nobody is looking (`quiet`, and stderr is not a terminal).

    `goals`, by task, stand behind the names where they are known before the run.
    """
    if sys.stderr.isatty():
        with _tree(goals or {}) as on_event:
            yield on_event
    else:
        yield None if quiet else _line


def _line(event: Event) -> None:
    if event.kind == "ended" and event.task is not None:
        reason = f": {event.error}" if event.error else ""
        click.echo(f"[{event.at_s:8.2f} s] {event.task} {event.state}{reason}", err=True)


@contextmanager
def _tree(goals: Mapping[str, str]) -> Iterator[OnEvent]:
    from rich.console import Console
    from rich.live import Live

    states: dict[str, tuple[str, float]] = {}
    with Live(console=Console(stderr=True), transient=True, refresh_per_second=8) as live:

        def on_event(event: Event) -> None:
            if event.task is None:
                return
            states.pop(event.task, None)  # the latest stands last
            states[event.task] = (event.state if event.kind == "ended" else event.kind) or "", event.at_s
            live.update(_drawn(states, goals))

        yield on_event


def _drawn(states: dict[str, tuple[str, float]], goals: Mapping[str, str]) -> Any:
    from rich.markup import escape
    from rich.tree import Tree

    done = sum(state == "done" for state, _ in states.values())
    tree = Tree(f"{done} done of {len(states)}")
    running = [item for item in states.items() if item[1][0] not in ("done", "planned")]
    latest = [item for item in states.items() if item[1][0] == "done"]
    for name, (state, at_s) in [*latest[-SHOWN // 2 :], *running[-SHOWN:]]:
        goal = f" {escape(goals[name])}" if name in goals else ""
        tree.add(f"{_MARKS.get(state, '[red]✗[/]')} {escape(name)}{goal} [dim]{state} {at_s:.1f} s[/]")
    return tree
