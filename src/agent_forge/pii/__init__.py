"""Personal data and secrets in text: `find_pii`."""

from agent_forge.pii.detector import find_pii, fold
from agent_forge.pii.match import NAME_TYPES, PATTERN_TYPES, SECRET_TYPES, TYPES, Match

__all__ = ["NAME_TYPES", "PATTERN_TYPES", "SECRET_TYPES", "TYPES", "Match", "find_pii", "fold"]
