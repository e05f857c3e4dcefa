"""The quantizer that lets `AutoModelForCausalLM.from_pretrained` read a folder that `compress` wrote.

`model.safetensors` holds one container (bytes) under the name of each weight. transformers loads
those as if they were the weights; afterwards each is decoded, to the type that was asked for.
Importing this module registers the quantizer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from agent_forge.errors import CheckpointError
from agent_forge.forge.compression import packed_tokenizer  # noqa: F401 (registers it)

METHOD = "agent_forge_codecs"


class CodecsConfig(QuantizationConfigMixin):
    """The entry in `config.json`. Everything that decoding needs is in the containers."""

    def __init__(self, format: int = 1, **kwargs: Any) -> None:
        self.quant_method: Any = METHOD
        self.format = format

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": METHOD, "format": self.format}


class CodecsQuantizer(HfQuantizer):
    """Decodes the containers once, while loading: the model is then a plain one."""

    requires_calibration = True  # only what `agent-forge compress` wrote can be loaded

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        self.expected = {name: (tensor.dtype, tensor.shape) for name, tensor in model.state_dict().items()}

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        from agent_forge.forge.compression.codecs import decode
        from agent_forge.forge.compression.container import unpack

        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name not in self.expected:  # computed, not stored: the frequencies of rotary positions, say
                continue
            dtype, shape = self.expected[name]
            if tensor.dtype == torch.uint8 and dtype.is_floating_point:
                decoded = decode(unpack(tensor.data.cpu().numpy().tobytes(), where=name))
                if decoded.shape != shape:
                    raise CheckpointError(f"it is {tuple(decoded.shape)} and should be {tuple(shape)}", where=name)
                tensor.data = decoded.to(tensor.device, dtype)
                tensor.requires_grad_(isinstance(tensor, nn.Parameter))
            elif isinstance(tensor, nn.Parameter) and dtype.is_floating_point:
                # a name that was changed: transformers would only warn, and leave the weight at its
                # random values
                raise CheckpointError("the weight is not in the file", where=name)
        return model

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        """The weights are plain ones since they were loaded."""
        return model if dtype is None else model.to(dtype)

    @property
    def is_trainable(self) -> bool:
        return True

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        return False


AUTO_QUANTIZATION_CONFIG_MAPPING.setdefault(METHOD, CodecsConfig)
AUTO_QUANTIZER_MAPPING.setdefault(METHOD, CodecsQuantizer)
