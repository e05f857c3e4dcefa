"""Models whose weights stay packed: five trits a byte, two or four bits, or bytes, with products that read them so.

Importing this registers the format with transformers: `AutoModelForCausalLM.from_pretrained` loads what `save_packed`
wrote.
"""

from __future__ import annotations

from agent_forge.forge.models.packed.compiled import why_not
from agent_forge.forge.models.packed.decoder import Batch, Decoder, fast_generate, fast_tokens
from agent_forge.forge.models.packed.folder import round_rows, save_packed, unpack_model
from agent_forge.forge.models.packed.modules import PackedEmbedding, PackedHead, PackedLinear
from agent_forge.forge.models.packed.products import PackedMatrix, product, quantize_activations
from agent_forge.forge.models.packed.quantizer import PackedConfig, PackedQuantizer
from agent_forge.forge.models.packed.trits import Shape, TernaryWeight, pack, unpack

__all__ = [
    "Batch",
    "Decoder",
    "PackedConfig",
    "PackedEmbedding",
    "PackedHead",
    "PackedLinear",
    "PackedMatrix",
    "PackedQuantizer",
    "Shape",
    "TernaryWeight",
    "fast_generate",
    "fast_tokens",
    "pack",
    "product",
    "quantize_activations",
    "round_rows",
    "save_packed",
    "unpack",
    "unpack_model",
    "why_not",
]
