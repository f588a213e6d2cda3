"""Checks results: references, error bounds and the comparison.

References are float64 or exact integers; bounds come from the order of additions. The command line, the benchmarks and
the tests all use this file.
"""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from . import _C
from ._row_calls import ROW_CALLS, rounding_scale
from ._variants import PRODUCTS, REDUCTIONS, ROW_OPS, Variant, resolve, variant_named

# Elements that are widened to float64 or int64 at a time: 128 MiB.
_CHUNK = 1 << 24

# Dtypes without a wider one for the reference, which is then computed with compensation.
_WIDEST = (torch.float64, torch.complex128)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The outcome of `compare`. It is true if the result is right."""

    ok: bool
    error: float
    """The largest error of a finite value."""
    of_bound: float
    """The largest ratio of an error to its bound: 0 if exact, at most 1 if right."""
    reason: str
    """Why the result is wrong; empty if it is right."""

    def __bool__(self) -> bool:
        return self.ok


def compare(result: Tensor, reference: Tensor, bound: Tensor | float = 0.0) -> Comparison:
    """Compares a result with a float64, complex128 or int64 reference, elementwise; complex numbers by their parts.

    A NaN passes only if the reference is NaN. An infinity passes if the reference is the same infinity, or is finite
    but so close to the largest number of the result's dtype that a value within the bound rounds to infinity.
    Everything else passes if `|result - reference| <= bound`; with the default bound, if equal.

    Args:
        result: of a kernel; any dtype and device.
        reference: the true values: float64, complex128, or int64 for integers (which must be equal).
        bound: the largest error allowed; a number, or a tensor that broadcasts to the reference. A NaN in it fails.

    Returns:
        A `Comparison`; it is true if every element passes.
    """
    if result.shape != reference.shape:
        return Comparison(False, math.inf, math.inf, f"shape {tuple(result.shape)}, expected {tuple(reference.shape)}")
    if result.numel() > _CHUNK:
        return _compare_chunks(result, reference, bound)
    result = result.detach()
    reference = reference.detach().to(result.device)
    if reference.is_complex():
        if not result.is_complex():
            return Comparison(False, math.inf, math.inf, f"dtype {result.dtype} for a complex reference")
        parts = torch.as_tensor(bound, dtype=torch.float64, device=result.device).expand(result.shape).unsqueeze(-1)
        return compare(torch.view_as_real(result), torch.view_as_real(reference), parts)
    if not reference.dtype.is_floating_point:
        if result.dtype.is_floating_point:
            return Comparison(False, math.inf, math.inf, f"dtype {result.dtype} for an integer reference")
        return _compare_exact(result.to(torch.int64), reference.to(torch.int64))

    limit = torch.finfo(result.dtype).max if result.dtype.is_floating_point else math.inf
    got, want = result.to(torch.float64), reference.to(torch.float64)
    allowed = torch.as_tensor(bound, dtype=torch.float64, device=want.device).expand(want.shape)
    error = (got - want).abs()
    finite = got.isfinite() & want.isfinite()
    ok = torch.where(finite, error <= allowed, got == want)
    ok |= got.isnan() & want.isnan()
    ok |= got.isinf() & want.isfinite() & (got.sign() == want.sign()) & (want.abs() + allowed > limit)
    part = torch.where(error == 0, torch.zeros_like(error), error / allowed)[finite]
    worst = float(error[finite].max()) if finite.any() else 0.0
    of_bound = float(part.nan_to_num(nan=math.inf).max()) if finite.any() else 0.0
    if bool(ok.all()):
        return Comparison(True, worst, of_bound, "")
    at, count = _first(~ok)
    reason = f"got {got[at].item():.9g}, expected {want[at].item():.9g} within {allowed[at].item():.3g}"
    return Comparison(False, worst, math.inf, reason + _where(at, count))


def _compare_chunks(result: Tensor, reference: Tensor, bound: Tensor | float) -> Comparison:
    bounds = torch.as_tensor(bound, dtype=torch.float64).expand(reference.shape).reshape(-1)
    parts = zip(
        result.reshape(-1).split(_CHUNK), reference.reshape(-1).split(_CHUNK), bounds.split(_CHUNK), strict=True
    )
    compared = [compare(*part) for part in parts]
    reason = next((f"{c.reason} of chunk {i} of {_CHUNK}" for i, c in enumerate(compared) if not c.ok), "")
    return Comparison(not reason, max(c.error for c in compared), max(c.of_bound for c in compared), reason)


def _compare_exact(got: Tensor, want: Tensor) -> Comparison:
    wrong = got != want
    if not bool(wrong.any()):
        return Comparison(True, 0.0, 0.0, "")
    at, count = _first(wrong)
    reason = f"got {got[at].item()}, expected {want[at].item()}{_where(at, count)}"
    return Comparison(False, math.inf, math.inf, reason)


def _first(wrong: Tensor) -> tuple[tuple[int, ...], int]:
    return tuple(wrong.nonzero()[0].tolist()), int(wrong.sum())


def _where(at: tuple[int, ...], count: int) -> str:
    place = f" at {at}" if at else ""
    return place + (f", and {count - 1} more" if count > 1 else "")


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bit patterns; NaN payloads and the signs of zeros count."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(as_bits(a), as_bits(b))


def as_bits(tensor: Tensor) -> Tensor:
    """The bit patterns of a tensor, as integers on the CPU."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    tensor = tensor.detach().cpu().resolve_conj().contiguous()
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return parts.view(words[parts.element_size()])


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Within it, new memory is filled: floats with NaN, integers with their largest value.

    So an output or a partial that a kernel does not write is noticed. torch fills memory while it is asked for
    deterministic algorithms; what is not deterministic runs all the same, without a warning.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
            yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = fill
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@dataclasses.dataclass(frozen=True)
class Truth:
    """The true result of an op for some inputs, and the scale of its error bound."""

    value: Tensor
    """float64, complex128 for complex numbers, int64 for integers."""
    scale: Tensor | float
    """Rounding errors are relative to this: the sum of |x| for `sum`, |A| @ |B| for `matmul`."""


