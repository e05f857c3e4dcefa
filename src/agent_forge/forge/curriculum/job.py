"""The curriculum of a model, from the assessment to the verdict. Read it from `practise_curriculum` down.

For each seed two models are trained from the same start with the same number of sampled answers and of steps: along the
course, and, as the control, with exercises drawn uniformly from all levels of the course and answers drawn uniformly
from the right ones. Hints and replay are the same for both.

What takes long is kept in the work folder, so that an interrupted phase goes on where it stopped.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge.errors import ConfigError, HandoffError
from agent_forge.forge.corpus import SplitCorpus
from agent_forge.forge.curriculum.course import (
    RUNNING,
    WALL,
    Assessment,
    Course,
    OpenExercise,
    assess,
    choose,
    hinted,
    ladder,
)
from agent_forge.forge.curriculum.lesson import LessonLoss, dream, lesson
from agent_forge.forge.curriculum.self_model import SelfModel, beside
from agent_forge.forge.curriculum.settings import CurriculumSettings, Replay
from agent_forge.forge.evaluation.text import measure_text
from agent_forge.forge.gates import NO_GAIN, NOT_MEASURED, GateResult, judge
from agent_forge.forge.practice.continuations import text_families
from agent_forge.forge.practice.measuring import kept, paired_error
from agent_forge.forge.practice.respondent import APART, TESTING, TRAINING, Respondent
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.training import checkpoint as ck
from agent_forge.forge.training import encode, pack
from agent_forge.forge.training.evaluation import HeldOut, ratio
from agent_forge.forge.training.loop import TrainingRun
from agent_forge.forge.training.packing import Batch, PackedRows
from agent_forge.forge.training.sampling import evaluating
from agent_forge.tasks import Exercise, family

METRIC = "held-out accuracy at the target level"
DREAMS = 256  # at most
COURSE, UNIFORM, WITHOUT = "course", "uniform", "course without self-modelling"
REPLAYS: tuple[Replay, ...] = ("dream", "text", "none")


@dataclass(frozen=True)
class Arm:
    """One training: along the course (with or without self-modelling) or uniformly, with a kind of replay, from a
    seed."""

    kind: str
    replay: Replay
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.replay}-{self.seed}"


@dataclass(frozen=True)
class ArmFigures:
    """What a model knows, and the way that it came."""

    right: np.ndarray  # [N] held-out exercises at the target level
    nats: np.ndarray  # [D] of the held-out documents
    rounds: int = 0
    courses: tuple[Course, ...] = ()


@dataclass(frozen=True)
class CurriculumOutcome:
    """What the phase found."""

    assessments: dict[str, Assessment]
    base: ArmFigures
    ours: list[ArmFigures]  # by seed
    control: list[ArmFigures]
    replays: dict[str, ArmFigures]  # the first seed's course with each kind of replay that was measured
    tokens: np.ndarray  # [D]
    gate: GateResult
    without: list[ArmFigures] = field(default_factory=list)  # by seed, as `ours`, but without self-modelling

    @property
    def walls(self) -> list[tuple[str, float]]:
        """Families and levels at which the first seed's courses ended before the target."""
        courses = self.ours[0].courses if self.ours else ()
        return [(course.family, course.history[-1]["level"]) for course in courses if course.status == WALL]


def forgetting(before: np.ndarray, after: np.ndarray, tokens: np.ndarray) -> tuple[float, float]:
    """Nats per token by which earlier text got worse, and the standard error; `after` is [S, D].

    Documents and seeds are both samples, as in `paired_error`.
    """
    each = after - before
    value, over_documents = ratio(each.mean(0), tokens)
    over_seeds = (each.sum(1) / tokens.sum()).var(ddof=1) / len(each) if len(each) > 1 else 0.0
    return value, float(np.sqrt(over_documents**2 + over_seeds))


