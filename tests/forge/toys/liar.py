"""Promises an architecture that it does not make."""

from dataclasses import replace

from agent_forge.forge.contracts import Contract
from toys.make import PHASE as MAKE

PHASE = replace(MAKE, promises=Contract(architectures=("Other",)))
