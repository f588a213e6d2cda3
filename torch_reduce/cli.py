"""The command line: `python -m torch_reduce` or `torch-reduce`."""

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from . import _check, _model, _plot, bench, ops
from ._device import Bandwidth, as_device, build_info, cuda_built
from ._info import device_info
from ._invariant import batch_invariant
from ._plan import CHIPS
from ._plans import plan
from ._tables import (
    build_table,
    device_table,
    human_bytes,
    plain_table,
    rows_table,
    significant,
    titled,
    variants_table,
)
from ._variants import OPS, PRODUCTS, ROW_OPS, variant_named, variants
from ._verify import LENGTHS, MATMUL_SHAPES, ROW_SHAPES, invariance, verify
from ._version import __version__

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
    "float8_e4m3fn",
    "float8_e5m2",
    "complex64",
    "complex128",
)
CPU_SENTENCE = (
    "These are CPU times. A CPU executes each rung's order of additions, not its kernel, so they do not teach what the "
    "ladder teaches: that takes an NVIDIA GPU."
)
# `threads` prints this many rows and then the number of those left out.
MOST_THREADS_SHOWN = 64


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all errors of this command line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help shows the usage)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1 if a check failed, 2 for an error."""
    args = _parser().parse_args(arguments)
    args.command_line = shlex.join(
        ["python", "-m", "torch_reduce", *(sys.argv[1:] if arguments is None else arguments)]
    )
    # With `--json -` tables go to stderr. Do not fold lines if the output is a pipe or a file.
    to = sys.stderr if args.json == "-" else sys.stdout
    console = Console(file=to, highlight=False, width=None if to.isatty() else 200)
    try:
        for path in (args.json, getattr(args, "plot", None)):
            if path is not None and not Path(path).absolute().parent.is_dir():
                raise ValueError(f"there is no folder for {path!r}")  # now, not after minutes of work
        return args.run(args, console)
    except BrokenPipeError:
        # The reader of the pipe has exited, as in `| head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (ArithmeticError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        print(f"torch-reduce {args.name}: error: {first}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="torch-reduce",
        description="Reductions and matrix multiplication for PyTorch, as a ladder of named CUDA variants.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"torch_reduce {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace, Console], int], says: str, *examples: str) -> _Parser:
        lines = "\n".join(f"  python -m torch_reduce {name}{' ' + e if e else ''}" for e in examples)
        added = commands.add_parser(
            name, help=says, description=says[0].upper() + says[1:] + ".", epilog=f"examples:\n{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        added.set_defaults(run=run, name=name)
        return added

    def device_and_json(to: argparse.ArgumentParser) -> None:
        to.add_argument("--device", help="cpu, cuda or cuda:1 (default: the GPU where there is one)")
        to.add_argument("--json", metavar="FILE", help="also write the results to FILE; -: to standard output")

    info = command(
        "info", _info, "facts about the device and this build", "", "--bandwidth", "--device cpu --json info.json"
    )
    device_and_json(info)
    info.add_argument("--bandwidth", action="store_true", help="measure how fast memory is read and copied")

    listing = command(
        "variants", _variants, "the variants of each op, in teaching order", "", "matmul", "sum --json sum.json"
    )
    listing.add_argument("op", nargs="?", help=f"one of {', '.join(OPS)} (default: sum, matmul, vector_add)")
    listing.add_argument("--json", metavar="FILE", help="also write the tables to FILE; -: to standard output")

    planning = command(
        "plan", _show_plan, "what a call would do on a GPU: rung, order, launches, workspace, bound; works without one",
        "sum 4096x16384 --dim 1 --dtype bfloat16 --device H200", "mean 32x256x56x56 --dim 0 2 3",
        "sum 2^28 --variant two_pass", "matmul 4096x4096 4096x4096",
        "linear 64x8192 28672x8192 --dtype bfloat16 --bias", "softmax 4096x4096 --dtype bfloat16",
        "vector_add 2^28 2^28 --variant grid_2d",
    )  # fmt: skip
    planning.add_argument("op", help=f"one of {', '.join(OPS)}")
    planning.add_argument(
        "shapes", nargs="+", type=_sizes, metavar="SHAPE",
        help="of the input: 2^20 or 4096x16384; of products and vector_add, of both (linear: input, then weight)",
    )  # fmt: skip
    planning.add_argument(
        "--dim", nargs="+", type=int, metavar="D",
        help="dims to reduce (default: all); the softmax family takes one dim, norms take none (default: the last)",
    )  # fmt: skip
    planning.add_argument("--keepdim", action="store_true", help="keep the reduced dims, with size 1")
    planning.add_argument("--dtype", default="float32", help="of the input (default: float32)")
    planning.add_argument("--result-dtype", help="the argument dtype of the call (default: none)")
    planning.add_argument("--variant", default="auto", help="a name or alias (default: auto)")
    planning.add_argument("--block-size", type=_count, metavar="N", help="threads in a block")
    planning.add_argument("--num-blocks", type=_count, metavar="N", help="blocks in the grid")
    planning.add_argument("--tile-size", type=_count, metavar="N", help="for the variants of matmul that take one")
    planning.add_argument("--tf32", action="store_true", help="float32 products may be read as tfloat32")
    planning.add_argument("--bias", action="store_true", help="linear with a bias")
    chips = ", ".join(chip.name for chip in CHIPS)
    planning.add_argument("--device", help=f"cuda, cuda:1 or one of {chips} (default: the GPU, or an H200)")
    planning.add_argument("--json", metavar="FILE", help="also write the plan to FILE; -: to standard output")

    threads = command(
        "threads", _threads, "which block, thread and global index each element gets", "--grid 3 --block 4",
        "--grid 2,2 --block 4,2", "--grid 2,2 --block 4,2 --all",
    )  # fmt: skip
    threads.add_argument("--grid", required=True, type=_extent, help="blocks: X or X,Y")
    threads.add_argument("--block", required=True, type=_extent, help="threads in a block: X or X,Y")
    threads.add_argument("--all", action="store_true", help=f"show all rows, not the first {MOST_THREADS_SHOWN}")
    device_and_json(threads)

    timing = command(
        "bench", _bench, "time the ladder beside torch; each result is checked first", "", "sum amax --n 2^20 25.6M",
        "--variant v0 v3 v6 auto --block-size 128 256 512", "matmul --shape 512x512x512 1024x1024x1024",
        "softmax layer_norm --shape 4096x4096 512x50257 --dtype bfloat16",
        "--n 2^16 2^20 2^24 2^28 --variant auto unrolled --plot sum.svg --json sum.json",
    )  # fmt: skip
    timing.add_argument("ops", nargs="*", metavar="OP", help=f"of {', '.join(OPS)} (default: sum)")
    timing.add_argument(
        "--n", nargs="+", type=_count, metavar="N", help="lengths: 1000, 2^20, 25.6M (default: 25.6M; on a CPU 2^20)"
    )
    timing.add_argument(
        "--shape",
        nargs="+",
        type=_shape,
        metavar="MxNxK",
        help="for matmul and linear (default: 1024^3; on a CPU 256^3); for row operations ROWSxLENGTH (4096^2; 512^2)",
    )
    timing.add_argument("--dtype", nargs="+", default=["float32"], help="default: float32")
    timing.add_argument("--variant", nargs="+", help="names or aliases (default: all)")
    timing.add_argument("--block-size", nargs="+", type=_count, default=[], metavar="N", help="threads in a block")
    timing.add_argument("--num-blocks", nargs="+", type=_count, default=[], metavar="N", help="blocks in the grid")
    timing.add_argument("--tile-size", nargs="+", type=_count, default=[], metavar="N", help="for matmul")
    timing.add_argument("--quick", action="store_true", help="fewer samples, smaller ceilings, no torch.compile")
    timing.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    timing.add_argument("--seed", type=int, default=0, help="of the inputs (default: 0)")
    timing.add_argument("--plot", metavar="FILE", help="draw one op and dtype to FILE.svg or FILE.png")
    device_and_json(timing)

    checking = command(
        "verify", _verify, "check every variant against float64 and against the bits its order promises", "",
        "--op sum --n 0 1 2^20 --dtype float16", "--variant v0 v6 --seed 7", "--invariance",
    )  # fmt: skip
    checking.add_argument("--op", nargs="+", help="default: all")
    checking.add_argument("--n", nargs="+", type=_count, metavar="N", help="lengths, as for bench")
    checking.add_argument(
        "--shape", nargs="+", type=_shape, metavar="MxNxK", help="for matmul and linear; ROWSxLENGTH for row operations"
    )
    checking.add_argument("--dtype", nargs="+", help="default: all that a variant takes")
    checking.add_argument("--variant", nargs="+", help="names or aliases (default: all)")
    checking.add_argument("--seed", type=int, default=0, help="of the inputs (default: 0)")
    checking.add_argument(
        "--invariance", action="store_true", help="show a row alone against the row in its batch, beside torch's"
    )
    device_and_json(checking)

    asking = command(
        "model", _ask_model, "ask six ways if a transformer's bits depend on its batch, with torch and in the mode",
        "", "--model gpt2 --dtype bfloat16 --attention eager", "--device cuda --size real",
    )  # fmt: skip
    asking.add_argument("--model", choices=_model.FAMILIES, default="llama", help="default: llama")
    asking.add_argument("--size", choices=_model.SIZES, default="small", help="default: small; real: widths in use")
    asking.add_argument("--dtype", default="float32", help="default: float32")
    asking.add_argument("--attention", choices=_model.ATTENTION, default="sdpa", help="default: sdpa")
    asking.add_argument("--length", type=_count, default=64, metavar="N", help="tokens of a prompt (default: 64)")
    device_and_json(asking)

    demo = command("demo", _demo, "one screen: this machine, and the sum ladder on it", "", "--n 2^26")
    demo.add_argument("--n", type=_count, help="default: 2^24; on a CPU 2^20")
    device_and_json(demo)
    return parser


_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def _count(text: str) -> int:
    """`1000`, `1_000`, `2^20`, `25.6M`, `1e6`, `64Ki`."""
    unit = next((u for u in sorted(_UNITS, key=len, reverse=True) if text.endswith(u)), "")
    number = text.removesuffix(unit)
    try:
        base, power, exponent = number.partition("^")
        value = int(base) ** int(exponent) if power else float(number) if set(number) & set(".e") else int(number)
        value = round(value * _UNITS.get(unit, 1), 6)
    except (ValueError, OverflowError):
        value = -1
    if value < 0 or value != int(value) or value > 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count such as 1000, 2^20 or 25.6M")
    return int(value)


def _shape(text: str) -> tuple[int, ...]:
    parts = text.lower().split("x")
    if len(parts) not in (2, 3):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 512x512x512, or 4096x512 for row operations")
    return tuple(_count(p) for p in parts)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_count(p) for p in text.lower().split("x"))


def _extent(text: str) -> list[int]:
    parts = [_count(p) for p in text.split(",")]
    if len(parts) not in (1, 2):
        raise argparse.ArgumentTypeError(f"{text!r} is not an extent such as 4 or 4,2")
    return parts


def _known_dtypes(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in DTYPES:
            raise ValueError(f"unknown dtype {name!r}; one of {', '.join(DTYPES)}")
    return names


def _known_ops(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in OPS:
            raise ValueError(f"unknown op {name!r}; one of {', '.join(OPS)}")
    return names


def _write_json(path: str | None, data: Any) -> None:
    if path is not None:
        bench.write_json(path, data)


@contextlib.contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar, on stdout if that is a terminal, else on stderr.

    Yields a function to call with the name of each step.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    where = console if console.is_terminal else Console(stderr=True)
    # Drawn at each step, not by a thread of its own, which would disturb the timing.
    quiet = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}
    with Progress(*columns, console=where, transient=True, disable=not where.is_terminal, **quiet) as progress:
        task = progress.add_task("", total=total)
        yield lambda what: progress.update(task, advance=1, description=what, refresh=True)


def _info(args: argparse.Namespace, console: Console) -> int:
    device = as_device(args.device)
    facts = device_info(device)
    if args.bandwidth:
        with _progress(console, 1) as step:
            step("measuring bandwidth")
            facts = dataclasses.replace(facts, bandwidth=bench.measure_bandwidth(device))
    build = build_info()
    console.print(titled(f"{facts.device}: {facts.name}", device_table(facts)))
    console.print()
    console.print(titled("this build", build_table(build)))
    if device.type == "cpu" and args.device is None:
        console.print()
        why = "torch finds no CUDA GPU here" if cuda_built() else "torch_reduce was built without CUDA"
        console.print(f"The CPU is shown because {why}.")
    _write_json(args.json, {"device": dataclasses.asdict(facts), "build": dataclasses.asdict(build)})
    return 0


def _variants(args: argparse.Namespace, console: Console) -> int:
    chosen = _known_ops([args.op] if args.op else ["sum", "matmul", "vector_add"])
    for i, op in enumerate(chosen):
        if i:
            console.print()
        title = "sum (mean, amax and amin have the same)" if args.op is None and op == "sum" else op
        console.print(titled(title, variants_table(variants(op))))
    _write_json(args.json, {op: [dataclasses.asdict(v) for v in variants(op)] for op in chosen})
    return 0


def _show_plan(args: argparse.Namespace, console: Console) -> int:
    dtypes = _known_dtypes([args.dtype] + ([args.result_dtype] if args.result_dtype else []))
    product, addition = args.op in PRODUCTS, args.op == "vector_add"
    if len(args.shapes) != (2 if product or addition else 1):
        takes = "two shapes" if product or addition else "one shape"
        raise ValueError(f"{args.op} takes {takes}, got {len(args.shapes)}")
    options: dict[str, Any] = {"device": args.device, "input_dtype": getattr(torch, dtypes[0])}
    of_reductions = {
        "dim": args.dim, "dtype": getattr(torch, dtypes[1]) if args.result_dtype else None, "keepdim": args.keepdim,
        "block_size": args.block_size, "num_blocks": args.num_blocks,
    }  # fmt: skip
    of_products = {"bias": args.bias or None, "tile_size": args.tile_size, "tf32": args.tf32}
    own, others = (of_products, of_reductions) if product else (of_reductions, of_products)
    if args.op in ROW_OPS:
        takes_dim = not args.op.endswith("norm") and len(args.dim or ()) < 2
        own = {"along": args.dim[0]} if takes_dim and args.dim else {}
        others = of_products | of_reductions | ({"dim": None} if takes_dim else {})
    if addition:
        own = {"block_size": args.block_size}
        others = of_products | of_reductions | {"block_size": None}
    for name, value in others.items():
        if value not in (None, False):
            raise ValueError(
                f"{args.op} takes no {name}" + (" but one" if args.op in ROW_OPS and name == "dim" else "")
            )
    found = plan(args.op, *args.shapes, variant=args.variant, **options, **own)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in found.rows():
        table.add_row(Text(name, style="bold"), Text(value))
    console.print(table)
    times = [name for name in ("memory_us", "arithmetic_us", "bound_us", "ceiling_us") if hasattr(found, name)]
    _write_json(args.json, dataclasses.asdict(found) | {name: getattr(found, name) for name in times})
    return 0


def _threads(args: argparse.Namespace, console: Console) -> int:
    device = as_device(args.device)
    if len(args.grid) != len(args.block):
        raise ValueError("--grid and --block must both be X or both be X,Y")
    flat = len(args.grid) == 1
    count = math.prod(args.grid) * math.prod(args.block)
    if count > 1 << 24:
        raise ValueError(f"{count:,} threads are more than anybody reads; at most {1 << 24:,}")
    out = torch.empty((count, 7), dtype=torch.int64, device=device)
    torch.ops.treduce.thread_indices_(out, args.grid, args.block)
    table = out.tolist()
    names = ("block.y", "block.x", "thread.y", "thread.x", "global y", "global x", "index")
    shown = (1, 3, 6) if flat else (0, 1, 2, 3, 4, 5, 6)
    by = "a kernel on the GPU" if device.type == "cuda" else "the CPU, with the kernel's arithmetic"
    grid, block = " x ".join(map(str, args.grid)), " x ".join(map(str, args.block))
    title = f"{count:,} threads: a grid of {grid} blocks, blocks of {block} threads; written by {by}"
    found = plain_table()
    for i in shown:
        found.add_column(names[i], justify="right")
    limit = count if args.all else MOST_THREADS_SHOWN
    for row in table[:limit]:
        found.add_row(*(str(row[i]) for i in shown))
    console.print(titled(title, found))
    if count > limit:
        console.print(f"... and {count - limit:,} more (--all shows them)")
    if flat:
        console.print("\nindex = block.x * blockDim.x + thread.x")
    else:
        console.print("\nglobal x = block.x * blockDim.x + thread.x    global y = block.y * blockDim.y + thread.y")
        console.print("index = global y * (gridDim.x * blockDim.x) + global x")
    _write_json(args.json, {"grid": args.grid, "block": args.block, "columns": names, "rows": table})
    return 0


def _check_sizes(chosen: Sequence[str], args: argparse.Namespace) -> None:
    """Refuses sizes that none of these ops has."""
    takes = {op: "MxNxK" if op in PRODUCTS else "ROWSxLENGTH" if op in ROW_OPS else "" for op in chosen}
    if args.n and all(takes.values()):
        raise ValueError(f"{chosen[0]} takes no --n: its sizes are --shape {takes[chosen[0]]}")
    if args.shape and not any(takes.values()):
        raise ValueError(f"{chosen[0]} takes no --shape: its sizes are --n")
    for shape in args.shape or ():
        if not any(len(shape) == what.count("x") + 1 for what in takes.values() if what):
            op = next(op for op, what in takes.items() if what)
            raise ValueError(f"{op} takes --shape {takes[op]}, got {'x'.join(map(str, shape))}")


def _shapes(op: str, args: argparse.Namespace, usual: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The sizes that the caller named for an op, or the usual ones."""
    named = args.shape if op in PRODUCTS or op in ROW_OPS else [(n,) for n in args.n or ()]
    return [shape for shape in named or () if len(shape) == len(usual[0])] or list(usual)


