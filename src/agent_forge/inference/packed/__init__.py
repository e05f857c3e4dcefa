"""Models whose weights stay packed: five trits per byte, two or four bits, or bytes, with products that read them so.

`PackedModel` runs a folder without torch. With torch, `save_packed` writes one, and importing `agent_forge.forge`
registers the format with transformers: `AutoModelForCausalLM.from_pretrained` loads it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach

if TYPE_CHECKING:
    from agent_forge.inference.decoding import fast_generate, fast_tokens
    from agent_forge.inference.packed.folder import round_rows, save_packed, unpack_model
    from agent_forge.inference.packed.history import History
    from agent_forge.inference.packed.layout import PackedShape
    from agent_forge.inference.packed.model import DecoderBatch, PackedModel
    from agent_forge.inference.packed.modules import PackedEmbedding, PackedHead, PackedLinear
    from agent_forge.inference.packed.products import PackedMatrix, product, quantize_activations
    from agent_forge.inference.packed.quantizer import PackedConfig, PackedQuantizer
    from agent_forge.inference.packed.torch_model import from_torch, why_not
    from agent_forge.inference.packed.trits import TernaryWeight, pack, unpack

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "agent_forge.inference.decoding": "fast_generate fast_tokens",
        "folder": "round_rows save_packed unpack_model",
        "history": "History",
        "layout": "PackedShape",
        "model": "DecoderBatch PackedModel",
        "modules": "PackedEmbedding PackedHead PackedLinear",
        "products": "PackedMatrix product quantize_activations",
        "quantizer": "PackedConfig PackedQuantizer",
        "torch_model": "from_torch why_not",
        "trits": "TernaryWeight pack unpack",
    },
)
