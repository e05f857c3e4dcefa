"""The planner that comes with the package: a small packed model that reads the tools and writes calls.

    planner = ForgedPlanner()
    plan = planner.plan_now("Get the weather in Oslo and Rome.", tools=[get_weather])

It needs no torch and no network. Its decoding follows the grammar of the tools (`constraint.py`), so that every value
was said, is listed by the schema, or is an earlier result; a required value that nobody gave is left open, and a
request that no tool serves becomes a task without an action. docs/forged-planner.md has its figures.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from agent_forge.agents.grounding import Mentions
from agent_forge.agents.planner.arguments import arguments
from agent_forge.agents.planner.checking import Missing, PlanRefused
from agent_forge.agents.planner.constraint import settled
from agent_forge.agents.planner.interface import PlanningFailed, check_request
from agent_forge.agents.planner.retrieval import shown_tools
from agent_forge.agents.planner.script import Function, is_reference, request_text, tools_text
from agent_forge.agents.planner.tools import ToolSpec
from agent_forge.agents.tools.schemas import plain_schema
from agent_forge.errors import CheckpointError
from agent_forge.plans import Plan, Provenance, Task
from agent_forge.plans.calls import write_call
from agent_forge.plans.references import literal
from agent_forge.written_language import language_of

if TYPE_CHECKING:
    from agent_forge.agents.planner.writer import PlanWriter

SHIPPED = Path(__file__).parent.parent / "data" / "planner"
LEAST = 0.25  # probability of being right below which a plan is not run: below it the rules do as well
MOST_TOKENS = 1024  # of a request: more than it ever saw
KEPT_PREFIXES = 4  # lists of tools whose reading is kept
CARD, CALIBRATION = "card.json", "calibration.json"


class PlanModel:
    """A model that was trained to write plans, with its tokenizer and the grammar's view of it. A packed folder runs
    without torch; any other needs the extra `forge`."""

    def __init__(self, folder: Path, model: Any = None) -> None:
        """`model` is the folder's in memory, where it is there already: it has `history()` and `read(history, ids)`."""
        from agent_forge.inference.grammar import GrammarVocabulary
        from agent_forge.inference.packed import PackedModel
        from agent_forge.inference.packed.model import is_packed
        from agent_forge.inference.tokenizer import FolderTokenizer

        if model is None and is_packed(folder):
            model = PackedModel.load(folder)
        elif model is None:
            from agent_forge.inference.loading import load_model
            from agent_forge.inference.torch_reader import reader_of

            model = reader_of(load_model(folder))
        self.model = model
        self.tokenizer = FolderTokenizer(folder).backend_tokenizer
        ends = self.model.generation_config.eos_token_id
        self.vocabulary = GrammarVocabulary(self.tokenizer, ends=ends if isinstance(ends, list) else [ends])
        card = folder / CARD
        self.card: dict[str, Any] = json.loads(card.read_text(encoding="utf-8")) if card.is_file() else {}
        if (folder / CALIBRATION).is_file():  # beside the card of the forge, which holds single figures
            self.card |= {"calibration": json.loads((folder / CALIBRATION).read_text(encoding="utf-8"))}
        self._prefixes: OrderedDict[str, Any] = OrderedDict()
        self._lock = Lock()

    def write(self, request: str, functions: Sequence[Function], **options: Any) -> PlanWriter:
        """The writer after the whole plan. The tools' part of the prompt is read once per list of tools."""
        from agent_forge.agents.planner.writer import PlanWriter

        writer = PlanWriter(self.vocabulary, functions, request, **options)
        ids = self.tokenizer.encode(request_text(request), add_special_tokens=False).ids
        if len(ids) > MOST_TOKENS:
            raise PlanningFailed(f"the request has {len(ids):,} tokens, the forged planner reads up to {MOST_TOKENS:,}")
        history = self._after_tools(functions)
        token: int | None = None
        while not writer.ended:
            logits = self.model.read(history, ids if token is None else [token])[-1]
            token = writer.choose(logits)
        writer.read_tokens = history.length
        return writer

    def _after_tools(self, functions: Sequence[Function]) -> Any:
        text = tools_text(functions)
        with self._lock:
            if text not in self._prefixes:
                history = self.model.history()
                self.model.read(history, self.tokenizer.encode(text, add_special_tokens=False).ids)
                self._prefixes[text] = history
                if len(self._prefixes) > KEPT_PREFIXES:
                    self._prefixes.popitem(last=False)
            self._prefixes.move_to_end(text)
            return self._prefixes[text].copy()

    def probability(self, confidence: float) -> float:
        """How often calls of this confidence were right on the rows of the card (interpolated); where the card has no
        table, the confidence itself."""
        table = self.card.get("calibration")
        if not table:
            return confidence
        import numpy as np

        confidences, shares = zip(*table, strict=True)
        return float(np.interp(confidence, confidences, shares))


@cache
def plan_model(folder: Path) -> PlanModel:
    """The model of a folder, loaded once."""
    return PlanModel(folder)


def is_shipped() -> bool:
    """Whether the planner's weights are there: the package works without them too."""
    return (SHIPPED / "model.safetensors").is_file()