def verdict(
    base: np.ndarray, ours: np.ndarray, control: np.ndarray, forgot: tuple[float, float], most: float
) -> GateResult:
    """Passes if the course is clearly better than the base [N] and than uniform sampling [S, N], and earlier text is
    clearly not worse by more than `most` nats per token. Too few seeds cannot pass."""
    before, after, rival = (float(rows.mean()) for rows in (base, ours, control))
    gate = judge(METRIC, before, after, paired_error(ours - base), lower_is_better=False)
    error = paired_error(ours - control)
    against = judge(METRIC, rival, after, error, lower_is_better=False)
    bounded = forgot[0] + 2 * forgot[1] <= most
    decision = (gate.verdict if against.passed else against.verdict) if bounded else NO_GAIN
    return replace(gate, control=rival, stderr=error, verdict=decision).of_seeds(len(ours))


def practise_curriculum(
    model: Any,
    tokenizer: Any,
    corpus: SplitCorpus,
    settings: CurriculumSettings,
    seed: int,
    folder: Path,
    tell: Tell = silent,
) -> CurriculumOutcome:
    """Assesses, trains the arms, and judges them. `model` ends as the first seed's course left it, or unchanged."""
    school = School(model, tokenizer, corpus, settings, seed, folder, tell)
    assessments = {name: school.assessment(name) for name in school.families}
    starts = {name: found.level for name, found in assessments.items() if found.level < settings.target}
    base = school.measured("base")
    if not starts:  # everything is easy already
        gate = GateResult(METRIC, None, None, None, NOT_MEASURED)
        return CurriculumOutcome(assessments, base, [], [], {}, school.text_tokens, gate)
    ours, control, without = [], [], []
    for number in range(settings.seeds):
        ours.append(school.trained(Arm(COURSE, settings.replay, number), starts))
        control.append(school.trained(Arm(UNIFORM, settings.replay, number), starts, ours[-1].rounds))
        if settings.compare_self_modelling:
            without.append(school.trained(Arm(WITHOUT, settings.replay, number), starts))
    replays: dict[str, ArmFigures] = {settings.replay: ours[0]}
    for other in REPLAYS if settings.compare_replay else ():
        if other != settings.replay:
            replays[other] = school.trained(Arm(COURSE, other, 0), starts)
    school.load(Arm(COURSE, settings.replay, 0))
    right = [np.stack([arm.right for arm in arms]) for arms in (ours, control)]
    forgot = forgetting(base.nats, np.stack([arm.nats for arm in ours]), school.text_tokens)
    gate = verdict(base.right, right[0], right[1], forgot, settings.most_forgetting)
    return CurriculumOutcome(assessments, base, ours, control, replays, school.text_tokens, gate, without)


