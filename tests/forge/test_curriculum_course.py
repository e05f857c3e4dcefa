"""The rules of a course against closed forms: assessment, learnability, mastery, hints, the wall."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from agent_forge.cli._settings import read_settings
from agent_forge.config import build
from agent_forge.errors import ConfigError
from agent_forge.forge.curriculum.course import (
    FINISHED,
    LONGEST_HINT,
    RUNNING,
    WALL,
    Course,
    assess,
    choose,
    hint_from,
    hinted,
    ladder,
    learnability,
)
from agent_forge.forge.curriculum.settings import CurriculumSettings
from agent_forge.forge.phases import phase
from agent_forge.tasks import Draft, Verdict, family, task_family


@task_family("toy-numbers", check=lambda answer, expected: Verdict.of(False, "never right"))
def toy_numbers(rng: random.Random, level: float) -> Draft:
    return Draft(f"{rng.randrange(10**9)} at {level:.3f}", {})


def settings(**changes: Any) -> CurriculumSettings:
    return build(CurriculumSettings, {"families": ["toy-numbers"], "recent": 4, "rounds": 3, **changes})


@pytest.mark.parametrize("steepness", [0.5, 1.0, 3.0])
def test_the_assessment_finds_the_level_of_a_known_curve(steepness: float) -> None:
    found = assess(lambda level: (1 - level) ** steepness, 0.75, 1.0)
    assert abs(found.level - (1 - 0.75 ** (1 / steepness))) <= 2**-6
    assert found.tried[found.level] == found.success
    assert len(found.tried) <= 8, "two ends and six halvings"


def test_the_assessment_at_its_ends() -> None:
    assert assess(lambda level: 0.3, 0.75, 0.6).level == 0.0, "too hard from the beginning"
    assert assess(lambda level: 0.9, 0.75, 0.6).level == 0.6, "easy up to the target"
    assert assess(lambda level: 1.0 if level == 0 else 0.7, 0.75, 1.0).success == 0.7, "of all tried, the nearest"
    assert ladder(0.25, 1.0, 4) == [0.25, 0.5, 0.75, 1.0]
    assert ladder(0.1, 0.7, 10)[-1] == 0.7


def test_exercises_are_drawn_by_their_learnability() -> None:
    successes = list(range(9))
    weights = [learnability(right, 8) for right in successes]
    assert weights == pytest.approx([right / 8 - (right / 8) ** 2 for right in successes])
    draws, total = 40_000, sum(weights)
    seen = Counter(choose(weights, draws, "seed"))
    for place, weight in enumerate(weights):
        assert seen[place] / draws == pytest.approx(weight / total, abs=0.01)
    assert seen[0] == seen[8] == 0, "hopeless and solved ones teach nothing"
    assert choose([0.0, 0.0], 3, "seed") == []


def one_round(course: Course, config: CurriculumSettings, right: int, attempts: int = 4) -> None:
    for one in list(course.work(2)):
        course.note(one, ["yes"] * right, attempts, f"wrong at {one.number}", config)
    course.end_round(config)


def test_mastery_counts_first_attempts_at_new_exercises_only() -> None:
    config = settings(mastery=0.8, wall=0.0, rounds=50, hints=3)
    course = Course("toy-numbers", [0.0, 1.0], first=0)
    one_round(course, config, right=0)
    assert course.recent == [0.0, 0.0]
    repeated = course.work(2)
    assert [one.hints for one in repeated] == [["wrong at 0"], ["wrong at 1"]]
    one_round(course, config, right=4)
    assert course.recent == [0.0, 0.0], "the same exercises with a hint say nothing about the level"
    assert repeated[0].weight == learnability(4, 8), "but they are learnt from, by all attempts"
    assert [one.number for one in course.work(2)] == [2, 3], "solved: variants"
    one_round(course, config, right=4)
    assert (course.place, course.recent) == (0, [0.0, 0.0, 1.0, 1.0])
    one_round(course, config, right=4)
    assert (course.place, course.status) == (1, RUNNING), "the last four are right"
    assert course.history == [{"level": 0.0, "rounds": 4, "success": 1.0, "how": "mastered"}]
    assert {one.level for one in course.work(2)} == {1.0}
    one_round(course, config, right=4)
    one_round(course, config, right=4)
    assert course.status == FINISHED
    prompts = {family("toy-numbers").make(number, 0.0).prompt for number in range(8)}
    assert len(prompts) == 8, "a variant is another exercise"


def test_the_wall_ends_a_course_and_says_so() -> None:
    config = settings(hints=0)
    course = Course("toy-numbers", [0.0, 0.5, 1.0], first=0)
    for right in (4, 2, 2):  # 0.5 over the last four: not mastered, but above the wall
        one_round(course, config, right)
    assert (course.status, course.place, course.history[0]["how"]) == (RUNNING, 1, "not mastered")
    for _ in range(3):
        one_round(course, config, right=1)
    assert (course.status, course.history[1]) == (WALL, {"level": 0.5, "rounds": 3, "success": 0.25, "how": "wall"})
    again = Course.from_notes(json.loads(json.dumps(course.notes())))
    assert again == course, "a checkpoint holds all of it"


def test_hints_come_from_the_checker_and_end() -> None:
    exercise = family("arithmetic").make(1, 0.0)
    message = exercise.check('{"answer": -1}').why
    assert message.startswith("-1 instead of")
    told = hinted(exercise, [hint_from(message)])
    assert told.prompt == f"(An earlier answer was wrong: {message})\n{exercise.prompt}"
    assert told.check(exercise.solution()).correct
    assert hinted(exercise, []) == exercise
    assert hint_from("a\n b") == "a b"
    assert hint_from("")
    assert len(hint_from("x" * 999)) == LONGEST_HINT
    config, course = settings(hints=2, rounds=50), Course("toy-numbers", [0.0], first=7)
    for message in ("one", "two", "three"):
        (one,) = course.work(1)
        assert one.number == 7
        course.note(one, [], 8, message, config)
    assert (one.hints, course.open) == (["one", "two"], []), "after two hints another exercise comes"
    (other,) = course.work(1)
    for _ in range(2):
        course.note(other, [], 8, "the same", config)
    assert course.open == [], "a hint that did not help is not given twice"


def test_the_control_draws_all_levels_alike() -> None:
    course = Course("toy-numbers", [0.0, 0.5, 1.0], first=0, uniform=True)
    levels = Counter(one.level for one in course.work(900))
    assert set(levels) == {0.0, 0.5, 1.0}
    assert min(levels.values()) > 240
    for _ in range(20):
        course.end_round(settings())
    assert (course.status, course.place) == (RUNNING, 0), "it ends with its rounds"


def test_settings_that_cannot_be() -> None:
    for wrong, said in (
        ({"wall": 0.9}, "above mastery"),
        ({"families": []}, "nothing to practise"),
        ({"training": {"steps": 3}}, "set by the course"),
        ({"self_modeling": True}, "unknown key 'self_modeling'; it is `self_modelling`"),
        ({"num_levels": 5}, "it is `levels` here"),
    ):
        with pytest.raises(ConfigError, match=said):
            settings(**wrong)
    with pytest.raises(ConfigError, match="it is `levels` here"):
        read_settings(CurriculumSettings, {}, sets=["num_levels=3"])
    assert read_settings(CurriculumSettings, {}, sets=["levels=3"]).levels == 3
    assert phase("forge") is phase("curriculum"), "the specification's name"
    assert not CurriculumSettings.other_names.keys() & CurriculumSettings.__dataclass_fields__.keys()
