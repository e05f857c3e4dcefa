"""A torch model, packed or plain, as a PackedModel that runs from the tensors' own memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.errors import UsageError
from agent_forge.inference.packed.model import PackedModel, gathered
from agent_forge.inference.packed.modules import FLOAT_OF, PackedEmbedding, PackedHead, PackedLinear, PackedTable
from agent_forge.inference.packed.network import network_of, why_no_network


def from_torch(model: Any) -> PackedModel:
    """The model as the compiled decoder runs it. Raises UsageError for one that cannot be (see `why_not`).

    Packed weights move into one piece of memory, which both share from then on; nothing is held twice.
    """
    reason = why_not(model)
    if reason is None:
        packed = _shared(model)
        reason = packed.why_plain
    if reason is not None:
        raise UsageError(f"the compiled decoder does not run this model: {reason}", fix="Use model.generate()")
    return packed


def why_not(model: Any) -> str | None:
    """Why a torch model does not run as a packed one, or None if it does."""
    from agent_forge.inference.packed import kernels

    if kernels.decoder() is None:
        return "there is no C compiler here"
    if (reason := why_no_network(_config(model))) is not None:
        return reason
    for name, module in model.named_modules():
        if getattr(module, "activations", "int8") != "int8" or getattr(module, "sub_norm", False):
            return f"{name} does not round its input, or has a sub-norm"
        if isinstance(module, nn.Linear | nn.Embedding | PackedTable):
            weight = module.packed if isinstance(module, PackedTable) else module.weight
            if weight.device.type != "cpu":
                return "its weights are not in main memory"
    return None


def is_plain_llama(model: Any) -> bool:
    """Whether this is the Llama of transformers in float32, layer by layer: an adapter, a layer that was replaced or a
    hook is something that the compiled decoder would leave out."""
    known = ("torch.nn.modules.", "transformers.models.llama.", "transformers.activations")
    return (
        type(model).__name__ == "LlamaForCausalLM"
        and all(weight.dtype == torch.float32 for weight in model.parameters())
        and not any(
            module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
            for module in model.modules()
        )
        and all(type(module).__module__.startswith(known) for module in model.modules())
    )


def _shared(model: Any) -> PackedModel:
    modules = dict(model.named_modules())
    names = {id(module): name for name, module in modules.items()}
    entries = {name: _entry(module) for name, module in modules.items() if isinstance(module, PackedTable)}
    packing = {
        "matrices": {name: entry for name, entry in entries.items() if isinstance(modules[name], PackedLinear)},
        "embeddings": {name: entry for name, entry in entries.items() if isinstance(modules[name], PackedEmbedding)},
        "heads": {name: names[id(head.table)] for name, head in modules.items() if isinstance(head, PackedHead)},
    }
    arrays = gathered({name: _array(tensor) for name, tensor in model.state_dict().items()})
    for name in entries:
        modules[name].packed = torch.from_numpy(arrays[f"{name}.packed"])
    config = {**_config(model), "quantization_config": packing}
    return PackedModel(network_of(config, arrays), config)


def _config(model: Any) -> dict[str, Any]:
    return {**model.config.to_dict(), "model_type": model.config.model_type}


def _entry(table: PackedTable) -> dict[str, Any]:
    shape = table.shape
    scales = str(FLOAT_OF[table.scales.dtype]).removeprefix("torch.")
    return {"kind": shape.kind, "rows": shape.rows, "columns": shape.columns, "group": shape.group, "scales": scales}


def _array(tensor: Tensor) -> Any:
    """A view of the tensor, or its values in float32 where numpy does not have the type."""
    tensor = tensor.detach().contiguous()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
