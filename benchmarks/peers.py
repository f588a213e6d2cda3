"""Compiles peers.cu when a benchmark runs, and calls it: CUB's reductions, and kernels that do next to nothing.

The libraries lie in build/benchmarks, one for each dtype and op, and are compiled again when the source changes;
`python benchmarks/grid.py sm_90a` compiles them ahead, for which it takes no GPU. All that is called here goes to the
current stream, so a CUDA graph captures it as it captures torch.
"""

import concurrent.futures
import ctypes
import dataclasses
import hashlib
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from checkout import ROOT
from torch import Tensor

from torch_reduce import bench

SOURCE = Path(__file__).with_name("peers.cu")
FOLDER = ROOT / "build" / "benchmarks"

# C++ types of elements, accumulator and result, as in torch.
_TYPES = {
    "float32": ("float", "float", "float"),
    "float64": ("double", "double", "double"),
    "float16": ("__half", "float", "__half"),
    "bfloat16": ("__nv_bfloat16", "float", "__nv_bfloat16"),
    "int8": ("int8_t", "int64_t", "int64_t"),
    "uint8": ("uint8_t", "int64_t", "int64_t"),
    "int16": ("int16_t", "int64_t", "int64_t"),
    "bool": ("bool", "int64_t", "int64_t"),
    "int32": ("int32_t", "int64_t", "int64_t"),
    "int64": ("int64_t", "int64_t", "int64_t"),
}
_OPERATORS = {"sum": ("std::plus", "{}"), "amax": ("maximum", "::cuda::std::numeric_limits<CUB_ACC>::lowest()")}


def cub_takes(op: str, dtype: str) -> bool:
    """Whether CUB has the same reduction; amax is measured for floats only."""
    return dtype in _TYPES and (op == "sum" or (op == "amax" and "float" in dtype))


def nvcc() -> str:
    """The compiler: CUDA_HOME's, or the one on the path.

    Raises:
        FileNotFoundError: there is none.
    """
    home = os.environ.get("CUDA_HOME")
    found = (shutil.which("nvcc", path=str(Path(home) / "bin")) if home else None) or shutil.which("nvcc")
    if found is None:
        raise FileNotFoundError("CUB and the floors are compiled by nvcc, and there is none: set CUDA_HOME")
    return found


def build(wanted: Iterable[tuple[str, ...]], architecture: str) -> dict[tuple[str, ...], Path]:
    """Compiles missing libraries in parallel. `()` is the library of the floors, `(op, dtype)` one of CUB.

    Raises:
        RuntimeError: the compiler failed.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    found, missing = {}, []
    for key in wanted:
        flags = ["-O3", "-std=c++17", f"-arch={architecture}", "--shared", "-Xcompiler", "-fPIC"]
        if key:
            op, dtype = key
            names = zip(("IN", "ACC", "OUT", "OP", "START"), (*_TYPES[dtype], *_OPERATORS[op]), strict=True)
            flags += ["-DCCCL_DISABLE_NVTX", *(f"-DCUB_{name}={value}" for name, value in names)]
        digest = hashlib.sha256("\n".join([*flags, SOURCE.read_text()]).encode()).hexdigest()[:12]
        found[key] = FOLDER / f"{'_'.join(key) or 'floors'}-{digest}.so"
        if not found[key].exists():
            missing.append((flags, found[key]))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: _compile(*job), missing))
    return found


def _compile(flags: list[str], path: Path) -> None:
    part = path.with_suffix(".part")
    command = [nvcc(), *flags, "-o", str(part), str(SOURCE)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"nvcc failed for {path.stem}:\n{done.stdout}")
    part.rename(path)


def architecture_of(device: torch.device) -> str:
    """`sm_90a`: with the chip's own features, like the extension."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


