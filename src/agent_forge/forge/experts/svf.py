"""Singular value fine-tuning (Transformer², 2501.06252): one number per singular value of each matrix.

    W = U diag(S) V^T,   W' = U diag(S z) V^T,   z = 1 is the matrix itself

Because U diag(S) = W V, the same matrix is W' = W V diag(z) V^T, or U diag(z) U^T W. Neither form needs S, and each
needs only one of the two bases. The smaller one is kept, [R, R] with R = min(rows, columns), and W stays as it is:

    y = W (x + V diag(z - 1) V^T x)          columns <= rows
    y = (1 + U diag(z - 1) U^T) W x          otherwise

At z = 1 the added term is exactly zero. Switching changes R numbers per matrix, and rows of one batch may differ in z.

Legend: B rows, T tokens, R singular values, K experts.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from agent_forge.errors import UsageError
from agent_forge.forge.adapters import inner_matrices, is_transposed

Vectors = Mapping[str, Tensor]  # by matrix: z [R]


class ScaledLinear(nn.Module):
    """A layer whose singular values are multiplied by z. `shift_R` is z - 1: what learns, zero at first."""

    def __init__(self, base: nn.Module, basis_RR: Tensor, before: bool) -> None:
        super().__init__()
        self.base, self.before = base, before
        self.register_buffer("basis_RR", basis_RR, persistent=False)
        # float32 in every model: a step of 2e-3 next to 1 would be lost in bfloat16
        self.shift_R = nn.Parameter(torch.zeros(len(basis_RR), device=basis_RR.device))
        self.learning = False
        self.chosen: Tensor | None = None  # [R] or, one per row, [B, 1, R]; None is the base alone

    def forward(self, x: Tensor) -> Tensor:
        shift = self.shift_R if self.learning else self.chosen
        if shift is None:
            output: Tensor = self.base(x)
        elif self.before:
            output = self.base(x + self.along_basis(x, shift))
        else:
            output = self.base(x)
            bias: Tensor | None = getattr(self.base, "bias", None)
            output = output + self.along_basis(output if bias is None else output - bias, shift)
        return output

    @property
    def bytes(self) -> int:
        """What the basis takes."""
        basis: Tensor = self.basis_RR  # type: ignore[assignment]
        return basis.nbytes

    def along_basis(self, x: Tensor, shift: Tensor) -> Tensor:
        """Q diag(shift) Q^T x."""
        basis: Tensor = self.basis_RR  # type: ignore[assignment]
        return (x @ basis * shift.to(x.dtype)) @ basis.T


@torch.no_grad()
def singular_basis(weight: Tensor) -> tuple[Tensor, bool]:
    """The smaller basis of a matrix [rows, columns], largest singular value first, and whether it is that of the
    columns (V). By the eigenvectors of the smaller Gram matrix: no more is needed, and it takes a fraction of an SVD.
    """
    exact = weight.double()
    before = weight.shape[1] <= weight.shape[0]
    _, vectors = torch.linalg.eigh(exact.T @ exact if before else exact @ exact.T)  # ascending
    return vectors.flip(-1).to(weight.dtype), before


def add_scales(model: nn.Module, targets: Sequence[str] = ()) -> list[str]:
    """Makes the matrices inside the network scalable (all, or those with the names of `targets`), and fixes every
    other weight. Returns the names of the matrices. Raises UsageError."""
    if any(True for _ in scaled_layers(model)):
        raise UsageError("the model's matrices are scalable already", fix="Remove that first: remove_scales(model)")
    names = list(inner_matrices(model, targets))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name in names:
        layer = model.get_submodule(name)
        basis, before = singular_basis(matrix_of(layer))
        model.set_submodule(name, ScaledLinear(layer, basis, before))
    return names


def matrix_of(layer: nn.Module) -> Tensor:
    """The weight as [out, in]."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return weight.T if is_transposed(layer) else weight


def scaled_layers(model: nn.Module) -> Iterator[tuple[str, ScaledLinear]]:
    """The scalable layers, by name."""
    for name, module in model.named_modules():
        if isinstance(module, ScaledLinear):
            yield name, module


def set_learning(model: nn.Module, learning: bool) -> None:
    """Whether the model uses the vectors that learn, or the expert that it was switched to."""
    for _, layer in scaled_layers(model):
        layer.learning = learning


def base_view(model: nn.Module) -> nn.Module:
    """The model without its vectors, as a second object over the same tensors: nothing is copied but the structure."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    view = copy.deepcopy(model, shared)
    for _, layer in scaled_layers(view):
        layer.learning, layer.chosen = False, None
    return view.eval()


@torch.no_grad()
def reset_vectors(model: nn.Module) -> None:
    """Puts the learning vectors back to the identity."""
    for _, layer in scaled_layers(model):
        layer.shift_R.zero_()


@torch.no_grad()
def learnt_vectors(model: nn.Module) -> dict[str, Tensor]:
    """z of every matrix, as learnt."""
    return {name: (1 + layer.shift_R).float().cpu() for name, layer in scaled_layers(model)}


def remove_scales(model: nn.Module) -> None:
    """The model as it was before `add_scales`; every weight learns again."""
    for name, layer in list(scaled_layers(model)):
        model.set_submodule(name, layer.base)
    for parameter in model.parameters():
        parameter.requires_grad_(True)


@torch.no_grad()
def fold_vectors(model: nn.Module, vectors: Vectors) -> None:
    """Multiplies the singular values of a plain model's matrices, in place: no cost afterwards, and no way back."""
    for name, z in vectors.items():
        layer = model.get_submodule(name)
        weight = matrix_of(layer)
        basis, before = singular_basis(weight.double())
        scale = (basis * z.to(basis)) @ basis.T
        weight.copy_(weight.double() @ scale if before else scale @ weight.double())
