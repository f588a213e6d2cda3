"""Calls as a user writes them, for type checkers: mypy and pyright by `make lint`, strictly. It is not run."""

import torch
from torch import Tensor

import torch_reduce


def names_go_back_to_their_op(x: Tensor) -> Tensor:
    """A variant's name fits the functions of its op."""
    for v in torch_reduce.variants("sum"):
        x = torch_reduce.sum(x, variant=v.name)
    for w in torch_reduce.variants("matmul"):
        x = torch_reduce.matmul(x, x, variant=w.name)
    for r in torch_reduce.variants("softmax"):
        x = torch_reduce.softmax(x, -1, variant=r.name)
    for a in torch_reduce.variants("vector_add"):
        x = torch_reduce.vector_add(x, x, variant=a.name)
    return x


def names_are_checked(x: Tensor) -> Tensor:
    """A misspelt name is an error: an ignore that nothing needs would be reported."""
    return torch_reduce.sum(x, variant="vectorised")  # type: ignore[arg-type]


def results_in_given_memory(x: Tensor) -> Tensor:
    """`out` is a Tensor, and so is what is returned."""
    torch_reduce.softmax(x, -1, variant="online", out=x)
    torch_reduce.norm(x, 3, (0, 1), dtype=torch.float64, out=x)
    return torch_reduce.linear(x, x, out=x)


def the_mode(model: torch.nn.Module, x: Tensor) -> Tensor:
    """The mode is a context manager, and its report a sequence."""
    with torch_reduce.batch_invariant() as mode:
        y: Tensor = model(x)
    ours: int = sum(op.ours for op in mode.report())
    return y + ours


@torch_reduce.batch_invariant(strict=True)
def decorated(x: Tensor) -> Tensor:
    """The mode as a decorator keeps the function's type."""
    return torch_reduce.mean(x, (0, 1), keepdim=True, dtype=torch.float32)


def shapes_and_plans(x: Tensor) -> str:
    """Plans print themselves."""
    y: Tensor = decorated(x)
    vectors: bool = torch_reduce.plan("vector_add", y, (5,), variant="grid_1d").vectors
    return str(torch_reduce.plan("sum", y, dim=1)) + str(vectors)