class Peers:
    """The libraries for one device."""

    def __init__(self, device: torch.device, wanted: Iterable[tuple[str, ...]]) -> None:
        self.device = device
        paths = build(dict.fromkeys(wanted), architecture_of(device))
        self.libraries = {key: ctypes.CDLL(str(path)) for key, path in paths.items()}

    def _call(self, key: tuple[str, ...], name: str, *arguments: object) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.device).cuda_stream)
        status = getattr(self.libraries[key], name)(*arguments, stream)
        if status:
            raise RuntimeError(f"{name}: CUDA error {status}")

    def cub(self, op: str, example: Tensor, rows: bool) -> Callable[[Tensor], Tensor]:
        """CUB's reduction of contiguous tensors like the example: of each row, or of all."""
        key = (op, str(example.dtype).removeprefix("torch."))
        name = "cub_rows" if rows else "cub_whole"
        sizes = [ctypes.c_int64(example.numel())]
        if rows:
            length = example.shape[-1]
            sizes = [ctypes.c_int64(example.numel() // length), ctypes.c_int64(length)]
        result = torch.int64 if op == "sum" and not example.dtype.is_floating_point else example.dtype
        shape = example.shape[:-1] if rows else ()
        bytes_needed = ctypes.c_size_t(0)
        self._call(key, name, None, ctypes.byref(bytes_needed), None, None, *sizes)
        room = torch.empty(max(bytes_needed.value, 1), dtype=torch.uint8, device=self.device)

        def call(x: Tensor) -> Tensor:
            out = torch.empty(shape, dtype=result, device=self.device)
            pointers = [ctypes.c_void_p(t.data_ptr()) for t in (room, x, out)]
            self._call(key, name, pointers[0], ctypes.byref(bytes_needed), *pointers[1:], *sizes)
            return out

        return call

    def nothing(self, x: Tensor) -> Tensor:
        """An empty kernel."""
        self._call((), "peer_nothing")
        return x

    def word(self, x: Tensor) -> Tensor:
        """One thread reads and writes a word: a launch and one trip to memory."""
        out = torch.empty_like(x)
        self._call((), "peer_word", ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()))
        return out

    def read(self, x: Tensor, threads: int, loads: int, blocks: int) -> Tensor:
        """A kernel that only reads."""
        out = torch.empty(1, dtype=torch.int32, device=self.device)
        bytes_read = ctypes.c_int64(x.numel() * x.element_size())
        shape = ctypes.c_int(threads), ctypes.c_int(loads), ctypes.c_int(blocks)
        self._call((), "peer_read", ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()), bytes_read, *shape)
        return out


@dataclasses.dataclass(frozen=True)
class Floors:
    """Lower bounds of a reduction's time, measured like reductions."""

    nothing_us: float
    """An empty kernel in a graph."""
    word_us: float
    """A kernel of one thread that reads and writes one word."""
    read: dict[int, float]
    """GB/s of the fastest kernel that only reads, by bytes."""
    read_by: dict[int, str]

    @property
    def ceiling(self) -> float:
        """The highest rate measured, in GB/s."""
        return max(self.read.values())

    def read_rate(self, size: float) -> float:
        """The rate of the nearest measured size, on a logarithmic scale."""
        return self.read[min(self.read, key=lambda n: abs(math.log(n / size)))]


# (threads, loads in flight, blocks for each multiprocessor or 0 for one a tile)
_READ_SHAPES = tuple(
    (threads, loads, per_sm)
    for threads, loads, resident in ((256, 4, 8), (256, 8, 4), (256, 16, 4), (1024, 4, 2), (1024, 8, 1))
    for per_sm in (0, resident, 2 * resident)
)
_READ_BYTES = tuple(megabytes << 20 for megabytes in (64, 256, 1024, 4096))


def measure_floors(peers: Peers, settings: bench.Settings, most_bytes: int = _READ_BYTES[-1]) -> Floors:
    """Measures them; takes seconds."""
    device = peers.device
    small = (torch.ones(1, dtype=torch.int32, device=device),)
    rig = bench.make_rig(device, small, settings)
    ready = [rig.prepare(call)[0] for call in (peers.nothing, peers.word)]
    nothing, word = bench.time_together(ready, settings)
    del ready
    rig.close(collect=False)
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    read, read_by = {}, {}
    for size in _READ_BYTES:
        if size > most_bytes:
            continue
        words = torch.randint(-(1 << 31), (1 << 31) - 1, (size // 4,), dtype=torch.int32, device=device)
        rig = bench.make_rig(device, (words,), settings)
        calls = [
            lambda x, t=threads, n=loads, b=per_sm * sms: peers.read(x, t, n, b)
            for threads, loads, per_sm in _READ_SHAPES
        ]
        ready = [rig.prepare(call)[0] for call in calls]
        timings = bench.time_together(ready, settings)
        del ready
        rig.close(collect=False)
        best = min(range(len(timings)), key=lambda i: timings[i].us)
        threads, loads, per_sm = _READ_SHAPES[best]
        read[size] = size / timings[best].us / 1e3
        grid = f"{per_sm * sms} blocks" if per_sm else "a block a tile"
        read_by[size] = f"{threads} threads, {loads} loads in flight, {grid}"
    return Floors(nothing.us, word.us, read, read_by)
