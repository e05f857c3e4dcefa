"""Runs one phase in a process of its own.

So that phases run side by side without sharing a random number generator, and one that is killed for lack of memory
takes nothing else down.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_forge.config import as_dict, build
from agent_forge.forge import checkpoint as checkpoints
from agent_forge.forge.events import Bus, jsonl_sink
from agent_forge.forge.phases import Work, phase
from agent_forge.plans import Task


def job_of(work: Work, phase_name: str, events: Path) -> Task:
    """The work as a task whose arguments are JSON, for a worker process; progress goes to the file `events`."""
    job = {
        "phase": phase_name,
        "config": as_dict(work.config),
        "inputs": [{"path": str(item.path), "digest": item.digest} for item in work.inputs],
        "seed": work.seed,
        "folder": str(work.folder),
        "models": str(work.models),
        "events": str(events),
    }
    return Task(work.name, phase(phase_name).about, args=job)


def run_phase(task: Task, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the worker process calls: runs the phase and returns its checkpoint's path and its gate."""
    job = task.args
    kind = phase(job["phase"])
    bus = Bus(jsonl_sink(Path(job["events"])))
    quiet()
    outcome = kind.run(
        Work(
            name=task.id,
            config=build(kind.config, job["config"], task.id),
            inputs=[checkpoints.load(item["path"], item["digest"]) for item in job["inputs"]],
            seed=job["seed"],
            folder=Path(job["folder"]),
            models=Path(job["models"]),
            tell=lambda **fields: bus.tell("progress", task.id, **fields),
        )
    )
    made = outcome.checkpoint
    return {"checkpoint": None if made is None else str(made.path), "gate": outcome.gate.as_dict()}


def quiet() -> None:
    """Keeps transformers from drawing bars and telling tales over our own progress."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
