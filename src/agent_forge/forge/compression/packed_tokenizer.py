"""A tokenizer in a fifteenth of its bytes: beside a model of a few megabytes, 2 MB of tokenizer.json count.

In a BPE vocabulary the names of the merged tokens follow from the merges, and a merge is a pair of
earlier token numbers. The rest is compressed with xz. `AutoTokenizer.from_pretrained` reads it
after `import agent_forge.forge`.
"""

from __future__ import annotations

import json
import lzma
import struct
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerFast

from agent_forge.errors import CheckpointError

FILE = "tokenizer.xz"
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
MOST_BYTES = 256 << 20
LONGEST = 1 << 16  # characters of a token: merges of merges could double them without end


def pack_tokenizer(text: str) -> bytes:
    """tokenizer.json in few bytes; `unpack_tokenizer` restores JSON of the same content."""
    document = json.loads(text)
    pairs = _take_merges(document)
    compact = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    # first all left halves, then all right halves, low and high bytes apart: similar bytes lie
    # together
    columns = pairs.astype("<u4").T.copy().view(np.uint8).reshape(2, -1, 4).transpose(0, 2, 1).tobytes()
    body = struct.pack("<I", len(compact)) + compact + columns
    return lzma.compress(body, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=FILTERS)


def _take_merges(document: dict[str, Any]) -> np.ndarray:
    """Removes the merges, as pairs of numbers [merges, 2], and the merged tokens from the
    vocabulary, where each follows from the other; elsewhere leaves the document as it is."""
    none = np.zeros((0, 2), np.uint32)
    model = document.get("model") or {}
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if model.get("type") != "BPE" or not isinstance(vocabulary, dict) or not merges:
        return none
    halves = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in merges]
    first = len(vocabulary) - len(halves)
    follows = all(
        len(pair) == 2 and vocabulary.get("".join(pair)) == first + place and all(half in vocabulary for half in pair)
        for place, pair in enumerate(halves)
    )
    base = [token for token, number in sorted(vocabulary.items(), key=lambda item: item[1]) if number < first]
    if not follows or [vocabulary[token] for token in base] != list(range(first)):
        return none
    model["vocab"], model["merges"] = base, isinstance(merges[0], str)
    return np.array([[vocabulary[half] for half in pair] for pair in halves], np.uint32)


def unpack_tokenizer(data: bytes, where: str | None = None) -> str:
    """Raises CheckpointError for bytes that were truncated or changed."""
    try:
        reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
        body = reader.decompress(data, MOST_BYTES)
        if not reader.eof:
            raise ValueError("it is truncated")
        (size,) = struct.unpack_from("<I", body)
        document = json.loads(body[4 : 4 + size])
        columns = np.frombuffer(body[4 + size :], np.uint8).reshape(2, 4, -1).transpose(0, 2, 1)
        _put_merges(document, np.ascontiguousarray(columns).view("<u4")[..., 0].T)
    except (lzma.LZMAError, struct.error, ValueError, KeyError, IndexError, EOFError) as error:
        raise CheckpointError(f"the tokenizer cannot be read: {error}", where=where) from error
    return json.dumps(document, ensure_ascii=False)


def _put_merges(document: dict[str, Any], pairs: np.ndarray) -> None:
    """The inverse of `_take_merges`."""
    if not len(pairs):
        return
    model = document["model"]
    tokens, joined = list(model["vocab"]), model["merges"]
    merges: list[Any] = []
    for left, right in pairs.tolist():
        halves = [tokens[left], tokens[right]]
        merges.append(" ".join(halves) if joined else halves)
        tokens.append("".join(halves))
        if len(tokens[-1]) > LONGEST:
            raise ValueError(f"a token has more than {LONGEST} characters")
    model["vocab"], model["merges"] = {token: number for number, token in enumerate(tokens)}, merges


class PackedTokenizer(PreTrainedTokenizerFast):
    """A fast tokenizer whose file is `tokenizer.xz`."""

    vocab_files_names = {"packed_file": FILE}  # noqa: RUF012 (transformers' own form)

    def __init__(self, packed_file: str | None = None, **kwargs: Any) -> None:
        if packed_file is not None and kwargs.get("tokenizer_object") is None:
            text = unpack_tokenizer(Path(packed_file).read_bytes(), packed_file)
            kwargs["tokenizer_object"] = Tokenizer.from_str(text)
        super().__init__(**kwargs)


class PackedTokenizerConfig(PretrainedConfig):
    """transformers registers a tokenizer by the configuration it belongs to; ours goes with any model."""

    model_type = "agent_forge_packed_tokenizer"


AutoTokenizer.register(PackedTokenizerConfig, PackedTokenizer, exist_ok=True)
