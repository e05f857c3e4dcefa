"""Takes half-precision toys alone."""

from dataclasses import replace

from agent_forge.forge.contracts import Contract
from toys.add import PHASE as ADD

PHASE = replace(ADD, takes=Contract(architectures=("Toy",), dtypes=("F16",)))
