"""Secrets and whatever else is scrubbed are gone before anything is written."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent_forge.traces import Recorder, masked
from agent_forge.traces.masking import MASKED, mask_text

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
    assert found.attributes == {
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
