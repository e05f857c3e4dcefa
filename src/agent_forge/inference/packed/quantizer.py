"""How transformers learns to load packed models: a quantisation config and a quantizer, registered
on import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.inference.packed.layout import PackedShape
from agent_forge.inference.packed.model import refuse_newer
from agent_forge.inference.packed.modules import PackedEmbedding, PackedHead, PackedLinear
from agent_forge.inference.packed.network import FORMAT, METHOD
from agent_forge.inference.safetensors_file import check_files


class PackedConfig(QuantizationConfigMixin):
    """What config.json says about a packed model.

    `matrices` and `embeddings` name each packed module and its layout: {"kind", "rows", "columns",
    "group", "scales" ("float32" or "float16")}, for matrices also "bias" and "sub_norm". `heads`
    names the heads that share an embedding's table. `files` has the SHA-256 of each file of
    weights.
    """

    def __init__(
        self,
        matrices: Mapping[str, Mapping[str, Any]] | None = None,
        embeddings: Mapping[str, Mapping[str, Any]] | None = None,
        heads: Mapping[str, str] | None = None,
        activations: str | None = "int8",
        head_activations: str | None = "int8",
        files: Mapping[str, str] | None = None,
        format: int = FORMAT,
        quant_method: str = METHOD,
        **_: Any,
    ) -> None:
        refuse_newer(format)
        self.quant_method: Any = quant_method
        self.format = format
        self.matrices, self.embeddings, self.heads = dict(matrices or {}), dict(embeddings or {}), dict(heads or {})
        self.activations, self.head_activations = activations, head_activations
        self.files = dict(files or {})


class PackedQuantizer(HfQuantizer):
    """Puts packed layers in place before the weights are read, and plain ones in their place on
    `dequantize()`."""

    requires_calibration = True
    quantization_config: Any

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        check_files(kwargs.get("checkpoint_files") or (), self.quantization_config.files)
        try:
            put_packed(model, self.quantization_config)
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"the packed layers of config.json do not fit the model: {error!r}", fix="The folder is damaged"
            ) from error
        return model

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        return put_dense(model, dtype)


def put_packed(model: Any, config: PackedConfig) -> None:
    """Replaces modules by empty packed ones, as `config` says."""
    head = model.get_output_embeddings()
    for name, entry in config.matrices.items():
        is_head = head is not None and model.get_submodule(name) is head
        activations = config.head_activations if is_head else config.activations
        layer = PackedLinear(*_layout(entry), bool(entry.get("bias")), activations, bool(entry.get("sub_norm")))
        put(model, name, layer)
    for name, entry in config.embeddings.items():
        put(model, name, PackedEmbedding(*_layout(entry)))
    for name, source in config.heads.items():
        bias = getattr(model.get_submodule(name), "bias", None) is not None
        put(model, name, PackedHead(model.get_submodule(source), bias, config.head_activations))
    if config.heads:
        untie(model)


def _layout(entry: Mapping[str, Any]) -> tuple[PackedShape, torch.dtype]:
    types = {"float32": torch.float32, "float16": torch.float16}
    return PackedShape(entry["kind"], entry["rows"], entry["columns"], entry["group"]), types[entry["scales"]]


def untie(model: Any) -> None:
    """Tied weights are one table now: there is nothing left for transformers to tie."""
    for module in model.modules():
        if isinstance(getattr(module, "all_tied_weights_keys", None), dict):
            module.all_tied_weights_keys = {}
        if getattr(module, "_tied_weights_keys", None):
            module._tied_weights_keys = {}


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def put_dense(model: Any, dtype: torch.dtype | None = None) -> Any:
    """Replaces the packed layers by plain ones with the de-quantised weights, tied as the
    architecture ties them.

    Raises UsageError for layers with a sub-norm, which plain layers do not have.
    """
    refuse_sub_norms(model)
    dtype = dtype or torch.float32
    modules = dict(model.named_modules())
    tables: dict[int, nn.Parameter] = {}
    for name, module in modules.items():
        if isinstance(module, PackedLinear):
            put(model, name, _plain_linear(module, nn.Parameter(module.weight.to(dtype)), dtype))
        elif isinstance(module, PackedEmbedding):
            table = nn.Embedding(module.num_embeddings, module.embedding_dim, device="meta")
            table.weight = tables[id(module)] = nn.Parameter(module.weight.to(dtype))
            put(model, name, table)
    for name, module in modules.items():
        if isinstance(module, PackedHead):
            put(model, name, _plain_linear(module, tables[id(module.table)], dtype))
    for module in model.modules():
        if "_tied_weights_keys" in vars(module):
            del module._tied_weights_keys
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)
    return model.to(dtype)


def refuse_sub_norms(model: nn.Module) -> None:
    """Raises UsageError for a model whose packed layers have a sub-norm: without it, it would be
    another model."""
    for name, module in model.named_modules():
        if isinstance(module, PackedLinear) and module.sub_norm:
            raise UsageError("a layer with a sub-norm has no plain form", where=name, fix="Keep it packed")


def _plain_linear(module: Any, weight: nn.Parameter, dtype: torch.dtype) -> nn.Linear:
    plain = nn.Linear(module.in_features, module.out_features, module.bias is not None, device="meta")
    plain.weight = weight
    if module.bias is not None:
        plain.bias = nn.Parameter(module.bias.detach().to(dtype))
    return plain


if METHOD not in AUTO_QUANTIZER_MAPPING:
    register_quantization_config(METHOD)(PackedConfig)
    register_quantizer(METHOD)(PackedQuantizer)