@dataclass
class School:
    """The model, what it practises and is judged on, and a folder for what is finished."""

    model: Any
    tokenizer: Any
    corpus: SplitCorpus
    settings: CurriculumSettings
    seed: int
    folder: Path
    tell: Tell

    def __post_init__(self) -> None:
        s = self.settings
        self.start = {name: weight.clone() for name, weight in ck.weights_of(self.model).items()}
        self.respondent = Respondent(self.model, self.tokenizer, s)
        text = text_families(s.sources, s.held_out) if s.continuations else []
        if self.tokenizer.eos_token_id is None:
            raise HandoffError("the tokenizer has no EOS to end an answer with")
        self.families = [family(name).name for name in s.families] + text
        if len(self.families) > s.exercises:
            raise ConfigError(f"{len(self.families)} families need as many exercises", where="exercises")

    # -------------------------------------------------------------------------------------------- measuring

    def assessment(self, name: str) -> Assessment:
        """The level of a family to begin at; kept."""
        s, kind = self.settings, family(name)

        def success(level: float) -> float:
            exercises = [kind.make(TESTING + number, level) for number in range(s.assessed)]
            self.tell(stage=f"assessment: {name}, level {level:.2f}")
            return float(self.respondent.right(exercises, temperature=s.temperature, seed=self.seed).mean())

        file = self.folder / f"assessment-{self.families.index(name)}.json"
        found = kept(file, lambda: asdict(assess(success, s.start, s.target)))
        return Assessment(found["level"], found["success"], {float(k): v for k, v in found["tried"].items()})

    @cached_property
    def exam(self) -> list[Exercise]:
        """The held-out exercises at the target level, each once."""
        s = self.settings
        drawn = [family(name).make(n, s.target, held_out=True) for name in self.families for n in range(s.judged)]
        return list({exercise.prompt: exercise for exercise in drawn}.values())

    @cached_property
    def text(self) -> HeldOut:
        texts = [text for texts in self.corpus.held_out.values() for text in texts][: self.settings.most_judged]
        return HeldOut.of(self.tokenizer, texts, self.settings.length)

    @property
    def text_tokens(self) -> np.ndarray:
        """Targets per held-out document, [D]."""
        rows = self.text.rows.documents
        return np.bincount(rows[:, 1:][rows[:, 1:] >= 0], minlength=len(self.text.bytes_of)).astype(float)

    def measured(self, name: str, train: Callable[[], dict[str, Any]] = dict) -> ArmFigures:
        """The model as it is after `train`; kept under `name`."""

        def measure() -> dict[str, Any]:
            trained = train()
            self.tell(stage=f"judging: {name}")
            right, nats = self.respondent.right(self.exam), measure_text(self.model, self.text).nats
            return {"right": right.tolist(), "nats": nats.tolist(), **trained}

        found = kept(self.folder / "judged" / f"{name}.json", measure)
        courses = tuple(Course.from_notes(one) for one in found.get("courses", ()))
        return ArmFigures(np.array(found["right"]), np.array(found["nats"]), found.get("rounds", 0), courses)

    # -------------------------------------------------------------------------------------------- training

    def load(self, arm: Arm) -> None:
        """Puts a finished arm's weights into the model."""
        last = ck.checkpoints(self.folder / "training" / arm.name)[-1]
        ck.restore_weights(self.model, ck.load_checkpoint(last)[0]["model"])

    def trained(self, arm: Arm, starts: dict[str, float], rounds: int | None = None) -> ArmFigures:
        """Trains an arm and judges it; continues what an interrupted process has left. `rounds`: exactly so many."""
        folder = self.folder / "training" / arm.name

        def train() -> dict[str, Any]:
            ck.restore_weights(self.model, self.start)
            return CourseRun(self, arm, starts, rounds, folder).run()

        figures = self.measured(arm.name, train)
        if arm != Arm(COURSE, self.settings.replay, 0):  # whose weights are the result
            shutil.rmtree(folder, ignore_errors=True)
        return figures

    @cached_property
    def dreamer(self) -> Any:
        """The model as it was when the phase began."""
        original = copy.deepcopy(self.model)
        ck.restore_weights(original, self.start)
        return original.eval().requires_grad_(False)

    def replay(self, kind: Replay) -> PackedRows | None:
        """Rows to replay; dreams are kept."""
        s = self.settings
        if kind == "none":
            return None
        if kind == "text":
            texts = [text for texts in self.corpus.train.values() for text in texts]
            documents = encode(self.tokenizer, texts[: 64 * s.replay_rows])
            return pack(documents, s.length, self.tokenizer.bos_token_id, self.tokenizer.pad_token_id)
        count = min(DREAMS, s.replay_rows * s.levels * s.rounds)

        def dreams() -> dict[str, Any]:
            self.tell(stage="dreams")
            begin, ends = self.tokenizer.bos_token_id, self.respondent.ends
            rows = dream(self.dreamer, begin, count, s.length, ends, self.seed)
            return {"tokens": rows.tokens.tolist(), "documents": rows.documents.tolist()}

        found = kept(self.folder / "dreams.json", dreams)
        return PackedRows(*(np.array(found[name], dtype=np.int32) for name in ("tokens", "documents")))


