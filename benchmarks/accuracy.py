"""The errors of float32 sums, and the time of each way to add."""

import array
import fractions
import importlib.util
import math
import sys
import timeit
from collections.abc import Callable
from typing import Any

import torch
from checkout import ROOT
from torch import Tensor

import torch_reduce
from torch_reduce import bench

UNIT = 2.0**-24
# math.fsum takes minutes for longer inputs.
FSUM_LIMIT = 1 << 22
_PART = 1 << 24

WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "auto": lambda x: torch_reduce.sum(x),
    "compensated": lambda x: torch_reduce.sum(x, variant="compensated"),
    "exact": lambda x: torch_reduce.sum(x, variant="exact"),
    "torch.sum": lambda x: x.sum(),
    "float64": lambda x: x.sum(dtype=torch.float64).to(torch.float32),
}
OURS = ("auto", "compensated", "exact")


def distributions() -> dict[str, Callable[[int, torch.Generator], Tensor]]:
    """The distributions of the tests."""
    path = ROOT / "tests" / "cases.py"
    spec = importlib.util.spec_from_file_location("test_cases", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["test_cases"] = module
    spec.loader.exec_module(module)
    return module.DISTRIBUTIONS


def exact_sum(x: Tensor) -> fractions.Fraction:
    """The exact sum of float32: mantissas are added as integers, exponent by exponent."""
    totals = torch.zeros(1024, dtype=torch.int64, device=x.device)
    for part in x.split(_PART):
        mantissa, exponent = torch.frexp(part.double())
        # At most 2^24 mantissas of 24 bits: far from overflowing int64, and so are the totals.
        totals.index_add_(0, exponent.long() + 512, (mantissa * 2.0**24).long())
    return sum(
        (
            fractions.Fraction(total) * fractions.Fraction(2) ** (i - 512 - 24)
            for i, total in enumerate(totals.tolist())
        ),
        fractions.Fraction(0),
    )


def is_correctly_rounded(value: float, truth: fractions.Fraction) -> bool:
    """Whether no float32 is closer."""
    here = torch.tensor(value, dtype=torch.float32)
    neighbours = [torch.nextafter(here, torch.tensor(s * math.inf)).item() for s in (-1.0, 1.0)]
    error = abs(fractions.Fraction(value) - truth)
    return all(error <= abs(fractions.Fraction(n) - truth) for n in neighbours if math.isfinite(n))


def errors(n: int, kind: str, values: Tensor) -> list[dict[str, Any]]:
    """A row for each way to add."""
    truth = exact_sum(values)
    scale = float(values.abs().sum(dtype=torch.float64))
    results = {name: float(way(values)) for name, way in WAYS.items()}
    if n <= FSUM_LIMIT:
        total = math.fsum(values.tolist())
        if total != float(truth):
            raise RuntimeError(f"the reference is wrong for {kind}: {float(truth)!r}, and math.fsum gives {total!r}")
        results["math.fsum"] = torch.tensor(total, dtype=torch.float64).to(torch.float32).item()
    rows = []
    for name, result in results.items():
        error = float(abs(fractions.Fraction(result) - truth))
        rows.append(
            {
                "n": n,
                "distribution": kind,
                "way": name,
                "relative": float(f"{error / abs(float(truth)):.3g}") if truth else error,
                "of_scale": float(f"{error / (UNIT * scale):.3g}"),
                "correctly_rounded": is_correctly_rounded(result, truth),
            }
        )
    return rows


def speeds(x: Tensor, settings: bench.Settings) -> list[dict[str, Any]]:
    """Microseconds of each way, for normal numbers."""
    rig = bench.make_rig(x.device, (x,), settings)
    ready = [rig.prepare(way)[0] for way in WAYS.values()]
    timings = bench.time_together(ready, settings)
    del ready
    rig.close()
    rows = [
        {"n": x.numel(), "way": name, **{k: float(f"{getattr(t, k):.5g}") for k in ("us", "us_q1", "us_q3")}}
        for name, t in zip(WAYS, timings, strict=True)
    ]
    if x.numel() <= FSUM_LIMIT:
        numbers = array.array("d", x.tolist())
        samples = [t * 1e6 for t in timeit.repeat(lambda: math.fsum(numbers), number=1, repeat=5)]
        q1, median, q3 = bench.quartiles(samples)
        rows.append({"n": x.numel(), "way": "math.fsum", "us": median, "us_q1": q1, "us_q3": q3})
    return rows


def measure(
    lengths: list[int], device: torch.device, settings: bench.Settings, step: Callable[[str], None]
) -> dict[str, list[dict[str, Any]]]:
    """Errors and speeds for every length."""
    found: dict[str, list[dict[str, Any]]] = {"errors": [], "speeds": []}
    with torch.no_grad():
        for n in lengths:
            for kind, make in distributions().items():
                step(f"{kind} {n:,}")
                with torch.device(device):
                    values = make(n, torch.Generator(device).manual_seed(0)).to(torch.float32)
                found["errors"] += errors(n, kind, values)
            del values
            step(f"speed {n:,}")
            normal = torch.randn(n, device=device, generator=torch.Generator(device).manual_seed(1))
            found["speeds"] += speeds(normal, settings)
    return found
