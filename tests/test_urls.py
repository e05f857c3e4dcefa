"""Credentials in a model's URL: used for the request, never kept, shown or logged; and who may read what is kept."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agent_forge
from agent_forge.cli import run as command
from agent_forge.errors import AgentForgeError
from agent_forge.inference.openai_compatible import OpenAICompatible
from agent_forge.urls import without_credentials

WORD = st.text("abcXYZ019-_.~%!", min_size=4, max_size=20)
URL = "http://ann:hunter2secret@127.0.0.1:9/v1?api_key=s3cretkey99#tiny"


@given(user=WORD, password=WORD, key=WORD, name=st.sampled_from(["key", "api_key", "x-api-key", "Access_Token", "sig"]))
def test_user_password_and_key_are_cut_and_the_rest_stays(user: str, password: str, key: str, name: str) -> None:
    shown = without_credentials(f"see http://{user}:{password}@host:8/v1/p?a=b&{name}={key}&c=d#llama now")
    assert shown == f"see http://***@host:8/v1/p?a=b&{name}=***&c=d#llama now"
    assert without_credentials(shown) == shown


@pytest.mark.parametrize("text", ["http://host/v1#a@b", "ann@host.org", "http://h/p?monkey=1&q=key", "/a@b/c", ""])
def test_what_holds_no_credentials_stays(text: str) -> None:
    assert without_credentials(text) == text


def test_a_run_keeps_and_prints_no_credentials(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A server that does not answer: the error, the journal, the trace and what is printed name it without secrets."""
    home = tmp_path / "home"
    assert command(["run", "Who is older, Ann or Bob?", "--model", URL, "--home", str(home)]) == 1
    printed = capfd.readouterr()
    kept = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    for secret in ("hunter2secret", "s3cretkey99"):
        assert secret not in printed.out + printed.err
        assert secret.encode() not in kept
    assert "***@127.0.0.1:9" in printed.err + printed.out  # the control: it is this server that is named
    assert b"***@127.0.0.1:9" in kept


def test_resuming_asks_for_the_model_again(tmp_path: Path) -> None:
    with suppress(AgentForgeError):  # nobody answers there
        agent_forge.run("Who is older, Ann or Bob?", model=URL, home=tmp_path)
    from agent_forge.runtime.journal import Journal

    journal = Journal.open(tmp_path)
    (run,) = [each.run for each in journal.runs()]
    journal.close()
    with pytest.raises(AgentForgeError, match="stored without its credentials"):
        agent_forge.run(resume=run, home=tmp_path)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OpenAICompatible.__init__.__kwdefaults__ or {}, "backoff_s", 0.0)


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_what_a_run_keeps_is_its_owners_alone(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        home = tmp_path / "home"
        agent_forge.run("Who is older, Manuel Antonio or Wilfred MacDonald?", home=home)
        other = tmp_path / "other"
        other.mkdir()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [home, *home.rglob("*")]}
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
    assert stat.S_IMODE(other.stat().st_mode) & 0o055  # the control: the umask would have let others in
