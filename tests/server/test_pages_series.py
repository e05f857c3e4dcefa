"""Whatever a phase tells becomes a curve: nested, with errors, by any axis, while the file grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_forge.forge.events import Bus, jsonl_sink
from agent_forge.server.cache import TimedCache
from agent_forge.server.series import FILES, PhaseSeries, draw, draw_stages, phase_series


def told(*events: dict[str, Any]) -> PhaseSeries:
    found = PhaseSeries()
    for place, event in enumerate(events):
        found.add(event, float(place))
    return found


def test_an_evolution_has_fitness_and_diversity_by_generation() -> None:
    found = told(
        *({"generation": n, "best_fitness": n * 2.0, "mean_fitness": n, "diversity": 9.0 - n} for n in range(4))
    )
    charts = {chart["name"]: chart for chart in found.charts()}
    assert set(charts) == {"fitness", "diversity"}
    assert [line["name"] for line in charts["fitness"]["lines"]] == ["best_fitness", "mean_fitness"]
    assert charts["diversity"]["axis"] == "generation"
    assert charts["diversity"]["lines"][0]["points"] == [(0.0, 9.0), (1.0, 8.0), (2.0, 7.0), (3.0, 6.0)]


def test_the_evolution_phase_tells_of_its_champion() -> None:
    generation = {"champion": 1.0, "worth": 0.9, "mean": 0.5, "diversity": 0.3, "evaluations": 9, "reseeded": False}
    found = told(
        {"step": 0, **generation, "stage": "ga"},
        {"step": 1, **generation, "champion": 1.2, "worth": 1.1, "mean": 0.7, "stage": "ga"},
        {"step": 2, **generation, "champion": 1.3, "worth": 1.2, "mean": 0.9, "diversity": 0.1, "stage": "cma"},
        {"step": 3, **generation, "champion": 1.4, "worth": 1.3, "mean": 1.0, "diversity": 0.2, "stage": "cma"},
    )
    fitness = next(chart for chart in found.charts() if chart["name"] == "fitness")
    assert fitness["axis"] == "generation"
    assert {line["name"] for line in fitness["lines"]} == {
        f"fitness.{which} {stage}" for which in ("best", "mean", "worth") for stage in ("ga", "cma")
    }


def test_seeds_are_drawn_as_their_mean_with_its_error() -> None:
    events = [
        {
            "stage": f"{arm}, seed {seed}",
            "step": step,
            "done": step,
            "loss": base + seed + step,
            "mean_loss": 0.1 * step,
        }
        for arm, base in (("course", 1.0), ("uniform", 5.0))
        for seed in (0, 2)
        for step in (1, 2)
    ]
    (chart,) = told(*events, {"stage": "course, seed 0", "step": 3, "loss": 9.0}).charts()
    course, uniform = chart["lines"]
    assert (course["name"], uniform["name"]) == ("course", "uniform")
    assert course["points"] == [(1.0, 3.0), (2.0, 4.0), (3.0, 9.0)]
    assert course["errors"] == [1.0, 1.0, None]  # sqrt(2) / sqrt(2); the third step has one seed
    assert uniform["points"] == [(1.0, 7.0), (2.0, 8.0)]


def test_stages_are_a_table_and_size_against_quality() -> None:
    found = told(
        {"stage": "text", "steps": 40},
        {"stage": "trials", "step": 1, "of": 3, "tensor": "a"},
        {"stage": "rounded", "bytes": 4_000_000, "ppl": 12.0, "passed": True},
        {"stage": "recover", "step": 10, "of": 40, "loss": 2.0},
        {"stage": "recover", "step": 20, "of": 40, "loss": 1.0},
        {"stage": "recovered", "bytes": 3_000_000, "ppl": 11.0, "passed": True},
    )
    assert [(row["stage"], row["bytes"]) for row in found.stages] == [("rounded", 4e6), ("recovered", 3e6)]
    assert [chart["name"] for chart in found.charts()] == ["loss"]
    assert found.progress({}) == 0.5
    svg = draw_stages(found.stages)
    assert svg.count("<circle") == 2
    assert draw_stages(found.stages[:1]) == draw_stages([]) == ""


def test_nested_numbers_have_names_and_errors() -> None:
    found = told(
        {"step": 1, "evaluation": {"bits_per_byte": 2.0, "bits_per_byte_stderr": 0.1, "documents": 12}, "ok": True},
        {"step": 2, "evaluation": {"bits_per_byte": 1.5, "bits_per_byte_stderr": 0.2, "documents": 12}, "note": "x"},
    )
    (chart,) = found.charts()
    assert chart["name"] == "evaluation bits per byte"
    assert chart["lines"][0]["errors"] == [0.1, 0.2]
    assert found.constants() == {"evaluation.documents": 12.0}
    assert "whisker" in draw(chart)


def test_progress_and_time_left() -> None:
    found = told(*({"step": n, "loss": 1 / n} for n in (10, 20, 30)))
    assert found.progress({"training": {"steps": 120}}) == 0.25
    assert found.left_s(0.25) == pytest.approx(9.0)  # ten steps a second before, ninety to go
    assert found.progress({"other": {"rounds": 3}}) is None
    assert found.left_s(None) is None
    assert told({"generation": 3, "generations": 12, "fitness": 1}).progress({}) == 0.25


def test_what_has_no_axis_is_counted() -> None:
    (chart,) = told({"loss": 2.0}, {"loss": 1.0}).charts()
    assert (chart["axis"], chart["lines"][0]["points"]) == ("event", [(1.0, 2.0), (2.0, 1.0)])


def test_only_what_is_new_is_read_and_a_torn_line_waits(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    bus = Bus(jsonl_sink(file))
    bus.tell("started", "base")
    bus.tell("progress", "base", step=1, loss=2.0)
    assert phase_series(file)["base"].events == 1
    line = json.dumps({"kind": "progress", "phase": "base", "at_s": 1.0, "step": 2, "loss": 1.0}).encode()
    with open(file, "ab") as out:
        out.write(line[:10])
    assert phase_series(file)["base"].events == 1
    with open(file, "ab") as out:
        out.write(line[10:] + b"\nnot json\n[]\n")
    assert phase_series(file)["base"].events == 2
    file.write_bytes(b"")  # another session of that name
    assert phase_series(file) == {}
    for n in range(FILES + 1):
        assert phase_series(tmp_path / f"none-{n}.jsonl") == {}


def test_recent_values_are_made_again_when_they_are_old() -> None:
    now = [0.0]
    cache, values = TimedCache(lambda: now[0]), iter(range(10))
    assert [cache.get("a", lambda: next(values), 5.0) for _ in range(3)] == [0, 0, 0]
    now[0] = 5.0
    assert cache.get("a", lambda: next(values), 5.0) == 1
