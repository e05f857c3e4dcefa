"""Models whose weights stay packed, five trits per byte, two or four bits, or bytes, with products
that read them so.

Importing this package registers the format with transformers:
`AutoModelForCausalLM.from_pretrained` loads what `save_packed` wrote.
"""

from __future__ import annotations

from agent_forge.inference.packed.compiled import why_not
from agent_forge.inference.packed.decoder import Decoder, DecoderBatch, fast_generate, fast_tokens
from agent_forge.inference.packed.folder import round_rows, save_packed, unpack_model
from agent_forge.inference.packed.modules import PackedEmbedding, PackedHead, PackedLinear
from agent_forge.inference.packed.products import PackedMatrix, product, quantize_activations
from agent_forge.inference.packed.quantizer import PackedConfig, PackedQuantizer
from agent_forge.inference.packed.trits import PackedShape, TernaryWeight, pack, unpack

__all__ = [
    "Decoder",
    "DecoderBatch",
    "PackedConfig",
    "PackedEmbedding",
    "PackedHead",
    "PackedLinear",
    "PackedMatrix",
    "PackedQuantizer",
    "PackedShape",
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
