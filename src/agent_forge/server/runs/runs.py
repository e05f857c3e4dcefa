"""All runs of a server: the active ones, those that ended recently, and the journal for the rest."""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any

from agent_forge.errors import PlanError, UnknownRunError
from agent_forge.refusal import Refusal
from agent_forge.server.context import ASK, REPLY, Context
from agent_forge.server.metrics import metrics_of
from agent_forge.server.runs.run import ActiveRun

if TYPE_CHECKING:
    from agent_forge.plans import Plan
    from agent_forge.runtime.stored import StoredRun

MOST_ENDED = 256  # ended runs in memory
ASK_S = 10.0  # for another server to answer
SHUTDOWN_S = 10.0  # for active runs to end when the server shuts down
NAME = re.compile(r"[\w.-]{1,128}")


class Runs:
    """Starts runs, each in a thread, and finds them again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, ActiveRun] = OrderedDict()
        self._threads: set[threading.Thread] = set()
        self._asking: dict[str, Future[Any]] = {}  # questions to other servers

    @property
    def active(self) -> int:
        """The number of active runs."""
        return sum(not run.ended for run in list(self._runs.values()))

    def start(self, body: Mapping[str, Any], model: Any = None) -> ActiveRun:
        """Starts a run. Raises Refusal: 400 for an invalid request, 429 if too many are active."""
        from agent_forge.runtime import new_run_id

        work, options = work_of(body), self._options(body, model)
        run = ActiveRun(new_run_id(), work if isinstance(work, str) else None, self._tell)
        if self._context.events is not None:  # whoever is told of it may ask any server
            self._context.events.begin(f"run:{run.name}")
        return self._begin(run, work, {**options, "run_id": run.name})

    def decide(self, name: str, task: str, answer: Any) -> None:
        """Approves (True, or other arguments) or rejects a task. A run that waited when its process ended goes on, and
        what it had done is not done again; one that another server has is decided there. Raises Refusal: 404, 409, 429
        or 503."""
        run = self.find(name)
        if run is not None and not run.ended:
            run.decide(task, answer)
            return
        stored = self._stored(name)
        if stored is None:
            raise Refusal(404, f"there is no run {name[:128]!r}", code="run_not_found", fix="GET /v1/runs lists them")
        if stored.summary.state == "running" and self._context.events is not None:
            self._ask({"do": "decide", "run": name, "task": task, "answer": answer})
            return
        if stored.summary.state not in ("waiting", "interrupted") or task not in self.waiting(name):
            raise Refusal(409, f"task {task!r} does not wait for approval", code="not_waiting", param="task")
        run = ActiveRun(name, stored.summary.notes.get("request"), self._tell)
        run.answer(task, answer)
        self._begin(run, None, {**self._options({}, None), "resume": name})

    def cancel(self, name: str) -> str:
        """Stops a run, here or on the server that has it; returns its state. Raises Refusal: 404 or 503."""
        run = self.find(name)
        if run is not None and not run.ended:
            run.cancel()
            return run.state
        stored = self._stored(name) if self._context.events is not None else None
        if stored is None or stored.summary.state != "running":
            if run is not None:
                return run.state
            fix = "GET /v1/runs lists them"
            raise Refusal(404, f"no server has an active run {name[:128]!r}", code="run_not_found", fix=fix)
        self._ask({"do": "cancel", "run": name})
        return "running"

    def _ask(self, question: dict[str, Any]) -> None:
        """Has another server do something with its run. Raises what it refuses, or Refusal (503) if none answers."""
        events, number, reply = self._context.events, uuid.uuid4().hex, Future[Any]()
        assert events is not None
        self._asking[number] = reply
        try:
            events.publish(ASK, {**question, "id": number})
            refusal = reply.result(ASK_S)
        except FutureTimeout:
            what = f"the server of run {question['run'][:128]!r} did not answer"
            fix, later = "Try again; the run may have ended", {"Retry-After": "2"}
            raise Refusal(503, what, code="no_answer", fix=fix, headers=later) from None
        finally:
            del self._asking[number]
        if refusal is not None:
            raise Refusal(**refusal)

    def heard(self, topic: str, event: Mapping[str, Any]) -> None:
        """What another server asks of a run here, or answers."""
        if topic == REPLY:
            reply = self._asking.get(event["id"])
            if reply is not None and not reply.done():
                reply.set_result(event["refusal"])
            return
        run = self.find(event["run"])
        if run is None or run.ended or self._context.events is None:
            return  # it is not ours
        refusal = None
        try:
            run.cancel() if event["do"] == "cancel" else run.decide(event["task"], event["answer"])
        except Refusal as error:
            refusal = {"status": error.status, "what": error.what, "code": error.code, "param": error.param}
        self._context.events.publish(REPLY, {"id": event["id"], "refusal": refusal})

    def waiting(self, name: str) -> dict[str, dict[str, Any]]:
        """The tasks of a run that wait for an approval, each with its tool and the arguments of the call."""
        run = self.find(name)
        if run is not None and not run.ended:
            return {task.id: {"tool": task.action, "args": dict(task.args)} for task in run.asked}
        stored = self._stored(name)
        states = ("waiting", "interrupted", *(["running"] if self._context.events is not None else []))
        if stored is None or stored.plan is None or stored.summary.state not in states:
            return {}
        from agent_forge.agents.choices import choose_tools
        from agent_forge.plans import resolve

        changing = {tool.name for tool in choose_tools(self._context.settings.tools) if tool.side_effects}
        found = {}
        for each, record in stored.tasks.items():
            task = stored.planned(each)
            needs = stored.plan.dependencies.get(each, ())
            ready = task is not None and all(stored.tasks[need].state in ("done", "not_needed") for need in needs)
            if (
                task is not None
                and record.state == "waiting"
                and ready
                and (task.action in changing or task.meta.get("approval"))
            ):
                args = dict(task.args)
                found[each] = {
                    "tool": task.action,
                    "args": args
                    if task.for_each or each not in stored.plan
                    else resolve(args, stored.results, ids=stored.plan.tasks),
                }
        return found

    def _begin(self, run: ActiveRun, work: Any, options: dict[str, Any]) -> ActiveRun:
        name = f"agent-forge-{run.name}"
        thread = threading.Thread(target=self._execute, args=(run, work, options), name=name, daemon=True)
        with self._lock:
            if self.active >= self._context.settings.runs:
                raise Refusal(
                    429, "the maximum number of runs is active", code="too_many_runs", headers={"Retry-After": "5"}
                )
            self._runs[run.name] = run
            self._threads.add(thread)
            ended = [name for name, run in self._runs.items() if run.ended]
            for old in ended[: max(0, len(ended) - MOST_ENDED)]:
                del self._runs[old]
        thread.start()
        return run

    def _execute(self, run: ActiveRun, work: Any, options: dict[str, Any]) -> None:
        try:
            run.execute(work, options)
            self._context.recorder.flush()  # before clients learn that it ended and look for its trace
        finally:
            run.finish()
            metrics_of(self._context).runs.labels(run.state).inc()
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _options(self, body: Mapping[str, Any], model: Any) -> dict[str, Any]:
        settings = self._context.settings
        names = ("planner", "concurrency", "timeout_s", "on_failure", "team", "unit", "approve", "repairs")
        options = {name: body[name] for name in names if body.get(name) is not None}
        if body.get("budget"):
            from agent_forge.runtime import Budget

            renamed = {"wall_s" if name == "seconds" else name: value for name, value in body["budget"].items()}
            options["budget"] = Budget(**renamed)
        stores = {"home": self._context.place, "recorder": self._context.recorder}
        return {**options, "tools": settings.tools, "model": model, **stores}

    def _tell(self, run: ActiveRun, event: dict[str, Any]) -> None:
        run.remember(event)
        for topic in ("runs", f"run:{run.name}"):
            self._context.hub.publish(topic, event)

    def find(self, name: str) -> ActiveRun | None:
        """A run of this server, or None if it is no longer in memory."""
        return self._runs.get(name)

    def document(self, name: str) -> dict[str, Any]:
        """A run as JSON: what `agent-forge run --json` prints, as far as known. Raises Refusal (404)."""
        run = self._runs.get(name)
        if run is not None and run.result is not None:
            return run.result
        stored = self._stored(name)
        if run is None and stored is None:
            raise Refusal(404, f"there is no run {name[:128]!r}", code="run_not_found", fix="GET /v1/runs lists them")
        document: dict[str, Any] = {"run": name, "state": "running", "error": None, "tasks": {}}
        if stored is not None:
            document |= stored.as_dict()
            document["request"] = stored.summary.notes.get("request")
        if run is not None:
            document |= {"request": run.request, "waiting_for_approval": run.waiting_for_approval}
            if stored is None or stored.summary.ended_s is None:
                document |= {"state": run.state, "error": run.error}
        return document

    def _stored(self, name: str) -> StoredRun | None:
        if not NAME.fullmatch(name):
            return None
        try:
            return self._context.journal.load(name)
        except UnknownRunError:
            return None

    def has_begun(self, name: str) -> bool:
        """Whether there is a run of this name, here or on another server."""
        events = self._context.events
        return self._stored(name) is not None or (events is not None and events.has_begun(f"run:{name}"))

    def has_ended(self, name: str) -> bool:
        """Whether a run that this server does not have is over: its server wrote that down, or is gone."""
        stored = self._stored(name)
        return stored is not None and stored.summary.state != "running"

    def documents(self) -> list[dict[str, Any]]:
        """Every run in the journal, as `agent-forge runs ls --json` prints them."""
        return [run.as_dict() for run in self._context.journal.runs()]

    def close(self) -> None:
        """Stops active runs and waits for them, but not for a tool that blocks its event loop for ever. One that only
        waits for an approval ends as waiting: it can be approved after a restart."""
        for run in list(self._runs.values()):
            if not run.ended and not run.pause():
                run.cancel()
        until = time.monotonic() + SHUTDOWN_S
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))


def runs_of(context: Context) -> Runs:
    """The runs of a server."""
    runs: Runs = context.part("runs", lambda: Runs(context))
    return runs


def work_of(body: Mapping[str, Any]) -> str | Plan:
    """The request, or the plan, of a body. Raises Refusal (400)."""
    from agent_forge.plans import PlanInvalid, parse_plan

    if ("request" in body) == ("plan" in body):
        raise Refusal(400, "the body needs either a request or a plan", code="invalid_body")
    if "request" in body:
        request: str = body["request"]
        return request
    plan = body["plan"]
    try:
        return parse_plan(plan) if isinstance(plan, str) else parse_plan(json.dumps(plan), "json")
    except PlanInvalid as error:
        faults = "; ".join(fault.message for fault in error.errors[:10])
        raise Refusal(400, f"the plan is not valid: {faults or error}", code="invalid_plan", param="plan") from error
    except PlanError as error:
        raise Refusal(400, str(error), code="invalid_plan", param="plan") from error
