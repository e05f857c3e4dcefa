"""A rollout store on each database, and readings of arms that succeed as a test says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_forge.rollout import Rollouts


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new, empty store can be opened: on each database in turn."""
    if request.param == "sqlite":
        return str(tmp_path / "home")
    import psycopg

    url = f"postgresql://postgres@/postgres?host={request.getfixturevalue('postgres')}"
    with psycopg.connect(url, autocommit=True) as connection:
        for schema in ("agent_forge_rollout_store", "agent_forge_traces"):
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    return url


@pytest.fixture
def rollouts(place: str) -> Iterator[Rollouts]:
    opened = Rollouts.open(place)
    yield opened
    opened.close()
