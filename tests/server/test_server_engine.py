"""The running batch: what a request is answered depends on nobody else, and nobody waits for nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import server_tiny as tiny
from agents_tiny_model import tiny_tokenizer

from agent_forge.errors import ModelError
from agent_forge.forge.models.rows import WindowRows
from agent_forge.inference.engine import Engine
from agent_forge.inference.rows import rows_for, without
from agent_forge.inference.torch_rows import BufferRows, LoneRow
from agent_forge.refusal import Refusal

TOKENIZER = tiny_tokenizer()


@pytest.fixture
def engine() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(model: Any, **options: Any) -> Engine:
        made.append(Engine(model, **{"slots": 6, "waiting": 200, "cache_bytes": 1 << 30, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def requests(count: int, seed: int = 1) -> list[tuple[list[int], int]]:
    rng = random.Random(seed)
    return [
        ([rng.randrange(3, tiny.VOCABULARY) for _ in range(rng.randrange(1, 40))], rng.randrange(1, 15))
        for _ in range(count)
    ]


MODELS = [
    (tiny.llama, BufferRows, 10),
    (tiny.cognate, WindowRows, 10),
    (tiny.sliding, BufferRows, 7),
    (tiny.positions, BufferRows, 7),
    (tiny.stateful, LoneRow, 3),
]


@pytest.mark.parametrize(("make", "kind", "count"), MODELS, ids=["llama", "cognate", "sliding", "gpt2", "mamba"])
def test_each_answer_is_what_generate_writes_alone(engine: Any, make: Any, kind: type, count: int) -> None:
    """Requests of all lengths join and leave at all moments; each is answered as if it were alone."""
    model = make()
    running = engine(model)
    assert isinstance(running._rows, kind)
    asked = requests(count)

    async def ask(place: int, prompt: list[int], most: int) -> list[int]:
        for _ in range(place % 7):  # so that they do not come all at once
            await asyncio.sleep(0.003)
        one = tiny.job(TOKENIZER, prompt, most)
        running.submit([one])
        return await tiny.finished(one)

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*(ask(place, *one) for place, one in enumerate(asked)))

    answers = asyncio.run(all_of_them())
    assert answers == [tiny.alone(model, *one) for one in asked]
    assert running.running == running.waiting == 0


def test_requests_share_steps(engine: Any) -> None:
    running = engine(tiny.llama())

    async def ask() -> None:
        jobs = [tiny.job(TOKENIZER, [5, 6, 7], 20) for _ in range(6)]
        running.submit(jobs)
        await asyncio.gather(*(tiny.finished(one) for one in jobs))

    asyncio.run(ask())
    assert running.steps <= 6 * 19 / 2  # alone they would be 6 × 19


def test_a_newcomer_does_not_wait_for_the_others_to_end(engine: Any) -> None:
    running = engine(tiny.llama())

    async def ask() -> tuple[bool, int]:
        long = tiny.job(TOKENIZER, [5, 6, 7], 900)
        running.submit([long])
        await long.outbox.get()
        short = tiny.job(TOKENIZER, [8, 9], 3)
        running.submit([short])
        await tiny.finished(short)
        ended_before = long.finish is None
        running.cancel([long])
        return ended_before, long.written

    overtook, written = asyncio.run(ask())
    assert overtook
    assert written < 900


def test_a_cancelled_request_stops_and_frees_its_slot(engine: Any) -> None:
    running = engine(tiny.llama(), slots=1)

    async def ask() -> tuple[int, int]:
        first, second = (tiny.job(TOKENIZER, [5], 900) for _ in range(2))
        running.submit([first, second])
        await first.outbox.get()
        running.cancel([first])
        await second.outbox.get()  # it gets its turn
        at = first.written
        for _ in range(5):
            await second.outbox.get()
        running.cancel([second])
        return at, first.written

    before, after = asyncio.run(ask())
    assert before == after < 900


def test_a_request_cancelled_in_line_never_begins(engine: Any) -> None:
    running = engine(tiny.llama(), slots=1)

    async def ask() -> Any:
        first, second, third = (tiny.job(TOKENIZER, [5], most) for most in (30, 30, 2))
        running.submit([first, second, third])
        running.cancel([second])
        await tiny.finished(first)
        await tiny.finished(third)
        return second

    second = asyncio.run(ask())
    assert second.finish == "cancelled"
    assert second.started_s is None


def test_the_line_has_an_end(engine: Any) -> None:
    running = engine(tiny.llama(), slots=1, waiting=3)

    async def ask() -> None:
        jobs = [tiny.job(TOKENIZER, [5], 500) for _ in range(9)]
        running.submit(jobs[:1])
        await jobs[0].outbox.get()  # it has left the line
        running.submit(jobs[1:4])
        with pytest.raises(Refusal) as refused:
            running.submit(jobs[4:5])
        assert refused.value.status == 429
        assert refused.value.headers["Retry-After"] == "1"
        running.cancel(jobs)

    asyncio.run(ask())


def test_memory_bounds_the_batch(engine: Any) -> None:
    """Two rows of this length fit, and no more: the third waits, and all are answered."""
    model = tiny.llama()
    cell = rows_for(model).cells(1, 1)
    running = engine(model, cache_bytes=2 * 40 * cell)
    seen = []

    async def ask() -> list[list[int]]:
        jobs = [tiny.job(TOKENIZER, [5, 6], 30) for _ in range(4)]
        running.submit(jobs)
        await jobs[0].outbox.get()
        seen.append(running.running)
        return [await tiny.finished(one) for one in jobs[1:]]

    answers = asyncio.run(ask())
    assert seen == [2]
    assert answers == [tiny.alone(model, [5, 6], 30)] * 3


def test_a_model_that_fails_tells_those_who_wait_and_goes_on(engine: Any) -> None:
    model = tiny.llama()
    running = engine(model)
    whole = model.forward
    broken = [True]

    def forward(*given: Any, **named: Any) -> Any:
        if broken[0]:
            raise RuntimeError("out of memory")
        return whole(*given, **named)

    running._rows._read._accepted = None
    model.forward = forward

    async def ask() -> list[int]:
        one = tiny.job(TOKENIZER, [5, 6], 4)
        running.submit([one])
        with pytest.raises(ModelError, match="out of memory"):
            await tiny.finished(one)
        broken[0] = False
        again = tiny.job(TOKENIZER, [5, 6], 4)
        running.submit([again])
        return await tiny.finished(again)

    assert len(asyncio.run(ask())) == 4


def test_a_closed_engine_ends_what_is_open() -> None:
    running = Engine(tiny.llama(), slots=1, waiting=9, cache_bytes=1 << 30)

    async def ask() -> None:
        jobs = [tiny.job(TOKENIZER, [5], 900) for _ in range(2)]
        running.submit(jobs)
        await jobs[0].outbox.get()
        await asyncio.to_thread(running.close)
        for one in jobs:
            with pytest.raises(ModelError, match="stopped"):
                await tiny.finished(one)
        with pytest.raises(Refusal):
            running.submit(jobs)

    asyncio.run(ask())


def test_an_idle_engine_holds_no_buffers(engine: Any) -> None:
    running = engine(tiny.llama())

    async def ask() -> None:
        one = tiny.job(TOKENIZER, [5], 3)
        running.submit([one])
        await tiny.finished(one)

    asyncio.run(ask())
    end = time.monotonic() + 10
    while running._rows.count and time.monotonic() < end:
        time.sleep(0.01)
    assert running._rows._layers == []


def test_rows_move_as_documented() -> None:
    rows = list("abcdef")
    without(rows, [1, 4])
    assert rows == ["a", "f", "c", "d"]


def test_long_rows_make_the_buffer_grow_and_shift() -> None:
    """A batch whose columns run out moves what is in use to the left, and grows where that is not enough."""
    model = tiny.llama()
    rows = rows_for(model)
    prompts = [[7] * 5, [9] * 150, [11] * 2]
    tokens = [int(rows.join([prompt]).argmax(-1)[0]) for prompt in prompts]
    written = [[token] for token in tokens]
    for _ in range(110):
        tokens = rows.step(tokens).argmax(-1).tolist()
        for row, token in enumerate(tokens):
            written[row].append(token)
    rows.leave([1])
    del written[1], prompts[1], tokens[1]
    assert rows.count == 2
    for _ in range(160):
        tokens = rows.step(tokens).argmax(-1).tolist()
        for row, token in enumerate(tokens):
            written[row].append(token)
    assert written == [tiny.alone(model, prompt, 271) for prompt in prompts]
