"""From a recipe and the headers of its models to the output tensors: what each is merged from, and how.

Only headers are read, and what does not fit is refused: a tensor that one of the models lacks, different shapes,
missing layers, missing parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_forge.errors import CheckpointError, ConfigError
from agent_forge.forge.merging.recipe import DTYPES, InputModel, Recipe, Slice
from agent_forge.forge.merging.settings import METHODS, Values, resolve
from agent_forge.forge.merging.sources import FLOATS, Spec, TensorSource

LAYER = re.compile(r"(?P<before>(?:^|.*?\.)(?:layers|h|blocks|block)\.)(?P<number>\d+)(?P<after>\..+)", re.DOTALL)
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
HEADS = ("lm_head.weight", "lm_head.bias", "embed_out.weight")
# the weights that write to the residual stream: what a scale at a joint changes
RESIDUAL_WRITERS = ("o_proj", "down_proj", "c_proj", "dense_4h_to_h", "out_proj", "fc2", "w2", "attention.dense")
POST_NORMS = ("post_feedforward_layernorm", "post_mlp_layernorm", "post_self_attn_layernorm")
# stored by old checkpoints, computed by newer models: left out where a model lacks it
BUFFERS = (".rotary_emb.inv_freq", ".attn.masked_bias", ".attn.bias")
PROMOTED = {frozenset(("F16", "BF16")): "F32"}


@dataclass(frozen=True)
class Piece:
    """An input: a tensor of a model, with its own parameters."""

    model: str
    tensor: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """An output tensor: its name and spec, what it is merged from, and how."""

    name: str
    spec: Spec
    method: str
    pieces: tuple[Piece, ...]
    base: int | None = None  # which piece is the base
    values: Mapping[str, Any] = field(default_factory=dict)  # the shared parameters
    vocabulary: bool = False  # its rows are tokens, which are mapped first if the recipe says so


@dataclass(frozen=True)
class Layout:
    """All outputs, in order, and the config.json of the result."""

    outputs: tuple[Output, ...]
    config: Mapping[str, Any]
    donor: str  # the model that gives config.json and tokenizer

    @property
    def parameters(self) -> int:
        return sum(output.spec.elements for output in self.outputs)


def lay_out(recipe: Recipe, models: Mapping[str, TensorSource], rows: int | None = None) -> Layout:
    """Lays out one stage. `rows` is the size of the output's vocabulary where tokens are mapped.

    Raises CheckpointError or ConfigError, naming the tensor that does not fit.
    """
    donor = recipe.base_model or recipe.references()[0]
    slices = list(_as_slices(recipe, models))
    builder = _LayoutBuilder(recipe, models, rows)
    outputs: list[Output] = []
    places: list[tuple[str, int]] = []  # of each output layer: the first model and layer that it is made from
    outputs += builder.outside(slices[0], "before")
    for part in slices:
        start, end = part.sources[0].layer_range or (0, 0)
        count = end - start
        for index in range(count):
            t = index / (count - 1) if count > 1 else 1.0
            outputs += builder.layer(part, index, len(places), t)
            places.append((part.sources[0].model, start + index))
    outputs += builder.outside(slices[-1], "after")
    config = _config(recipe, models, donor, outputs, places, rows)
    return Layout(tuple(outputs), config, donor)


def _as_slices(recipe: Recipe, models: Mapping[str, TensorSource]) -> Iterator[Slice]:
    if recipe.path:
        for joint in recipe.path:
            yield Slice((InputModel(joint.model, (joint.layer, joint.layer + 1)),))
        return
    if recipe.slices:
        yield from recipe.slices
        return
    sources = list(recipe.models)
    if recipe.base_model is not None and recipe.base_model not in [source.model for source in sources]:
        sources.append(InputModel(recipe.base_model))
    depths = {source.model: depth_of(models[source.model]) for source in sources}
    if len(set(depths.values())) > 1:
        listed = ", ".join(f"{model} {depth}" for model, depth in depths.items())
        raise CheckpointError(f"the models have different numbers of layers: {listed}", fix="Use `slices` to choose")
    yield Slice(tuple(InputModel(s.model, (0, depths[s.model]), s.parameters) for s in sources))


def depth_of(model: TensorSource) -> int:
    """The number of layers, from the names of the tensors."""
    numbers = {int(match["number"]) for name in model.tensors if (match := LAYER.fullmatch(name))}
    if numbers != set(range(len(numbers))):
        missing = min(set(range(max(numbers) + 1)) - numbers)
        raise CheckpointError(f"the tensors of layer {missing} are missing", where=model.name)
    return len(numbers)


def _start(source: InputModel) -> int:
    return source.layer_range[0] if source.layer_range else 0


@dataclass
class _LayoutBuilder:
    recipe: Recipe
    models: Mapping[str, TensorSource]
    rows: int | None

    def layer(self, part: Slice, index: int, number: int, t: float) -> list[Output]:
        """The tensors of output layer `number`: layer `index` of the range of each source."""
        parts: dict[tuple[str, str], None] = {}
        for source in part.sources:
            parts |= dict.fromkeys(self._parts(source, _start(source) + index))
        outputs = []
        for before, after in parts:
            names = [f"{before}{_start(source) + index}{after}" for source in part.sources]
            pairs = zip(part.sources, names, strict=True)
            if after.endswith(BUFFERS) and any(name not in self.models[s.model].tensors for s, name in pairs):
                continue
            outputs.append(self._output(f"{before}{number}{after}", part, names, t, self._scale(number, after)))
        return outputs

    def _parts(self, source: InputModel, layer: int) -> list[tuple[str, str]]:
        """What precedes and follows the number in the names of a layer's tensors, in the order of the file."""
        matches = filter(None, map(LAYER.fullmatch, self.models[source.model].tensors))
        parts = [(match["before"], match["after"]) for match in matches if int(match["number"]) == layer]
        stacks = {before for before, _ in parts}
        if len(stacks) > 1 and (self.recipe.slices or self.recipe.path):
            raise CheckpointError(
                f"it has several stacks of layers ({', '.join(sorted(stacks))}), which only `models` can merge",
                where=source.model,
            )
        if not parts:
            raise CheckpointError(f"there is no layer {layer}", where=source.model)
        return parts

    def _scale(self, number: int, after: str) -> float | None:
        """What a tensor is multiplied by so that the state enters the layers of a path scaled; None for 1.

        With C the product of the scales so far, the scaled state is h = C g, and the norm before a layer gives the same
        for h and g. So the layer adds f(h) / C to g: the weights that write to the residual stream are divided by C,
        and the norm before the head removes what remains.
        """
        if not self.recipe.path:
            return None
        if any(norm in after for norm in POST_NORMS):
            raise CheckpointError(
                f"dfs cannot scale a layer with {after.strip('.')}: it normalises what it adds",
                fix="Use passthrough with slices",
            )
        total = 1.0
        for joint in self.recipe.path[: number + 1]:
            total *= joint.scale
        writes = any(f".{writer}." in after for writer in RESIDUAL_WRITERS)
        return 1.0 / total if writes and total != 1.0 else None

    def outside(self, part: Slice, where: str) -> list[Output]:
        """The tensors outside the layers: before them (embeddings) or after them (norm, head)."""
        sources = part.sources
        if self.recipe.path:
            sources = (InputModel(self.recipe.base_model or self.recipe.references()[0]),)
            part = Slice(sources)
        names: dict[str, None] = {}
        for source in sources:
            for name in self.models[source.model].tensors:
                if not LAYER.fullmatch(name) and (_is_before(name) == (where == "before")):
                    names[name] = None
        return [self._output(name, part, [name] * len(sources), 0.0) for name in names]

    def _output(self, name: str, part: Slice, names: list[str], t: float, scale: float | None = None) -> Output:
        recipe, base = self.recipe, part.base_model or self.recipe.base_model
        inputs = [
            (source, self._present(source.model, own, name)) for source, own in zip(part.sources, names, strict=True)
        ]
        vocabulary = name.endswith((*EMBEDDINGS, *HEADS))
        spec = self._spec(name, inputs, vocabulary)
        method = "passthrough" if recipe.merge_method == "dfs" else recipe.merge_method
        order = [source.model for source, _ in inputs]
        at = order.index(base) if base in order and METHODS[method].base != "ignored" else None
        if spec.dtype not in FLOATS:
            pieces = tuple(Piece(source.model, own) for source, own in inputs)
            return Output(name, spec, "equal", pieces)
        general = (part.parameters, recipe.parameters)
        shared = self._values(method, "shared", general, name, t)
        pieces = tuple(
            Piece(source.model, own, self._of_input(method, source, own, general, t, i == at))
            for i, (source, own) in enumerate(inputs)
        )
        if scale is not None:
            pieces = (Piece(pieces[0].model, pieces[0].tensor, {"scale": scale}),)
        return Output(name, spec, method, pieces, at, shared, vocabulary)

    def _of_input(
        self, method: str, source: InputModel, own: str, general: tuple[Values, ...], t: float, is_base: bool
    ) -> dict[str, Any]:
        scopes = (source.parameters, *general)
        values = self._values(method, "input", scopes, own, t, source.model)
        return values if is_base else values | self._values(method, "non_base", scopes, own, t, source.model)

    def _values(
        self, method: str, scope: str, scopes: tuple[Values, ...], tensor: str, t: float, model: str = ""
    ) -> dict[str, Any]:
        parameters = METHODS[method].parameters.items()
        names = [name for name, parameter in parameters if parameter.scope == scope]
        return {name: resolve(method, name, scopes, tensor, t, model) for name in names}

    def _present(self, model: str, own: str, name: str) -> str:
        """The name of a tensor in a model; a tied head is the embedding."""
        tensors = self.models[model].tensors
        if own in tensors:
            return own
        if name.endswith("lm_head.weight"):
            tied = next((other for other in tensors if other.endswith(EMBEDDINGS)), None)
            if tied is not None:
                return tied
        raise CheckpointError(f"the tensor {own} is missing, which another model has", where=model)

    def _spec(self, name: str, inputs: list[tuple[InputModel, str]], vocabulary: bool) -> Spec:
        specs = [self.models[source.model].tensors[own] for source, own in inputs]
        mapped = vocabulary and self.rows is not None
        first = specs[0]
        for (source, _), spec in zip(inputs, specs, strict=True):
            if spec.shape[mapped:] != first.shape[mapped:] or (mapped and len(spec.shape) != len(first.shape)):
                raise CheckpointError(
                    f"{name} has shape {list(spec.shape)}, but {list(first.shape)} in {inputs[0][0].model}",
                    where=source.model,
                    fix="Set `tokenizer_source: union` to map tokens by name" if vocabulary else None,
                )
        shape = (self.rows, *first.shape[1:]) if mapped and self.rows is not None else first.shape
        if any(spec.dtype not in FLOATS for spec in specs):
            if len({spec.dtype for spec in specs}) > 1:
                raise CheckpointError(
                    f"{name} has type {specs[-1].dtype}, but {first.dtype} elsewhere", where=inputs[-1][0].model
                )
            return Spec(first.dtype, shape)
        dtype = self.recipe.out_dtype or self.recipe.dtype
        return Spec(DTYPES[dtype] if dtype else promoted([spec.dtype for spec in specs]), shape)


