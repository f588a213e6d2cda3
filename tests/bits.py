"""Comparing results as bit patterns."""

import torch

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(x):
    """The bit patterns of a tensor, as integers on the CPU."""
    x = x.detach().cpu().contiguous()
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.view(WORDS[x.element_size()])


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def ordered(x):
    """Floats as integers whose distance counts the floats between them."""
    word = bits(x).to(torch.int64)
    return torch.where(word < 0, -(word & (2 ** (8 * x.element_size() - 1) - 1)), word)


def ulp_distance(a, b):
    return (ordered(a) - ordered(b)).abs().max().item()


def assert_same_bits(actual, expected, what=""):
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    a, b = bits(actual), bits(expected)
    if torch.equal(a, b):
        return
    wrong = (a != b).nonzero()
    first = tuple(wrong[0].tolist())
    if actual.is_complex():
        actual, expected = torch.view_as_real(actual), torch.view_as_real(expected)
    mask = 2 ** (8 * actual.element_size()) - 1
    raise AssertionError(
        f"{what}: {len(wrong)} of {a.numel()} results differ; at {first} {actual[first].item()!r} "
        f"(bits {a[first].item() & mask:#x}), "
        f"not {expected[first].item()!r} (bits {b[first].item() & mask:#x})"
    )
