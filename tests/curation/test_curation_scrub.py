"""Scrubbing of rows and files: what changes, what does not, and what is left when something goes wrong."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.curation import Scrubber, mask_pii, scrub_file, scrub_line, scrub_text
from agent_forge.curation.scrub import default_workers
from agent_forge.errors import DataError, UsageError
from agent_forge.pii.replace import Surrogates

ROWS = [
    {
        "messages": [
            {"role": "user", "content": "I am jo@corp.io, call (312) 867-5309"},
            {"role": "assistant", "content": None},
        ]
    },
    {
        "task": "t",
        "context": {"deep": ["ssn 123-45-6789", {"x": "4242 4242 4242 4242"}]},
        "expected_output": "ok",
        "n": 1.10,
    },
    {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "host 8.8.4.4"}],
                "tool_calls": [{"args": '{"to":"a@b.io"}'}],
            }
        ]
    },
    {"plain": "nothing here 1730764800"},
]


def _write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_every_string_of_any_shape_is_scrubbed_and_nothing_else(tmp_path: Path) -> None:
    source = _write(tmp_path / "in.jsonl", ROWS)
    report = scrub_file(source, tmp_path / "out.jsonl")
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert out[0]["messages"][0]["content"] == "I am [EMAIL], call [PHONE]"
    assert out[1]["context"] == {"deep": ["ssn [SSN]", {"x": "[CARD]"}]}
    assert out[2]["messages"][0]["content"][0]["text"] == "host [IP]"
    assert json.loads(out[2]["messages"][0]["tool_calls"][0]["args"]) == {"to": "[EMAIL]"}
    assert out[3] == ROWS[3]
    assert report.as_dict() == {
        "rows": 4, "rejected": 0, "dropped": 0, "changed": 3, "names_covered": False,
        "replaced": {"CARD": 1, "EMAIL": 2, "IP": 1, "PHONE": 1, "SSN": 1}, "reserved": {"CARD": 1, "SSN": 1},
    }  # fmt: skip


def test_numbers_spacing_order_and_repeated_keys_stay_as_they_are_written() -> None:
    line = '{ "z":1.10,  "a@b.io": 1e5, "k": "x@corp.io", "k": "y\\u00e9 y@corp.io", "n":12345678901234567890 }\n'
    assert scrub_line(line, Scrubber())[0] == (
        '{ "z":1.10,  "a@b.io": 1e5, "k": "[EMAIL]", "k": "y\\u00e9 [EMAIL]", "n":12345678901234567890 }\n'
    )


def test_a_key_tells_what_a_bare_number_is() -> None:
    clean, found = scrub_line(
        '{"phoneNumber": "3128675309", "order": "3128675309", "phones": ["3128675309"]}', Scrubber()
    )
    assert json.loads(clean) == {"phoneNumber": "[PHONE]", "order": "3128675309", "phones": ["[PHONE]"]}
    assert len(found) == 2


def test_fields_narrow_it() -> None:
    line = '{"messages": [{"content": "a@b.io", "name": "c@d.io"}], "task": "e@f.io"}'
    clean = json.loads(scrub_line(line, Scrubber(), ("messages.content",))[0])
    assert clean == {"messages": [{"content": "[EMAIL]", "name": "c@d.io"}], "task": "e@f.io"}
    assert json.loads(scrub_line(line, Scrubber(), ("messages",))[0])["messages"][0]["name"] == "[EMAIL]"


def test_surrogates_keep_the_same_person_the_same_person() -> None:
    line = json.dumps(
        {"a": "jo@corp.io to al@corp.io", "b": "again jo@corp.io, 312-867-5309 and IBAN GB82WEST12345698765432"}
    )
    once = scrub_line(line, Scrubber("surrogate"))[0]
    assert json.loads(once)["a"] == "person1@example.com to person2@example.com"
    assert json.loads(once)["b"].startswith("again person1@example.com, (212) 555-0100")
    assert all(match.reserved for match in scrub_line(once, Scrubber())[1])
    assert scrub_line(once, Scrubber("surrogate"))[0] == once


@pytest.mark.parametrize("kind", ["EMAIL", "PHONE", "CARD", "IBAN", "IP", "URL_CREDENTIALS"])
def test_a_surrogate_is_found_as_what_it_stands_for_and_is_reserved(kind: str) -> None:
    pool = Surrogates()
    issued = [pool.of(kind, f"value {number}") for number in range(300)]
    assert len(set(issued)) == 300
    for value in issued[::37]:
        text = f"see https://{value}/x" if kind == "URL_CREDENTIALS" else f"see {value} now"
        assert [(m.type, m.text, m.reserved) for m in Scrubber().find(text)] == [(kind, value, True)]


def test_hashes_depend_on_the_key_and_are_not_read_as_numbers() -> None:
    one, two = (Scrubber("hash", key).text("jo@corp.io and jo@corp.io")[0] for key in (b"k1", b"k2"))
    assert one != two
    assert one.split(" and ")[0] == one.split(" and ")[1]
    assert not any(map(str.isdigit, one))
    with pytest.raises(UsageError, match="key"):
        Scrubber("hash")
    with pytest.raises(UsageError, match="no action 'shred'"):
        Scrubber("shred")


def test_drop_leaves_the_row_out(tmp_path: Path) -> None:
    report = scrub_file(_write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl", scrubber=Scrubber("drop"))
    assert (report.dropped, report.rows) == (3, 4)
    assert json.loads((tmp_path / "out.jsonl").read_text("utf-8")) == ROWS[3]


PIECES = st.sampled_from(
    [
        "call",
        "phone",
        "jo@corp.io",
        "5551234567",
        "555-123-4567",
        "ssn",
        "123456789",
        "card",
        "4242 4242 4242 4242",
        "order",
        "[PHONE]",
        "version",
        "8.8.4.4",
        "password:",
        "hunter22",
        "IBAN",
        "GB82WEST12345698765432",
        "\n",
        ",",
        "or",
        "1 2 3",
        "x",
    ]
)


@given(st.lists(PIECES, max_size=14), st.sampled_from(["placeholder", "surrogate", "hash"]))
@settings(max_examples=25, deadline=None)
def test_scrubbing_twice_changes_nothing_more(pieces: list[str], action: str) -> None:
    scrubber = Scrubber(action, b"k")
    line = json.dumps({"text": " ".join(pieces), "phone": "".join(pieces[:2])})
    once = scrub_line(line, scrubber)[0]
    assert scrub_line(once, scrubber)[0] == once


@pytest.mark.untraced
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
@settings(max_examples=25, deadline=None)
def test_any_json_value_keeps_its_shape(value: object) -> None:
    line = json.dumps(value, ensure_ascii=False)
    clean = json.loads(scrub_line(line, Scrubber())[0])
    assert clean == mask_pii(value)


def test_the_mask_of_a_span() -> None:
    masked = mask_pii({"inputs": {"q": "mail jo@corp.io"}, "api_key": "sk1a2b3c4d5e6f7g8h", "n": 5, "t": (1, "x@y.io")})
    assert masked == {"inputs": {"q": "mail [EMAIL]"}, "api_key": "[SECRET]", "n": 5, "t": [1, "[EMAIL]"]}
    assert scrub_text("see 8.8.4.4", types={"EMAIL"}) == "see 8.8.4.4"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_compressed_in_and_out_give_the_same_rows(tmp_path: Path, suffix: str) -> None:
    raw = "".join(json.dumps(row) + "\n" for row in ROWS * 50).encode()
    packed = {".jsonl": raw, ".jsonl.gz": gzip.compress(raw), ".jsonl.zst": zstandard.compress(raw)}[suffix]
    (tmp_path / f"in{suffix}").write_bytes(packed)
    scrub_file(tmp_path / f"in{suffix}", tmp_path / f"out{suffix}")
    out = (tmp_path / f"out{suffix}").read_bytes()
    if suffix.endswith("gz"):
        out = gzip.decompress(out)
    elif suffix.endswith("zst"):
        out = zstandard.ZstdDecompressor().decompressobj().decompress(out)
    assert out.count(b"\n") == 200
    assert b"jo@corp.io" not in out


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_damaged_file_is_refused_and_leaves_no_output(tmp_path: Path, suffix: str) -> None:
    raw = os.urandom(40_000).hex().encode()
    packed = gzip.compress(raw) if suffix == ".gz" else zstandard.compress(raw)
    (tmp_path / f"in{suffix}").write_bytes(packed[: len(packed) // 2] + b"\0" * 9)
    with pytest.raises(DataError, match=r"damaged|not JSON"):
        scrub_file(tmp_path / f"in{suffix}", tmp_path / "out.jsonl")
    assert [p.name for p in tmp_path.iterdir()] == [f"in{suffix}"]


def test_a_bad_line_stops_with_its_number_or_goes_to_the_reject_file(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'\xef\xbb\xbf{"a": "x@y.io"}\n\n{"a": \n\xff\xfe\n{"b": 1}')
    with pytest.raises(DataError, match="line 3 is not JSON"):
        scrub_file(source, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    report = scrub_file(source, tmp_path / "out.jsonl", reject=tmp_path / "bad.jsonl")
    assert (report.rows, report.rejected) == (4, 2)
    assert (tmp_path / "out.jsonl").read_text("utf-8") == '{"a": "[EMAIL]"}\n\n{"b": 1}'
    assert (tmp_path / "bad.jsonl").read_bytes() == b'{"a": \n\xff\xfe\n'


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"a": 1}\n"\xff"\n')
    with pytest.raises(DataError, match="line 2 is not UTF-8"):
        scrub_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl")


def test_several_processes_keep_the_order_and_the_counts(tmp_path: Path) -> None:
    rows = [{"id": n, "text": f"row {n} of jo{n}@corp.io " + "pad " * 60} for n in range(6000)]
    source = _write(tmp_path / "in.jsonl", rows)
    one = scrub_file(source, tmp_path / "one.jsonl")
    two = scrub_file(source, tmp_path / "two.jsonl", workers=2)
    assert one == two
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert [json.loads(line)["id"] for line in (tmp_path / "two.jsonl").read_text().splitlines()] == list(range(6000))
    assert default_workers(source) == 1


def test_a_bad_line_in_a_worker_stops_the_run(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"a": 1}\n' * 5000 + "{broken\n")
    with pytest.raises(DataError, match="line 5001"):
        scrub_file(source, tmp_path / "out.jsonl", workers=2)
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    source = _write(tmp_path / "in.jsonl", ROWS)
    with pytest.raises(UsageError, match="overwrite"):
        scrub_file(source, tmp_path / "." / "in.jsonl")
    with pytest.raises(UsageError, match="no such file"):
        scrub_file(tmp_path / "absent.jsonl", tmp_path / "out.jsonl")


def test_half_a_surrogate_pair_survives(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"a": "x@y.io é \\ud800"}\n', "utf-8")
    scrub_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text("utf-8"))["a"] == "[EMAIL] é \ud800"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_scrub_leaves_no_half_output(tmp_path: Path, stop: signal.Signals) -> None:
    source = _write(tmp_path / "in.jsonl", [{"text": f"jo{n}@corp.io " * 40} for n in range(40_000)])
    out = tmp_path / "out" / "clean.jsonl"
    command = [sys.executable, "-m", "agent_forge", "data", "scrub", str(source), str(out), "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (out.parent.exists() and any(out.parent.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None
    process.send_signal(stop)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert b"interrupted" in error
    assert list(out.parent.iterdir()) == []


def test_a_field_that_no_row_has_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from agent_forge.cli import run

    source = _write(tmp_path / "in.jsonl", ROWS * 3)
    call = ["data", "scrub", str(source), str(tmp_path / "out.jsonl"), "--fields", "messages.content,mesages"]
    assert run([*call, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["fields"] == {"messages.content": 9, "mesages": 0}
    assert run(call) == 0
    assert "no row has text under mesages" in capsys.readouterr().err
    assert "fields" not in scrub_file(source, tmp_path / "out.jsonl").as_dict()


def test_output_and_rejects_are_two_files(tmp_path: Path) -> None:
    source = _write(tmp_path / "in.jsonl", ROWS)
    with pytest.raises(UsageError, match="share a file"):
        scrub_file(source, tmp_path / "out.jsonl", reject=tmp_path / "." / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_pipe_is_not_taken_for_a_file_that_is_not_there(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        scrub_file(tmp_path / "pipe", tmp_path / "out.jsonl")
    with pytest.raises(UsageError, match="no such file"):
        scrub_file(tmp_path / "nothing", tmp_path / "out.jsonl")


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_small_archive_with_an_endless_line_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr("agent_forge.curation.lines.LONGEST_LINE", 1 << 20)
    pack = gzip.compress if suffix == "gz" else zstandard.ZstdCompressor().compress
    row = b'{"t": "' + b"x" * 1_000_000 + b'"}\n'
    path = tmp_path / f"in.jsonl.{suffix}"
    path.write_bytes(pack(row * 3))
    assert scrub_file(path, tmp_path / "out.jsonl").rows == 3
    path.write_bytes(pack(row + b" " * 3_000_000))
    with pytest.raises(DataError, match="a line unpacks to more than 1 MiB"):
        scrub_file(path, tmp_path / "out2.jsonl")
    assert not (tmp_path / "out2.jsonl").exists()