class ForgedPlanner:
    """Plans with the packed model of `folder`, by default the one that comes with the package.

    Of many tools it is shown the nearest; `refuse_above` is the probability of "no tool serves this" above which no
    call is made (half is enough for what is not clearly English, which alone it has learnt), `least` the probability
    of being right below which a plan is not run.
    """

    name = "forged"

    def __init__(self, folder: Path | str | None = None, *, refuse_above: float = 0.9, least: float = LEAST) -> None:
        self.folder = Path(folder) if folder is not None else SHIPPED
        if not (self.folder / "config.json").is_file():
            fix = "Reinstall agent-forge, or choose another planner: --planner rules"
            raise CheckpointError("the forged planner's weights are not there", where=str(self.folder), fix=fix)
        self.refuse_above, self.least = refuse_above, least

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Plan:
        """Writes in a thread."""
        return await asyncio.to_thread(self.plan_now, request, tools=tools)

    def plan_now(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Plan:
        """The plan. What nobody gave is left out of the arguments, as `check` then says; a request that no tool serves
        is one task without an action."""
        check_request(request)
        model = plan_model(self.folder)
        shown = shown_tools(request, tools)
        functions = [function_of(tool) for tool in shown]
        refuse_above = self.refuse_above * (1.0 if language_of(request) == "en" else 0.5)
        writer = model.write(request, functions, refuse_above=refuse_above)
        sure = model.probability(min(writer.confidences)) if writer.calls else writer.none_probability
        provenance = Provenance(
            request,
            self.name,
            model.card.get("name") or self.folder.name,
            confidence=None if sure is None else round(sure, 3),
            input_tokens=writer.read_tokens - writer.written_tokens,
            output_tokens=writer.written_tokens,
            text=writer.text,
        )
        return Plan(tasks_of(filled(writer.calls, shown, request), request)).with_provenance(provenance)

    def is_sure(self, plan: Plan) -> bool:
        """Whether a plan is right often enough to be run."""
        sure = plan.provenance.confidence if plan.provenance is not None else None
        return sure is None or sure >= self.least

    def refuse_unsure(self, plan: Plan) -> None:
        """Raises PlanRefused for a plan of its own that is too seldom right to be run."""
        if (missing := doubt(plan, self.least)) is not None:
            calls = "; ".join(write_call(str(task.action), dict(task.args)) or str(task.action) for task in plan)
            request = None if plan.provenance is None else plan.provenance.request
            raise PlanRefused([replace(missing, why=f"{missing.why}: {calls}")], request)


def doubt(plan: Plan, least: float = LEAST) -> Missing | None:
    """Why a plan of a forged planner is not run, where it is too seldom right."""
    origin = plan.provenance
    if origin is None or origin.planner != ForgedPlanner.name or all(task.action is None for task in plan):
        return None
    if origin.confidence is None or origin.confidence >= least:
        return None
    why = f"the planner is not sure of this plan, for only {origin.confidence:.0%} of such plans are right"
    return Missing(None, None, why)


def filled(calls: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec], request: str) -> list[Mapping[str, Any]]:
    """The calls, with the open values that the rules find in the request beyond doubt: quoted, of the parameter's own
    kind (a path, an address) or marked for it, and not used yet."""
    by_name = {tool.name: tool for tool in tools}
    used = [value for call in calls for value in call["args"].values()]
    done = []
    for call in calls:
        if None in call["args"].values():
            found = arguments(by_name[call["tool"]], request, weak=False)[0]
            args = {name: found.get(name) if value is None else value for name, value in call["args"].items()}
            args = {
                name: None if call["args"][name] is None and value in used else value for name, value in args.items()
            }
            whole = settled({**call, "args": args}, function_of(by_name[call["tool"]]), Mentions(request))
            used += args.values()
            done.append(whole or call)
        else:
            done.append(call)
    return done


def function_of(tool: ToolSpec) -> Function:
    """A tool as the planner reads it."""
    function = {"name": tool.name, "description": tool.description, "parameters": plain_schema(tool.schema)}
    returns = getattr(tool, "returns", None)
    return {**function, "returns": returns} if returns else function


def tasks_of(calls: Iterable[Mapping[str, Any]], request: str) -> list[Task]:
    """The calls as tasks s1, s2, …

    >>> calls = [{"tool": "find", "args": {"q": "tea"}}, {"tool": "buy", "args": {"id": {"ref": 1, "field": "id"}}}]
    >>> [dict(task.args) for task in tasks_of(calls, "Buy tea")]
    [{'q': 'tea'}, {'id': '{s1.id}'}]
    """
    tasks = [
        Task(
            f"s{number}",
            action=call["tool"],
            args={name: _argument(value) for name, value in call["args"].items() if value is not None},
            depends_on=[f"s{earlier}" for earlier in call.get("after") or ()],
        )
        for number, call in enumerate(calls, 1)
    ]
    return tasks or [Task("s1", request)]


def _argument(value: Any) -> Any:
    """A value with references in the manner of plans."""
    if is_reference(value):
        field = value.get("field")
        return f"{{s{value['ref']}.{field}}}" if field else f"{{s{value['ref']}}}"
    if isinstance(value, Mapping):
        return {name: _argument(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_argument(each) for each in value]
    return literal(value) if isinstance(value, str) else value
