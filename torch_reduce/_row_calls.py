"""The row operations along the last dim, ours and torch's: what the command line and the benchmarks check and time."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import row_ops

EPS = 1e-5  # of the norms


class RowCall(NamedTuple):
    ours: Callable[..., Tensor]
    """Of the tensors and `variant`."""
    torchs: Callable[..., Tensor]
    """Of the tensors."""
    arguments: str
    """A call as a user writes it, of x, y and z: behind the name of the function."""
    weights: int = 0
    """Tensors beside the input, of the length of a row."""


# Functions with names, which torch.compile can take.
def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def _logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b, EPS)


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], w, EPS)


ROW_CALLS = {
    "softmax": RowCall(lambda x, variant="auto": row_ops.softmax(x, -1, variant=variant), _softmax, "x, -1"),
    "log_softmax": RowCall(
        lambda x, variant="auto": row_ops.log_softmax(x, -1, variant=variant), _log_softmax, "x, -1"
    ),
    "logsumexp": RowCall(lambda x, variant="auto": row_ops.logsumexp(x, -1, variant=variant), _logsumexp, "x, -1"),
    "layer_norm": RowCall(
        lambda x, w, b, variant="auto": row_ops.layer_norm(x, x.shape[-1:], w, b, EPS, variant=variant),
        _layer_norm,
        "x, x.shape[-1:], y, z, 1e-5",
        weights=2,
    ),
    "rms_norm": RowCall(
        lambda x, w, variant="auto": row_ops.rms_norm(x, x.shape[-1:], w, EPS, variant=variant),
        _rms_norm,
        "x, x.shape[-1:], y, 1e-5",
        weights=1,
    ),
}


def rounding_scale(op: str, exact: Tensor, x: Tensor, *weights: Tensor) -> Tensor:
    """What roundings of a row operation are relative to; all float64."""
    largest = x.abs().amax(-1, keepdim=True)
    if op == "softmax":  # a difference x - max of d makes a relative error of d in its exponential
        return exact.abs() * (1 + largest + x.abs())
    if op == "logsumexp":
        return exact.abs() + largest.squeeze(-1)
    if op == "log_softmax":
        return exact.abs() + largest + x.abs()
    centred = x - x.mean(-1, keepdim=True) if op == "layer_norm" else x
    rstd = (centred.square().mean(-1, keepdim=True) + EPS).rsqrt()
    steps = (1 + (centred * rstd).abs()) * (1 + largest * rstd)
    return 2 * weights[0].abs() * steps + sum(b.abs() for b in weights[1:]) + exact.abs()


def row_bytes(op: str, rows: int, length: int, size: int) -> int:
    """Read once and written once, for elements of `size` bytes."""
    written = rows if op == "logsumexp" else rows * length
    return size * (rows * length + written + ROW_CALLS[op].weights * length)
