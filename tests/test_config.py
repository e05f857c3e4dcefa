"""Configuration is strict, says where a fault is, and comes back from its own dump as it was."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_forge.config import as_dict, dump, load, option, parse, resolve
from agent_forge.errors import ConfigError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Optimizer:
    lr: float = option(1e-3, help="learning rate", above=0)
    name: Literal["adamw", "muon"] = "adamw"


@dataclass(frozen=True)
class Training:
    steps: int = option(1000, help="optimiser steps", at_least=1, at_most=10**9)
    optimizer: Optimizer = Optimizer()
    notes: str = ""
    seed: int | None = None
    mix: tuple[float, ...] = (1.0,)
    betas: tuple[float, float] = (0.9, 0.95)
    names: list[str] = field(default_factory=list)
    weights: dict[str, float] = option({"a": 1.0})
    out: Path = Path("out")
    colour: Colour = Colour.RED
    fast: bool = False
    extra: Any = None


@dataclass(frozen=True)
class Ordered:
    low: int
    high: int = 10

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")


def fault(text: str, cls: type = Training) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(cls, text, "job.yaml")
    return str(caught.value)


def test_files_then_environment_then_sets(tmp_path: Path) -> None:
    (tmp_path / "user.yaml").write_text("steps: 5\nnotes: user\noptimizer: {lr: 0.5}\n")
    (tmp_path / "project.yaml").write_text("notes: project\n")
    resolved = resolve(
        Training,
        tmp_path / "user.yaml",
        tmp_path / "project.yaml",
        env={"seed": "7"},
        sets=["optimizer.name=muon", "notes=12"],
    )
    assert resolved.value == Training(steps=5, notes="12", seed=7, optimizer=Optimizer(0.5, "muon"))
    assert resolved.origins["steps"] == f"{tmp_path / 'user.yaml'}:1"
    assert resolved.origins["optimizer.lr"] == f"{tmp_path / 'user.yaml'}:3"
    assert resolved.origins["optimizer.name"] == "--set optimizer.name=muon"
    assert resolved.origins["seed"] == "environment (seed)"
    assert resolved.origins["fast"] == "default"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: 3\nstepz: 4\n", "job.yaml:2: unknown key 'stepz'; did you mean 'steps'?"),
        ("optimizer:\n  learning: 1\n", "job.yaml:2: unknown key 'optimizer.learning'; known keys are lr, name"),
        ("steps: many\n", "job.yaml:1: steps: expected a whole number, got 'many'"),
        ("steps: 1.5\n", "job.yaml:1: steps: expected a whole number, got 1.5"),
        ("steps: true\n", "job.yaml:1: steps: expected a whole number, got True"),
        ("steps: 0\n", "job.yaml:1: steps: must be at least 1, got 0"),
        ("steps: 2000000000\n", "job.yaml:1: steps: must be at most 1000000000, got 2000000000"),
        ("optimizer: {lr: 0}\n", "job.yaml:1: optimizer.lr: must be above 0, got 0.0"),
        ("optimizer: {lr: .nan}\n", "job.yaml:1: optimizer.lr: must be a number, not nan"),
        ("optimizer: {lr: fast}\n", "job.yaml:1: optimizer.lr: expected a number, got 'fast'"),
        ("optimizer: 3\n", "job.yaml:1: optimizer: expected a mapping with the keys of Optimizer, got 3"),
        ("optimizer: {name: moun}\n", "expected one of adamw, muon, got 'moun'; did you mean 'muon'?"),
        ("notes: 12\n", "job.yaml:1: notes: expected a text, got 12 (put it in quotes)"),
        ("mix: 1.0\n", "job.yaml:1: mix: expected a list, got 1.0"),
        ("betas: [0.9]\n", "job.yaml:1: betas: expected 2 values, got 1"),
        ("weights: [1]\n", "job.yaml:1: weights: expected a mapping, got a list"),
        ("colour: green\n", "job.yaml:1: colour: expected one of red, blue, got 'green'"),
        ("out: 3\n", "job.yaml:1: out: expected a path, got 3"),
        ("seed: [1]\n", "job.yaml:1: seed: expected a whole number, got a list"),
        ("steps: 1\nsteps: 2\n", "job.yaml:2: the key 'steps' occurs twice"),
        ("steps: [1\n", "job.yaml:2: not valid YAML"),
        ("- 1\n", "job.yaml:1: a mapping of keys to values is expected"),
        ("? [a]\n: 1\n", "job.yaml:1: a key must be plain text"),
        ("out: !!python/name:os.system\n", "not valid YAML: could not determine a constructor"),
        ("notes: 2020-13-45\n", "not valid YAML"),
    ],
)
def test_a_fault_names_file_line_key_and_what_was_expected(text: str, said: str) -> None:
    assert said in fault(text)


def test_all_faults_are_reported_at_once() -> None:
    assert fault("stepz: 1\nnotes: 3\noptimizer: {lr: x}\n").count("job.yaml:") == 3


def test_a_check_across_fields_is_a_fault_with_a_place() -> None:
    assert fault("low: 11\n", Ordered) == "job.yaml:1: Ordered: low (11) is above high (10)"
    assert fault("high: 3\n", Ordered) == "job.yaml:1: the key 'low' is missing and has no default"


def test_a_number_may_be_written_as_yaml_1_2_has_it() -> None:
    assert parse(Training, "optimizer: {lr: 1e-3}").optimizer.lr == 1e-3


@pytest.mark.untraced
def test_an_alias_bomb_and_deep_nesting_are_refused() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for name, inner in zip("bcdefgh", "abcdefg", strict=True):
        bomb += f"{name}: &{name} [{', '.join(['*' + inner] * 9)}]\n"
    assert "more than 100000 values" in fault(bomb)
    assert "nested too deeply" in fault("extra: " + "[" * 5000 + "]" * 5000)


@pytest.mark.parametrize("item", ["steps", "=3", "steps=[", "stepz=3", "steps.x=3"])
def test_a_bad_set_is_refused(item: str) -> None:
    with pytest.raises(ConfigError):
        load(Training, sets=[item])


def test_set_reads_yaml_except_for_texts() -> None:
    assert load(
        Training, sets=["names=[a, b]", "notes=[a, b]", "seed=null", "fast=true", "extra={x: [1]}"]
    ) == Training(names=["a", "b"], notes="[a, b]", fast=True, extra={"x": [1]})


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(Training, tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"notes: \xe9\n")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load(Training, tmp_path / "latin.yaml")
    (tmp_path / "huge.yaml").write_bytes(b"#" * (5 << 20))
    with pytest.raises(ConfigError, match="larger than 4 MiB"):
        load(Training, tmp_path / "huge.yaml")


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load(Training, tmp_path / "empty.yaml") == Training()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.floats(allow_nan=False, min_value=-1e300, max_value=1e300)


@given(
    st.builds(
        Training,
        steps=st.integers(1, 10**9),
        optimizer=st.builds(Optimizer, lr=st.floats(1e-300, 1e300), name=st.sampled_from(["adamw", "muon"])),
        notes=texts,
        seed=st.none() | st.integers(),
        mix=st.lists(numbers | st.just(math.inf), max_size=3).map(tuple),
        betas=st.tuples(numbers, numbers),
        names=st.lists(texts, max_size=3),
        weights=st.dictionaries(texts, numbers, max_size=3),
        out=st.just(Path("a/b c")),
        colour=st.sampled_from(Colour),
        fast=st.booleans(),
        extra=st.none() | st.booleans() | st.lists(st.integers() | texts, max_size=3),
    )
)
def test_a_dump_loads_to_an_equal_object(config: Training) -> None:
    assert parse(Training, dump(config)) == config


def test_as_dict_is_plain() -> None:
    assert as_dict(Training())["optimizer"] == {"lr": 1e-3, "name": "adamw"}
    assert as_dict(Training())["colour"] == "red"