def _bench_shape(op: str, on_gpu: bool) -> tuple[int, ...]:
    if op in PRODUCTS:
        return (1024 if on_gpu else 256,) * 3
    if op in ROW_OPS:
        return (4096 if on_gpu else 512,) * 2
    return (25_600_000 if on_gpu else 1 << 20,)


def _bench(args: argparse.Namespace, console: Console) -> int:
    device = as_device(args.device)
    on_gpu = device.type == "cuda"
    chosen_ops = list(dict.fromkeys(_known_ops(args.ops or ["sum"])))
    dtypes = list(dict.fromkeys(_known_dtypes(args.dtype)))
    if args.plot:
        if len(chosen_ops) * len(dtypes) > 1:
            raise ValueError("--plot draws one op and one dtype")
        _plot.check_target(args.plot)
    _check_sizes(chosen_ops, args)
    if args.num_blocks and (others := [op for op in chosen_ops if op in PRODUCTS or op in ROW_OPS]):
        raise ValueError(f"{others[0]} takes no num_blocks")
    settings = dataclasses.replace(bench.QUICK if args.quick else bench.Settings(), seed=args.seed)
    baselines = ("torch",) if args.quick or args.no_compile else bench.BASELINES
    work = []
    for op in chosen_ops:
        chosen = bench.candidates(op, args.variant, args.block_size, args.num_blocks, args.tile_size)
        work += [
            (op, shape, dtype, chosen) for dtype in dtypes for shape in _shapes(op, args, [_bench_shape(op, on_gpu)])
        ]
    about = bench.environment(device, args.command_line)
    console.print(_headline(about, device))

    rows: list[bench.Row] = []
    ceilings: Bandwidth | None = None
    with _progress(console, sum(len(chosen) + len(baselines) + 1 for *_, chosen in work) + 1) as step:
        if on_gpu:
            step("measuring the ceilings")
            ceilings = bench.measure_bandwidth(device, settings)
            console.print(
                f"ceilings: {ceilings.read / 1e9:,.0f} GB/s read ({ceilings.read_by}), "
                f"{ceilings.copy / 1e9:,.0f} GB/s read and written ({ceilings.copy_by})"
            )
        for op, shape, dtype, chosen in work:
            found = bench.measure(op, shape, getattr(torch, dtype), chosen, device, settings, ceilings, baselines, step)
            rows += found
            console.print()
            console.print(titled(_title(op, shape, dtype), rows_table(found)))
    if not on_gpu:
        console.print(f"\n{CPU_SENTENCE}")
    _write_json(args.json, bench.as_json(rows, about, ceilings))
    if args.plot:
        op, shape, dtype, _ = work[0]
        title = _title(op, shape, dtype) if len(work) == 1 else f"{op}, {dtype}"
        ceiling = None
        if ceilings and op not in PRODUCTS:
            ceiling = bench.ceiling_of(op, ceilings) / 1e9
        _plot.plot(rows, args.plot, f"{title}, {about['device_name']}", ceiling)
        console.print(f"\nplot: {args.plot}")
    return 1 if any(row.wrong for row in rows) else 0


