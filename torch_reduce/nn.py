"""Modules that compute with this library's ops, and `convert`, which turns torch's modules of a model into them.

Each is torch's module of that name with another `forward`: the same arguments, parameters, initialisation and state
dict. A row of their results is the same alone and in any batch. What a model computes without a module, such as
attention, stays torch's; `torch_reduce.batch_invariant` reaches that too.
"""

from typing import TypeVar

import torch
from torch import Tensor

from . import ops, row_ops

__all__ = ["LayerNorm", "Linear", "LogSoftmax", "RMSNorm", "Softmax", "convert"]

_Module = TypeVar("_Module", bound=torch.nn.Module)


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` by `torch_reduce.linear`, whose dtypes, errors and determinism it has."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return ops.linear(input, self.weight, self.bias)


class LayerNorm(torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` by `torch_reduce.layer_norm`, whose dtypes, errors and determinism it has."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        return row_ops.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` by `torch_reduce.rms_norm`, whose dtypes, errors and determinism it has."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        return row_ops.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class Softmax(torch.nn.Softmax):
    """`torch.nn.Softmax` by `torch_reduce.softmax`, whose dtypes and errors it has. It needs a `dim`."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape to the same shape."""
        return row_ops.softmax(input, _dim_of(self))


class LogSoftmax(torch.nn.LogSoftmax):
    """`torch.nn.LogSoftmax` by `torch_reduce.log_softmax`, whose dtypes and errors it has. It needs a `dim`."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape to the same shape."""
        return row_ops.log_softmax(input, _dim_of(self))


_OURS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    torch.nn.Linear: Linear,
    torch.nn.LayerNorm: LayerNorm,
    torch.nn.RMSNorm: RMSNorm,
    torch.nn.Softmax: Softmax,
    torch.nn.LogSoftmax: LogSoftmax,
}


def _dim_of(module: torch.nn.Softmax | torch.nn.LogSoftmax) -> int:
    if module.dim is None:
        raise ValueError(f"{type(module).__name__} needs a dim: torch guesses one from the shape, and warns")
    return module.dim


def convert(model: _Module) -> _Module:
    """Turns torch's modules within a model into those of this module, in place.

    Parameters, buffers, hooks and names stay as they are, so an optimizer that has the parameters goes on. Subclasses
    of torch's modules are left alone: their `forward` may be their own.

    Args:
        model: any module; it may be one of these itself.

    Returns:
        The same object.

    Raises:
        TypeError: `model` is not a `torch.nn.Module`.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"convert takes a torch.nn.Module, got {type(model).__name__}")
    for module in model.modules():
        ours = _OURS.get(type(module))
        if ours is not None:
            module.__class__ = ours
    return model
