"""What a decoder remembers of one sequence."""

from __future__ import annotations

import numpy as np

from agent_forge.errors import UsageError
from agent_forge.inference.packed.network import Network

LANES = 16  # as in attention.c: keys are stored in blocks of 16 tokens
STRIDE = 256  # tokens by which a history grows at least


class History:
    """The tokens that one sequence has read: keys and values of every layer, and Cognate's memories. It grows as
    needed.

    `keys` is [layers, groups, blocks, head width, 16] (see attention.c for why), `values` [layers, groups, tokens, head
    width], `state` [layers with a memory, heads, width, width].
    """

    def __init__(self, network: Network) -> None:
        layers, groups, width, memory = len(network.blocks), network.groups, network.head_width, network.memory_width
        self.length = 0  # tokens read
        self.keys = np.empty((layers, groups, 0, width, LANES), np.float32)
        self.values = np.empty((layers, groups, 0, width), np.float32)
        self.state = np.zeros((network.memories, network.memory_heads, memory, memory), np.float32)
        self._network = network
        self._addresses: tuple[int, int, int] = (0, 0, 0)

    @property
    def room(self) -> int:
        """Tokens that fit without growing."""
        return int(self.values.shape[2])

    @property
    def view(self) -> tuple[int, int, int, int, int]:
        """The fields of `History` of decoder.c."""
        return (*self._addresses, self.room, self.length)

    def make_room(self, tokens: int) -> None:
        """Room for so many more tokens."""
        needed = self.length + tokens
        if needed > self.room:
            self._resize(-(-max(needed, self.room * 3 // 2) // STRIDE) * STRIDE)

    def cut(self, length: int) -> None:
        """Forgets the tokens from `length` on. Raises UsageError where that is impossible: a neural memory cannot be
        undone, only begun again (length 0)."""
        if not 0 <= length <= self.length:
            raise UsageError(f"{self.length} tokens cannot be cut to {length}", where="History.cut")
        if length and length < self.length and len(self.state):
            raise UsageError("a model with a neural memory cannot forget single tokens", fix="Copy the history before")
        if not length:
            self.state.fill(0)
        self.length = length

    def copy(self) -> History:
        """A history that goes on from here by itself: the way to read a common beginning once."""
        other = History(self._network)
        other.length, other.state = self.length, self.state.copy()
        other.keys, other.values = self.keys, self.values
        other._resize(-(-(self.length + 1) // STRIDE) * STRIDE)
        return other

    def _resize(self, tokens: int) -> None:
        """Moves what was read into new arrays for `tokens` tokens, a multiple of 16."""
        old_keys, old_values, blocks = self.keys, self.values, -(-self.length // LANES)
        layers, groups, _, width, _ = old_keys.shape
        self.keys = np.empty((layers, groups, tokens // LANES, width, LANES), np.float32)
        self.values = np.empty((layers, groups, tokens, width), np.float32)
        self.keys[:, :, :blocks] = old_keys[:, :, :blocks]
        self.values[:, :, : self.length] = old_values[:, :, : self.length]
        self._addresses = (self.keys.ctypes.data, self.values.ctypes.data, self.state.ctypes.data)
