"""Agents at work on checked exercises: their evaluation, and the collection of scored traces.

Each exercise is one trace in the home's store: a root span with the exercise, the reward and its components, and under
it what the agent did. An evaluation that was stopped goes on from the exercises that the store holds.

Exercises are self-contained, so by default (`turns=1`) a model gets one answer, bound to the family's schema where the
model runs in this process, and no tools. With more turns it may call the tools of its profile.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import fmean, stdev
from typing import Any

from agent_forge.agents.agent import Agent
from agent_forge.agents.choices import choose_model
from agent_forge.agents.elsewhere import Jobs, Place
from agent_forge.agents.front import blocking
from agent_forge.agents.profiles import AgentProfile
from agent_forge.config import as_dict, build
from agent_forge.errors import ModelError, UsageError
from agent_forge.inference import ChatClient, Completion, ModelClient, Request
from agent_forge.inference.batched import BatchedModel
from agent_forge.inference.local_model import LocalModel, PromptTooLong
from agent_forge.rewards import Reward, RewardProfile, reward_profile, score
from agent_forge.tasks import Exercise, Family, family
from agent_forge.tasks.family import digest
from agent_forge.tasks.fixed import PER_AGENT, fixed_exercises, held_out
from agent_forge.threads import THREADS
from agent_forge.traces import Recorder, current_span
from agent_forge.traces.collect import SCENARIO, Collection, Scenario, Target, acollect, attempts_in
from agent_forge.traces.turns import CORRECT, EXERCISE
from agent_forge.urls import without_credentials

SOLVERS = ("reference", "random", "copy")
Progress = Callable[[Collection], object]


class GivenAnswer(ChatClient):
    """Takes the place of a model: it always gives the same answer."""

    provider = "solver"

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    async def answer(self, request: Request) -> Completion:
        return Completion(self.text, self.name, "stop")

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        yield self.text
        yield await self.answer(request)


def solver(name: str, tasks: Family, exercise: Exercise) -> GivenAnswer:
    """A stand-in for a model: `reference` answers right, `random` gives the right answer to another exercise that it
    draws at random, and `copy` repeats the prompt."""
    if name == "copy":
        return GivenAnswer(name, exercise.prompt)
    if name == "random":
        seed = random.Random(exercise.prompt).randrange(2**32)
        exercise = tasks.make(seed, exercise.level, held_out=not exercise.held_out)
    answer = tasks.solve(exercise.expected)
    return GivenAnswer(name, answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))


@dataclass(frozen=True)
class Examinee:
    """Who does the exercises: a model or a stand-in, and what it may use. With one turn there are no tools."""

    model: str | ModelClient
    turns: int = 1
    max_tokens: int = 512

    @property
    def name(self) -> str:
        return without_credentials(self.model) if isinstance(self.model, str) else self.model.name

    async def attempt(self, profile: AgentProfile, exercise: Exercise, recorder: Recorder) -> Reward:
        """Lets an agent do an exercise, and scores it. Raises UsageError if its model cannot be asked."""
        tasks = family_of(profile)
        client = solver(self.model, tasks, exercise) if self.model in SOLVERS else self.model
        limits = replace(profile.limits, turns=self.turns, answer_tokens=self.max_tokens)
        if self.turns == 1:
            profile = replace(profile, tools=(), limits=replace(limits, corrections=0))
        else:
            profile = replace(profile, limits=limits)
        span = current_span()
        assert span is not None  # the root of the trace, which `acollect` began
        document = {**asdict(exercise), "family": profile.family}
        if digest(tasks.make(exercise.seed, exercise.level, held_out=exercise.held_out)) == digest(exercise):
            document = {name: document[name] for name in ("family", "seed", "level", "held_out")}
        span.set(model=self.name, **{EXERCISE: document})  # trust is per agent and model
        text = ""
        facts: dict[str, Any] = {"prompt": exercise.prompt}
        try:
            result = await Agent(profile, model=client, recorder=recorder).arun(exercise.prompt)
        except PromptTooLong as error:
            span.error = str(error)
        except ModelError as error:
            raise UsageError(f"the model cannot be asked: {error}") from error
        else:
            text = str(result.messages[-1].get("content") or "") if result.messages[-1]["role"] == "assistant" else ""
            facts["observations"] = [m["content"] for m in result.messages if m["role"] == "tool"]
            # Not the time: in a batch, that of one answer depends on the others.
            if result.usage.output_tokens is not None:
                facts["tokens"] = (result.usage.input_tokens or 0) + result.usage.output_tokens
                facts["calls"] = result.usage.tool_calls
        rules = rules_of(profile)
        reward = await THREADS.call(lambda: score(rules, text, exercise, facts, family=tasks))
        noted = {"reward.profile": rules.name, "why": reward.why[:500], "level": exercise.level}
        span.set(**{CORRECT: reward.correct, **{f"agent_forge.{name}": value for name, value in noted.items()}})
        return reward


def family_of(profile: AgentProfile) -> Family:
    """The task family of an agent. Raises UsageError."""
    if profile.family is None:
        raise UsageError(f"the agent {profile.name!r} has no task family", fix="Name one in its profile: family: NAME")
    return family(profile.family)


def rules_of(profile: AgentProfile) -> RewardProfile:
    """The reward profile of an agent; `default` if its profile names none."""
    return reward_profile(profile.reward or "default")


# -- evaluation --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentScore:
    """The mean reward of an agent over n exercises, its standard error, and the share of answers without a fault."""

    mean: float | None
    stderr: float | None
    n: int
    correct: float | None


@dataclass(frozen=True)
class AgentScores:
    """The scores of an evaluation; `mean` and `correct` are means over the agents. `errors` counts exercises that could
    not be judged, and are in no mean; `error` is the first of them. `session` is where the traces are."""

    agents: Mapping[str, AgentScore]
    mean: float | None
    correct: float | None
    model: str
    session: str
    errors: int = 0
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


Work = Sequence[tuple[AgentProfile, Exercise]]


def exercises_for(profiles: Sequence[AgentProfile], per_agent: int = PER_AGENT, seed: int | None = None) -> Work:
    """Held-out exercises: without a seed the fixed ones, where there are any (for fewer, some of every level)."""
    work = []
    for profile in profiles:
        tasks = family_of(profile)
        try:
            fixed = fixed_exercises(tasks.name) if seed is None else None
        except UsageError:  # a family of one's own
            fixed = None
        exercises = fixed or held_out(tasks, per_agent, seed or 0)
        if per_agent > len(exercises):
            raise UsageError(f"there are {len(exercises)} fixed scenarios per agent", fix="Draw fresh ones: --seed N")
        work += [(profile, exercise) for exercise in exercises[:per_agent]]
    return work


def evaluate_agents(
    work: Work,
    examinee: Examinee,
    recorder: Recorder,
    *,
    concurrency: int = 8,
    progress: Progress | None = None,
    workers: Place = None,
) -> AgentScores:
    """Lets agents do exercises, several at a time, and scores them.

    A stopped evaluation of the same exercises with the same settings goes on; after a complete one a new one starts.
    `workers` share the exercises, and write their traces to the same store; the model must then be named by a text.
    """
    names = [f"{profile.name}/{digest(exercise)}" for profile, exercise in work]
    key = json.dumps([names, examinee.turns, examinee.max_tokens])
    base = f"eval {examinee.name} {hashlib.sha256(key.encode()).hexdigest()[:8]}"
    number = 1
    while {span.attributes[SCENARIO] for span in attempts_in(recorder.store, f"{base} {number}")} >= set(names):
        number += 1
    session = f"{base} {number}"
    if workers is not None:
        _attempt_elsewhere(work, examinee, recorder, session, concurrency, workers)
    # After workers, this finds everything done.
    _attempt_all(work, examinee, recorder, session, concurrency, progress)
    return _scores(recorder, session, examinee.name, [profile.name for profile, _ in work])


def _attempt_all(
    work: Work, examinee: Examinee, recorder: Recorder, session: str, concurrency: int, progress: Progress | None = None
) -> None:
    """Does the exercises that the session does not have yet."""
    names = [f"{profile.name}/{digest(exercise)}" for profile, exercise in work]
    done = {span.attributes[SCENARIO] for span in attempts_in(recorder.store, session)}

    async def go() -> None:
        async with nullcontext(examinee) if done >= set(names) else loaded(examinee, concurrency) as ready:
            scenarios = [
                Scenario(name, profile.name, _one(ready, profile, exercise), family_of(profile).name)
                for name, (profile, exercise) in zip(names, work, strict=True)
            ]
            target = Target(per_scenario=1)
            await acollect(scenarios, target, recorder, name=session, concurrency=2 * concurrency, progress=progress)

    blocking(go())


def _attempt_elsewhere(
    work: Work, examinee: Examinee, recorder: Recorder, session: str, concurrency: int, workers: Place
) -> None:
    """Shares the exercises between workers, so many to a job as a model answers in one batch."""
    if not isinstance(examinee.model, str):
        fix = "Name it by a text"
        raise UsageError("workers in other processes cannot be given a model as a Python object", fix=fix)
    documents = [[as_dict(profile), exercise.to_dict()] for profile, exercise in work]
    shared = {
        "store": recorder.store.address,
        "session": session,
        "concurrency": concurrency,
        "examinee": [examinee.model, examinee.turns, examinee.max_tokens],
    }
    jobs = [{**shared, "work": documents[n : n + concurrency]} for n in range(0, len(documents), concurrency)]
    with Jobs(workers) as pool:
        pool.map(attempt_job, jobs)


def attempt_job(task: Any, inputs: Mapping[str, Any]) -> int:
    """What a worker calls: it does its exercises, and their traces are in the store. Begun again, it goes on."""
    from agent_forge.traces import Store

    job = task.args
    work = [(build(AgentProfile, profile, "agent"), Exercise(**exercise)) for profile, exercise in job["work"]]
    model, turns, max_tokens = job["examinee"]
    examinee = Examinee(model if model in SOLVERS else _client(model), turns, max_tokens)
    with Store.open(job["store"]) as store, Recorder.from_settings(store) as recorder:
        _attempt_all(work, examinee, recorder, job["session"], job["concurrency"])
    return len(work)


@cache
def _client(model: str) -> Any:
    """The model of a worker process, which keeps it for the next job."""
    return choose_model(model)


@asynccontextmanager
async def loaded(examinee: Examinee, slots: int) -> AsyncIterator[Examinee]:
    """The examinee with its model ready: one in this process is loaded, and answers in batches."""
    if examinee.model in SOLVERS:
        yield examinee
        return
    client = choose_model(examinee.model)
    if client is None:
        raise UsageError("the agents have no model", fix=f"Name one: --model {'|'.join(SOLVERS)}|smollm2|URL#name")
    if not isinstance(client, LocalModel):
        yield replace(examinee, model=client)
        return
    await THREADS.call(client.load)  # so that a model that cannot be loaded is no failure of an agent
    batched = BatchedModel(client, slots=slots)
    try:
        yield replace(examinee, model=batched)
    finally:
        batched.close()


def _one(examinee: Examinee, profile: AgentProfile, exercise: Exercise) -> Callable[[Recorder, int], Any]:
    async def run(recorder: Recorder, seed: int) -> Reward:
        return await examinee.attempt(profile, exercise, recorder)

    return run


def _scores(recorder: Recorder, session: str, model: str, names: Sequence[str]) -> AgentScores:
    rewards: dict[str, list[tuple[float, bool]]] = {name: [] for name in names}
    errors: list[str] = []
    for span in attempts_in(recorder.store, session):
        if span.reward is None:
            errors.append(str(span.error))
        elif span.agent in rewards:
            rewards[span.agent].append((span.reward, bool(span.attributes.get(CORRECT))))
    agents = {}
    for name, judged in rewards.items():
        totals = [total for total, _ in judged]
        agents[name] = AgentScore(
            fmean(totals) if totals else None,
            stdev(totals) / math.sqrt(len(totals)) if len(totals) > 1 else None,
            len(totals),
            fmean(correct for _, correct in judged) if judged else None,
        )
    means = [one.mean for one in agents.values() if one.mean is not None]
    shares = [one.correct for one in agents.values() if one.correct is not None]
    mean, correct = (fmean(values) if values else None for values in (means, shares))
    return AgentScores(agents, mean, correct, model, session, len(errors), errors[0] if errors else None)


# -- collection --------------------------------------------------------------------------------------------------------


def collect_exercises(
    profiles: Sequence[AgentProfile],
    examinees: Sequence[Examinee],
    target: Target,
    recorder: Recorder,
    *,
    name: str = "collection",
    seed: int = 0,
    concurrency: int = 8,
    progress: Progress | None = None,
) -> Collection:
    """Collects scored traces of agents on training exercises, none of them held out.

    Agents take turns, and for each agent the models do, on the same exercises: with `reference` and `random`, which
    answer right and wrong, the traces are balanced by agent and by outcome, and can be compared in pairs. A collection
    that was stopped goes on.
    """

    async def go() -> Collection:
        async with loaded_all(examinees, concurrency) as ready:
            scenarios = [
                Scenario(
                    f"{profile.name}/{examinee.name}",
                    profile.name,
                    _fresh(examinee, profile),
                    profile.name,
                    seeds=profile.name,
                )
                for profile in profiles
                for examinee in ready
            ]
            return await acollect(
                scenarios, target, recorder, name=name, seed=seed, concurrency=concurrency, progress=progress
            )

    return blocking(go())


@asynccontextmanager
async def loaded_all(examinees: Sequence[Examinee], slots: int) -> AsyncIterator[list[Examinee]]:
    """Several examinees with their models ready."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(loaded(examinee, slots)) for examinee in examinees]


def _fresh(examinee: Examinee, profile: AgentProfile) -> Callable[[Recorder, int], Any]:
    async def run(recorder: Recorder, seed: int) -> Reward:
        level = random.Random(seed).random()
        return await examinee.attempt(profile, family_of(profile).make(seed, round(level, 3)), recorder)

    return run
