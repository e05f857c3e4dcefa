"""What can be practised and checked: task families, their checkers, and the judges of plans and calls."""

import agent_forge.tasks.families  # now: imported later, it would replace the function of this name
from agent_forge.tasks.family import LEVELS, Draft, Exercise, Family, Verdict, families, family, task_family

__all__ = ["LEVELS", "Draft", "Exercise", "Family", "Verdict", "families", "family", "task_family"]
