"""torch's own samples of its ops, in batch_invariant: neither strides nor an element's place in an array change a bit.

A sum over several dims follows their order in memory (docs/numerics.md): the strides here keep that order.
"""

import pytest
import torch
from bits import same_bits as have_same_bits
from torch.utils._pytree import tree_flatten, tree_map

import torch_reduce

pytest.importorskip("expecttest", reason="torch's own tests import it")

from torch.testing._internal.common_methods_invocations import op_db

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64)
# Samples of an op and dtype: `test_strides` looks at as many at most, spread evenly.
SAMPLES = 6
# An element of these arrays is compared with itself in their parts: at the beginning, across vectors, at the end.
LENGTH, PARTS = 67, (slice(0, 1), slice(3, 20), slice(5, 8), slice(16, 33), slice(60, 67))

# Not functions of their arguments' values.
RANDOM = (
    "dropout",
    "rrelu",
    "fractional_max_pool",
    "bernoulli",
    "multinomial",
    "normal",
    "uniform",
    "cauchy",
    "lowrank",
)
RANDOM += ("exponential", "geometric", "rand", "empty", "resize", "as_strided", "jiterator")
# Not elementwise, though arguments and results have one length.
SHIFTS = ("cum", "flip", "sort", "take", "search", "softm", "normalize", "quantile", "scatter", "fft", "gradient")
SHIFTS += ("rot90", "roll", "gather", "index", "put", "unique", "sparse", "bucketize", "squeeze")


def name_of(info):
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def infos(without):
    chosen = [info for info in op_db if not any(word in info.name for word in without)]
    return pytest.mark.parametrize("info", chosen, ids=name_of)


def is_dense(x):
    return isinstance(x, torch.Tensor) and x.layout == torch.strided and not x.is_quantized


def tensors(tree):
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


def mapped(function, sample):
    """The sample, its dense tensors mapped."""

    def to(tree):
        return tree_map(lambda x: function(x) if is_dense(x) else x, tree)

    return type(sample)(to(sample.input), args=to(sample.args), kwargs=to(sample.kwargs))


def same_bits(a, b):
    """But for those of NaN."""
    nan = torch.isnan(a)
    return torch.equal(nan, torch.isnan(b)) and have_same_bits(a[~nan], b[~nan]) and a.shape == b.shape


def samples(info, dtype):
    if dtype not in info.supported_dtypes("cpu"):
        return []
    wants_gradients = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    return list(info.sample_inputs("cpu", dtype, requires_grad=wants_gradients))


def results(info, sample, part=slice(None)):
    """What the op and its backward give, or None where something is refused or left to torch."""
    try:
        with torch_reduce.batch_invariant(strict=True):
            found = tensors(info.op(sample.input, *sample.args, **sample.kwargs))
            given = [x for x in tensors((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
            ends = [x for x in found if x.requires_grad]
            if given and ends:
                # By element: of a part of a batch, the part.
                weights = [torch.linspace(0.5, 1.5, max(LENGTH, x.numel()), dtype=torch.float64) for x in ends]
                starts = [w[part][: x.numel()].view(x.shape).to(x.dtype) for w, x in zip(weights, ends, strict=True)]
                found += [g for g in torch.autograd.grad(ends, given, starts, allow_unused=True) if g is not None]
    except (RuntimeError, ValueError, TypeError, IndexError):  # NotImplementedError of the strict mode among them
        return None
    return [x.detach().resolve_neg() for x in found if is_dense(x)]


def elsewhere(x):
    """x at an odd address, and x as every second element."""
    after = torch.empty(x.numel() + 3, dtype=x.dtype)[3:].view(x.shape)
    spread = torch.empty((*x.shape, 2), dtype=x.dtype)[..., 1]
    return [y.copy_(x.detach()).requires_grad_(x.requires_grad) for y in (after, spread)]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.nightly
@infos(without=RANDOM)
def test_strides_and_addresses_change_no_bit(info, dtype):
    every = samples(info, dtype)
    for sample in every[:: max(1, len(every) // SAMPLES)]:
        expected = results(info, sample)
        for i in range(2):
            moved = mapped(lambda x, i=i: elsewhere(x)[i], sample)
            found = results(info, moved)
            if expected is None or found is None:  # view() of such strides is refused
                continue
            assert len(found) == len(expected)
            for a, b in zip(found, expected, strict=True):
                assert same_bits(a, b), moved


@pytest.mark.nightly
@infos(without=RANDOM + SHIFTS)
def test_the_place_of_an_element_changes_no_bit(info):
    generator = torch.Generator().manual_seed(1)

    def longer(x):
        if x.dim() == 0:
            return x
        picked = x.detach().flatten()[torch.randint(0, x.numel(), (LENGTH,), generator=generator)]
        if picked.is_floating_point() or picked.is_complex():
            picked = picked * (0.9 + 0.2 * torch.rand(LENGTH, generator=generator)).to(picked.dtype)
        return picked.requires_grad_(x.requires_grad)

    seen = set()
    for dtype in DTYPES:
        for sample in samples(info, dtype):
            of = tensors((sample.input, sample.args, sample.kwargs))
            arrays = [x for x in of if x.dim() > 0]
            kind = dtype, len(arrays), len(of), str(sample.kwargs)
            if kind in seen or not arrays or not all(is_dense(x) and x.shape == arrays[0].shape for x in arrays):
                continue
            seen.add(kind)
            if arrays[0].numel() < 2:
                continue
            long = mapped(longer, sample)
            whole = results(info, long)
            if whole is None or any(x.shape != (LENGTH,) for x in whole):
                continue
            for part in PARTS:

                def cut(x, part=part):
                    return x.detach()[part].clone().requires_grad_(x.requires_grad) if x.dim() else x

                of_part = results(info, mapped(cut, long), part)
                assert of_part is not None and len(of_part) == len(whole), (dtype, sample)
                for a, b in zip(of_part, whole, strict=True):
                    assert same_bits(a, b[part]), (dtype, part, sample)
