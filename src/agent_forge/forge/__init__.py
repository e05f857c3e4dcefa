"""How a model is made: architectures, training, and the phases.

Importing this registers our architectures, so that `AutoModelForCausalLM.from_pretrained` loads what a phase wrote.
"""

from __future__ import annotations

from agent_forge.forge import models as models
