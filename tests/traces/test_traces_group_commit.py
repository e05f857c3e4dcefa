"""Threads that add at once share a transaction, and each learns what became of its own spans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from trace_spans import make

from agent_forge.errors import StoreError, TraceError
from agent_forge.traces import Span, Store, group_commit
from agent_forge.traces.group_commit import Parcel, Turns


def together(turns: Turns, calls: list[Callable[[], Any]]) -> list[Future[Any]]:
    """Lets all calls wait for their turn before the first one gets it."""
    with ThreadPoolExecutor(len(calls)) as pool:
        with turns.turn:
            futures = [pool.submit(call) for call in calls]
            patience = time.monotonic() + 60
            while len(turns._line) < len(calls) and time.monotonic() < patience:
                threading.Event().wait(0.001)
        return futures


@pytest.fixture
def transactions(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many callers each transaction served."""
    sizes: list[int] = []
    write = store._turns._write

    def counted(parcels: list[Parcel]) -> None:
        sizes.append(len(parcels))
        write(parcels)

    monkeypatch.setattr(store._turns, "_write", counted)
    return sizes


def test_callers_that_wait_share_a_transaction(store: Store, transactions: list[int]) -> None:
    store.add([make(0)])
    batches: list[list[Span]] = [[make(n, n), make(100 + n, n)] for n in range(8)]
    batches[3].append(make(0))  # is there already
    found = together(store._turns, [lambda batch=batch: store.add(batch) for batch in batches])
    assert [future.result() for future in found] == [1, 2, 2, 2, 2, 2, 2, 2]  # make(0, 0) was there too
    assert transactions == [1, 8]
    assert store.count() == 16


def test_a_bad_span_is_its_callers_alone(store: Store, transactions: list[int]) -> None:
    bad = make(1, 1)
    bad.output_tokens = 2**70  # only the database refuses it
    good, blamed, other = together(
        store._turns, [lambda span=span: store.add([span]) for span in (make(0, 0), bad, make(2, 2))]
    )
    assert (good.result(), other.result()) == (1, 1)
    with pytest.raises(TraceError, match="cannot be stored"):
        blamed.result()
    assert sorted(transactions) == [1, 1, 1, 3]
    assert store.count() == 2


def test_a_transaction_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MOST", 4)
    with Store.open(tmp_path) as store:
        calls = [lambda n=n: store.add([make(n, n), make(100 + n, n)]) for n in range(5)]
        assert [future.result() for future in together(store._turns, calls)] == [2] * 5
        assert store.count() == 10


def turns_that(write: Callable[[list[Parcel]], None]) -> Turns:
    return Turns(write)


def test_a_store_that_fails_fails_for_all_who_waited() -> None:
    def write(parcels: list[Parcel]) -> None:
        raise StoreError("the disk is full")

    turns = turns_that(write)
    for future in together(turns, [lambda: turns.add([("row",)])] * 3):
        with pytest.raises(StoreError, match="full"):
            future.result()


def test_an_interrupted_thread_leaves_the_others_parcels_to_them() -> None:
    calls: list[int] = []

    def write(parcels: list[Parcel]) -> None:
        calls.append(len(parcels))
        if len(calls) == 1:
            raise KeyboardInterrupt
        for parcel in parcels:
            parcel.added = len(parcel.rows)

    turns = turns_that(write)
    outcomes = []
    for future in together(turns, [lambda: turns.add([("row",)])] * 3):
        try:
            outcomes.append(future.result())
        except KeyboardInterrupt:
            outcomes.append("interrupted")
    assert sorted(outcomes, key=str) == [1, 1, "interrupted"]


def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    turns = turns_that(lambda parcels: None)
    turns.turn.acquire()
    turns._line.append(Parcel([]))
    turns._pid = -1  # as a child sees it
    assert turns.add([("row",)]) == 0
    assert not turns._line
