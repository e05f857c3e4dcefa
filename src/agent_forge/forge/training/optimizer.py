"""MuGrokfast: Muon for the matrices inside the network, AdamW for the rest, and Grokfast's filter in front of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from agent_forge.errors import UsageError
from agent_forge.forge.training.muon import muon_step
from agent_forge.forge.training.presets import PRESETS

SMALLEST_MATRIX = 16  # a matrix thinner than this is a handful of gates: orthogonalising it says nothing


class MuGrokfast(torch.optim.Optimizer):
    """Muon + AdamW + Grokfast. Every parameter is in exactly one of three groups:

    | group | what | rule |
    |---|---|---|
    | `matrix` | 2-D weights inside the network | Muon, `lr` (AdamW with `matrix_rule="adamw"`, the control) |
    | `embedding` | embeddings and the head | AdamW, `embedding_lr` |
    | `scalar` | gains, biases, gates thinner than 16 | AdamW, `scalar_lr` |

    `grokfast` is the signed coefficient of the slow part of the gradient, g + grokfast * EMA(g) (2405.20233, with
    `grokfast_decay` the EMA's). It is 0 by default, and then costs nothing: see docs/training.md for the ablation.

    A schedule sets `group["lr"]`, which is what the step reads; `group["initial_lr"]` keeps the full value.

    >>> model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 64), nn.Linear(64, 50))
    >>> optimizer = MuGrokfast(model, head=model[2])
    >>> [(group["kind"], len(group["params"])) for group in optimizer.param_groups]
    [('matrix', 1), ('embedding', 2), ('scalar', 2)]
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float = 0.02,
        matrix_rule: str = "muon",
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        ns_steps: int = 5,
        ns_dtype: torch.dtype | None = None,
        adjust_lr: str = "original",
        embedding_lr: float = 0.004,
        scalar_lr: float = 0.004,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        adam_weight_decay: float = 0.0,
        grokfast: float = 0.0,
        grokfast_decay: float = 0.98,
        head: nn.Module | None = None,
    ) -> None:
        if adjust_lr not in ("original", "match_rms_adamw"):
            raise UsageError(f"adjust_lr is {adjust_lr!r}", fix="use 'original' or 'match_rms_adamw'")
        if matrix_rule not in ("muon", "adamw"):
            raise UsageError(f"matrix_rule is {matrix_rule!r}", fix="use 'muon' or 'adamw'")
        muon = {"momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps, "adjust_lr": adjust_lr}
        adam = {"rule": "adamw", "betas": betas, "eps": eps, "weight_decay": adam_weight_decay}
        settings: dict[str, dict[str, Any]] = {
            "matrix": {**adam, **muon, "rule": matrix_rule, "lr": lr, "weight_decay": weight_decay},
            "embedding": {**adam, "lr": embedding_lr},
            "scalar": {**adam, "lr": scalar_lr},
        }
        self.ns_dtype = ns_dtype
        blocks = _row_blocks(model)
        groups = []
        for kind, named in route(model, head).items():
            group = {"kind": kind, "params": [p for _, p in named], "names": [name for name, _ in named]}
            group.update(settings[kind], initial_lr=settings[kind]["lr"])
            if kind == "matrix":
                group["row_blocks"] = [blocks.get(id(p), (p.shape[0],)) for _, p in named]
            groups.append(group)
        super().__init__(
            [group for group in groups if group["params"]],
            {"lr": lr, "grokfast": grokfast, "grokfast_decay": grokfast_decay, "fused": _on_gpu(model)},
        )

    @classmethod
    def for_phase(cls, model: nn.Module, phase: str, **changes: Any) -> MuGrokfast:
        """The optimiser with a phase's preset: `MuGrokfast.for_phase(model, "cognate")`."""
        if phase not in PRESETS:
            raise UsageError(f"no optimiser preset {phase!r}", fix=f"use one of {', '.join(PRESETS)}")
        return cls(model, **{**PRESETS[phase], **changes})

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
            **{key: group[key] for key in ("lr", "momentum", "nesterov", "weight_decay", "ns_steps", "adjust_lr")},
        )

    def _adam(self, group: Mapping[str, Any], params: list[nn.Parameter], grads: list[Tensor]) -> None:
        fused = params[0].is_cuda  # then the step counts live on the GPU too
        where = params[0].device if fused else "cpu"
        adamw(
            list[Tensor](params),
            grads,
            [self._state(p, "mean", partial(torch.zeros_like, p)) for p in params],
            [self._state(p, "square", partial(torch.zeros_like, p)) for p in params],
            [],
            [self._state(p, "step", partial(torch.zeros, (), device=where)) for p in params],
            fused=fused,
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
    """Which rule each trainable parameter gets. A tied weight is one parameter, and is found once."""
    words = _word_weights(model, head)
    routes: dict[str, list[tuple[str, nn.Parameter]]] = {"matrix": [], "embedding": [], "scalar": []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            routes[_kind(parameter, words)].append((name, parameter))
    placed = [id(p) for named in routes.values() for _, p in named]
    wanted = {id(p) for p in model.parameters() if p.requires_grad}
    assert len(placed) == len(set(placed)) == len(wanted), "a parameter is in no group, or in two"
    return routes


def _on_gpu(model: nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in model.parameters())


def _kind(parameter: nn.Parameter, words: set[int]) -> str:
    if id(parameter) in words:
        return "embedding"
    return "matrix" if parameter.dim() == 2 and min(parameter.shape) >= SMALLEST_MATRIX else "scalar"


def _word_weights(model: nn.Module, head: nn.Module | None) -> set[int]:
    modules: list[Any] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    find_head: Any = getattr(model, "get_output_embeddings", None)
    if head is None and find_head is not None:
        head = find_head()
    return {id(module.weight) for module in (*modules, head) if module is not None}


def _row_blocks(model: nn.Module) -> dict[int, tuple[int, ...]]:
    """Fused projections say which of their rows belong together: `module.row_blocks` for `module.qkv_proj`."""
    return {
        id(module.qkv_proj.weight): tuple(module.row_blocks)  # type: ignore[union-attr, arg-type]
        for module in model.modules()
        if hasattr(module, "row_blocks")
    }
