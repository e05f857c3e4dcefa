"""What do we learn from? Personal data, duplicates, difficulty, audit, dataset loaders."""

from agent_forge.curation.pii import Match, find_pii

__all__ = ["Match", "find_pii"]
