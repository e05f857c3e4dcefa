"""The settings of a merge, and its methods as data: what each requires, its parameters, and their value per tensor.

Names, scopes and defaults of the parameters are mergekit 0.1.5's. Three are ours: `rescale_by` and `trim` select the
paper's form where mergekit departs from it, and `seed` makes random masks repeatable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.corpus import Source

Values = Mapping[str, Any]  # parameters by name, as a recipe gives them
MISSING = object()


@dataclass(frozen=True)
class MergeSettings:
    """What is merged (mergekit's configuration, as a mapping), how it is written, and what it is judged on."""

    threads: int | None = option(None, help="Tensors to merge at once (default: one per core)", at_least=1, at_most=256)
    shard_gb: float = option(5.0, help="Size limit per weight file, in GB", above=0)
    resume: bool = option(
        True, help="Continue a killed run of the same merge (default), or start over", flag="--continue/--fresh"
    )
    sync: bool = option(True, help="Wait until the bytes are on disk (default), or not")
    recipe: Any = option(
        None, help="mergekit's configuration, or a list of stages; `input1`, `input2` … are the models of the call"
    )
    sources: dict[str, Source] = option({}, help="Text to judge the merge on, against its best input")
    held_out: float | None = option(
        None,
        help="Share of the documents to judge on (default: 0.05, or less where a model was trained with less)",
        above=0,
        at_most=0.5,
    )
    length: int = option(512, help="Tokens per row when judging", at_least=8)


@dataclass(frozen=True)
class Parameter:
    """A parameter. Its scope is `shared` (one value per tensor), `input` (one per input) or `non_base` (no base)."""

    scope: str
    kind: Any  # float, bool, int, or a tuple of words
    default: Any = MISSING


@dataclass(frozen=True)
class Method:
    """What a method requires. `base` is required, optional or ignored; counts of inputs include the base."""

    parameters: Mapping[str, Parameter]
    base: str = "ignored"
    least: int = 1
    most: int | None = None
    non_base: int | None = None  # exact number of inputs besides the base
    elect: bool = False  # TIES' election of signs
    sparsify: str | None = None  # how task vectors are sparsified

    def count_fault(self, inputs: int, with_base: bool) -> str | None:
        """What is wrong with this number of inputs, or None."""
        if self.non_base is not None and inputs - with_base != self.non_base:
            return f"takes {self.non_base} models besides the base, not {inputs - with_base}"
        if inputs < self.least:
            return f"takes at least {self.least} models including the base, not {inputs}"
        if self.most is not None and inputs > self.most:
            return f"takes at most {self.most} models, not {inputs}"
        return None


def _task_arithmetic(elect: bool, sparsify: str | None, normalize: bool, rescale: bool, **more: float) -> Method:
    parameters = {
        "normalize": Parameter("shared", bool, normalize),
        "rescale": Parameter("shared", bool, rescale),
        "lambda": Parameter("shared", float, 1.0),
        "int8_mask": Parameter("shared", bool, False),
        "weight": Parameter("non_base", float),
        "density": Parameter("non_base", float, 1.0),
        "rescale_by": Parameter("shared", ("norm", "probability"), "norm"),
        "trim": Parameter("shared", ("tensor", "model"), "tensor"),
        "seed": Parameter("shared", int, 0),
    }
    parameters |= {name: Parameter("non_base", float, default) for name, default in more.items()}
    return Method(parameters, base="required", elect=elect, sparsify=sparsify)


METHODS: dict[str, Method] = {
    "linear": Method({"weight": Parameter("input", float), "normalize": Parameter("shared", bool, True)}),
    "slerp": Method({"t": Parameter("shared", float)}, base="required", least=2, most=2),
    "nuslerp": Method(
        {
            "weight": Parameter("non_base", float),
            "nuslerp_row_wise": Parameter("shared", bool, False),
            "nuslerp_flatten": Parameter("shared", bool, True),
        },
        base="optional",
        non_base=2,
    ),
    "multislerp": Method(
        {
            "weight": Parameter("non_base", float),
            "normalize_weights": Parameter("shared", bool, True),
            "eps": Parameter("shared", float, 1e-8),
        },
        base="optional",
    ),
    "task_arithmetic": _task_arithmetic(False, None, normalize=False, rescale=False),
    "ties": _task_arithmetic(True, "magnitude", normalize=True, rescale=False),
    "dare_ties": _task_arithmetic(True, "random", normalize=False, rescale=True),
    "dare_linear": _task_arithmetic(False, "random", normalize=False, rescale=True),
    "della": _task_arithmetic(True, "ranked", normalize=True, rescale=True, epsilon=0.15),
    "della_linear": _task_arithmetic(False, "ranked", normalize=False, rescale=True, epsilon=0.15),
    "breadcrumbs": _task_arithmetic(False, "band", normalize=False, rescale=False, gamma=0.01),
    "breadcrumbs_ties": _task_arithmetic(True, "band", normalize=False, rescale=False, gamma=0.01),
    "model_stock": Method({"filter_wise": Parameter("shared", bool, False)}, base="required", least=3),
    "sce": Method(
        {"select_topk": Parameter("shared", float, 1.0), "int8_mask": Parameter("shared", bool, False)},
        base="required",
    ),
    "passthrough": Method({"scale": Parameter("input", float, None)}, most=1),
    "dfs": Method({}),
}

# As in mergekit, a parameter of any method is accepted everywhere; where a method does not have it, it has no effect.
PARAMETERS: dict[str, Parameter] = {
    name: parameter for method in METHODS.values() for name, parameter in method.parameters.items()
}


def check_setting(name: str, setting: Any, where: str) -> Any:
    """Checks a parameter: a scalar, a gradient [a, b, …], or {filter, value}s; returns it plain. Raises ConfigError."""
    if isinstance(setting, Mapping):
        return [_conditional(name, setting, where)]
    if isinstance(setting, (list, tuple)):
        if not setting:
            raise ConfigError("the list is empty", where=where)
        if all(isinstance(item, Mapping) for item in setting):
            return [_conditional(name, item, where) for item in setting]
        return [_value(name, item, where) for item in setting]
    return _value(name, setting, where)


def _conditional(name: str, item: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not set(item) <= {"filter", "value"} or "value" not in item:
        raise ConfigError(f"a condition must be {{filter: …, value: …}}, not {dict(item)!r}", where=where)
    if isinstance(item["value"], Mapping):
        raise ConfigError("the value of a condition must be a number or a list of numbers", where=where)
    value = check_setting(name, item["value"], where)
    if item.get("filter") is None:
        return {"value": value}
    return {"filter": str(item["filter"]), "value": value}


def _value(name: str, value: Any, where: str) -> Any:
    kind = PARAMETERS[name].kind
    if kind is bool and isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    if isinstance(kind, tuple) and value in kind:
        return value
    if kind in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)  # YAML reads 1e-3 as text
        except (TypeError, ValueError):
            number = float("nan")
        if number - number == 0 and (kind is float or number == int(number)):  # finite
            return kind(number)
    expected = f"one of {', '.join(kind)}" if isinstance(kind, tuple) else f"a {kind.__name__}"
    raise ConfigError(f"{value!r} is not {expected}", where=where)


def evaluate(setting: Any, tensor: str, t: float) -> Any:
    """The value of a parameter for a tensor whose layer has the relative depth `t`; None where no filter matches.

    >>> evaluate([0, 1], "model.layers.3.mlp.up_proj.weight", 0.25)
    0.25
    >>> evaluate([{"filter": "mlp", "value": 0.5}, {"value": 1.0}], "model.layers.3.self_attn.q_proj.weight", 0)
    1.0
    """
    if not isinstance(setting, list):
        return setting
    if isinstance(setting[0], dict):
        matches = (c for c in setting if c.get("filter") in (None, "*") or c["filter"] in tensor)
        first = next(matches, None)
        return None if first is None else evaluate(first["value"], tensor, t)
    place = t * (len(setting) - 1)
    below = int(place)
    if isinstance(setting[0], (bool, str)):
        return setting[below]
    above = min(len(setting) - 1, below + 1)
    return (1 - (place - below)) * setting[below] + (place - below) * setting[above]


def resolve(method: str, name: str, scopes: Iterable[Values], tensor: str, t: float, model: str = "") -> Any:
    """The value of the most specific scope that has one for this tensor. `scopes` go from specific to general."""
    parameter = METHODS[method].parameters[name]
    for scope in scopes:
        if name in scope:
            value = evaluate(scope[name], tensor, t)
            if value is not None:
                return parameter.kind(value) if parameter.kind in (int, float) else value
    if parameter.default is MISSING:
        raise ConfigError(f"{method} requires the parameter {name!r}", where=" ".join(filter(None, (model, tensor))))
    return parameter.default