def promoted(dtypes: list[str]) -> str:
    """The type that holds all of them."""
    result = dtypes[0]
    for dtype in dtypes[1:]:
        if dtype != result:
            widest = min(result, dtype, key=FLOATS.index)
            result = PROMOTED.get(frozenset((result, dtype)), widest)
    return result


def _is_before(name: str) -> bool:
    return "embed" in name.rpartition("embed_out")[2] or any(part in name for part in ("wte.", "wpe."))


# --- config.json -----------------------------------------------------------------------------------------------------

TORCH_DTYPES = {code: name for name, code in DTYPES.items()}


def _config(
    recipe: Recipe,
    models: Mapping[str, TensorSource],
    donor: str,
    outputs: list[Output],
    places: list[tuple[str, int]],
    rows: int | None,
) -> dict[str, Any]:
    """The donor's config.json with what the merge changes: depth, lists by layer, vocabulary, dtype."""
    config = dict(models[donor].config)
    depth = config.get("num_hidden_layers", config.get("n_layer"))
    for key in ("num_hidden_layers", "n_layer"):
        if key in config:
            config[key] = len(places)
    for key, value in models[donor].config.items():
        if isinstance(value, list) and len(value) == depth and key.startswith(("layer_", "mlp_layer_", "attention_t")):
            config[key] = [_layer_list(models[model], key)[layer] for model, layer in places]
    if "memory_layers" in config:  # Cognate: the layers with a memory
        has = [layer in models[model].config.get("memory_layers", []) for model, layer in places]
        config["memory_layers"] = [number for number, memory in enumerate(has) if memory]
    if rows is not None:
        config["vocab_size"] = rows
    if any(output.name.endswith("lm_head.weight") for output in outputs) and config.get("tie_word_embeddings"):
        config["tie_word_embeddings"] = False
    dtypes = [output.spec.dtype for output in outputs if output.spec.dtype in FLOATS]
    if dtypes:
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = TORCH_DTYPES[max(set(dtypes), key=dtypes.count)]
    return config


def _layer_list(model: TensorSource, key: str) -> list[Any]:
    values = model.config.get(key)
    if not isinstance(values, list):
        raise ConfigError(f"its config.json has no list {key}", where=model.name)
    return values
