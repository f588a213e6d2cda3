"""Reductions and matrix multiplication for PyTorch: a ladder of named CUDA variants, the same bits on every device."""

import torch

try:
    from ._build import TORCH as _TORCH
except ImportError as error:
    raise ImportError(
        "torch_reduce's extension is not built: say `pip install --no-build-isolation .` in the repository"
    ) from error

if torch.__version__.split(".")[:2] != _TORCH.split(".")[:2]:
    raise ImportError(
        f"torch_reduce was built with torch {_TORCH} and cannot run with torch {torch.__version__}: install the first, "
        "or build for the second with `pip install --no-build-isolation .` in the repository"
    )

try:
    from . import _C  # noqa: F401  (registers torch.ops.treduce)
except ImportError as error:
    raise ImportError(
        f"torch_reduce's extension cannot be loaded ({error}); build it for the torch of this environment: "
        "`pip install --no-build-isolation .` in the repository"
    ) from error

from . import _flops, _vmap, nn  # noqa: F401  (the first two tell torch.utils.flop_counter and torch.vmap about the ops)
from ._device import Bandwidth, BuildInfo, DeviceInfo, build_info, cuda_built
from ._info import device_info
from ._invariant import (
    InvariantOp,
    InvariantReport,
    batch_invariant,
    disable_batch_invariant,
    enable_batch_invariant,
    is_batch_invariant,
)
from ._names import MatmulName, OpName, ReductionName, RowName, VectorAddName
from ._plan import Plan
from ._plan_additions import AdditionPlan
from ._plan_products import ProductPlan
from ._plan_rows import RowPlan
from ._plans import plan
from ._variants import Variant, Variants, resolve, variants
from ._version import __version__
from .ops import amax, amin, linear, matmul, mean, scaled_dot_product_attention, sum, vector_add
from .row_ops import cross_entropy, layer_norm, log_softmax, logsumexp, norm, rms_norm, softmax, std, var

__all__ = [
    "AdditionPlan",
    "Bandwidth",
    "BuildInfo",
    "DeviceInfo",
    "InvariantOp",
    "InvariantReport",
    "MatmulName",
    "OpName",
    "Plan",
    "ProductPlan",
    "ReductionName",
    "RowName",
    "RowPlan",
    "Variant",
    "Variants",
    "VectorAddName",
    "__version__",
    "amax",
    "amin",
    "batch_invariant",
    "build_info",
    "cross_entropy",
    "cuda_built",
    "device_info",
    "disable_batch_invariant",
    "enable_batch_invariant",
    "is_batch_invariant",
    "layer_norm",
    "linear",
    "log_softmax",
    "logsumexp",
    "matmul",
    "mean",
    "nn",
    "norm",
    "plan",
    "resolve",
    "rms_norm",
    "scaled_dot_product_attention",
    "softmax",
    "std",
    "sum",
    "var",
    "variants",
    "vector_add",
]