def truth(op: str, *inputs: Tensor) -> Truth:
    """The reference for an op: float64 arithmetic, or integers that wrap as int64 does.

    Integer products must stay below 2^53: they are computed in float64, because torch has no integer matmul on GPUs.
    """
    x = inputs[0].detach()
    if op in REDUCTIONS:
        return _reduction_truth(op, x.flatten() if x.is_contiguous() else x.contiguous().flatten())
    if op in ROW_OPS:
        wide_inputs = [t.detach().double() for t in inputs]
        exact = ROW_CALLS[op].torchs(*wide_inputs)
        return Truth(exact, rounding_scale(op, exact, *wide_inputs))
    y = inputs[1].detach()
    if op == "linear":
        return truth("matmul", x, y.mT)
    if op == "matmul":
        wide = torch.complex128 if x.is_complex() else torch.float64
        product = x.to(wide) @ y.to(wide)
        if is_float(x.dtype):
            return Truth(product, x.to(wide).abs() @ y.to(wide).abs())
        return Truth(_wrapped(product, result_dtype(op, x.dtype)), 0.0)
    if op == "vector_add":
        if x.dtype.is_floating_point:
            value = x.double() + y.double()
            return Truth(value, value.abs())
        return Truth((x + y).to(torch.int64), 0.0)
    raise ValueError(f"unknown op {op!r}")


def _wrapped(product: Tensor, dtype: torch.dtype) -> Tensor:
    return product.to(torch.int64).to(dtype).to(torch.int64)


def _reduction_truth(op: str, x: Tensor) -> Truth:
    floating = is_float(x.dtype)
    wide = torch.complex128 if x.is_complex() else torch.float64 if floating else torch.int64
    if op in ("amax", "amin"):
        extremum = torch.amax if op == "amax" else torch.amin
        chunks = [extremum(part.to(wide)) for part in x.split(_CHUNK)]
        return Truth(extremum(torch.stack(chunks)), 0.0)
    total = torch.zeros((), dtype=wide, device=x.device)
    scale = torch.zeros((), dtype=torch.float64, device=x.device)
    rest = torch.zeros((), dtype=wide, device=x.device)
    for part in x.split(_CHUNK):
        values = part.to(wide)
        if x.dtype in _WIDEST:
            whole, error = _compensated_sum(values)
            total, rounding = _two_sum(total, whole)
            rest = rest + rounding + error
        else:
            total = total + values.sum()
        if floating:
            scale = scale + values.abs().sum()
    if x.dtype in _WIDEST and bool(rest.isfinite()):
        total = total + rest
    return Truth(total / x.numel() if op == "mean" else total, scale)


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Knuth's two-sum: the rounded sum and its exact rounding error."""
    s = a + b
    b_part = s - a
    return s, (a - (s - b_part)) + (b - b_part)


