"""The tokenizer without transformers. Where transformers is installed, it is the judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed_folders import byte_tokenizer

from agent_forge.errors import CheckpointError
from agent_forge.inference.tokenizer import FolderTokenizer

CHAT = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'nobody' %}{{ raise_exception('nobody speaks') }}{% endif %}\n"
    "  {%- if loop.index > 3 %}{% break %}{% endif %}"
    "<|{{ m.role }}|>{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    "{% if tools %}{{ tools | tojson(indent=1) }}{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MESSAGES = [{"role": "system", "content": "be <b>kind</b>"}, {"role": "user", "content": "hallo, Zoë"}]
TOOLS = [{"type": "function", "function": {"name": "find", "description": "ä < b"}}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"), CHAT)


@given(st.text(max_size=60))
def test_any_text_comes_back(folder: Path, text: str) -> None:
    tokenizer = FolderTokenizer(folder)
    ids = tokenizer.encode(text)
    assert tokenizer(text) == {"input_ids": ids}
    assert ids == list(text.encode()) or "<|end|>" in text
    assert tokenizer.decode(ids) == text
    assert tokenizer.batch_decode([ids, []]) == [text, ""]


def test_special_tokens_and_templates(folder: Path) -> None:
    tokenizer = FolderTokenizer(folder)
    assert len(tokenizer) == 257
    assert (tokenizer.eos_token_id, tokenizer.all_special_ids) == (256, [256])
    assert tokenizer.decode([104, 105, 256], skip_special_tokens=True) == "hi"
    assert tokenizer.decode([104, 105, 256]) == "hi<|end|>"
    text = tokenizer.apply_chat_template(MESSAGES, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    shown = json.dumps(TOOLS, indent=1, ensure_ascii=False)
    assert text == f"<|system|>be <b>kind</b><|user|>hallo, Zoë{shown}<|assistant|>"
    assert tokenizer.apply_chat_template(MESSAGES) == tokenizer.encode("<|system|>be <b>kind</b><|user|>hallo, Zoë")
    import jinja2

    with pytest.raises(jinja2.TemplateError, match="nobody speaks"):
        tokenizer.apply_chat_template([{"role": "nobody", "content": ""}])


def test_it_says_what_transformers_says(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours, theirs = FolderTokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert len(ours) == len(theirs)
    assert (ours.eos_token_id, ours.all_special_ids) == (theirs.eos_token_id, theirs.all_special_ids)
    for text in ("", "a b  c", "naïve 🙂", "x<|end|>y"):
        assert ours.encode(text) == theirs.encode(text) == theirs(text)["input_ids"]
        ids = ours.encode(text)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    options: list[dict[str, Any]] = [{}, {"tools": TOOLS}, {"add_generation_prompt": True}, {"tokenize": False}]
    for option in options:
        assert ours.apply_chat_template(MESSAGES, **option) == theirs.apply_chat_template(
            MESSAGES, return_dict=False, **option
        )


@pytest.mark.parametrize("text", [None, "", "{}", '{"model": 3}'])
def test_a_folder_without_a_sound_tokenizer_is_refused(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match="the tokenizer cannot be read"):
        FolderTokenizer(tmp_path)


def test_without_a_template_it_says_so(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(byte_tokenizer(tmp_path, None))
    assert tokenizer.chat_template is None
    with pytest.raises(CheckpointError, match="no chat template"):
        tokenizer.apply_chat_template(MESSAGES)