def _title(op: str, shape: tuple[int, ...], dtype: str) -> str:
    if op in PRODUCTS:
        return f"{op}, {' x '.join(map(str, shape))} (m x n x k), {dtype}"
    if op in ROW_OPS:
        return f"{op}, {shape[0]:,} rows of {shape[1]:,}, {dtype}"
    return f"{op}, {shape[0]:,} elements, {dtype}"


def _headline(about: dict[str, Any], device: torch.device) -> Text:
    facts, cuda = about["device_facts"], about["torch_cuda"]
    words = [about["device_name"]]
    if device.type == "cuda":
        words += [f"{facts['multiprocessors']} SMs", f"{human_bytes(facts['l2_bytes'])} L2"]
        words += [human_bytes(facts["memory_bytes"])]
    else:
        words += [f"{facts['cores']} cores", f"{facts['simd']}", f"{facts['torch_threads']} threads"]
    words += [f"torch {about['torch']}" + (f", CUDA {cuda}" if cuda else "")]
    return Text(", ".join(words), style="bold")


def _show_invariance(args: argparse.Namespace, device: torch.device, console: Console) -> int:
    names = list(dict.fromkeys(_known_dtypes(args.dtype or ["float32", "bfloat16"])))
    found = [outcome for name in names for outcome in invariance(getattr(torch, name), device, args.seed)]
    table = plain_table()
    for head in ("op", "dtype", "row", "torch", "torch_reduce"):
        table.add_column(head)
    for outcome in found:
        words = (outcome.torch, outcome.ours)
        table.add_row(outcome.op, outcome.dtype, outcome.row, *("the same" if same else "other bits" for same in words))
    console.print(titled(f"A row alone, against the row in its batch, on {device}", table))
    _write_json(args.json, {"invariance": [dataclasses.asdict(outcome) for outcome in found]})
    return 0 if all(outcome.ours for outcome in found) else 1


