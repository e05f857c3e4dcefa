"""A packed model without torch: a folder is read with numpy and run by the compiled decoder, or by numpy alone where
there is no compiler."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.inference.packed.compiled import CompiledModel, why_not_compiled
from agent_forge.inference.packed.history import STRIDE, History
from agent_forge.inference.packed.network import FORMAT, METHOD, Network, network_of, why_no_network
from agent_forge.inference.packed.plain import PlainModel
from agent_forge.inference.packed.rotary import rope_of
from agent_forge.inference.safetensors_file import check_files, read_arrays
from agent_forge.installed import install_command

WEIGHTS = "model.safetensors"


class PackedModel:
    """A model that reads token ids and returns logits.

        model = PackedModel.load("folder")
        history = model.history()
        logits = model.read(history, [5, 6, 7])  # float32 [1, vocabulary]: of the next token

    A model may be used by several threads, a history by one at a time.
    """

    def __init__(self, network: Network, config: Mapping[str, Any], ends: Any = None) -> None:
        self.config = SimpleNamespace(**config)
        self.generation_config = SimpleNamespace(eos_token_id=config.get("eos_token_id") if ends is None else ends)
        self.network = network
        self.why_plain = why_not_compiled(network)  # why numpy runs it, or None
        self._runner: CompiledModel | PlainModel = (
            CompiledModel(network) if self.why_plain is None else PlainModel(network)
        )

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> PackedModel:
        """Reads a folder that `save_packed` wrote. Raises CheckpointError for one that is damaged, and UsageError for a
        model that needs transformers."""
        path = Path(folder)
        config = read_config(path)
        if (reason := why_no_network(config)) is not None:
            fix = f"Run `{install_command('forge')}`: transformers runs it"
            raise UsageError(f"this packed model does not run without torch: {reason}", where=str(path), fix=fix)
        digests: Mapping[str, str] = config["quantization_config"].get("files") or {}
        check_files([path / WEIGHTS], digests)
        return cls(network_of(config, gathered(read_arrays(path / WEIGHTS))), config, _ends(path))

    @property
    def vocabulary(self) -> int:
        """The number of logits."""
        return self.network.head.rows

    @property
    def parameters(self) -> int:
        """Weights; a shared table counts once."""
        return sum(matrix.rows * matrix.columns for matrix in self.network.matrices) + sum(
            vector.size for vector in self.network.vectors
        )

    @property
    def bytes(self) -> int:
        """Memory that the weights take."""
        arrays = [array for m in self.network.matrices for array in (m.values, m.scales, m.bias) if array is not None]
        return sum(int(array.nbytes) for array in (*arrays, *self.network.vectors))

    def history(self) -> History:
        """An empty one."""
        return History(self.network)

    def read(self, history: History, ids: Sequence[int], each: int = 1) -> Any:
        """Reads `ids` after what the history holds. Returns the logits after each of the last `each` ids, float32
        [each, vocabulary]. Raises UsageError for unknown tokens, before anything is read."""
        numbers = self._numbers(ids)
        if not 0 <= each <= len(numbers):
            raise UsageError(f"the logits of {each} of {len(numbers)} tokens", where="PackedModel.read")
        history.make_room(len(numbers))
        logits, step = [], self._runner.together
        for start in range(0, len(numbers), step):
            some = numbers[start : start + step]
            wanted = min(len(some), max(0, start + len(some) - (len(numbers) - each)))
            logits.append(self._runner.read([history], some[None], wanted)[0])
        return logits[0] if len(logits) == 1 else np.concatenate(logits)

    def step(self, histories: Sequence[History], tokens: Sequence[int]) -> Any:
        """Every history reads one token, so that the weights are read once for all of them. Returns the logits
        [histories, vocabulary]; those of a history are, to the last bit, the ones it would have alone."""
        numbers = self._numbers(tokens)[:, None]
        for history in histories:
            history.make_room(1)
        step = self._runner.together
        starts = range(0, len(histories), step)
        parts = [self._runner.read(histories[at : at + step], numbers[at : at + step], 1) for at in starts]
        return np.concatenate(parts)[:, 0]

    def _numbers(self, ids: Sequence[int]) -> Any:
        numbers = np.array(ids, dtype=np.int64)
        most = self.network.table.rows
        if numbers.ndim != 1 or not len(numbers) or numbers.min() < 0 or numbers.max() >= most:
            fault = "there are no tokens" if numbers.size == 0 else f"a token is not in 0..{most - 1}"
            raise UsageError(fault, where="PackedModel.read")
        return numbers

    def cells(self, rows: int, length: int) -> int:
        """Bytes that so many histories of this length take."""
        network = self.network
        tokens = -(-length // STRIDE) * STRIDE
        cells = 2 * len(network.blocks) * network.groups * network.head_width * tokens
        return rows * (cells + network.memories * network.memory_heads * network.memory_width**2) * 4


class DecoderBatch:
    """Sequences that are decoded side by side. They may join and leave between two steps."""

    most: int | None = None  # sequences it can hold: as many as fit in memory

    def __init__(self, model: PackedModel) -> None:
        self._model = model
        self._rows: list[History] = []

    @property
    def count(self) -> int:
        """The number of sequences."""
        return len(self._rows)

    def join(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> Any:
        """Adds `copies` sequences per prompt after the others; returns the logits [N, V] of the token after each."""
        logits = []
        for prompt in prompts:  # each alone: how they are cut must not depend on the others
            row = self._model.history()
            row.make_room(len(prompt) + 1)
            logits += [self._model.read(row, prompt)[0]] * copies
            self._rows += [row, *(row.copy() for _ in range(copies - 1))]
        return np.stack(logits)

    def step(self, tokens: Sequence[int]) -> Any:
        """Adds one token to every sequence; returns the logits [count, V] of the next."""
        return self._model.step(self._rows, tokens)

    def leave(self, rows: Sequence[int]) -> None:
        """Removes sequences, from the highest number down; the last one takes the place of the one that leaves."""
        for place in sorted(rows, reverse=True):
            self._rows[place] = self._rows[-1]
            self._rows.pop()

    def cells(self, rows: int, length: int) -> int:
        """Bytes that so many sequences of this length take."""
        return self._model.cells(rows, length)


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a packed folder. Raises CheckpointError."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        packing = config["quantization_config"]
        if packing["quant_method"] != METHOD:
            raise ValueError(f"the format is {packing['quant_method']}")
        refuse_newer(packing.get("format", FORMAT))
        rope_of(config), dict(packing.get("files") or {})  # both are objects
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"not a packed model: {error}", where=str(folder)) from error
    return dict(config)


def _ends(folder: Path) -> Any:
    """The end tokens according to generation_config.json, if there is one."""
    try:
        return json.loads((folder / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"generation_config.json cannot be read: {error}", where=str(folder)) from error


def refuse_newer(number: int) -> None:
    """Raises CheckpointError for a format that a later version writes."""
    if number > FORMAT:
        raise CheckpointError(
            f"the model is packed in format {number}, and this version reads formats up to {FORMAT}",
            fix="Update agent-forge",
        )


def is_packed(folder: Path) -> bool:
    """Whether a folder holds a packed model that runs without torch."""
    try:
        return why_no_network(read_config(folder)) is None
    except CheckpointError:
        return False


def gathered(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays, with the packed bytes moved into one piece of memory on huge pages (numpy requests them), which is
    read faster."""
    packed = {name: array for name, array in arrays.items() if name.endswith(".packed")}
    memory = np.empty(sum(-(-array.size // 64) * 64 for array in packed.values()) + 64, dtype=np.uint8)
    at, places = -memory.ctypes.data % 64, {}
    for name, array in packed.items():
        places[name] = memory[at : at + array.size].reshape(array.shape)
        places[name][...] = array
        at += -(-array.size // 64) * 64
    return {**arrays, **places}
