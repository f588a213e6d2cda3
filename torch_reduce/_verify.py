"""Checks every variant against float64, and its bits against those of its order class or of the CPU."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from . import _C, _check, ops, row_ops
from ._row_calls import ROW_CALLS
from ._variants import PRODUCTS, REDUCTIONS, ROW_OPS, Variant, variant_named, variants

LENGTHS = ((0,), (1,), (33,), (1000,), (65_537,), ((1 << 20) + 3,))
ROW_SHAPES = ((0, 33), (3, 1), (5, 33), (7, 1000), (64, 1024), (3, 5000), (2, 65_537))
MATMUL_SHAPES = ((1, 1, 1), (4, 5, 0), (33, 65, 17), (100, 1, 50), (128, 128, 128))
# Up to this many elements a variant is tried with every block or tile size, above with its default.
EVERY_SIZE_UP_TO = 1 << 13


@dataclasses.dataclass
class Outcome:
    """The outcome for one variant of an op."""

    op: str
    variant: str
    cases: int = 0
    compared_bits: int = 0
    """Cases whose bits were compared: on a GPU with the CPU's if the variant promises them, else within the order
    class."""
    worst: float = 0.0
    """The largest ratio of an error to its bound."""
    failures: list[str] = dataclasses.field(default_factory=list)
    skipped: str = ""

    @property
    def ok(self) -> bool:
        """No case failed; a skipped variant has not failed."""
        return not self.failures


def verify(
    op: str,
    names: Sequence[str] | None,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str] | None,
    device: torch.device,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """Checks the variants of an op over shapes and dtypes.

    Args:
        op: the op.
        names: variants or aliases; None for all.
        shapes: (n,), (m, n, k) for products, or (rows, length) for row operations.
        dtypes: None for all that each variant takes.
        device: where. On a GPU, bits are compared with the CPU's if the variant promises them; otherwise, and on the
            CPU, within the variant's order class.
        seed: of the inputs.
        progress: called with the name of each case.

    Returns:
        An outcome a variant, in teaching order.
    """
    rows = list(variants(op)) if names is None else [variant_named(op, name) for name in names]
    outcomes = [Outcome(op, v.name, skipped=_why_not(v, device)) for v in rows]
    running = [(v, o) for v, o in zip(rows, outcomes, strict=True) if not o.skipped]
    for dtype in dtypes or list(dict.fromkeys(d for v, _ in running for d in v.dtypes + v.composed_dtypes)):
        for shape in shapes:
            if op in ("amax", "amin") and shape == (0,):
                continue
            progress(f"{op} {dtype} {'x'.join(map(str, shape))}")
            _run_case(
                op, shape, dtype, [(v, o) for v, o in running if dtype in v.dtypes + v.composed_dtypes], device, seed
            )
    for outcome in outcomes:
        if not outcome.cases and not outcome.skipped:
            outcome.skipped = "takes none of these dtypes and shapes"
    return outcomes


def _why_not(variant: Variant, device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    have = torch.cuda.get_device_capability(device)
    if variant.runs_on(have):
        return ""
    need = variant.capability
    return f"needs compute capability {need[0]}.{need[1]}, this GPU has {have[0]}.{have[1]}"


def _run_case(
    op: str,
    shape: tuple[int, ...],
    dtype: str,
    running: Sequence[tuple[Variant, Outcome]],
    device: torch.device,
    seed: int,
) -> None:
    here = _check.make_inputs(op, shape, getattr(torch, dtype), "cpu", seed)
    there = tuple(t.to(device) for t in here)
    truth = _check.truth(op, *there)
    expected: dict[tuple[str, ...], Tensor] = {}
    for variant, outcome in running:
        sizes: list[dict[str, int]] = [{}]
        if variant.size_name and math.prod(shape) <= EVERY_SIZE_UP_TO:
            sizes += [{variant.size_name: size} for size in variant.sizes]
        for named in sizes:
            outcome.cases += 1
            what = f"{dtype} {'x'.join(map(str, shape))}" + "".join(f" {k} {v}" for k, v in named.items())
            call = ROW_CALLS[op].ours if op in ROW_OPS else getattr(ops, op)
            try:
                with _check.poisoned():
                    result = call(*there, variant=variant.name, **named)
                checked = _check.check(op, variant.name, result, there, truth, **named)
                outcome.worst = max(outcome.worst, checked.of_bound)
                if not checked:
                    outcome.failures.append(f"{what}: {checked.reason}")
                    continue
                ran = variant
                if op in PRODUCTS:  # on the CPU all variants compute in the order of the first
                    right = there[1].mT if op == "linear" else there[1]
                    ran = _check.chosen(variant.name, there[0], right) if device.type == "cuda" else variants(op)[0]
                key = _bits_class(op, ran, dtype, shape, named)
                if not key:
                    continue
                cpus = device.type == "cuda" and (ran.on_cpu or key == ("exact",))
                if key not in expected:
                    expected[key] = call(*here, variant=variant.name, **named) if cpus else result
                outcome.compared_bits += 1
                if not _check.same_bits(result, expected[key]):
                    whose = "the CPU's" if cpus else f"the others of class {ran.order}"
                    outcome.failures.append(f"{what}: right within its bound, but other bits than {whose}")
            except Exception as error:  # a variant that raises has failed, and the others go on
                refusals = tuple(f"variant '{variant.name}' {verb}" for verb in ("takes", "holds"))
                if isinstance(error, ValueError) and str(error).startswith(refusals):
                    outcome.cases -= 1  # a rung for other shapes, which says so
                    continue
                lines = str(error).strip().splitlines() or [""]
                outcome.failures.append(f"{what}: {type(error).__name__}: {lines[0]}")


def _bits_class(
    op: str, variant: Variant, dtype: str, shape: tuple[int, ...], sizes: dict[str, int]
) -> tuple[str, ...]:
    """A key: calls with equal keys must give equal bits; an empty key promises nothing."""
    if op in ("amax", "amin") or not _check.is_float(getattr(torch, dtype)):
        return ("exact",)  # in any order, atomics too
    if not variant.deterministic:
        return ()
    if op not in REDUCTIONS or variant.along_dims:
        return (variant.order,)
    plan = _C.reduce_plan(variant.name, dtype, shape[0], sizes.get("block_size"), None)
    return (variant_named("sum", plan["variant"]).order, plan["text"])


@dataclasses.dataclass(frozen=True)
class Alone:
    """Whether a row has the same bits alone as in a batch."""

    op: str
    dtype: str
    row: str
    """What a row is, and how many were in the batch."""
    torch: bool
    ours: bool


def invariance(dtype: torch.dtype, device: torch.device, seed: int = 0) -> list[Alone]:
    """Asks torch's ops and those of this library for one row of a batch and for that row alone."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    functional = torch.nn.functional
    x, right, weight, scale = random(300, 1000), random(1000, 700), random(700, 1000), random(1000)
    heads = random(5, 4, 70, 64)
    cases: list[tuple[str, Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
        ("sum", x, lambda t: t.sum(1), lambda t: ops.sum(t, 1)),
        ("mean", x, lambda t: t.mean(1), lambda t: ops.mean(t, 1)),
        ("matmul", x, lambda t: t @ right, lambda t: ops.matmul(t, right)),
        ("linear", x, lambda t: functional.linear(t, weight), lambda t: ops.linear(t, weight)),
        ("softmax", x, lambda t: t.softmax(1), lambda t: row_ops.softmax(t, 1)),
        ("log_softmax", x, lambda t: t.log_softmax(1), lambda t: row_ops.log_softmax(t, 1)),
        ("logsumexp", x, lambda t: t.logsumexp(1), lambda t: row_ops.logsumexp(t, 1)),
        (
            "layer_norm",
            x,
            lambda t: functional.layer_norm(t, (1000,), scale),
            lambda t: row_ops.layer_norm(t, (1000,), scale),
        ),
        (
            "rms_norm",
            x,
            lambda t: functional.rms_norm(t, (1000,), scale),
            lambda t: row_ops.rms_norm(t, (1000,), scale),
        ),
        (
            "scaled_dot_product_attention",
            heads,
            lambda t: functional.scaled_dot_product_attention(t, t, t, is_causal=True),
            lambda t: ops.scaled_dot_product_attention(t, t, t, is_causal=True),
        ),
    ]
    found = []
    for op, rows, by_torch, by_us in cases:
        same = [
            all(_check.same_bits(f(rows[i : i + 1]), f(rows)[i : i + 1]) for i in (0, 3)) for f in (by_torch, by_us)
        ]
        row = f"of {len(rows)} x {' x '.join(map(str, rows.shape[1:]))}"
        found.append(Alone(op, str(dtype).removeprefix("torch."), row, *same))
    return found
