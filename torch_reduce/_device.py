"""Facts: about a device, and about how the extension was built."""

import dataclasses
import os
import platform
from pathlib import Path

import torch

from . import _C
from ._build import TORCH
from ._version import __version__


@dataclasses.dataclass(frozen=True)
class Bandwidth:
    """Memory bandwidth as measured, in bytes a second; the data was larger than the caches."""

    read: float
    """By a sum: every byte read once."""
    copy: float
    """By `vector_add`: two bytes read for each byte written, all counted."""
    read_by: str
    copy_by: str


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """What there is to know about a device."""

    device: str
    name: str
    facts: dict[str, int | str]
    """By name, in the order in which `info` shows them; names end in their unit where they have one."""
    bandwidth: Bandwidth | None = None


@dataclasses.dataclass(frozen=True)
class BuildInfo:
    """How the extension was built and what it runs with."""

    version: str
    cuda: str | None
    """The CUDA toolkit that compiled the kernels; None in a build without CUDA."""
    architectures: tuple[str, ...]
    """The chips that the kernels were compiled for, as PyTorch spells them."""
    compiler: str
    cpp_standard: int
    built_with_torch: str
    torch: str
    """The torch that it runs with."""
    torch_cuda: str | None
    python: str


def cuda_built() -> bool:
    """Whether the extension has its CUDA kernels. It can have them on a machine without a GPU."""
    return _C.cuda_version is not None


def cuda_usable() -> bool:
    """Whether there is a GPU and torch and this extension can both use it."""
    return cuda_built() and torch.cuda.is_available()


def build_info() -> BuildInfo:
    """How the extension was built: compilers, chips, the torch it was built with and the one it runs with."""
    return BuildInfo(
        version=__version__,
        cuda=_C.cuda_version,
        architectures=tuple(_C.cuda_architectures.split()),
        compiler=_C.compiler,
        cpp_standard=_C.cpp_standard,
        built_with_torch=TORCH,
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        python=platform.python_version(),
    )


def as_device(device: torch.device | str | int | None) -> torch.device:
    """The device meant: the current GPU for None where one can be used, else the CPU.

    Raises:
        ValueError: a device that is neither, or a GPU where none can be used.
    """
    if device is None:
        device = "cuda" if cuda_usable() else "cpu"
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"unknown device {device!r}; use 'cpu', 'cuda' or 'cuda:1'") from error
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        raise ValueError(f"device must be a CPU or a CUDA GPU, got {found}")
    if not torch.cuda.is_available():
        raise ValueError(f"device {found}: torch finds no CUDA GPU here")
    if not cuda_built():
        raise ValueError(f"device {found}: torch_reduce was built without CUDA; rebuild with TORCH_REDUCE_CUDA=1")
    index = torch.cuda.current_device() if found.index is None else found.index
    if index >= torch.cuda.device_count():
        raise ValueError(f"device {found}: there are {torch.cuda.device_count()} CUDA GPUs here")
    return torch.device("cuda", index)


def describe(where: torch.device) -> DeviceInfo:
    """The facts about a device that `as_device` gave, without its bandwidth."""
    if where.type == "cpu":
        return DeviceInfo("cpu", _cpu_name(), _cpu_facts())
    facts = dict(_C.device_facts(where.index))
    name = facts.pop("name")
    return DeviceInfo(str(where), name, facts)


def _cpu_entries() -> list[dict[str, str]]:
    """The blocks of /proc/cpuinfo; none where the system has no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    pairs = ([line.split(":", 1) for line in block.splitlines() if ":" in line] for block in text.split("\n\n"))
    return [{key.strip(): value.strip() for key, value in block} for block in pairs if block]


def _cpu_name() -> str:
    for entry in _cpu_entries():
        for key in ("model name", "Model", "cpu model"):
            if entry.get(key):
                return entry[key]
    return platform.processor() or platform.machine() or "CPU"


def _cpu_facts() -> dict[str, int | str]:
    entries = _cpu_entries()
    cores = len({(e.get("physical id"), e["core id"]) for e in entries if "core id" in e})
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    facts: dict[str, int | str] = {
        "architecture": platform.machine(),
        "cores": cores or os.cpu_count() or 1,
        "hardware_threads": os.cpu_count() or 1,
        "usable_hardware_threads": usable,
        "torch_threads": torch.get_num_threads(),
        "simd": torch.backends.cpu.get_cpu_capability(),
    }
    for fact, parameters in {
        "l2_bytes": ("SC_LEVEL2_CACHE_SIZE",),
        "l3_bytes": ("SC_LEVEL3_CACHE_SIZE",),
        "memory_bytes": ("SC_PHYS_PAGES", "SC_PAGE_SIZE"),
    }.items():
        value = 1
        for parameter in parameters:
            value *= _sysconf(parameter)
        if value > 0:
            facts[fact] = value
    return facts


def _sysconf(parameter: str) -> int:
    try:
        return os.sysconf(parameter)
    except (AttributeError, ValueError, OSError):
        return 0
