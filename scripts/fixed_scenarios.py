"""Writes the fixed held-out scenarios of the roster `genesis` again: src/agent_forge/tasks/scenarios/NAME.yaml."""

from __future__ import annotations

from pathlib import Path

from agent_forge.agents.profiles import roster
from agent_forge.tasks import family
from agent_forge.tasks.fixed import draw_fixed, dump_exercises

FOLDER = Path(__file__).parents[1] / "src/agent_forge/tasks/scenarios"


def main() -> None:
    """One file per agent."""
    FOLDER.mkdir(exist_ok=True)
    for profile in roster("genesis").values():
        tasks = family(profile.family or profile.name)
        text = dump_exercises(draw_fixed(tasks))
        (FOLDER / f"{tasks.name}.yaml").write_text(text, encoding="utf-8")
        print(f"{tasks.name:<10} {len(text):>8,} bytes")


if __name__ == "__main__":
    main()
