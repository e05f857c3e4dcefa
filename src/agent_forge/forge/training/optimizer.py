"""MuGrokfast: Muon for the matrices inside the network, AdamW for the rest, and Grokfast's filter in front of both."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from agent_forge.config import build
from agent_forge.forge.training.muon import muon_step
from agent_forge.forge.training.settings import OptimizerSettings, optimizer_settings

SMALLEST_MATRIX = 16  # a thinner matrix is a handful of gates: orthogonalising it says nothing
ADAPTER = re.compile(r"(^|\.)lora_[AB]\b")  # thin as its rank is, and a matrix all the same
MUON = ("momentum", "nesterov", "ns_steps", "adjust_lr")


class MuGrokfast(torch.optim.Optimizer):
    """Muon + AdamW + Grokfast. Every parameter is in exactly one of three groups:

    | group | what | rule |
    |---|---|---|
    | `matrix` | 2-D weights inside the network, an adapter's at any rank | Muon, `lr` (or `matrix_rule="adamw"`) |
    | `embedding` | embeddings and the head | AdamW, `embedding_lr` |
    | `scalar` | gains, biases, gates thinner than 16 | AdamW, `scalar_lr` |

    `settings` are fields of OptimizerSettings. `grokfast` is the signed coefficient of the slow part of the gradient,
    g + grokfast * EMA(g) (2405.20233, with `grokfast_decay` the EMA's): see docs/training.md for the ablation.
    `ns_dtype` is the type of the Newton-Schulz iterations, `head` the output layer of a model that does not name it.

    A schedule sets `group["lr"]`, which is what the step reads; `group["initial_lr"]` keeps the full value.

    >>> model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 64), nn.Linear(64, 50))
    >>> optimizer = MuGrokfast(model, head=model[2], lr=0.01)
    >>> [(group["kind"], len(group["params"])) for group in optimizer.param_groups]
    [('matrix', 1), ('embedding', 2), ('scalar', 2)]
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        head: nn.Module | None = None,
        ns_dtype: torch.dtype | None = None,
        **settings: Any,
    ) -> None:
        chosen = asdict(build(OptimizerSettings, settings, "MuGrokfast"))
        self.ns_dtype = ns_dtype
        adam = {"betas": chosen["betas"], "eps": chosen["eps"]}
        adamw_group = {**adam, "rule": "adamw", "weight_decay": chosen["adam_weight_decay"]}
        muon = {name: chosen[name] for name in MUON}
        of_kind: dict[str, dict[str, Any]] = {
            "matrix": {
                **adam,
                **muon,
                "rule": chosen["matrix_rule"],
                "lr": chosen["lr"],
                "weight_decay": chosen["weight_decay"],
            },
            "embedding": {**adamw_group, "lr": chosen["embedding_lr"]},
            "scalar": {**adamw_group, "lr": chosen["scalar_lr"]},
        }
        blocks = _row_blocks(model)
        groups = []
        for kind, named in route(model, head).items():
            group = {"kind": kind, "params": [p for _, p in named], "names": [name for name, _ in named]}
            group.update(of_kind[kind], initial_lr=of_kind[kind]["lr"])
            if kind == "matrix":
                group["row_blocks"] = [blocks.get(id(p), (p.shape[0],)) for _, p in named]
            if named:
                groups.append(group)
        # `fused` makes load_state_dict put the step counts beside their parameters, for the fused kernel.
        filters = {name: chosen[name] for name in ("grokfast", "grokfast_decay")}
        super().__init__(groups, {"lr": chosen["lr"], **filters, "fused": True})

    @classmethod
    def for_phase(cls, model: nn.Module, phase: str, **changes: Any) -> MuGrokfast:
        """The optimiser with a phase's preset: `MuGrokfast.for_phase(model, "cognate")`."""
        return cls(model, **asdict(optimizer_settings(phase, **changes)))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                grads = self._filter(params, group)
                (self._muon if group["rule"] == "muon" else self._adam)(group, params, grads)
        return loss

    def _filter(self, params: list[nn.Parameter], group: Mapping[str, Any]) -> list[Tensor]:
        """Grokfast: g + coefficient * EMA(g). The EMA starts at the first gradient."""
        grads: list[Tensor] = [p.grad for p in params if p.grad is not None]
        if group["grokfast"] == 0.0:
            return grads
        slow = [self._state(p, "slow", g.clone) for p, g in zip(params, grads, strict=True)]
        torch._foreach_lerp_(slow, grads, 1 - group["grokfast_decay"])
        return list(torch._foreach_add(grads, slow, alpha=group["grokfast"]))

    def _muon(self, group: Mapping[str, Any], params: list[nn.Parameter], grads: list[Tensor]) -> None:
        rows = {id(p): blocks for p, blocks in zip(group["params"], group["row_blocks"], strict=True)}
        muon_step(
            params,
            grads,
            [self._state(p, "momentum", partial(torch.zeros_like, p)) for p in params],
            [rows[id(p)] for p in params],
            ns_dtype=self.ns_dtype,
            **{name: group[name] for name in ("lr", "weight_decay", *MUON)},
        )

    def _adam(self, group: Mapping[str, Any], params: list[nn.Parameter], grads: list[Tensor]) -> None:
        plain = all(each.is_contiguous() for each in (*params, *grads))  # on a CPU the fused kernel ignores strides
        adamw(
            list[Tensor](params),
            grads,
            [self._state(p, "mean", partial(torch.zeros_like, p)) for p in params],
            [self._state(p, "square", partial(torch.zeros_like, p)) for p in params],
            [],
            [self._state(p, "step", partial(torch.zeros, (), device=p.device)) for p in params],
            fused=plain or params[0].is_cuda,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _state(self, parameter: nn.Parameter, name: str, start: Callable[[], Tensor]) -> Tensor:
        state: dict[str, Tensor] = self.state[parameter]
        if name not in state:
            state[name] = start()
        return state[name]


def route(model: nn.Module, head: nn.Module | None = None) -> dict[str, list[tuple[str, nn.Parameter]]]:
    """Which rule each trainable parameter gets. A tied weight is one parameter and appears once."""
    find_head: Any = getattr(model, "get_output_embeddings", None)
    if head is None and find_head is not None:
        head = find_head()
    embeddings: list[Any] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    vocabulary = {id(module.weight) for module in (*embeddings, head) if module is not None}
    routes: dict[str, list[tuple[str, nn.Parameter]]] = {"matrix": [], "embedding": [], "scalar": []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            wide = min(parameter.shape, default=0) >= SMALLEST_MATRIX or ADAPTER.search(name) is not None
            is_matrix = parameter.dim() == 2 and wide
            kind = "embedding" if id(parameter) in vocabulary else "matrix" if is_matrix else "scalar"
            routes[kind].append((name, parameter))
    return routes


def _row_blocks(model: nn.Module) -> dict[int, tuple[int, ...]]:
    """Fused projections say which of their rows belong together: `module.row_blocks` for `module.qkv_proj`."""
    return {
        id(module.qkv_proj.weight): tuple(module.row_blocks)  # type: ignore[arg-type]
        for module in model.modules()
        if hasattr(module, "row_blocks") and hasattr(module.qkv_proj, "weight")  # not where an adapter learns instead
    }
