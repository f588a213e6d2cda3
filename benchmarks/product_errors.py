"""The errors of float32 products, torch's and ours, on operands of many kinds."""

import math
from collections.abc import Callable
from typing import Any

import cases
import products
import torch
from torch import Tensor

import torch_reduce

Pair = tuple[Tensor, Tensor]


def _normal(m: int, n: int, k: int, g: torch.Generator) -> Pair:
    return torch.randn(m, k, generator=g, device=g.device), torch.randn(k, n, generator=g, device=g.device)


def _uniform(shape: tuple[int, ...], low: float, high: float, g: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=g, device=g.device) * (high - low) + low


def _exponents(shape: tuple[int, ...], low: int, high: int, g: torch.Generator) -> Tensor:
    return torch.randint(low, high + 1, shape, generator=g, device=g.device)


def _positive(m: int, n: int, k: int, g: torch.Generator) -> Pair:
    return _uniform((m, k), 0, 1, g), _uniform((k, n), 0, 1, g)


def _relu(m: int, n: int, k: int, g: torch.Generator) -> Pair:
    a, b = _normal(m, n, k, g)
    return a.relu(), b.relu()


def _scaled_lines(m: int, n: int, k: int, g: torch.Generator) -> Pair:
    a, b = _normal(m, n, k, g)
    return a * _uniform((m, 1), -30, 30, g).exp2(), b * _uniform((1, n), -30, 30, g).exp2()


def _spread(most: int) -> Callable[[int, int, int, torch.Generator], Pair]:
    def make(m: int, n: int, k: int, g: torch.Generator) -> Pair:
        a, b = (_uniform(s, 1, 2, g) * _uniform(s, -most, most, g).exp2() for s in ((m, k), (k, n)))
        return a * _signs(a, g), b * _signs(b, g)

    return make


def _signs(x: Tensor, g: torch.Generator) -> Tensor:
    return torch.randint(0, 2, x.shape, generator=g, device=g.device) * 2.0 - 1.0


def _whole_range(m: int, n: int, k: int, g: torch.Generator) -> Pair:
    # A has all exponents of normal numbers; B is so small that nothing overflows.
    a = torch.ldexp(_uniform((m, k), 1, 2, g).double(), _exponents((m, k), -126, 127, g)).float()
    return a * _signs(a, g), torch.randn(k, n, generator=g, device=g.device) * 2.0**-16


def _cancelling(m: int, n: int, k: int, g: torch.Generator) -> Pair:
    x, y = _normal(m, n, k - k // 2, g)
    x, y = x[:, : k // 2], y[: k // 2]
    z = torch.randn(y.shape, generator=g, device=g.device)
    return torch.cat([x, x], 1), torch.cat([y, -y + z / 4096], 0)


def _subnormal(m: int, n: int, k: int, g: torch.Generator) -> Pair:
    whole = torch.randint(-(1 << 23) + 1, 1 << 23, (m, k), generator=g, device=g.device)
    # Made from bits: a multiplication might flush to zero.
    a = (whole.abs().int() | torch.where(whole < 0, -(2**31), 0).int()).view(torch.float32)
    return a, torch.randn(k, n, generator=g, device=g.device) * 2.0**30


def _integers(m: int, n: int, k: int, g: torch.Generator) -> Pair:
    return _exponents((m, k), -1024, 1024, g).float(), _exponents((k, n), -1024, 1024, g).float()


DISTRIBUTIONS: dict[str, Callable[[int, int, int, torch.Generator], Pair]] = {
    "normal": _normal,
    "uniform (0, 1)": _positive,
    "relu of normal": _relu,
    "rows and columns x 2^U(-30, 30)": _scaled_lines,
    "x 2^U(-10, 10)": _spread(10),
    "x 2^U(-30, 30)": _spread(30),
    "every exponent of float32": _whole_range,
    "[X, X] [Y; -Y + Z / 4096]": _cancelling,
    "subnormal": _subnormal,
    "integers to 1024": _integers,
}

# Name, kind of precision asked for, call.
WAYS: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "auto": ("float32", lambda a, b: torch_reduce.matmul(a, b)),
    "split_fp16": ("float32", lambda a, b: torch_reduce.matmul(a, b, variant="split_fp16")),
    "pipelined": ("float32", lambda a, b: torch_reduce.matmul(a, b, variant="pipelined")),
    "torch float32": ("float32", torch.matmul),
    "torch tf32": ("tf32", torch.matmul),
}


def errors(case: cases.Errors, side: int, device: torch.device) -> list[dict[str, Any]]:
    """A row for each way: the relative error in the Frobenius norm, and the largest error of an output relative to its
    sum of |a| |b|."""
    a, b = DISTRIBUTIONS[case.distribution](side, side, case.k, torch.Generator(device).manual_seed(0))
    truth, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    rows = []
    for way, (kind, call) in WAYS.items():
        with products.precision(kind):
            got = call(a, b)
        frobenius, worst = relative(got, truth, scale)
        rows.append(
            {"distribution": case.distribution, "k": case.k, "way": way, "frobenius": frobenius, "worst": worst}
        )
    return rows


def relative(got: Tensor, truth: Tensor, scale: Tensor) -> tuple[float | None, float | None]:
    """The relative error in the Frobenius norm, and the largest error of an output relative to its sum of |a| |b|; None
    where an output is not finite."""
    error = (got.double() - truth).abs()
    norm, there = float(truth.norm()), scale > 0
    worst = float((error[there] / scale[there]).max()) if there.any() else 0.0
    return rounded(float(error.norm()) / norm if norm else 0.0), rounded(worst)


def rounded(value: float) -> float | None:
    return float(f"{value:.3g}") if math.isfinite(value) else None


def worse_than_torch(rows: list[dict[str, Any]]) -> list[str]:
    """The cases in which `auto` is less accurate than torch's float32."""
    found = []
    for row in rows:
        if row["way"] != "torch float32":
            continue
        same = ("distribution", "k")
        ours = next(r for r in rows if r["way"] == "auto" and all(r[s] == row[s] for s in same))
        for measure in ("frobenius", "worst"):
            if row[measure] is not None and (ours[measure] is None or ours[measure] > row[measure]):
                found.append(f"{row['distribution']}, k {row['k']}, {measure}: {ours[measure]}, torch {row[measure]}")
    return found


def measure(side: int, device: torch.device, step: Callable[[str], None]) -> dict[str, list[dict[str, Any]]]:
    """Every case of `cases.MATMUL_ACCURACY`."""
    found: list[dict[str, Any]] = []
    with torch.no_grad():
        for case in cases.MATMUL_ACCURACY:
            step(f"{case.distribution}, k {case.k}")
            found += errors(case, side, device)
    return {"errors": found}