def _compensated_sum(x: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of a vector as a value and a correction: twice the precision."""
    error = torch.zeros((), dtype=x.dtype, device=x.device)
    while x.numel() > 1:
        half = x.numel() // 2
        odd = x[2 * half :]
        x, lost = _two_sum(x[:half], x[half : 2 * half])
        x = torch.cat([x, odd])
        error = error + lost.sum()
    return x.sum(), error


def gamma(roundings: int, unit: float) -> float:
    """Higham's bound for a chain of that many roundings of relative size `unit` each."""
    product = roundings * unit
    return product / (1 - product) if product < 0.5 else math.inf


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next larger number."""
    return torch.finfo(dtype).eps / 2


def is_float(dtype: torch.dtype) -> bool:
    """Whether arithmetic in that dtype rounds: floating point and complex."""
    return dtype.is_floating_point or dtype.is_complex


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which float sums of that dtype are added."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def reduction_depth(
    variant: str, dtype: torch.dtype, n: int, block_size: int | None = None, num_blocks: int | None = None
) -> int:
    """The most additions that an element passes through: the rows of its lane and the tree, in every pass of the plan.

    A variant without a fixed order may add its partials one after another.
    """
    if variant_named("sum", variant).along_dims:
        return _C.pairwise_depth(n)
    plan = _C.reduce_plan(variant, str(dtype).removeprefix("torch."), n, block_size, num_blocks)
    deterministic = variant_named("sum", plan["variant"]).deterministic
    passes: list[Mapping[str, int]] = plan["passes"] if deterministic else plan["passes"][:1]
    depth = sum(p["rows"] + math.ceil(math.log2(p["lanes"])) for p in passes)
    return depth if deterministic else depth + passes[0]["blocks"]


def _row_roundings(op: str, variant: str, length: int) -> int:
    """The most roundings between an element and an output of its row: the formula's, exp, log and 1 / sqrt among them,
    and those of the two sums."""
    online = variant_named(op, variant).order == "online"
    # In the order of online.h a part takes every 1024th element, and rounds a few times for each.
    return 40 + 2 * (4 * math.ceil(length / 1024) + 10 if online else _C.pairwise_depth(length))


def error_bound(op: str, variant: str, inputs: tuple[Tensor, ...], known: Truth, **sizes: int | None) -> Tensor | float:
    """The largest allowed distance of a variant's result from the truth.

    Args:
        op: the op.
        variant: a variant or an alias.
        inputs: what the op was given.
        known: `truth(op, *inputs)`.
        sizes: `block_size`, `num_blocks` or `tile_size`, where the call named them.

    Returns:
        0.0 if the result must be exact; else a float64 number, or a tensor with a number for each element.
    """
    if op == "linear":
        return error_bound("matmul", variant, (inputs[0], inputs[1].mT), known, **sizes)
    x = inputs[0]
    dtype = x.dtype
    if not is_float(dtype) or op in ("amax", "amin"):
        return 0.0
    resolve(op, variant)
    unit = unit_roundoff(accumulator(dtype))
    if op == "vector_add":
        bound = 0.0 * known.value.abs()
    elif op in ROW_OPS:
        roundings = _row_roundings(op, variant, x.shape[-1])
        bound = gamma(roundings * (2 if dtype == torch.float64 else 1), unit) * known.scale
    elif op == "matmul":
        # A fused multiply-add for each of the k terms, and for complex numbers an addition; a float64 reference has as
        # many roundings of its own.
        roundings = x.shape[-1] + dtype.is_complex
        bound = gamma(roundings * (2 if dtype in _WIDEST else 1), unit) * known.scale
        bound = bound + tensor_core_error(variant, *inputs) * known.scale
    else:
        n = x.numel()
        # One more for the rounding of a float64 reference.
        bound = gamma(reduction_depth(variant, dtype, n, **sizes) + 1, unit) * known.scale
        if op == "mean":
            bound = bound / max(n, 1)
            bound = bound + 2 * unit * (known.value.abs() + bound)  # the division, here and in the reference
    # The one rounding to the result's dtype, and underflow.
    rounded = result_dtype(op, dtype)
    if rounded != accumulator(dtype) or op == "vector_add":
        own = unit_roundoff(rounded)
        bound = bound + own * (known.value.abs() + bound) + unit * known.value.abs() * (op == "vector_add")
    tiny = torch.finfo(rounded)
    bound = bound + tiny.smallest_normal * tiny.eps
    if op in ("sum", "mean") and not variant_named(op, variant).deterministic and dtype != torch.float64:
        # The hardware's float32 atomicAdd takes subnormals for zero: less than the smallest normal number a block.
        blocks = _C.reduce_plan(variant, str(dtype).removeprefix("torch."), x.numel(), **sizes)["passes"][0]["blocks"]
        bound = bound + blocks * torch.finfo(torch.float32).smallest_normal
    return torch.nan_to_num(bound, nan=math.inf)


def chosen(variant: str, x: Tensor, other: Tensor) -> Variant:
    """The rung of matmul behind a name; for `"auto"`, the one that it picks for these operands."""
    row = variant_named("matmul", variant)
    if row.name != "auto":
        return row
    major, minor = torch.cuda.get_device_capability(x.device) if x.is_cuda else (0, 0)
    m, n = x.shape[-2] if x.dim() > 1 else 1, other.shape[-1] if other.dim() > 1 else 1
    tfloat32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    dtype = str(x.dtype).removeprefix("torch.")
    return variant_named("matmul", _C.matmul_choice(dtype, m, n, x.shape[-1], 10 * major + minor, tfloat32))


def tensor_core_error(variant: str, x: Tensor, other: Tensor) -> float:
    """The error of a rung on tensor cores beside rounding, relative to |A| @ |B|: sums are truncated, which loses twice
    what rounding loses, and some bits of float32 operands do not enter the products."""
    if not x.is_cuda:
        return 0.0
    row = chosen(variant, x, other)
    if row.on_cpu:
        return 0.0
    truncation = gamma(2 * x.shape[-1], unit_roundoff(accumulator(x.dtype)))
    return truncation + (2.0 ** (1 - row.float32_bits) if x.dtype in (torch.float32, torch.complex64) else 0.0)


def check(op: str, variant: str, result: Tensor, inputs: tuple[Tensor, ...], known: Truth, **sizes: Any) -> Comparison:
    """Compares the result of a call with the truth, within the variant's bound; also its dtype."""
    expected = result_dtype(op, inputs[0].dtype)
    if result.dtype != expected:
        return Comparison(False, math.inf, math.inf, f"dtype {result.dtype}, expected {expected}")
    return compare(result, known.value, error_bound(op, variant, inputs, known, **sizes))


def result_dtype(op: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a result: int64 for sums of integers, float32 for 8-bit floats, int32 for products of int8; else
    that of the inputs."""
    if dtype.is_floating_point and dtype.itemsize == 1:
        return torch.float32
    if op in PRODUCTS and dtype == torch.int8:
        return torch.int32
    return torch.int64 if op == "sum" and not is_float(dtype) else dtype


def make_inputs(
    op: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    seed: int = 0,
    made_on: torch.device | str = "cpu",
) -> tuple[Tensor, ...]:
    """Random inputs of an op.

    Args:
        op: the op.
        shape: (n,), (m, n, k) for products, or (rows, length) for row operations.
        dtype: floats are normal; integers fill their range, but for products stay within 100.
        device: where they go.
        seed: of the generator.
        made_on: the device that generates the numbers. The CPU's are the same on every machine; a GPU is faster.
    """
    generator = torch.Generator(device=made_on).manual_seed(seed)
    shapes = [shape]
    if op in PRODUCTS:
        m, n, k = shape
        shapes = [(m, k), (n, k) if op == "linear" else (k, n)]
    elif op == "vector_add":
        shapes = [shape, shape]
    elif op in ROW_OPS:
        shapes += [shape[-1:]] * ROW_CALLS[op].weights
    return tuple(_random(s, dtype, generator, small=op in PRODUCTS).to(device) for s in shapes)


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, small: bool) -> Tensor:
    where = {"generator": generator, "device": generator.device}
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, **where)
    if dtype.is_floating_point:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return torch.randn(shape, dtype=wide, **where).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, dtype=torch.uint8, **where).to(torch.bool)
    info = torch.iinfo(dtype)
    low, high = (max(-100, info.min), 101) if small else (info.min, info.max)
    return torch.randint(low, high, shape, dtype=dtype, **where)