def _verify(args: argparse.Namespace, console: Console) -> int:
    device = as_device(args.device)
    if args.invariance:
        for name in ("op", "n", "shape", "variant"):
            if getattr(args, name):
                raise ValueError(f"verify --invariance takes no --{name}: it has ops and shapes of its own")
        return _show_invariance(args, device, console)
    chosen = list(dict.fromkeys(_known_ops(args.op or OPS)))
    _check_sizes(chosen, args)
    usual = {op: MATMUL_SHAPES if op in PRODUCTS else ROW_SHAPES if op in ROW_OPS else LENGTHS for op in chosen}
    shapes = {op: _shapes(op, args, sizes) for op, sizes in usual.items()}
    dtypes = None if args.dtype is None else list(dict.fromkeys(_known_dtypes(args.dtype)))
    if args.variant:
        # With several ops, a name must belong to one of them only.
        having = [op for op in chosen if _has(op, args.variant)]
        if not having:
            for name in args.variant:
                variant_named(chosen[0], name)
            raise ValueError(f"no op has all of the variants {', '.join(args.variant)}")
        chosen = having
    bits = "the CPU's bits" if device.type == "cuda" else "the bits of its order class"
    about = bench.environment(device, args.command_line)
    console.print(_headline(about, device))
    outcomes = []
    total = sum(len(shapes[op]) * len(dtypes or DTYPES) for op in chosen)
    with _progress(console, total) as step:
        for op in chosen:
            for outcome in verify(op, args.variant, shapes[op], dtypes, device, args.seed, step):
                outcomes.append(outcome)
                label = f"{op:<12}{outcome.variant:<23}"
                if outcome.skipped:
                    console.print(Text(f"skip  {label}{outcome.skipped}", style="yellow"))
                    continue
                if outcome.ok:
                    says = f"{outcome.cases} cases, worst error {outcome.worst:.2g} of its bound"
                    says += f", {bits} in {outcome.compared_bits}" if outcome.compared_bits else ", order not fixed"
                    console.print(Text("ok    ", style="green") + Text(label + says))
                    continue
                says = f"{len(outcome.failures)} of {outcome.cases} cases"
                console.print(Text(f"FAIL  {label}{says}", style="bold red"))
                for failure in outcome.failures[:3]:
                    console.print(Text(f"      {failure}"))
    failed = sum(not o.ok for o in outcomes)
    ran = sum(not o.skipped for o in outcomes)
    if not ran:
        raise ValueError("nothing was verified: no variant takes these dtypes and shapes on this device")
    console.print(f"\n{ran - failed} of {ran} variants right on {device}, {sum(o.cases for o in outcomes):,} cases")
    _write_json(args.json, {"environment": about, "outcomes": [dataclasses.asdict(o) for o in outcomes]})
    return 1 if failed else 0


