"""The tokenizer of a model folder, without transformers: tokenizer.json through the `tokenizers` library, and the chat
template through jinja2 where the model has one.

The methods have the names that transformers gives them, so that the same code takes either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from agent_forge.errors import CheckpointError

NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class FolderTokenizer:
    """Text to token ids and back.

    `backend_tokenizer` is the `tokenizers.Tokenizer`. Raises CheckpointError without a sound tokenizer.json.
    """

    def __init__(self, folder: str | Path) -> None:
        from tokenizers import Tokenizer

        path = Path(folder)
        try:
            self.backend_tokenizer: Any = Tokenizer.from_str((path / "tokenizer.json").read_text(encoding="utf-8"))
            settings = json.loads(_text(path / "tokenizer_config.json") or "{}")
            legacy = json.loads(_text(path / "special_tokens_map.json") or "{}")
            self.special: dict[str, str] = {
                name: token if isinstance(token, str) else token["content"]
                for name, token in {**legacy, **settings}.items()
                if name in NAMED and token is not None
            }
            template = _text(path / "chat_template.jinja") or settings.get("chat_template")
            if isinstance(template, list):  # several of them, by name
                template = next((one["template"] for one in template if one.get("name") == "default"), None)
        except Exception as error:  # the library raises `Exception` itself
            raise CheckpointError(f"the tokenizer cannot be read: {str(error)[:300]}", where=str(path)) from error
        self.chat_template: str | None = template

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text, add_special_tokens=add_special_tokens)}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; the tokenizer may add special ones at its ends."""
        return list(self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False, **_: Any) -> str:
        """The text of the ids."""
        return str(self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def batch_decode(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False, **_: Any) -> list[str]:
        """The texts of several lists of ids."""
        lists = [list(row) for row in rows]
        return list(self.backend_tokenizer.decode_batch(lists, skip_special_tokens=skip_special_tokens))

    @property
    def eos_token_id(self) -> int | None:
        """The id of the token that ends a text."""
        token = self.special.get("eos_token")
        return None if token is None else self.backend_tokenizer.token_to_id(token)

    @cached_property
    def all_special_ids(self) -> list[int]:
        """The tokens that stand for no text."""
        added = self.backend_tokenizer.get_added_tokens_decoder()
        return sorted(number for number, token in added.items() if token.special)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **_: Any,
    ) -> Any:
        """The messages in the model's own format: ids, or text without `tokenize`. Raises jinja2.TemplateError."""
        text = self._template.render(
            messages=list(messages),
            tools=None if tools is None else list(tools),
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self.special,
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text

    @cached_property
    def _template(self) -> Any:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if self.chat_template is None:
            raise CheckpointError("the model has no chat template")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation()]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        return environment.from_string(self.chat_template)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Unlike jinja2's own, without HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _generation() -> type[Any]:
    """The tag {% generation %}, with which templates mark what the model writes: its content is rendered as it is."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class GenerationTag(Extension):
        tags = {"generation"}  # noqa: RUF012 (jinja2's own form)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    return GenerationTag
