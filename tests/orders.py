"""The order of additions of each order class, as a slow and obvious model: what kernels and CPU must agree with.

It is written from the description of each class (`order_text` in the table, the comments of the kernels), not from the
C++ plan: the two must give the same bits. `T` is the number of threads in a block and `G` the number of blocks. Every
addition rounds to the accumulator: float64 for float64, float32 for the other floats. Padding is with zeros, which no
sum notices (a sum of nothing but -0 becomes +0 at the end, by adding +0).
"""

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
