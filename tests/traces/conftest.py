"""A store on each database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_forge.traces import Store


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new, empty store can be opened: on each database in turn."""
    if request.param == "sqlite":
        return str(tmp_path / "home")
    import psycopg

    url = f"postgresql://postgres@/postgres?host={request.getfixturevalue('postgres')}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS agent_forge_traces CASCADE")
    return url


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        yield opened