def _has(op: str, names: Sequence[str]) -> bool:
    try:
        for name in names:
            variant_named(op, name)
    except ValueError:
        return False
    return True


def _ask_model(args: argparse.Namespace, console: Console) -> int:
    if importlib.util.find_spec("transformers") is None:
        raise ValueError("transformers is not installed: `pip install transformers` brings the models")
    if args.length < 16:
        raise ValueError(f"--length must be 16 or more, got {args.length}")
    (name,) = _known_dtypes([args.dtype])
    model = _model.build(args.model, args.size, getattr(torch, name), as_device(args.device), args.attention)
    tokens = _model.prompts(model, 4, args.length)
    by_torch = _model.answers(model, tokens)
    with batch_invariant() as mode:
        ours = _model.answers(model, tokens)
    table = Table(box=None, pad_edge=False)
    for head in ("", "torch", "batch_invariant"):
        table.add_column(head)
    for question, words in _model.QUESTIONS.items():
        table.add_row(words, *("yes" if answers[question] else "no" for answers in (by_torch, ours)))
    console.print(titled(f"{args.model}, {name}, {args.attention} attention, 4 prompts of {args.length} tokens", table))
    uncovered = [op.name for op in mode.report() if op.uncovered]
    if uncovered:
        console.print(f"not covered: {', '.join(uncovered)}")
    _write_json(args.json, {"torch": by_torch, "batch_invariant": ours, "uncovered": uncovered})
    return 0 if all(ours.values()) else 1


