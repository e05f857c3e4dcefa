"""Secrets and whatever else is scrubbed are gone before anything is written."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest

from agent_forge.errors import UsageError
from agent_forge.traces import Recorder, Span, masked
from agent_forge.traces.masking import MASKED, mask_for, mask_rows, mask_text
from agent_forge.traces.otlp import read_json_rows
from agent_forge.traces.rows import to_rows, to_spans

SECRETS = [
    "sk-proj-abcdefghijklmnop1234", "sk-ant-api03-abcdefghijklmnopqrst", "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "github_pat_11ABCDEFG0abcdefghijklmn", "glpat-abcdefghijklmnop1234", "xoxb-1234567890-abcdefghij",
    "hf_abcdefghijklmnopqrstuvwxyz", "AKIAIOSFODNN7EXAMPLE", "AIzaSyA0123456789abcdefghijklmnopqrstu",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N", "npm_abcdefghijklmnopqrstuvwxyz0123456789",
]  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "key={}", '{{"k": "{}"}}', "use {} now", "({})", "'{}',"])
def test_a_secret_is_known_by_its_form(secret: str, around: str) -> None:
    text = around.format(secret)
    assert mask_text(text) == around.format(MASKED)


def test_bearers_urls_and_keys() -> None:
    assert mask_text("Authorization: Bearer abcdef.123456-xyz") == f"Authorization: Bearer {MASKED}"
    assert mask_text("postgresql://me:hunter2@db:5432/x") == f"postgresql://{MASKED}@db:5432/x"
    pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"
    assert mask_text(f"a {pem} b") == f"a {MASKED} b"
    assert "MIIE" not in mask_text(pem[:40])


@pytest.mark.parametrize(
    "text",
    ["task-1234567890abcdefghij", "disk-usage-of-the-whole-machine", "risk-averse-and-other-words-here", "hf_model",
     "sk-learn", "https://example.org/a:b", "user@example.org", "eyJ and more", "max_tokens", "12:30@noon"],
)  # fmt: skip
def test_ordinary_text_stays(text: str) -> None:
    assert mask_text(text) == text


def test_names_under_which_secrets_stand(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, mask=masked(lambda text: text.replace("Ada", "[name]")))
    nested = [{"API-Key": "abc", "token": "t", "max_tokens": 5}]
    header = {"http.request.header.authorization": ["Basic QQ=="], "gen_ai.usage.input_tokens": 7}
    span = recorder.start(
        "login",
        inputs={"password": "hunter2", "user": "Ada", "nested": nested},
        attributes={**header, "token": 5, "secret": ""},
        input_tokens=3,
    )
    refused = ValueError("refused sk-abcdefghijklmnopqrst for Ada")
    recorder.end(span, outputs="Ada's key is ghp_0123456789abcdefghijABCDEFGHIJ012345", error=refused)
    recorder.close()
    [found] = recorder.store.search()
    assert found.inputs == {
        "password": MASKED,
        "user": "[name]",
        "nested": [{"API-Key": MASKED, "token": MASKED, "max_tokens": 5}],
    }
    assert found.outputs == f"[name]'s key is {MASKED}"
    assert found.error == f"ValueError: refused {MASKED} for [name]"
    named = {name: value for name, value in found.attributes.items() if not name.startswith("agentlightning.")}
    assert named == {
        "http.request.header.authorization": MASKED,
        "gen_ai.usage.input_tokens": 7,
        "token": 5,
        "secret": "",
    }
    assert found.input_tokens == 3
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for canary in (b"hunter2", b"ghp_", b"sk-abc", b"Ada", b"QQ=="):
        assert canary not in everything


@pytest.mark.parametrize(
    "piece",
    [
        "eyJ",
        "sk-",
        "a",
        "-----BEGIN PRIVATE KEY-----",
        "://a:",
        "Bearer ",
        "eyJaaaaaaaa.",
        "-",
        "xoxb-",
        "://" + "a" * 50,
    ],
)
def test_no_text_takes_long(piece: str) -> None:
    text = (piece * 100_000)[:100_000]
    begin = time.process_time()
    mask_text(text)
    assert time.process_time() - begin < 2.0  # a guard against quadratic patterns, which would take minutes


KEY, URL = "ghp_0123456789abcdefghijABCDEFGHIJ012345", "postgresql://me:hunter2@db:5432/x"
CARELESS: dict[str, Any] = {
    "name": f"clone {KEY}", "agent": f"agent {KEY}", "model": f"http://me:hunter2@host/v1#{KEY}", "session": KEY,
    "inputs": {"arguments": '{"password": "hunter2", "n": 1}', "text": f"first line\n{KEY}"},
    "outputs": [f"connected to {URL}"],
    "attributes": {"http.request.header.authorization": ["Basic aHVudGVyMg=="], "note": f"\t{KEY}", "size": 3},
    "events": [{"name": KEY, "time_ns": 1, "attributes": {"cookie": "hunter2"}}],
    "resource": {"db.url": URL}, "scope": {"name": KEY}, "category": KEY, "error": f"refused {KEY}",
}  # fmt: skip
CANARIES = ("ghp_", "hunter2", "aHVudGVyMg")


def careless() -> Span:
    return Span("1" * 32, "2" * 16, start_ns=1, end_ns=2, **copy.deepcopy(CARELESS))


def test_no_field_of_a_span_keeps_a_secret() -> None:
    """Every field in turn: the mask changes it, and what it does not change is no text."""
    mask = mask_for("secrets")
    assert mask is not None
    span = mask(careless())
    assert not [canary for canary in CANARIES if canary in repr(span.to_dict())]
    assert span.attributes["size"] == 3
    assert span.outputs == [f"connected to postgresql://{MASKED}@db:5432/x"]
    assert json.loads(span.inputs["arguments"]) == {"password": MASKED, "n": 1}
    kept = {name for name, value in CARELESS.items() if getattr(span, name) == value}
    assert kept == set()


def test_rows_are_masked_as_spans_are() -> None:
    [row] = mask_rows(to_rows([careless()]), "secrets")
    assert not [canary for canary in CANARIES if canary in repr(row)]
    mask = mask_for("secrets")
    assert mask is not None
    assert to_spans([row])[0].to_dict() == to_spans(to_rows([mask(careless())]))[0].to_dict()
    assert repr(mask_rows(to_rows([careless()]), "none")) == repr(to_rows([careless()]))  # the control


@pytest.mark.parametrize("name", sorted(CARELESS))
def test_a_row_is_suspected_for_any_of_its_fields(name: str) -> None:
    """Rows that look harmless are not parsed: no field may be forgotten there."""
    span = Span("1" * 32, "2" * 16, **({"name": "x"} | {name: copy.deepcopy(CARELESS[name])}))
    [row] = mask_rows(to_rows([span]), "secrets")
    assert not [canary for canary in CANARIES if canary in repr(row)]


def test_real_requests_pass_unchanged() -> None:
    """What instrumented programs sent has no secrets: masking must not touch a byte, nor parse it."""
    for file in sorted((Path(__file__).parent / "fixtures" / "otlp").glob("*.json")):
        for line in file.read_text().splitlines() if file.read_text().count("\n{") else [file.read_text()]:
            rows = read_json_rows(line.encode())
            assert all(one is other for one, other in zip(mask_rows(rows, "secrets"), rows, strict=True))


def test_personal_data_goes_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    span = Span("1" * 32, "2" * 16, "mail jo@corp.io", inputs={"to": "jo@corp.io", "n": 2}, session="jo@corp.io")
    [row] = mask_rows(to_rows([span]), "pii")
    assert "corp.io" not in repr(row)
    assert to_spans([row])[0].inputs == {"to": "[EMAIL]", "n": 2}
    assert "corp.io" in repr(mask_rows(to_rows([span]), "secrets"))
    monkeypatch.setenv("AGENT_FORGE_MASK", "pii")
    assert "corp.io" not in repr(mask_rows(to_rows([span])))
    monkeypatch.setenv("AGENT_FORGE_MASK", "all")
    with pytest.raises(UsageError, match=r"there is no mask 'all'. Use one of secrets, pii, none"):
        mask_for()


def test_the_settings_make_a_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Recorder.from_settings(tmp_path) as recorder, recorder.span("login", inputs={"note": KEY}):
        pass
    assert [span.inputs for span in recorder.store.search()] == [{"note": MASKED}]
    monkeypatch.setenv("AGENT_FORGE_SAMPLE", "0")
    with Recorder.from_settings(tmp_path) as recorder, recorder.span("not recorded"):
        pass
    assert recorder.store.count() == 1
    monkeypatch.setenv("AGENT_FORGE_SAMPLE", "half")
    with pytest.raises(UsageError, match="AGENT_FORGE_SAMPLE is 'half'"):
        Recorder.from_settings(tmp_path)
