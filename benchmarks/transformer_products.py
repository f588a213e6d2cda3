"""Times the products of examples/transformer.py, forward and backward, on the operands that a step has; beside torch's
float32."""

from collections.abc import Callable, Sequence
from typing import Any

import checkout  # noqa: F401, makes the example importable
import product_errors
import product_tables
import products
import torch
import transformer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torch_reduce import bench

TORCH, OURS = "torch float32", "torch_reduce auto"
# In the order of a step, and what their two gradients are of.
FORWARD = {
    "attention_in": ("input", "weight"),
    "scores": ("query", "key"),
    "values": ("probabilities", "value"),
    "attention_out": ("input", "weight"),
    "mlp_in": ("input", "weight"),
    "mlp_out": ("input", "weight"),
}
NAMES = (
    *(f"{name} forward" for name in FORWARD),
    *(f"{name} gradient of {what}" for name, operands in reversed(FORWARD.items()) for what in operands),
)
KINDS = {
    "initial": "normal numbers",
    "outliers": "a hundredth of the features and of the norms' weights x 1000",
}
# Softmax is then as sharp as in trained models.
SCORES_DEVIATION = 3.0
OUTLIERS_SHARE, OUTLIERS_FACTOR = 0.01, 1e3
# Of a product's table, for each kind of data, and of that of steps.
COLUMNS, STEP_COLUMNS = ("µs", "torch, µs", "x", "errors"), ("ms", "x", "error")
# Of larger products so many rows are compared with float64.
CHECKED_ROWS = 256


def data(kind: str, size: transformer.Size, device: torch.device) -> transformer.Data:
    """Of `KINDS`, with queries scaled so that scores have their deviation."""
    x, grad, parameters = transformer.initial(size, device)
    if kind == "outliers":
        generator = torch.Generator().manual_seed(2)
        features = torch.randperm(size.width, generator=generator)[: max(round(size.width * OUTLIERS_SHARE), 1)]
        for tensor in (x, parameters["attention_norm.weight"], parameters["mlp_norm.weight"]):
            tensor[..., features.to(device)] *= OUTLIERS_FACTOR
    forward = recorded(lambda: transformer.block(x[:1], parameters, size.heads, transformer.ours()))
    query, key = forward["scores forward"]
    deviation = float((query @ key).std()) * query.shape[-1] ** -0.5
    for name in ("attention_in.weight", "attention_in.bias"):
        parameters[name][: size.width] *= SCORES_DEVIATION / deviation
    return x, grad, parameters


class Recorder(TorchDispatchMode):
    """Keeps the operands of our products as they reach the kernels, in the order of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.operands: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op in (torch.ops.treduce.matmul.default, torch.ops.treduce.linear.default):
            a, b = args[0].detach(), args[1].detach()
            b = b.mT if op is torch.ops.treduce.linear.default else b
            self.operands.append((a.flatten(0, -2) if b.dim() == 2 else a, b))  # rows of a batch are rows of one matrix
        return op(*args, **(kwargs or {}))


def recorded(call: Callable[[], object]) -> dict[str, tuple[Tensor, Tensor]]:
    """The operands of a step, or of its forward half, by product, in the order of the calls."""
    with transformer.precision("ieee"), Recorder() as recorder:
        call()
    return dict(zip(NAMES, recorder.operands, strict=False))


def step_of(given: transformer.Data, heads: int) -> dict[str, tuple[Tensor, Tensor]]:
    """The operands of all products of a step."""
    x, grad, parameters = given
    return recorded(lambda: transformer.step(x, grad, parameters, heads, transformer.ours()))


def layout_of(a: Tensor, b: Tensor) -> str:
    """`NT`: the second operand is contiguous along k."""
    return "".join("N" if x.stride(-1) == 1 else "T" for x in (a, b))


def errors(a: Tensor, b: Tensor) -> dict[str, Any]:
    """Of `auto` and of torch, as product_errors has them."""
    some = slice(None, None, max(a.shape[-2] // CHECKED_ROWS, 1))
    rows, columns = a[..., some, :].double(), b.double()
    truth, scale = rows @ columns, rows.abs() @ columns.abs()
    return {
        f"error_{name}": list(product_errors.relative(call(a, b)[..., some, :], truth, scale))
        for name, call in products.BESIDE.items()
    }


def measure(
    size: transformer.Size,
    device: torch.device,
    settings: bench.Settings,
    step: Callable[[str], None],
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """A row for each product, and for each way to multiply in a whole step."""
    found: dict[str, Any] = {"size": size._asdict(), "transformer": [], "steps": []}
    for kind in KINDS:
        step(f"{kind}: whole steps")
        given = data(kind, size, device)
        for result in transformer.compare(size, device, data=given):
            figures = {name: float(f"{value:.5g}") for name, value in result._asdict().items() if name != "name"}
            found["steps"].append({"kind": kind, "name": result.name, **figures})
        operands = step_of(given, size.heads)
        for name in NAMES:
            step(f"{kind}: {name}")
            a, b = operands.pop(name)
            row: dict[str, Any] = {"kind": kind, "name": name, "m": a.shape[-2], "n": b.shape[-1], "k": a.shape[-1]}
            row |= {"batch": list(a.shape[:-2]), "layout": layout_of(a, b)}
            with torch.no_grad(), transformer.precision("ieee"):
                row |= errors(a, b)
                row |= products.beside_torch(a, b, device, settings)
            found["transformer"].append(row)
            del a, b
        save(found)
    return found


def what_of(row: dict[str, Any]) -> str:
    return f"{row['kind']}: {KINDS[row['kind']]}"


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line a product: times, speed-up and errors for each kind of data."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    lines = []
    for name in dict.fromkeys(row["name"] for row in rows):
        of = {row["kind"]: row for row in rows if row["name"] == name}
        first = next(iter(of.values()))
        lines.append([name, product_tables.shape_of(first), first["layout"]])
        for row in map(of.get, kinds):
            lines[-1] += cells_of(row) if row else [""] * len(COLUMNS)
    return ["product", "m x n x k", "layout", *heads(kinds, COLUMNS)], lines


def heads(kinds: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The kind stands before its first column."""
    return [what if i else f"{kind}: {what}" for kind in kinds for i, what in enumerate(columns)]


def cells_of(row: dict[str, Any]) -> list[str]:
    us = [product_tables.significant(row["us"][name][0]) for name in products.BESIDE]
    return [*us, f"{row['x'][0]:.2f}", product_tables.errors_of(row)]


def steps_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line for each way to multiply: the time of a step, and the errors of its gradients."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    lines = []
    for name in dict.fromkeys(row["name"] for row in rows):
        lines.append([name])
        for kind in kinds:
            row, torchs = step_row(rows, kind, name), step_row(rows, kind, TORCH)
            lines[-1] += [f"{row['ms']:.3g}", f"{torchs['ms'] / row['ms']:.2f}"]
            lines[-1].append(f"{row['error']:.1e} ({row['worst']:.1e})")
    return ["products by", *heads(kinds, STEP_COLUMNS)], lines


def step_row(rows: Sequence[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(row for row in rows if (row["kind"], row["name"]) == (kind, name))


def summary(data: dict[str, Any]) -> list[str]:
    """Lines for the terminal."""
    tables = [table(data["transformer"]), steps_table(data["steps"])] if "transformer" in data else []
    return ["  ".join(line) for _, lines in tables for line in lines]