def _demo(args: argparse.Namespace, console: Console) -> int:
    device = as_device(args.device)
    on_gpu = device.type == "cuda"
    n = args.n if args.n is not None else 1 << (24 if on_gpu else 20)
    settings = dataclasses.replace(bench.QUICK, call_seconds=0)
    about = bench.environment(device, args.command_line)
    chosen = bench.candidates("sum")
    with _progress(console, len(chosen) + 3) as step:
        ceilings = None
        if on_gpu:
            step("measuring the ceilings")
            ceilings = bench.measure_bandwidth(device, settings)
        rows = bench.measure("sum", (n,), torch.float32, chosen, device, settings, ceilings, ("torch",), step)
    (x,) = _check.make_inputs("sum", (n,), torch.float32)
    bits = {row.variant: _bits(row, x, x.to(device)) for row in rows}
    recorded, recorded_about = ({}, {}) if on_gpu else _recorded()

    console.print(_headline(about, device))
    title = f"sum of {n:,} float32, every rung checked against float64"
    console.print(titled(title, _demo_table(console, rows, bits, recorded, recorded_about)))
    same = "the CPU gives those of the GPU" if on_gpu else "a GPU gives those of the CPU"
    console.print(
        f"Bits: rungs of one order class and block size give the same, and {same}; auto chooses a block size."
    )
    if not on_gpu:
        console.print(f"\n{CPU_SENTENCE}")
    if recorded:
        (length,) = next(iter(recorded.values())).shape
        console.print(
            f"The right half was recorded on an {recorded_about['device_name']}: {length:,} float32, torch "
            f"{recorded_about['torch']}, {recorded_about['date'][:10]}."
        )
    for picture in sorted((_checkout() / "docs" / "images").glob("sum*.svg")):
        console.print(f"picture: {os.path.relpath(picture)}", soft_wrap=True)
    console.print("next: python -m torch_reduce info | variants | plan | bench | verify | model | threads")
    _write_json(args.json, bench.as_json(rows, about, ceilings))
    return 1 if any(row.wrong for row in rows) or any(_OTHER_BITS in b for b in bits.values()) else 0


