"""Dims of a tensor, as torch reads them."""

from collections.abc import Iterable


def wrapped_dims(dims: Iterable[int], rank: int) -> list[int]:
    """Dims counted from the front; a number has one, as in torch.

    Raises:
        IndexError: one is out of range.
        RuntimeError: one is named twice.
    """
    rank, found = max(rank, 1), []
    for d in dims:
        if not -rank <= d < rank:
            raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {d})")
        if d % rank in found:
            raise RuntimeError(f"dim {d % rank} appears multiple times in the list of dims")
        found.append(d % rank)
    return found