class CourseRun:
    """The rounds of one arm."""

    def __init__(self, school: School, arm: Arm, starts: dict[str, float], rounds: int | None, folder: Path) -> None:
        self.school, self.arm, self.settings = school, arm, school.settings
        s = self.settings
        self.most = s.levels * s.rounds if rounds is None else rounds
        self.courses = [
            Course(name, ladder(level, s.target, s.levels), TRAINING + arm.seed * APART, arm.kind == UNIFORM)
            for name, level in starts.items()
        ]
        self.rows = school.replay(arm.replay)
        self.self_model = SelfModel.of(school.model) if s.self_modelling and arm.kind != WITHOUT else None
        loss = LessonLoss(school.dreamer if arm.replay == "dream" else None, self.self_model, s.self_modelling)
        schedule = s.schedule(self.most, school.seed + arm.seed)
        self.train = TrainingRun(school.model, self, schedule, folder, None, self.tell, None, loss)

    @property
    def length(self) -> int:
        return self.settings.length

    def tell(self, record: dict[str, Any]) -> None:
        arm = f"{self.arm.kind}, {self.arm.replay}, seed {self.arm.seed}"
        self.school.tell(**record, stage=arm, done=record["step"], steps=self.most)

    @property
    def running(self) -> list[Course]:
        return [course for course in self.courses if course.status == RUNNING]

    def run(self) -> dict[str, Any]:
        """Rounds until every course ends. Returns the courses and the number of rounds, as JSON."""
        train = self.train
        with beside(train.model, self.self_model), train.prepared():
            if train.notes:
                self.courses = [Course.from_notes(one) for one in train.notes["courses"]]
            while train.step < self.most and self.running:
                with evaluating(train.model), train.precision():
                    attempted = self.attempt(train.step)
                answers, replay = self.answers(attempted, train.step), self.replayed(train.step)
                batch = lesson(answers, replay, self.settings.replay_weight)
                if batch is not None:
                    train.learn(batch)
                train.step += 1
                self.end_round(train.losses() if batch is not None else [])
                if train.due(train.settings.save_every):
                    train.save()
            if not (train.step and train.due(train.settings.save_every)):
                train.save()
        return {"courses": [course.notes() for course in self.courses], "rounds": train.step}

    def end_round(self, losses: Sequence[float]) -> None:
        """Tells the courses, and keeps what they know."""
        for course in self.running:
            course.end_round(self.settings)
        self.train.notes = {"courses": [course.notes() for course in self.courses]}
        figures: dict[str, Any] = {"step": self.train.step, **({"loss": losses[-1]} if losses else {})}
        for course in self.courses:
            figures[f"level {course.family}"] = course.levels[course.place]
            if course.recent:  # a new level has none yet
                figures[f"success {course.family}"] = course.success
        self.train.publish(figures)

    def attempt(self, number: int) -> list[tuple[Course, OpenExercise]]:
        """All exercises of a round, each answered `attempts` times, and the courses told what became of them."""
        s, running = self.settings, self.running
        each, more = divmod(s.exercises, len(running))
        work = [(c, one) for at, c in enumerate(running) for one in c.work(each + (at < more))]
        exercises = [hinted(course.exercise(one), one.hints) for course, one in work]
        seed = (self.school.seed + self.arm.seed) * 1_000_003 + number
        texts, _ = self.school.respondent.sampled(exercises, s.attempts, s.temperature, seed)
        for place, (course, one) in enumerate(work):
            answers = texts[place * s.attempts : (place + 1) * s.attempts]
            verdicts = [exercises[place].check(answer) for answer in answers]
            right = [answer for answer, found in zip(answers, verdicts, strict=True) if found.correct]
            wrong = next((found.why for found in verdicts if not found.correct), "")
            course.note(one, right, s.attempts, wrong, s)
        return work

    def answers(self, work: Sequence[tuple[Course, OpenExercise]], number: int) -> list[tuple[list[int], list[int]]]:
        """Right answers to learn from, as tokens after the plain exercise: drawn by learnability, or uniformly."""
        uniform, respondent = self.arm.kind == UNIFORM, self.school.respondent
        weights = [float(bool(one.answers)) if uniform else one.weight for _, one in work]
        seed = f"{self.school.seed}/{self.arm.seed}/{number}"
        chosen, rows = choose(weights, self.settings.rows, seed), []
        for at, place in enumerate(chosen):
            course, one = work[place]
            answer = one.answers[at % len(one.answers)]
            tokens = respondent.tokenizer(answer, add_special_tokens=False)["input_ids"]
            prompt = list(respondent.question(course.exercise(one)).prompt)
            rows.append((prompt, [*tokens, self.school.tokenizer.eos_token_id]))
        return rows

    def replayed(self, number: int) -> Batch | None:
        if self.rows is None:
            return None
        return self.rows.batch(number, self.settings.replay_rows, self.school.seed + self.arm.seed)
