"""The data of an evolution: rows read as items, split into those that select and those that judge."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_forge.errors import DataError
from agent_forge.forge.corpus import NO_ROW, QUESTIONS, place, read_rows, right_choice
from agent_forge.forge.evolution.settings import TaskSource

TEXT, ANSWERS, CHOICES = "text", "answers", "choices"


@dataclass(frozen=True)
class Item:
    """Something to predict: `answers[right]` after `prompt`. A text has no prompt and a single answer, itself."""

    prompt: str
    answers: tuple[str, ...]
    right: int = 0

    @property
    def text(self) -> str:
        """The identity of an item: two with the same text are one."""
        return f"{self.prompt}{self.answers[self.right]}"


@dataclass(frozen=True)
class TaskItems:
    """The items of a task, for selection and for the gate. No item is in both."""

    name: str
    kind: str
    select: tuple[Item, ...]
    judge: tuple[Item, ...]

    def digest(self) -> str:
        whole = hashlib.sha256(f"{self.name} {self.kind}".encode())
        for part in (self.select, self.judge):
            whole.update(b"\0part\0")
            for item in part:
                whole.update(repr((item.prompt, item.answers, item.right)).encode())
        return whole.hexdigest()


def digest_of(tasks: Iterable[TaskItems]) -> str:
    """One digest of all tasks."""
    return hashlib.sha256("".join(task.digest() for task in tasks).encode()).hexdigest()


def read_tasks(sources: Mapping[str, TaskSource], held_out: float | None = None) -> list[TaskItems]:
    """The tasks of a configuration; with `held_out`, only items that a training phase with that share held out.

    Raises DataError for a file that is missing, mixed, or too small to select on and to judge by.
    """
    return [_task(name, source, share_of(source, held_out)) for name, source in sources.items()]


def share_of(source: TaskSource, held_out: float | None) -> float:
    """The share of a task's rows that may be used: those that training held out, or all."""
    share = held_out if source.share is None else source.share
    return 1.0 if share is None else share


def _task(name: str, source: TaskSource, share: float) -> TaskItems:
    kind, items = _items(source.path, share)
    if source.held_out is None:
        select, judge = items[0::2], items[1::2]
    else:
        other, held_out = _items(source.held_out, share)
        if other != kind:
            fault = f"the rows for the gate are {other}, but those for selection are {kind}"
            raise DataError(fault, where=source.held_out)
        selected = {item.text for item in items}
        select, judge = items, [item for item in held_out if item.text not in selected]
    if len(select) < 2 or len(judge) < 2:
        raise DataError(
            f"{len(select)} rows for selection and {len(judge)} for the gate are too few: each takes at least two",
            where=source.path,
        )
    return TaskItems(name, kind, tuple(select[: source.most]), tuple(judge[: source.most]))


def _items(path: str, share: float) -> tuple[str, list[Item]]:
    """The kind of the rows, and their items in an order that depends on the items alone, not on the file."""
    items: dict[str, Item] = {}
    kinds: set[str] = set()
    for row, where in read_rows(path):
        kind, item = _item(row, where)
        if item.text.strip() and place(item.text) < share:
            kinds.add(kind)
            items[item.text] = item
    if len(kinds) > 1:
        listed = ", ".join(sorted(kinds))
        raise DataError(f"the rows are of several kinds ({listed})", where=path, fix="Use one file per kind")

    def order(item: Item) -> bytes:  # not that of `place`, which holds documents out
        return hashlib.sha256(b"evolution " + item.text.encode()).digest()

    return (kinds.pop() if kinds else TEXT), sorted(items.values(), key=order)


def _item(row: Any, where: str) -> tuple[str, Item]:
    try:
        if "text" in row:
            return TEXT, Item("", (_text(row["text"]),))
        question = _text(next(row[name] for name in QUESTIONS if name in row))
        prompt = f"Question: {question}\nAnswer:"
        if "choices" in row:
            return CHOICES, Item(prompt, tuple(f" {_text(choice)}" for choice in row["choices"]), right_choice(row))
        return ANSWERS, Item(prompt, (f" {_text(row['answer'])}",))
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise DataError(NO_ROW, where=where) from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    value.encode()  # half a surrogate pair is valid JSON, but not text
    return value


@dataclass(frozen=True)
class TokenRow:
    """Tokens of which those from `start` on are predicted; `item` and `answer` say what they belong to."""

    tokens: tuple[int, ...]
    start: int
    item: int
    answer: int
    size: int  # bytes of the answer


def rows_of(items: Sequence[Item], tokenizer: Any, length: int, most: int = 4096) -> list[TokenRow]:
    """The items as rows of at most `length` tokens after BOS.

    A longer text is cut into pieces, each from BOS, up to `most` tokens of it; a longer question loses its beginning.
    """

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    rows: list[TokenRow] = []
    for number, item in enumerate(items):
        before = encode(item.prompt) if item.prompt else []
        for which, answer in enumerate(item.answers):
            after, size = encode(answer), max(1, len(answer.encode()))
            if item.prompt:
                after = after[:length]
                prompt = before[max(0, len(before) + len(after) - length) :]
                tokens = (tokenizer.bos_token_id, *prompt, *after)
                rows.append(TokenRow(tokens, 1 + len(prompt), number, which, size))
                continue
            after = after[:most]
            for at in range(0, len(after), length):
                rows.append(TokenRow((tokenizer.bos_token_id, *after[at : at + length]), 1, number, which, size))
    return rows
