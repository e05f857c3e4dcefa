"""Phase 8: models in fewer bytes, with the quality of what is left measured.

    from agent_forge.forge.compression import CompressSettings, compress, prepare_text

`codecs` are the ways to store one matrix, `search` chooses one for each. Nothing is imported here
before it is used: loading a compressed model needs little of it.
"""

from __future__ import annotations

from agent_forge.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "allocation": "Option allocate",
        "codecs": "CODECS decode encode",
        "container": "Encoded pack unpack",
        "feedback": "Cost distortion",
        "search": "CompressionReport compress",
        "settings": "CompressSettings usual_effort",
        "student": "compress_student",
        "text": "Text mixed prepare_text",
    },
)
