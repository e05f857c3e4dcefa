"""Runs one phase in a process of its own.

Parallel phases then do not share a random number generator, and one that is killed for lack of memory takes nothing
else down.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_forge.config import as_dict, build
from agent_forge.errors import UsageError
from agent_forge.forge import checkpoint as checkpoints
from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.forge.events import Bus, jsonl_sink
from agent_forge.forge.phases import Work, phase
from agent_forge.forge.phases.repack import run_phase_on
from agent_forge.forge.registry import Registry
from agent_forge.home import home as home_folder
from agent_forge.plans import Task
from agent_forge.platforms import lock


class Busy(UsageError):
    """Another process, or another phase of this one, works in the folder."""


def job_of(
    work: Work,
    phase_name: str,
    events: Path,
    home: Path,
    threads: int = 1,
    resources: Mapping[str, float] | None = None,
) -> Task:
    """The work as a task with JSON arguments, for a worker process; progress goes to the file `events`."""
    job = {
        "home": str(home),
        "phase": phase_name,
        "config": as_dict(work.config),
        "inputs": [{"path": str(item.path), "digest": item.digest} for item in work.inputs],
        "seed": work.seed,
        "folder": str(work.folder),
        "models": str(work.models),
        "events": str(events),
        "session_pid": os.getpid(),
        "threads": threads,
    }
    meta = {"resources": dict(resources)} if resources else {}
    return Task(work.name, phase(phase_name).about, args=job, meta=meta)


def run_phase(task: Task, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The entry point of a worker process: runs the phase and returns the path of its checkpoint and its gate."""
    job = task.args
    on_ray = "ray" in sys.modules  # which ends its workers itself, and gives them their threads
    if os.getpid() != job["session_pid"] and not on_ray:
        settle_in(job["session_pid"], job["threads"])
    kind = phase(job["phase"])
    folder, models, events = (_here(job, name) for name in ("folder", "models", "events"))
    bus = Bus(jsonl_sink(events))
    quiet()
    with locked(folder, suffix=".worker", wait=True):  # the worker of a killed session may take a moment to end
        outcome = run_phase_on(
            kind,
            Work(
                name=task.id,
                config=build(kind.config, job["config"], task.id),
                inputs=[_input(item) for item in job["inputs"]],
                seed=job["seed"],
                folder=folder,
                models=models,
                tell=lambda **fields: bus.tell("progress", task.id, **fields),
            ),
        )
    path, digest = None, None
    if (made := outcome.checkpoint) is not None:
        path, digest = str(made.path), made.digest
        if not Path(job["home"]).is_dir():  # the session is on another machine
            Registry().add(made)
    return {"checkpoint": path, "digest": digest, "gate": outcome.gate.as_dict(), "passes_on": outcome.passes_on}


def _here(job: Mapping[str, Any], name: str) -> Path:
    """A path of the session. On a machine that does not see the session's home folder, the same one in its own."""
    path, home = Path(job[name]), Path(job["home"])
    return path if home.is_dir() or not path.is_relative_to(home) else home_folder() / path.relative_to(home)


def _input(item: Mapping[str, str]) -> Checkpoint:
    """An input by its path or, on a machine that does not have it there, from the model store."""
    if Path(item["path"]).is_dir():
        return checkpoints.load(item["path"], item["digest"])
    return Registry().load(item["digest"])


def quiet() -> None:
    """Keeps transformers from writing progress bars and warnings over our own progress."""
    if "transformers" not in sys.modules:  # seconds to import, and not every phase does
        os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")
        return
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def settle_in(session_pid: int, threads: int) -> None:
    """A worker process ends with its session, leaves Ctrl-C to it, and uses its share of the cores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(session_pid)
    if "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(threads)


def end_with(parent: int, every_s: float = 0.5) -> None:
    """Ends this process when its parent is gone: nobody waits for the result, and another may resume the work."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every_s)
        os._exit(1)

    threading.Thread(target=watch, name="agent-forge-end-with-session", daemon=True).start()


@contextmanager
def locked(folder: Path, suffix: str = ".lock", wait: bool = False) -> Iterator[None]:
    """Locks the folder. If it is locked already, raises Busy or, with `wait`, waits."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(suffix)
    while True:
        with open(path, "a") as file:
            if not lock(file.fileno(), wait=wait):
                raise Busy("another process runs this phase", where=str(folder), fix="Wait for it, or stop it")
            try:
                current = os.path.samestat(os.fstat(file.fileno()), path.stat())
            except FileNotFoundError:
                current = False
            if not current:
                continue  # the file was removed between opening and locking, and with it the lock
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
