"""A home folder filled by real runs: requests that are planned and carried out, a plan whose tasks call a model and
tools, a run that fails, agents whose answers are checked, a pipeline with two tracks, and an audit."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

from agent_forge import run
from agent_forge.plans import Plan, Task
from agent_forge.runtime import Journal, execute
from agent_forge.traces import Recorder, Store

HERE = Path(__file__).parent
HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>\'"&'

REVIEW = Plan(
    [
        Task("outline", "list the sections of the report", action="draft", args={"about": "solar power in 2026"}),
        *(Task(f"find_{n}", "look for sources on {outline}", action="search", args={"n": n}) for n in range(1, 5)),
        *(Task(f"read_{n}", f"read {{find_{n}}}", action="summarise") for n in range(1, 5)),
        Task("facts", "check {read_1} and {read_2}", action="check"),
        Task("costs", "compare {read_3} with {read_4}", action="calculate"),
        Task("write", "write the report from {facts} and {costs}", action="draft"),
        Task("review", "read {write} once more", action="check"),
    ]
)


class Work:
    """Carries tasks out: each opens a span of a model or tool inside its own, with tokens and a cost."""

    def __init__(self, recorder: Recorder, pace_s: float = 0.004, fails: str | None = None) -> None:
        self.recorder, self.pace_s, self.fails = recorder, pace_s, fails

    async def __call__(self, task: Task, inputs: dict[str, Any]) -> Any:
        draws = random.Random(task.id)
        if task.action in ("draft", "summarise", "check"):
            messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task.goal}]
            with self.recorder.span(f"chat {task.id}", "model", inputs={"messages": messages}) as span:
                await asyncio.sleep(self.pace_s * draws.uniform(1, 4))
                words = draws.randint(40, 400)
                span.set(model="local-7b", input_tokens=words * 3, output_tokens=words, cost=words * 2e-6)
                span.outputs = {"text": f"{words} words about {task.id}"}
        else:
            with self.recorder.span(str(task.action), "tool", inputs=dict(task.args)) as span:
                await asyncio.sleep(self.pace_s * draws.uniform(1, 6))
                span.outputs = {"hits": draws.randint(1, 20)}
        if task.id == self.fails:
            raise ValueError("the source could not be read: 503 Service Unavailable")
        return {"from": task.id, "found": span.outputs}


def carry_out(home: Path, plan: Plan, name: str, *, session: str | None = None, **how: Any) -> Any:
    """Runs a plan with the journal and the trace store of a home folder."""
    with Store.open(home) as store:
        recorder, journal = Recorder(store), Journal.open(home)

        async def all_of_it() -> Any:
            with recorder.span(f"report ({name})", "agent", agent="Researcher", session=session) as span:
                result = await execute(plan, Work(recorder, **how), journal=journal, run_id=name, recorder=recorder)
                span.set(reward=1.0 if result.ok else 0.0)
                if not result.ok:
                    raise ValueError(result.error or "failed")
            return result

        try:
            return asyncio.run(all_of_it())
        except ValueError:
            return None
        finally:
            recorder.close()
            journal.close()


def practise(home: Path, rounds: int = 60) -> None:
    """Two agents do sums; a checker that knows the answers gives the rewards."""
    draws = random.Random(7)
    with Store.open(home) as store:
        recorder = Recorder(store)
        for _ in range(rounds):
            category, agent = draws.choice(("adding", "multiplying", "subtracting")), draws.choice(("Careful", "Hasty"))
            a, b = draws.randint(10, 99), draws.randint(10, 99)
            right = {"adding": a + b, "multiplying": a * b, "subtracting": a - b}[category]
            with recorder.span(
                f"{category} {a}, {b}", "agent", agent=agent, session=f"practice-{agent.lower()}"
            ) as span:
                given = right if agent == "Careful" or category == "adding" else right // 10 * 10
                span.set(category=category, model="mental-arithmetic", reward=float(given == right))
                span.outputs = {"answer": given}
        recorder.close()


def forge(home: Path, name: str = "toy", **changes: Any) -> Any:
    """A pipeline of toy phases in this process: a base, two tracks, and their join."""
    from agent_forge.forge.pipeline import read_pipeline
    from agent_forge.forge.registry import Registry
    from agent_forge.forge.session import ForgeSession
    from agent_forge.runtime.workers import Inline

    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    phases = {
        "base": {"phase": "server_toys.descend", "config": {"steps": 40, "target": 3.0, **changes}},
        "reasoning": {"phase": "server_toys.improve", "after": ["base"], "config": {"steps": 30, "target": 2.0}},
        "memory": {"phase": "server_toys.improve", "after": ["base"], "config": {"steps": 30, "target": 9.0}},
        "join": {"phase": "server_toys.improve", "after": ["reasoning", "memory"], "config": {"steps": 20}},
    }
    file = home / f"{name}.yaml"
    file.write_text(json.dumps({"name": name, "parallel": 2, "phases": phases}))
    return ForgeSession(read_pipeline(str(file)), Registry(home), workers=Inline()).run()


def audit(home: Path) -> None:
    """An audit of a small file with a few faults, kept where the dashboard looks."""
    from agent_forge.curation.audit import audit_file

    draws = random.Random(3)
    rows = [{"prompt": f"What is {n} plus {draws.randint(1, 99)}?", "answer": "x " * draws.randint(1, 60),
             "category": draws.choice(["sums", "words"])} for n in range(80)]  # fmt: skip
    rows += [*rows[:6], {"prompt": "Mail jane.doe@corp.example.org or call +1 415 555 2671", "answer": "ok"}]
    file = home / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    folder = home / "audits"
    folder.mkdir(exist_ok=True)
    (folder / "rows.json").write_text(json.dumps(audit_file(file).as_dict()))


def hostile(home: Path) -> str:
    """A run and a trace whose every word is an attack. Returns the name of the run."""
    plan = Plan([Task("a", HOSTILE, action=HOSTILE, args={"x": HOSTILE}), Task("b", HOSTILE + " {a}")])
    with Store.open(home) as store:
        recorder, journal = Recorder(store), Journal.open(home)

        async def echo(task: Task, inputs: dict[str, Any]) -> str:
            with recorder.span(HOSTILE, "model", inputs={"messages": [{"role": HOSTILE, "content": HOSTILE}]}) as span:
                span.set(agent=HOSTILE, model=HOSTILE, session=HOSTILE, category=HOSTILE, reward=0.5)
            return HOSTILE

        asyncio.run(execute(plan, echo, journal=journal, run_id="hostile", recorder=recorder))
        recorder.close()
        journal.close()
    return "hostile"


def fill(home: Path) -> Path:
    """Everything above but the hostile run."""
    home.mkdir(parents=True, exist_ok=True)
    run("Who is older, Manuel Antonio or Wilfred MacDonald?", home=home)
    run("Where was the director of film Alien born?", home=home)
    carry_out(home, REVIEW, "report-1", session="monday")
    carry_out(home, REVIEW, "report-2", session="monday", pace_s=0.006)
    carry_out(home, REVIEW, "report-failed", fails="read_3")
    practise(home)
    audit(home)
    return home
