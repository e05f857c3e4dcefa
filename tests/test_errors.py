"""An error says what, where and what to do, and knows its exit code."""

from __future__ import annotations

import inspect

import pytest

from agent_forge import errors
from agent_forge.installed import install_command


def test_the_sentence_has_all_three_parts() -> None:
    error = errors.AgentForgeError("the disk is full.", where="traces.db", fix="free some space.")
    assert str(error) == "traces.db: the disk is full. free some space."
    assert (error.what, error.where, error.fix) == ("the disk is full.", "traces.db", "free some space.")
    assert str(errors.AgentForgeError("just this")) == "just this"


def test_a_missing_extra_says_how_to_get_it() -> None:
    error = errors.MissingExtraError("reading Parquet", "all")
    assert str(error).endswith(f"Run `{install_command('all')}`.")
    assert error.exit_code == 2


@pytest.mark.parametrize(
    "cls", [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, BaseException)]
)
def test_there_is_one_hierarchy_with_two_exit_codes(cls: type[errors.AgentForgeError]) -> None:
    assert issubclass(cls, errors.AgentForgeError)
    assert cls.exit_code == (2 if issubclass(cls, errors.UsageError) else 1)
    assert cls.__doc__
