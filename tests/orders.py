"""The order of additions of each order class, as a slow and obvious model: what kernels and CPU must agree with.

It is written from the description of each class (`order_text` in the table, the comments of the kernels), not from the
C++ plan: the two must give the same bits. `T` is the number of threads in a block and `G` the number of blocks. Every
addition rounds to the accumulator: float64 for float64, float32 for the other floats. Padding is with zeros, which no
sum notices (a sum of nothing but -0 becomes +0 at the end, by adding +0).
"""

import math
from fractions import Fraction

import numpy as np
import torch

GRID_THREADS = 2**18  # a default grid has no more threads than this
CLUSTER = 8  # blocks in a cluster


def pad(x, multiple):
    """Zeros at the end, up to a multiple (at least one) of `multiple`."""
    size = max(-(-len(x) // multiple), 1) * multiple
    return np.concatenate([x, np.zeros(size - len(x), x.dtype)])


def in_turn(rows):
    """rows[0] + rows[1] + ..., one after another."""
    return np.add.accumulate(rows, axis=0, dtype=rows.dtype)[-1]


def neighbours_first(v):
    """The tree with strides 1, 2, 4, ... along the last axis."""
    while v.shape[-1] > 1:
        v = v[..., 0::2] + v[..., 1::2]
    return v[..., 0]


def halves_first(v):
    """The tree with strides T/2, T/4, ..., 1 along the last axis."""
    while v.shape[-1] > 1:
        half = v.shape[-1] // 2
        v = v[..., :half] + v[..., half:]
    return v[..., 0]


def warps(v):
    """Lanes of each warp of 32 by halves, then the warps by halves."""
    return halves_first(halves_first(v.reshape(*v.shape[:-1], v.shape[-1] // 32, 32)))


def strided(x, G, T, tree):
    """Thread g of G*T adds x[g], x[g + GT], x[g + 2GT], ... in turn; then each block's tree. G values."""
    return tree(in_turn(pad(x, G * T).reshape(-1, G, T)))


def strided_vectors(x, G, T, width):
    """As `strided`, where thread g takes vectors of `width` elements, with an accumulator a component. Warp tree."""
    return warps(halves_first(in_turn(pad(x, G * T * width).reshape(-1, G, T, width))))


def again_and_again(one_pass, x):
    x = one_pass(x)
    while len(x) > 1:
        x = one_pass(x)
    return x[0]


def serial(x, T, G, width):
    return in_turn(x) if len(x) else x.dtype.type(0)


def pairs(x, T, G, width):
    return again_and_again(lambda v: neighbours_first(pad(v, T).reshape(-1, T)), x)


def halves(x, T, G, width):
    return again_and_again(lambda v: halves_first(pad(v, T).reshape(-1, T)), x)


def first_add(tree, x, T):
    def one_pass(v):
        v = pad(v, 2 * T).reshape(-1, 2, T)
        return tree(v[:, 0] + v[:, 1])

    return again_and_again(one_pass, x)


def pairs_first_add(x, T, G, width):
    return first_add(neighbours_first, x, T)


def halves_first_add(x, T, G, width):
    return first_add(halves_first, x, T)


def stride_halves(x, T, G, width):
    partials = strided(x, G, T, halves_first)
    return strided(partials, 1, T, halves_first)[0] if G > 1 else partials[0]


def stride_warps(x, T, G, width):
    partials = strided(x, G, T, warps)
    return strided(partials, 1, T, warps)[0] if G > 1 else partials[0]


def vector_warps(x, T, G, width):
    partials = strided_vectors(x, G, T, width)
    return strided(partials, 1, T, warps)[0] if G > 1 else partials[0]


def vector_clusters(x, T, G, width):
    partials = halves_first(strided_vectors(x, G, T, width).reshape(-1, CLUSTER))
    return strided(partials, 1, T, warps)[0] if len(partials) > 1 else partials[0]


ORDERS = {
    f.__name__: f
    for f in (
        serial,
        pairs,
        pairs_first_add,
        halves,
        halves_first_add,
        stride_halves,
        stride_warps,
        vector_warps,
        vector_clusters,
    )
}

# What a call that names no block size gets.
DEFAULT_BLOCK = {
    "serial": 0,
    "pairs": 1024,
    "pairs_first_add": 512,
    "halves": 1024,
    "halves_first_add": 512,
    "stride_halves": 256,
    "stride_warps": 256,
    "vector_warps": 256,
    "vector_clusters": 256,
    "pairwise": 0,
    "compensated": 0,
    "exact": 0,
}


def vector_width(dtype):
    """Elements in 16 bytes."""
    return 16 // dtype.itemsize


def grid(order, dtype, n, T, num_blocks=None):
    """Blocks of the first pass of a grid-stride order: given, or an element (4 vectors) a thread, to 2^18 threads."""
    if not order.startswith(("stride", "vector")):
        return None
    blocks = num_blocks
    if blocks is None:
        work = T * 4 * vector_width(dtype) if order.startswith("vector") else T
        blocks = min(max(-(-n // work), 1), GRID_THREADS // T)
    if order == "vector_clusters":
        blocks = -(-blocks // CLUSTER) * CLUSTER
    return blocks


def depth(order, dtype, n, block_size=None, num_blocks=None):
    """The most additions that any one element goes through: what the error bound of an order is made of."""
    if order in ALONG_DIMS:
        return ALONG_DIMS[order](n)
    T = block_size or DEFAULT_BLOCK[order]
    if order == "serial":
        return max(n - 1, 0)
    log = T.bit_length() - 1
    if order.startswith(("pairs", "halves")):
        first = 1 if order.endswith("first_add") else 0
        total, left = 0, n
        while True:
            left = max(-(-left // (T << first)), 1)
            total += log + first
            if left == 1:
                return total
    G = grid(order, dtype, n, T, num_blocks)
    width = vector_width(dtype) if order.startswith("vector") else 1
    total = -(-n // (G * T * width)) + (width.bit_length() - 1) + log
    if order == "vector_clusters":
        total += 3
        G //= CLUSTER
    if G > 1:
        total += -(-G // T) + log
    return total


LANES, STRIPES = 128, 8
CHUNK = LANES * STRIPES


def pairwise_depth(n):
    """Down the stripes of a leaf, then up the tree."""
    lanes = LANES * max(-(-n // CHUNK), 1) if n > LANES else n
    return min(max(-(-n // LANES), 1), STRIPES) - 1 + max(lanes - 1, 0).bit_length()


# The orders of the rungs along dims and of `auto`, modelled below. `compensated` rounds once, but for a square of u.
ALONG_DIMS = {"pairwise": pairwise_depth, "compensated": lambda n: 1, "exact": lambda n: 0}


def accumulator(x):
    """The values of a tensor as NumPy has them, widened exactly to what they are accumulated in."""
    if x.dtype == torch.float64:
        return x.detach().cpu().numpy().reshape(-1)
    if x.is_floating_point():
        return x.detach().cpu().float().numpy().reshape(-1)
    return x.detach().cpu().to(torch.int64).numpy().reshape(-1)


def canonical(x):
    """Every NaN as the one quiet, positive NaN of its type."""
    return torch.where(x.isnan(), torch.full_like(x, float("nan")), x) if x.is_floating_point() else x


def extremum(values, largest):
    """NaN wins; of two zeros amax keeps +0 and amin -0."""
    if values.dtype.kind == "f":
        if np.isnan(values).any():
            return values.dtype.type(np.nan)
        value = values.max() if largest else values.min()
        if value == 0:
            signs = np.signbit(values[values == 0])
            negative = signs.all() if largest else signs.any()
            return values.dtype.type(-0.0 if negative else 0.0)
        return value
    return values.max() if largest else values.min()


@np.errstate(all="ignore")
def reduce(op, x, order, block_size=None, num_blocks=None):
    """What a reduction of `x` gives, bit for bit: a 0-d tensor on the CPU."""
    if order in ALONG_DIMS:
        return reduce_dims(op, x, order=order)
    values = accumulator(x)
    if op in ("amax", "amin"):
        return canonical(torch.tensor(extremum(values, op == "amax")).to(x.dtype))
    if values.dtype.kind != "f":
        return torch.tensor(np.add.reduce(values, dtype=np.int64))  # wraps; the same in any order
    T = DEFAULT_BLOCK[order] if block_size is None else block_size
    G = grid(order, x.dtype, len(values), T, num_blocks)
    total = ORDERS[order](values, T, G, vector_width(x.dtype)) + values.dtype.type(0)
    if op == "mean":
        total = total / values.dtype.type(len(values))
    assert total.dtype == values.dtype
    return canonical(torch.tensor(total).to(x.dtype))


# Along dims, and `auto`: rows of values, one row an output, all of them at once. What is added are arrays of the shape
# (parts, outputs, n): one part, or a value and the errors of its additions.


def padded(v, size):
    return np.pad(v, ((0, 0), (0, 0), (0, size - v.shape[2])))


def leaves(v, add):
    """Lane l of chunk c adds its eight elements, 128 apart, one after another: leaf c * 128 + l."""
    parts, outputs, n = v.shape
    if n <= LANES:
        return v
    stripes = min(-(-n // LANES), STRIPES)
    chunks = -(-n // (stripes * LANES))
    v = padded(v, chunks * stripes * LANES).reshape(parts, outputs, chunks, stripes, LANES)
    total = v[:, :, :, 0]
    for s in range(1, stripes):
        total = add(total, v[:, :, :, s])
    return total.reshape(parts, outputs, chunks * LANES)


def tree(v, add):
    """The leaves of each row, then neighbours, neighbouring pairs, neighbouring fours."""
    v = leaves(v, add)
    while v.shape[2] > 1:
        v = padded(v, v.shape[2] + v.shape[2] % 2)
        v = add(v[:, :, 0::2], v[:, :, 1::2])
    return v[:, :, 0] if v.shape[2] else np.zeros(v.shape[:2], v.dtype)


def pairwise(rows):
    """(outputs, n) -> (outputs): the sum of each row."""
    return tree(rows[None], np.add)[0]


def with_errors(a, b):
    """Knuth's two-sum of two values; what it lost joins their errors. An infinity or a NaN has lost nothing."""
    s = a[0] + b[0]
    part = s - a[0]
    lost = (a[0] - (s - part)) + (b[0] - part)
    return np.stack([s, a[1] + b[1] + np.where(np.isfinite(s), lost, 0)])


def compensated(rows):
    return np.add(*tree(np.stack([rows, np.zeros_like(rows)]), with_errors))


def units(values):
    """The exact sum of finite floats, as an integer: so many times 2^-1074."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    mantissa = np.ldexp(mantissa, 53).astype(np.int64)
    total = 0
    for e in np.unique(exponent):
        same = mantissa[exponent == e]
        # In two halves, so that neither sum leaves 64 bits.
        whole = (int((same >> 26).sum()) << 26) + int((same & (2**26 - 1)).sum())
        shift = int(e) - 53 + 1074
        total += whole << shift if shift >= 0 else whole >> -shift  # a subnormal's low bits are zeros
    return total


def exact_rounded(total, dtype):
    """`total` (a Fraction) rounded once to a dtype, to nearest even: a Python float."""
    info = torch.finfo(dtype)
    if total == 0:
        return 0.0
    size = abs(total)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    digits = round(-math.log2(info.eps))
    last = max(exponent - digits, round(math.log2(info.smallest_normal)) - digits)
    rounded = round(size / Fraction(2) ** last) * Fraction(2) ** last  # round() takes halves to even
    value = math.inf if rounded > Fraction(info.max) else float(rounded)
    return value if total > 0 else -value


def exact(rows, dtype, count=1):
    """The exact sum of each row over `count`, rounded once to `dtype`."""
    results = []
    for row in rows:
        if np.isnan(row).any() or (np.isposinf(row).any() and np.isneginf(row).any()):
            results.append(math.nan)
        elif np.isinf(row).any():
            results.append(float(row[np.isinf(row)][0]))
        elif count == 0:
            results.append(math.nan)
        else:
            results.append(exact_rounded(Fraction(units(row), 2**1074 * count), dtype))
    return torch.tensor(results, dtype=torch.float64).to(dtype)


def dims_of(x, dim):
    """The dims that a call reduces, none of them negative; None, () and [] mean all."""
    dims = [dim] if isinstance(dim, int) else list(dim or [])
    return sorted(d % x.dim() for d in dims if x.dim()) or list(range(x.dim()))


def memory_order(x, dims):
    """From the largest stride to the smallest; expanded dims, whose elements are read again and again, come first."""
    return sorted(dims, key=lambda d: (x.stride(d) != 0, -x.stride(d)))


def rows_of(x, dim):
    """A view or copy (outputs, n) of the elements of each output, in the order in which they count."""
    dims = memory_order(x, dims_of(x, dim))
    kept = [d for d in range(x.dim()) if d not in dims]
    outputs = math.prod(x.shape[d] for d in kept)
    return x.permute([*kept, *dims]).reshape(outputs, math.prod(x.shape[d] for d in dims))


def shape_of(x, dim, keepdim):
    dims = dims_of(x, dim)
    return [1 if d in dims else size for d, size in enumerate(x.shape) if d not in dims or keepdim]


def wide(x):
    """Widened exactly to what it is accumulated in."""
    if x.dtype in (torch.float64, torch.complex64, torch.complex128):
        return x
    return x.float() if x.is_floating_point() else x.to(torch.int64)


def extrema(rows, largest):
    """NaN wins; of two zeros amax keeps +0 and amin -0."""
    value = rows.max(axis=1) if largest else rows.min(axis=1)
    if rows.dtype.kind == "f":
        negative = np.signbit(rows)
        zero = rows == 0
        sign = np.where(zero, negative, True).all(axis=1) if largest else (zero & negative).any(axis=1)
        value = np.where(value == 0, np.where(sign, -0.0, 0.0).astype(rows.dtype), value)
    return value


@np.errstate(all="ignore")
def reduce_dims(op, x, dim=None, dtype=None, keepdim=False, order="pairwise"):
    """What a reduction of `x` along `dim` gives, bit for bit: a contiguous tensor on the CPU."""
    x = x.detach().cpu().resolve_neg().resolve_conj()
    shape = shape_of(x, dim, keepdim)
    fp8 = x.dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
    if op in ("amax", "amin"):
        rows = wide(rows_of(x, dim))
        value = torch.from_numpy(extrema(rows.numpy(), op == "amax"))
        return canonical(value.to(torch.float32 if fp8 else x.dtype)).view(shape)
    if dtype is None:
        dtype = torch.float32 if fp8 else x.dtype if x.is_floating_point() or x.is_complex() else torch.int64
    rows = wide(rows_of(x, dim).to(dtype))
    count = rows.shape[1] if op == "mean" else 1

    def total(rows):
        if order == "exact":
            return exact(rows, dtype if not dtype.is_complex else dtype.to_real(), count)
        value = {"pairwise": pairwise, "compensated": compensated}[order](rows) + rows.dtype.type(0)
        return torch.from_numpy(value / rows.dtype.type(count) if op == "mean" else value)

    if rows.is_complex():
        parts = [canonical(total(part.contiguous().numpy())) for part in (rows.real, rows.imag)]
        return torch.complex(*parts).view(shape)
    rows = rows.numpy()
    if rows.dtype.kind != "f":
        return torch.from_numpy(np.add.reduce(rows, axis=1, dtype=np.int64)).to(dtype).view(shape)  # wraps
    return canonical(total(rows).to(dtype)).view(shape)


# Matrix multiplication: every output is a chain of fused multiply-adds in the order of k.


def fused_multiply_add(a, b, c):
    """a * b + c of float32 arrays with one rounding. The product of two float32 is exact in float64; the sum is rounded
    to odd there, so that the second rounding, to float32, cannot meet a false tie."""
    product = a.astype(np.float64) * b.astype(np.float64)
    c = c.astype(np.float64)
    total = product + c
    # Knuth's two-sum: what the addition lost.
    part = total - product
    lost = (product - (total - part)) + (c - part)
    even = total.view(np.int64) % 2 == 0
    towards = np.where(lost > 0, np.inf, -np.inf)
    odd = np.where((lost != 0) & even, np.nextafter(total, towards), total)
    return odd.astype(np.float32)


def matmul(a, b):
    """The product of two matrices, accumulated in k order with fused multiply-adds: float32 and 16-bit floats."""
    left, right = a.detach().cpu().float().numpy(), b.detach().cpu().float().numpy()
    total = np.zeros((left.shape[0], right.shape[1]), np.float32)
    for k in range(left.shape[1]):
        total = fused_multiply_add(left[:, k, None], right[None, k, :], total)
    return canonical(torch.from_numpy(total).to(a.dtype))


def linear(x, weight, bias):
    """As `matmul` with the transposed weight, but the bias is added before the one rounding, in float32."""
    sums = matmul(x.float(), weight.float().t()).numpy()
    return canonical(torch.from_numpy(sums + bias.detach().cpu().float().numpy()).to(x.dtype))


# Of persistent and mma_f64: up to how many steps of k are one sum, and the steps of a group beyond.
LONG_GROUP = 2048
LONG_K, LONG_K_OF_FLOAT64 = 8192, 2048


@np.errstate(all="ignore")
def long_matmul(a, b, part):
    """The product of two matrices as `persistent` and `mma_f64` add it. `part`: the product over a group."""
    k = a.shape[-1]
    if k <= (LONG_K_OF_FLOAT64 if a.dtype == torch.float64 else LONG_K):
        return part(a, b)
    total = 0
    for begin in range(0, k, LONG_GROUP):
        total = total + part(a[..., begin : begin + LONG_GROUP], b[..., begin : begin + LONG_GROUP, :])
    return canonical(total)


# float32 as pairs of float16, or as three bfloat16 parts: the rungs split_fp16 and split_bf16. Written from the
# comments of split.h.

SEGMENT, GROUP = (
    64,
    2048,
)  # steps of k that share a scale; that share a unit, whose segments are added one after another
CLEAN, DENSE, FEW, ZERO, MODERATE, CLOSE = 1, 2, 4, 8, 32, 64
LOWEST, HIGHEST = -45, 40  # exponents of scales, from that of the unit
UNITS, LOWEST_SCALE = (-100, 113), -112
SAMPLED, SAMPLE_STEP = 16, 33  # numbers of a group from which its unit is estimated
PARTS_TOP, PARTS_BOTTOM = 56, -62  # exponents of what parts are taken of
CERTAIN = 112  # binary orders from the largest product that there could be to an output that is certain
PAIRS, PARTS, CHECKED, PLAIN, CHECKED_PAIRS = range(5)


def magnitude_exponent(x):
    """floor(log2 |x|) as the bits of float32 have it: -127 for zero and subnormals, 128 for infinity and NaN."""
    return (x.view(np.uint32) >> 23 & 0xFF).astype(np.int64) - 127


def in_segments(lines):
    """Lines (L, k) as (L, S, 64), with zeros past the end."""
    count, k = lines.shape
    segments = -(-k // SEGMENT)
    x = np.zeros((count, segments * SEGMENT), np.float32)
    x[:, :k] = lines
    return x.reshape(count, segments, SEGMENT)


def line_units(lines):
    """The exponent of the unit of each group of each line, (L, G): three above what brings the largest of the first 16
    numbers to 2^14; if these are zero, of every 33rd that follows; if all are, 0."""
    found = []
    for begin in range(0, lines.shape[1], GROUP):
        group = lines[:, begin : begin + GROUP]
        exponent = np.zeros(len(lines), np.int64)
        for places in (slice(SAMPLED, None, SAMPLE_STEP), slice(SAMPLED)):
            sample = np.ascontiguousarray(group[:, places])
            if sample.shape[1] > 0:
                guess = np.clip(magnitude_exponent(sample).max(axis=1) - 14 + 3, *UNITS)
                exponent = np.where((sample == 0).all(axis=1), exponent, guess)
        found.append(exponent)
    return np.stack(found, axis=1)


def segment_units(lines):
    """The same for each segment, (L, S)."""
    segments = -(-lines.shape[1] // SEGMENT)
    return np.repeat(line_units(lines), GROUP // SEGMENT, axis=1)[:, :segments]


@np.errstate(all="ignore")
def split_lines(lines):
    """Lines (L, k) of float32 as (high, low, scale, flags): two arrays (L, S, 64) of float16 and two (L, S)."""
    k = lines.shape[1]
    x, unit = in_segments(lines), segment_units(lines)
    most = magnitude_exponent(x).max(axis=2)
    wanted = most - 14  # brings the largest magnitude to 2^14
    lowest, highest = np.maximum(unit + LOWEST, LOWEST_SCALE), np.minimum(unit + HIGHEST, UNITS[1])
    zero = (x == 0).all(axis=2)
    exponent = np.where(zero, unit, np.clip(wanted, lowest, highest))
    scaled = np.ldexp(x, -exponent[:, :, None]).astype(np.float32)
    high = scaled.astype(np.float16)
    rest = (scaled.astype(np.float64) - high.astype(np.float64)) * 2**11
    low = rest.astype(np.float32).astype(np.float16)
    size = np.abs(x.astype(np.float64))

    def least_from(least):
        """Whether all numbers but zeros are at least so large, scaled."""
        return ((size == 0) | (size >= np.ldexp(1.0, exponent + least)[:, :, None])).all(axis=2)

    clean = least_from(-13)
    present = np.minimum(SEGMENT, k - SEGMENT * np.arange(x.shape[1]))
    large = (np.abs(high) >= 32).sum(axis=2)
    close = ((np.abs(high) >= 1 / 256).sum(axis=2) == present) | zero
    dense = (2 * large > present) | close
    scaled = zero | (wanted == exponent)
    few = (large <= 2) & scaled
    moderate = scaled & least_from(-33) & (exponent >= -93)
    found = clean * CLEAN | dense * DENSE | few * FEW | zero * ZERO | moderate * MODERATE | close * CLOSE
    flags = np.where(wanted <= highest, found, 0)
    return high, low, np.ldexp(np.float32(1), exponent).astype(np.float32), flags


def line_flags(lines):
    """What every segment of a line says."""
    return np.bitwise_and.reduce(split_lines(lines)[3], axis=1)


def joined(lines):
    """The numbers that the pairs stand for, as float32."""
    high, low, scale, _ = split_lines(lines)
    value = fused_multiply_add(low.astype(np.float32), np.float32(2**-11), high.astype(np.float32))
    return (value * scale[:, :, None]).reshape(len(lines), -1)[:, : lines.shape[1]]


def parts_exponents(lines):
    """The exponent of the power of two that each line is multiplied by before it is split into parts."""
    most = magnitude_exponent(np.ascontiguousarray(lines)).max(axis=1)
    return np.minimum(PARTS_TOP - 1 - np.maximum(most, -126), 126)


def line_parts(lines):
    """Lines (L, k) of float32 as three arrays (L, S, 64), each of bfloat16 numbers, times 2^parts_exponents."""
    rest = np.ldexp(in_segments(lines), parts_exponents(lines)[:, None, None]).astype(np.float32)
    parts = []
    for _ in range(3):
        part = torch.from_numpy(rest).bfloat16().float().numpy()
        rest = rest - part
        parts.append(part)
    return parts


def ranges(lines):
    """How much of each line parts can hold: 0: nothing; 1: all but numbers that are next to nothing beside its largest;
    2: all."""
    lines = np.ascontiguousarray(lines)
    exponents, most, shift = magnitude_exponent(lines), magnitude_exponent(lines).max(axis=1), parts_exponents(lines)
    lowest = np.where(lines == 0, 999, np.where(exponents == -127, -149, exponents)).min(axis=1)
    near = lowest + shift >= PARTS_BOTTOM
    topped = (most > -127) & (most + shift == PARTS_TOP - 1)
    return np.select([most == 128, near, topped], [0, 2, 1], 0)


def kinds(lines):
    """What decides whether pairs suit outputs of these lines: CLEAN, DENSE, both, MODERATE if neither, CLOSE; 0: none
    do."""
    flags = line_flags(lines)
    few, close = (flags & (FEW | ZERO)) == FEW, (flags & CLOSE) != 0
    known = flags & (CLEAN | DENSE)
    suited = (flags & (CLEAN | MODERATE)) != 0
    return np.select([few, close, ~suited, known == 0], [0, CLOSE, 0, MODERATE], known)


def arithmetic(a, b, pairs=True):
    """How each output of a product is computed: by pairs or by pairs that are checked (if they are allowed), by parts
    or by parts that are checked, or on the plain cores."""
    right = np.ascontiguousarray(b.T)
    of_a, of_b = kinds(a)[:, None], kinds(right)[None, :]
    like_all = CLEAN | DENSE | MODERATE
    alike = (np.where(of_a == CLOSE, like_all, of_a) & np.where(of_b == CLOSE, like_all, of_b)) != 0
    spread = (of_a == MODERATE) & (of_b == MODERATE)
    suffice = alike & ~spread & pairs
    one_spread = ((of_a == MODERATE) & (of_b & DENSE != 0)) | ((of_a & DENSE != 0) & (of_b == MODERATE))
    less = np.minimum(ranges(a)[:, None], ranges(right)[None, :])
    how = [PAIRS, CHECKED_PAIRS, PARTS, CHECKED]
    return np.select([suffice, one_spread & pairs, less == 2, less == 1], how, PLAIN)


def certain(output, a, b, orders=CERTAIN):
    """Whether checked outputs are no more than so many binary orders below the largest product that there could be."""
    largest_a, largest_b = (magnitude_exponent(np.ascontiguousarray(x)).max(axis=1) for x in (a, b.T))
    exponent = magnitude_exponent(np.ascontiguousarray(output))
    return (exponent > -127) & (exponent + orders >= largest_a[:, None] + largest_b[None, :])


def certain_of_pairs(k):
    """The binary orders for pairs: 23, less those that the number of segments has."""
    return 23 - (-(-k // SEGMENT) - 1).bit_length()


@np.errstate(all="ignore")
def segments_matmul(a, b, part=None):
    """The product of two float32 matrices whose segments of k are summed apart, then those of a group, then the groups:
    what split_fp16 computes without tensor cores. `part`: the product over a segment; as given, in k order."""
    part = part or matmul
    k, total = a.shape[-1], None
    for begin in range(0, k, GROUP):
        group = None
        for s in range(begin, min(begin + GROUP, k), SEGMENT):
            one = part(a[..., s : min(s + SEGMENT, k)], b[..., s : min(s + SEGMENT, k), :])
            group = one if group is None else group + one
        total = group if total is None else total + group
    return canonical(part(a, b) if total is None else total)


@np.errstate(all="ignore")
def in_groups(units_a, units_b, segments, segment):
    """Sums over k of segment(s, sum so far), group by group, whose units are 2^units (L, G)."""
    groups = []
    for g in range(units_a.shape[1]):
        total = np.zeros((len(units_a), len(units_b)), np.float32)
        for s in range(g * GROUP // SEGMENT, min((g + 1) * GROUP // SEGMENT, segments)):
            total = segment(s, total)
        exponent = units_a[:, g, None] + units_b[None, :, g]
        first = np.where((exponent < -126) | (exponent > 127), exponent >> 1, exponent)
        for factor in (first, exponent - first):
            total = total * np.ldexp(np.float32(1), factor).astype(np.float32)
        groups.append(total)
    return in_turn(np.stack(groups))


def products_of(x, y, s):
    return x[:, s].astype(np.float64) @ y[:, s].astype(np.float64).T


@np.errstate(all="ignore")
def pairs_matmul(left, right):
    """By pairs, but for what the tensor core does within a segment: here the 64 products are added in float64 and
    rounded once. `left`, `right`: the lines of both operands."""
    (high_a, low_a, scale_a, _), (high_b, low_b, scale_b, _) = split_lines(left), split_lines(right)
    to_unit_a, to_unit_b = (
        np.ldexp(scale, -segment_units(lines)).astype(np.float32)
        for scale, lines in ((scale_a, left), (scale_b, right))
    )

    def segment(s, total):
        high = products_of(high_a, high_b, s).astype(np.float32)
        rest = (products_of(high_a, low_b, s) + products_of(low_a, high_b, s)).astype(np.float32)
        joint = fused_multiply_add(rest, np.float32(2**-11), high)
        return fused_multiply_add(joint, to_unit_a[:, s, None] * to_unit_b[None, :, s], total)

    return in_groups(line_units(left), line_units(right), scale_a.shape[1], segment)


@np.errstate(all="ignore")
def parts_matmul(left, right):
    """The same by parts."""
    a, b = line_parts(left), line_parts(right)

    def segment(s, total):
        high = products_of(a[0], b[0], s).astype(np.float32)
        rest = sum(products_of(a[i], b[j], s) for i, j in ((1, 1), (0, 2), (2, 0), (0, 1), (1, 0))).astype(np.float32)
        return total + (high + rest)

    groups = -(-left.shape[1] // GROUP)
    units_a, units_b = (np.repeat(-parts_exponents(lines)[:, None], groups, axis=1) for lines in (left, right))
    return in_groups(units_a, units_b, a[0].shape[1], segment)


@np.errstate(all="ignore")
def split_matmul(a, b, pairs=True):
    """The product of two float32 matrices as split_fp16 has it, or if not `pairs` as split_bf16: but for what the
    tensor core does within a segment."""
    left, right = a.detach().cpu().numpy(), np.ascontiguousarray(b.detach().cpu().numpy().T)
    how = arithmetic(left, right.T, pairs)
    result = np.zeros((len(left), len(right)), np.float32)
    if ((how == PAIRS) | (how == CHECKED_PAIRS)).any():
        by_pairs = pairs_matmul(left, right)
        sure = certain(by_pairs, left, right.T, certain_of_pairs(left.shape[1]))
        how = np.where((how == CHECKED_PAIRS) & ~sure, PLAIN, how)
        result = np.where((how == PAIRS) | (how == CHECKED_PAIRS), by_pairs, result)
    if ((how == PARTS) | (how == CHECKED)).any():
        by_parts = parts_matmul(left, right)
        how = np.where((how == CHECKED) & ~certain(by_parts, left, right.T), PLAIN, how)
        result = np.where((how == PARTS) | (how == CHECKED), by_parts, result)
    if (how == PLAIN).any():
        result = np.where(how == PLAIN, segments_matmul(a.detach().cpu(), b.detach().cpu()).numpy(), result)
    not_finite = ~np.isfinite(left).all(axis=1)[:, None] | ~np.isfinite(right).all(axis=1)[None, :]
    if not_finite.any():
        result = np.where(not_finite, sums_of_not_finite(left, right), result)
    return canonical(torch.from_numpy(result))


@np.errstate(all="ignore")
def sums_of_not_finite(left, right):
    """What the products of two lines add up to in which a factor is not finite, in any order: an infinity, or NaN; 0 if
    there are none."""
    sums = np.zeros((len(left), len(right)), np.float32)
    for lines, others, to in ((left, right, sums), (right, left, sums.T)):
        for i in np.flatnonzero(~np.isfinite(lines).all(axis=1)):
            places = ~np.isfinite(lines[i])
            to[i] += (lines[i, places] * others[:, places]).sum(axis=1, dtype=np.float32)
    return sums
