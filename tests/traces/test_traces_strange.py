"""Values out of all proportion, and files that are not what they should be: nothing breaks, nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_spans import START, make

from agent_forge.errors import DataError
from agent_forge.traces import Store, import_file, read_file
from agent_forge.traces.otlp import read_json_rows
from agent_forge.traces.validate import validate_file


def document(*spans: dict[str, Any]) -> dict[str, Any]:
    usual = {"traceId": "a" * 32, "startTimeUnixNano": "1000", "endTimeUnixNano": "2000", "name": "s"}
    numbered = [{**usual, "spanId": f"{number + 1:016x}", **span} for number, span in enumerate(spans)]
    return {"resourceSpans": [{"scopeSpans": [{"spans": numbered}]}]}


@pytest.mark.parametrize("tokens", [2**40, 2**63 - 1, 2**80, -(2**63)])
def test_tokens_that_no_model_can_have_used_are_not_measured(store: Store, tokens: int) -> None:
    told = [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": str(tokens)}}]
    request = document({"attributes": told}, {"attributes": told}, {})
    assert store.add_rows(read_json_rows(json.dumps(request).encode())) == 3
    found = store.trace("a" * 32)
    assert [span.input_tokens for span in found] == [None] * 3
    assert found[0].attributes["gen_ai.usage.input_tokens"] == tokens  # what was said stays
    assert [group.tokens_n for group in store.aggregate(["name"])] == [0]


def test_spans_that_never_began_or_never_ended_do_not_spoil_the_sums(store: Store) -> None:
    """Exporters that forget the start leave it at 1970; eight such spans are more ns than 63 bits hold."""
    far = [make(n, n, start_ns=0, end_ns=START) for n in range(8)] + [make(9, 9, start_ns=9 * 10**18, end_ns=1)]
    store.add([*far, make(20, 20)])
    [found] = store.aggregate(["name"])
    assert (found.spans, found.duration_s) == (10, pytest.approx(0.001))
    assert sum(a.spans for a in store.aggregate(["name"], since=0, until=START + 10)) == 8
    assert store.add(far) == 0


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    whole = json.dumps(document({}, {}), indent=1).encode()
    for content, said in (
        (b"", "is empty"), (b"\n \n", "is empty"), (whole[: len(whole) // 2], "is not JSON"), (b"[" * 100_000, "deep"),
        (bytes(range(256)), "is not JSON"), (b"[]", "is an empty list"),
    ):  # fmt: skip
        path = write(tmp_path, "traces.json", content)
        with pytest.raises(DataError, match=said), Store.open(tmp_path / "store") as store:
            import_file(store, path)
        assert len(validate_file(path)) == 1
    assert Store.open(tmp_path / "store").count() == 0


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = write(tmp_path, "bom.json", b"\xef\xbb\xbf" + json.dumps(document({})).encode())
    assert len(list(read_file(path))) == 1
    assert validate_file(path) == []