_OTHER_BITS = "NOT the CPU's"


def _bits(row: bench.Row, on_cpu: torch.Tensor, there: torch.Tensor) -> str:
    """The result's bit pattern and, for a GPU, whether it equals the CPU's."""
    if row.variant in bench.BASELINES or not row.us:
        return ""
    result = ops.sum(there, variant=row.variant)
    pattern = f"{_check.as_bits(result).item() & 0xFFFFFFFF:08x}"
    if there is on_cpu or not variant_named("sum", row.variant).deterministic:
        return pattern
    same = _check.same_bits(result, ops.sum(on_cpu, variant=row.variant))
    return f"{pattern} {'= CPU' if same else _OTHER_BITS}"


def _demo_table(
    console: Console,
    rows: Sequence[bench.Row],
    bits: dict[str, str],
    recorded: dict[str, bench.Row],
    recorded_about: dict[str, Any],
) -> Table:
    """One line a rung: its result here and, on a CPU, its recorded figures of a GPU."""
    on_gpu = rows[0].device == "cuda"
    # A narrow terminal drops what stands after the comma.
    columns: list[tuple[str, bool]] = [("rung", True), ("known as", False), ("order class", True), ("bits", True)]
    columns += [("µs", True), ("GB/s", True), ("% ceiling", False)] if on_gpu else [("CPU µs", True)]
    columns.append(("x torch", on_gpu))
    if recorded:
        name = recorded_about["device_name"].removeprefix("NVIDIA ")
        columns += [(f"{name} µs", True), ("GB/s", True), ("% ceiling", False), ("x torch", True)]
    table = plain_table()
    shown = [i for i, (_, always) in enumerate(columns) if always or console.width >= 118]
    for i in shown:
        table.add_column(columns[i][0], justify="left" if i < 4 else "right", no_wrap=True)
    for row in rows:
        ours = row.variant not in bench.BASELINES
        v = variant_named("sum", row.variant) if ours else None
        cells = [row.variant, ", ".join(v.aliases) if v else "", v.order if v else "", bits[row.variant]]
        figures = [row, recorded.get(row.variant)] if recorded else [row]
        for found in figures:
            complete = [significant(found.us), significant(found.rate)] if found else ["", ""]
            complete.append(f"{found.percent_of_ceiling:.0f}" if found and found.percent_of_ceiling else "")
            complete.append(f"{found.x_torch:.2f}" if found and found.x_torch else "")
            cells += complete if on_gpu or found is not row else [complete[0], complete[3]]
        style = "red" if row.wrong or _OTHER_BITS in bits[row.variant] else "" if ours else "cyan"
        table.add_row(*(Text(cells[i]) for i in shown), style=style)
    return table


def _checkout() -> Path:
    """The repository, if the package lies in one."""
    return Path(__file__).resolve().parent.parent


def _recorded() -> tuple[dict[str, bench.Row], dict[str, Any]]:
    """The committed ladder of a GPU, by variant: the longest input in ladder.json. Empty outside a checkout."""
    for path in sorted((_checkout() / "benchmarks" / "results").glob("*/ladder.json")):
        data = json.loads(path.read_text())
        rows = bench.rows_from_json(data)
        longest = max((row.shape[0] for row in rows if row.us), default=0)
        return {row.variant: row for row in rows if row.shape[0] == longest}, data["environment"]
    return {}, {}
