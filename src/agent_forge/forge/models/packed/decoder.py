"""A packed model as one compiled function: for every new token a single call goes through all layers.

In transformers a token costs some ten Python calls a layer, which for a small model is far more than its arithmetic.
The decoder does the same computation (a test holds it to the model's own logits) for Llama-shaped models and for
Cognate with one loop, one sequence at a time, on one core.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agent_forge import native
from agent_forge.errors import UsageError
from agent_forge.forge.models.packed.modules import PackedHead, PackedTable
from agent_forge.forge.models.packed.products import CMatrix, describe
from agent_forge.forge.models.packed.trits import DIGITS, KINDS

SOURCE = Path(__file__).with_name("decoder.c")
PROMPT = 32  # tokens that go through a layer together
SCRATCH = 8  # as in decoder.c
FLOATS = len(KINDS)
FIXED_ANGLES = ("default", "linear", "llama3", "yarn")  # rotary positions whose angles do not depend on the length


class CLayer(ctypes.Structure):
    """`Layer` of decoder.c."""

    _fields_ = (
        ("norm_in", ctypes.c_void_p),
        ("norm_mid", ctypes.c_void_p),
        *((name, CMatrix) for name in ("q", "k", "v", "o", "gate", "up", "down")),
        *((name, CMatrix) for name in ("memory_qkv", "memory_rates", "memory_out")),
        *((name, ctypes.c_void_p) for name in ("attention_gain", "memory_gain", "keys", "values", "state")),
    )


class CModel(ctypes.Structure):
    """`Model` of decoder.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("layers", "width", "heads", "groups", "head_width", "length", "window")),
        *((name, ctypes.c_int64) for name in ("memory_heads", "memory_width", "most_tokens")),
        *((name, ctypes.c_int64) for name in ("qk_norm", "norm_embedding")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
        *((name, ctypes.c_void_p) for name in ("cosines", "sines", "norm_out")),
        *((name, CMatrix) for name in ("table", "embed_up", "head_down", "head")),
        ("layer", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("widest", ctypes.c_int64),
        ("numbers", ctypes.c_void_p),
        ("numbers_size", ctypes.c_int64),
    )


@cache
def library() -> Any:
    """The compiled decoder, or None."""
    found = native.load(SOURCE, "-fopenmp-simd")
    if found is not None:
        i64, pointer = ctypes.c_int64, ctypes.c_void_p
        found.decoder_step.argtypes = (pointer, i64, i64, pointer, i64, pointer)
    return found


class Decoder:
    """Reads tokens and answers with the logits of the next one.

    `context` is the most tokens that it can hold. Raises UsageError for a model it cannot run (see `why_not`).
    """

    def __init__(self, model: Any, context: int = 2048) -> None:
        reason = why_not(model)
        if reason is not None:
            raise UsageError(f"the compiled decoder does not run this model: {reason}", fix="use model.generate()")
        self.position = 0
        self.context = context
        self.vocabulary: int = model.config.vocab_size
        self._kept: list[Any] = []  # all that C points to
        gather_weights(model)
        self._model = _llama(self, model) if model.config.model_type == "llama" else _cognate(self, model)
        self._give_room()
        self._library = library()

    def read(self, ids: Sequence[int]) -> Tensor:
        """Takes in `ids` after what it has read so far; the logits [vocabulary] of the token after them."""
        logits = np.empty(self.vocabulary, dtype=np.float32)
        for start in range(0, len(ids), PROMPT):
            self._step(ids[start : start + PROMPT], logits, False)
        return torch.from_numpy(logits)

    def read_all(self, ids: Sequence[int]) -> Tensor:
        """The same, with the logits after every token: [len(ids), vocabulary]."""
        logits = np.empty((len(ids), self.vocabulary), dtype=np.float32)
        for start in range(0, len(ids), PROMPT):
            self._step(ids[start : start + PROMPT], logits[start:], True)
        return torch.from_numpy(logits)

    def reset(self) -> None:
        """Forgets everything that was read."""
        self.position = 0
        for state in self._states:
            state.fill(0)

    def _step(self, ids: Sequence[int], logits: Any, every: bool) -> None:
        if self.position + len(ids) > self.context:
            raise UsageError(
                f"{self.position + len(ids):,} tokens, and the decoder holds {self.context:,}",
                fix="make it with a larger context",
            )
        numbers = np.asarray(ids, dtype=np.int64)
        model = ctypes.byref(self._model)
        code = self._library.decoder_step(
            model, len(ids), self.position, numbers.ctypes.data, every, logits.ctypes.data
        )
        if code:
            raise UsageError(f"a token is not in 0..{self.vocabulary - 1}", where="Decoder.read")
        self.position += len(ids)

    def keep(self, array: Any) -> int:
        """The address of an array or tensor, which will live as long as the decoder."""
        self._kept.append(array)
        return int(array.data_ptr() if isinstance(array, Tensor) else array.ctypes.data)

    def floats(self, tensor: Tensor) -> int:
        return self.keep(tensor.detach().float().contiguous())

    def zeros(self, *shape: int) -> int:
        return self.keep(np.zeros(shape, dtype=np.float32))

    def matrix(self, module: Any) -> CMatrix:
        """A linear layer or a table, as C sees it."""
        if isinstance(module, PackedHead):
            return self._packed(module.table, module.bias)
        if isinstance(module, PackedTable):
            return self._packed(module, getattr(module, "bias", None))
        rows, columns = module.weight.shape
        bias = getattr(module, "bias", None)
        at = None if bias is None else self.floats(bias)
        return CMatrix(FLOATS, 0, rows, columns, columns, self.floats(module.weight), None, at)

    def _packed(self, table: PackedTable, bias: Tensor | None) -> CMatrix:
        kept = None if bias is None else bias.detach().float().contiguous()
        self._kept += [table.packed, table.scales, kept]
        return describe(table.matrix, kept)

    def state(self, *shape: int) -> int:
        """Zeros that `reset` clears."""
        made = np.zeros(shape, dtype=np.float32)
        self._states.append(made)
        return int(made.ctypes.data)

    @property
    def _states(self) -> list[Any]:
        return self.__dict__.setdefault("_made_states", [])

    def _give_room(self) -> None:
        """Working memory: the widest vector of any layer, and the longest line of quantised activations."""
        model = self._model
        layers = ctypes.cast(model.layer, ctypes.POINTER(CLayer))
        matrices = [model.table, model.embed_up, model.head_down]
        for i in range(model.layers):
            matrices += [getattr(layers[i], field[0]) for field in CLayer._fields_ if field[1] is CMatrix]
        widest = max(*(m.rows for m in matrices[1:]), *(m.columns for m in matrices), model.width)
        line = max(_line(m) for m in (*matrices, model.head))
        model.most_tokens, model.widest = PROMPT, widest
        model.scratch = self.zeros((SCRATCH - 1) * PROMPT * widest + max(PROMPT * widest, self.context))
        model.numbers_size = PROMPT * line
        model.numbers = self.keep(np.zeros(PROMPT * line, dtype=np.int8))


def _line(matrix: CMatrix) -> int:
    """Bytes that the quantised activations of one token take for this matrix."""
    if matrix.rows == 0 or matrix.kind == FLOATS:
        return 8
    chunk = 4 * list(DIGITS.values())[matrix.kind]
    groups = -(-matrix.columns // matrix.group)
    return groups * -(-matrix.group // chunk) * chunk + 4 * groups + 8


def why_not(model: Any) -> str | None:
    """What keeps the decoder from running this model, or None if nothing does."""
    config = model.config
    if library() is None:
        return "there is no C compiler here"
    if config.model_type not in ("llama", "cognate"):
        return f"its architecture is {config.model_type}, not llama or cognate"
    if config.model_type == "llama" and config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in FIXED_ANGLES:
        return f"its rotary positions are of type {rope}"
    if config.model_type == "cognate" and (config.slots != config.num_hidden_layers or config.memory_momentum):
        return "it has loops or a memory with momentum"
    for name, module in model.named_modules():
        if getattr(module, "activations", "int8") != "int8" or getattr(module, "sub_norm", False):
            return f"{name} does not round its input, or has a sub-norm"
        if isinstance(module, nn.Linear | nn.Embedding | PackedTable) and _device(module) != "cpu":
            return "its weights are not in main memory"
    return None


def _device(module: Any) -> str:
    return str((module.packed if isinstance(module, PackedTable) else module.weight).device.type)


def gather_weights(model: Any) -> None:
    """Moves the packed bytes into one piece of memory, on huge pages (numpy asks for them): read faster when cold."""
    tables = [module for module in model.modules() if isinstance(module, PackedTable)]
    total = sum(-(-table.packed.numel() // 64) * 64 for table in tables)
    memory = np.empty(total + 64, dtype=np.uint8)
    at = -memory.ctypes.data % 64
    for table in tables:
        size = table.packed.numel()
        place = torch.from_numpy(memory[at : at + size]).view(table.packed.shape)
        place.copy_(table.packed)
        table.packed = place
        at += -(-size // 64) * 64


def _shape(decoder: Decoder, config: Any) -> CModel:
    model = CModel()
    model.layers, model.width, model.length = config.num_hidden_layers, config.hidden_size, decoder.context
    model.heads, model.groups = config.num_attention_heads, config.num_key_value_heads
    model.head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    model.eps = config.rms_norm_eps
    return model


def _caches(decoder: Decoder, model: CModel, layers: Any) -> None:
    for layer in layers:
        layer.keys = decoder.zeros(model.groups, decoder.context, model.head_width)
        layer.values = decoder.zeros(model.groups, decoder.context, model.head_width)
    model.layer = ctypes.addressof(layers)
    decoder._kept.append(layers)


def _llama(decoder: Decoder, whole: Any) -> CModel:
    model, inner = _shape(decoder, whole.config), whole.model
    positions = torch.arange(decoder.context)[None]
    cosines, sines = inner.rotary_emb(torch.zeros(1, 1), positions)  # [1, T, head width], the two halves alike
    half = model.head_width // 2
    model.cosines, model.sines = decoder.floats(cosines[0, :, :half]), decoder.floats(sines[0, :, :half])
    model.scale = model.head_width**-0.5
    model.norm_out = decoder.floats(inner.norm.weight)
    model.table, model.head = decoder.matrix(inner.embed_tokens), decoder.matrix(whole.lm_head)
    layers = (CLayer * model.layers)()
    for layer, block in zip(layers, inner.layers, strict=True):
        layer.norm_in = decoder.floats(block.input_layernorm.weight)
        layer.norm_mid = decoder.floats(block.post_attention_layernorm.weight)
        for part in ("q", "k", "v", "o"):
            setattr(layer, part, decoder.matrix(getattr(block.self_attn, f"{part}_proj")))
        for part in ("gate", "up", "down"):
            setattr(layer, part, decoder.matrix(getattr(block.mlp, f"{part}_proj")))
    _caches(decoder, model, layers)
    return model


def _cognate(decoder: Decoder, whole: Any) -> CModel:
    from agent_forge.forge.models.attention import rotary_angles

    config, inner = whole.config, whole.model
    model = _shape(decoder, config)
    cosines, sines = rotary_angles(torch.arange(decoder.context)[None], config.head_dim, config.rope_theta)
    model.cosines, model.sines = decoder.floats(cosines[0, 0]), decoder.floats(sines[0, 0])
    model.scale, model.qk_norm, model.norm_embedding = config.softmax_scale, config.qk_norm, 1
    model.window = config.sliding_window
    model.memory_heads, model.memory_width = config.memory_heads, config.memory_head_dim
    model.table, model.head = decoder.matrix(inner.embed_tokens), decoder.matrix(whole.lm_head)
    if not isinstance(inner.embed_up, nn.Identity):
        model.embed_up, model.head_down = decoder.matrix(inner.embed_up), decoder.matrix(whole.head_down)
    layers = (CLayer * model.layers)()
    for layer, block in zip(layers, inner.layers, strict=True):
        layer.q, layer.o = decoder.matrix(block.attention.qkv_proj), decoder.matrix(block.o_proj)
        layer.up, layer.down = decoder.matrix(block.up_proj), decoder.matrix(block.down_proj)
        if block.memory is not None:
            _memory(decoder, layer, block.memory, config)
    _caches(decoder, model, layers)
    return model


def _memory(decoder: Decoder, layer: Any, memory: Any, config: Any) -> None:
    layer.memory_qkv, layer.memory_out = decoder.matrix(memory.qkv_proj), decoder.matrix(memory.out_proj)
    layer.memory_rates = decoder.matrix(memory.rates)
    layer.attention_gain, layer.memory_gain = decoder.floats(memory.attention_gain), decoder.floats(memory.memory_gain)
    layer.state = decoder.state(config.memory_heads, config.memory_head_dim, config.memory_head_dim)


def fast_tokens(
    model: Any, prompt: Sequence[int], most: int, *, temperature: float = 0.0, seed: int | None = None
) -> Iterator[int]:
    """New tokens one after another, greedily or at a temperature; the caller stops when it has enough.

    The compiled decoder where it runs the model, else the model's own forward pass. `model` may be a Decoder.
    """
    draw = torch.Generator()
    draw.manual_seed(seed) if seed is not None else draw.seed()
    if isinstance(model, Decoder):
        model.reset()
        read = model.read
    elif why_not(model) is None:
        read = Decoder(model, len(prompt) + most).read
    else:
        read = _reader(model)
    logits = read(prompt)
    for _ in range(most):
        if temperature:
            token = int(torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=draw))
        else:
            token = int(logits.argmax())
        yield token
        logits = read([token])


def _reader(model: Any) -> Any:
    """`Decoder.read` by transformers."""
    cache = None

    @torch.inference_mode()
    def read(ids: Sequence[int]) -> Tensor:
        nonlocal cache
        tokens = torch.tensor([list(ids)], device=model.device)
        out = model(input_ids=tokens, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        return out.logits[0, -1].float().cpu()

    return read


def fast_generate(
    model: Any,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    seed: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
) -> list[int]:
    """The new tokens, up to and with the one that ends the text (see `fast_tokens`)."""
    ends = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())
    found: list[int] = []
    for token in fast_tokens(model, prompt, max_new_tokens, temperature=temperature, seed=seed):
        found.append(token)
        if token in ends:
            break
    return found
