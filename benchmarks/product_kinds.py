"""Times float32 products of operands of many kinds, and their errors, beside torch: no kind of data may be slow."""

from collections.abc import Callable
from typing import Any

import product_errors
import products
import torch
from torch import Tensor

from torch_reduce import bench

# Batches are none: m, n, k.
SHAPES = (
    (4096, 4096, 4096),
    (1000, 1100, 2000),
    (464, 488, 1072),
    (17, 3000, 5000),
    (32, 1024, 4096),
    (64, 768, 3072),
)
Make = Callable[[int, int, torch.Generator], Tensor]


def _normal(lines: int, k: int, g: torch.Generator) -> Tensor:
    return torch.randn(lines, k, generator=g, device=g.device)


def _uniform(lines: int, k: int, g: torch.Generator) -> Tensor:
    return torch.rand(lines, k, generator=g, device=g.device)


def _times(factor: float) -> Make:
    return lambda lines, k, g: _normal(lines, k, g) * factor


def _features(share: float, factor: float) -> Make:
    def make(lines: int, k: int, g: torch.Generator) -> Tensor:
        large = torch.rand(k, generator=g, device=g.device) < share
        return torch.where(large, factor, 1.0) * _normal(lines, k, g)

    return make


def _softmax(scale: float) -> Make:
    return lambda lines, k, g: torch.softmax(_normal(lines, k, g) * scale, -1)


def _sparse(share: float) -> Make:
    return lambda lines, k, g: _normal(lines, k, g) * (_uniform(lines, k, g) < share)


def _exponents(low: int, high: int, alike: bool = False) -> Make:
    def make(lines: int, k: int, g: torch.Generator) -> Tensor:
        shape = (lines, 1 if alike else k)
        return torch.ldexp(_normal(lines, k, g), torch.randint(low, high + 1, shape, generator=g, device=g.device))

    return make


def _one_hot(lines: int, k: int, g: torch.Generator) -> Tensor:
    return torch.nn.functional.one_hot(torch.randint(0, k, (lines,), generator=g, device=g.device), k).float()


def _one_row(value: float) -> Make:
    def make(lines: int, k: int, g: torch.Generator) -> Tensor:
        x = _normal(lines, k, g)
        x[lines // 3, k // 2] = value
        return x

    return make


def _some_rows(lines: int, k: int, g: torch.Generator) -> Tensor:
    some = torch.rand(lines, 1, generator=g, device=g.device) < 0.05
    return torch.where(some, _softmax(3)(lines, k, g), _normal(lines, k, g))


# The rows of A, where the columns of B are normal; and both.
KINDS: dict[str, Make] = {
    "normal": _normal,
    "uniform (0, 1)": _uniform,
    "gelu": lambda lines, k, g: torch.nn.functional.gelu(_normal(lines, k, g)),
    "integers to 100": lambda lines, k, g: torch.randint(-100, 101, (lines, k), generator=g, device=g.device).float(),
    "x 1e-12": _times(1e-12),
    "x 1e-20": _times(1e-20),
    "x 1e10": _times(1e10),
    "near 1.7e9": lambda lines, k, g: _normal(lines, k, g) * 1e6 + 1.7e9,
    "rows x 2^U(-60, 60)": _exponents(-60, 60, alike=True),
    "10 % nonzero": _sparse(0.1),
    "zeros": lambda lines, k, g: torch.zeros(lines, k, device=g.device),
    "one row with NaN": _one_row(float("nan")),
    "one row with Inf": _one_row(float("inf")),
    "lower triangular": lambda lines, k, g: _normal(lines, k, g).tril(),
    "5 % rows of softmax": _some_rows,
    "softmax of 3 normal": _softmax(3),
    "softmax of 15 normal": _softmax(15),
    "softmax of 30 normal": _softmax(30),
    "one-hot": _one_hot,
    "1 % nonzero": _sparse(0.01),
    "1 % features x 1000": _features(0.01, 1e3),
    "1 % features x 1e5": _features(0.01, 1e5),
    "log-normal": lambda lines, k, g: (_normal(lines, k, g) * 3).exp(),
    "x 2^U(-35, 35)": _exponents(-35, 35),
    "x 2^U(-100, 26)": _exponents(-100, 26),
}
BOTH = (
    *("normal", "x 1e-20", "softmax of 3 normal", "softmax of 15 normal", "1 % features x 1000", "log-normal"),
    "x 2^U(-35, 35)",
)


def cases() -> list[tuple[tuple[int, int, int], str, bool]]:
    """Shape, kind, and whether B is of that kind too."""
    kinds = [*((kind, False) for kind in KINDS), *((kind, True) for kind in BOTH)]
    return [(shape, kind, both) for shape in SHAPES for kind, both in kinds]


def measure(
    shape: tuple[int, int, int], kind: str, both: bool, device: torch.device, settings: bench.Settings
) -> dict[str, Any]:
    """A row: times of `auto` and of torch in microseconds (median and quartiles), the speed-up, and both errors as
    product_errors has them (null where the operands are not finite)."""
    m, n, k = shape
    g = torch.Generator(device).manual_seed(0)
    a = KINDS[kind](m, k, g)
    b = (KINDS[kind] if both else _normal)(n, k, g).t().contiguous()
    row: dict[str, Any] = {"m": m, "n": n, "k": k, "batch": [], "kind": kind, "both": both}
    with torch.no_grad(), products.precision("float32"):
        if a.isfinite().all():
            truth, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
            for name, call in products.BESIDE.items():
                row[f"error_{name}"] = list(product_errors.relative(call(a, b), truth, scale))
            del truth, scale
        row |= products.beside_torch(a, b, device, settings)
    return row
