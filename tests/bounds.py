"""How far a reduction may be from the exact value: the classic bound of its order of additions, and one rounding."""

import math

import numpy as np
import orders
import torch
from torch.utils.weak import WeakTensorKeyDictionary

UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
FLOAT32_NORMAL = 2.0**-126
SMALLEST = {torch.float32: 2.0**-149, torch.float64: 2.0**-1074, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}


def exact_sums(x):
    """The sum of the values themselves and that of their magnitudes, rounded once to float64 (to long double for many).

    Kept as long as the tensor lives and nobody writes to it."""
    if x not in _sums or _sums[x][0] != x._version:
        values = x.detach().cpu().double().numpy().reshape(-1)
        add = math.fsum if values.size <= 2**17 else lambda v: float(np.sum(v, dtype=np.longdouble))
        _sums[x] = x._version, (add(values), add(np.abs(values)))
    return _sums[x][1]


_sums = WeakTensorKeyDictionary()


def reduction_bound(op, x, depth):
    """|computed - exact| <= bound, where each element goes through at most `depth` additions."""
    u = UNIT[torch.float64 if x.dtype == torch.float64 else torch.float32]
    exact, magnitude = exact_sums(x)
    growth = depth * u / (1 - depth * u)
    error = growth * magnitude
    if op == "mean" and x.numel():
        error, exact = (error + u * abs(exact)) / x.numel(), exact / x.numel()
    # One rounding to the result's dtype (and one more to the accumulator's, for the reference itself).
    return error + (abs(exact) + error) * 2 * UNIT[x.dtype] + SMALLEST[x.dtype]


def assert_within_bound_along(actual, op, x, dim=None, dtype=None):
    """The sums or means along dims, of elements that are converted to `dtype` first: each within its bound."""
    if dtype is not None:
        x = x.to(dtype)
    if actual.is_complex():
        for part in ("real", "imag"):
            assert_within_bound_along(getattr(actual, part), op, getattr(x, part), dim)
        return
    rows = orders.rows_of(x, dim).double().numpy().astype(np.longdouble)
    exact, magnitude = rows.sum(axis=1), np.abs(rows).sum(axis=1)
    depth = orders.depth("pairwise", x.dtype, rows.shape[1])
    u = UNIT[torch.float64 if x.dtype == torch.float64 else torch.float32]
    error = depth * u / (1 - depth * u) * magnitude
    if op == "mean":
        with np.errstate(invalid="ignore"):
            exact, error = exact / rows.shape[1], (error + u * np.abs(exact)) / np.longdouble(rows.shape[1])
    error = error + (np.abs(exact) + error) * 2 * UNIT[actual.dtype] + SMALLEST[actual.dtype]
    found = actual.detach().cpu().double().numpy().reshape(-1)
    overflow = np.isinf(found) & (np.abs(exact) + error >= torch.finfo(actual.dtype).max)
    nothing = np.isnan(found) & (rows.shape[1] == 0)  # the mean of nothing
    with np.errstate(invalid="ignore"):
        right = (np.abs(found - exact) <= error) | overflow | nothing  # NaN fails
    assert right.all(), f"{op} of {tuple(x.shape)} along {dim}: {found[~right][:3]}, not {exact[~right][:3]}"


def assert_within_bound(actual, op, x, variant, sizes):
    n = x.numel()
    order = variant.order if variant.order != "unordered" else "vector_warps"
    depth = orders.depth(order, x.dtype, n, sizes.get("block_size"), sizes.get("num_blocks"))
    if not variant.deterministic:
        depth += orders.grid(order, x.dtype, n, sizes.get("block_size") or 256, sizes.get("num_blocks"))
    exact, _ = exact_sums(x)
    if op == "mean":
        exact /= n
    error = abs(actual.double().item() - exact)
    bound = reduction_bound(op, x, depth)
    if not variant.deterministic and x.dtype != torch.float64:
        # The hardware's float32 atomicAdd takes subnormal operands and results for zero: less than this for each block.
        bound += FLOAT32_NORMAL * orders.grid(
            order, x.dtype, n, sizes.get("block_size") or 256, sizes.get("num_blocks")
        )
    if actual.isinf() and abs(exact) + bound >= torch.finfo(x.dtype).max:
        return  # overflow within the bound
    assert error <= bound, f"{actual.item()!r} is {error:.3g} from {exact!r}; the bound is {bound:.3g}"  # NaN fails
