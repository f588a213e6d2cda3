"""Builds one extension, torch_reduce._C: always for the CPU, and for CUDA where an nvcc is found.

Settings, as environment variables:
  TORCH_REDUCE_CUDA=auto|0|1   build the CUDA half where nvcc is found (auto), never, or fail without nvcc
  TORCH_CUDA_ARCH_LIST         chips to build for, as in PyTorch ("9.0a;8.0+PTX"); unset: the GPUs of this machine, or,
                               where there is none, 9.0a and PTX for 8.0
  CUDA_HOME                    the CUDA toolkit, where it is not the nvcc on PATH
  MAX_JOBS                     compilers to run at once
"""

import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

from setuptools import setup

MIN_CUDA = (12, 8)
GET_NVCC = 'pip install "cuda-toolkit[nvcc,cudart,cccl]==13.0.*"'
ROOT = Path(__file__).resolve().parent

try:
    import torch
    import torch.utils.cpp_extension as cpp_extension
except ImportError:
    sys.exit(
        "torch_reduce is built against the torch it will run with, and none is importable here: install torch first, "
        "then `pip install --no-build-isolation .`"
    )


def say(line: str) -> None:
    print(f"torch_reduce: {line}", file=sys.stderr)


def find_toolkit() -> Path | None:
    """The root of a CUDA toolkit: CUDA_HOME, else that of the nvcc on PATH (perhaps a wrapper), else PyPI's."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if named:
        if not Path(named, "bin", "nvcc").exists():
            sys.exit(f"torch_reduce: CUDA_HOME is {named}, but there is no bin/nvcc in it")
        return Path(named)
    on_path = shutil.which("nvcc")
    if on_path:
        dry = subprocess.run([on_path, "--dryrun", "none.cu"], capture_output=True, text=True).stderr
        top = re.search(r"^#\$ TOP=(.*)$", dry, re.MULTILINE)
        if top:
            return Path(top.group(1)).resolve()
    for site in sys.path:
        for nvcc in sorted(Path(site or ".").glob("nvidia/cu1*/bin/nvcc"), reverse=True):
            return nvcc.parent.parent
    return None


def toolkit_version(toolkit: Path) -> tuple[int, int]:
    text = subprocess.run([toolkit / "bin" / "nvcc", "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release (\d+)\.(\d+)", text)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def architectures() -> list[str]:
    """Chips to build for, in PyTorch's spelling."""
    named = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if named:
        return named.replace(",", ";").replace(" ", ";").split(";")
    # Not torch.cuda.is_available(): that asks whether to run, and a build machine often has no GPU.
    chips = set()
    if torch.version.cuda and torch.cuda.device_count():
        chips = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    names = sorted(f"{major}.{minor}{'a' if major >= 9 else ''}" for major, minor in chips)
    return names or ["9.0a", "8.0PTX"]


def gencode(names: list[str]) -> list[str]:
    flags = []
    for name in filter(None, names):
        found = re.fullmatch(r"(\d+)\.(\d+)([af]?)(\+?PTX)?", name)
        if not found:
            sys.exit(f"torch_reduce: TORCH_CUDA_ARCH_LIST has {name!r}; expected entries like 8.0, 9.0a or 8.0+PTX")
        number = found.group(1) + found.group(2) + found.group(3)
        ptx = found.group(4)
        if ptx != "PTX":
            flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if ptx:
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def wanted_toolkit() -> Path | None:
    wish = os.environ.get("TORCH_REDUCE_CUDA", "auto")
    if wish not in ("auto", "0", "1"):
        sys.exit(f"torch_reduce: TORCH_REDUCE_CUDA must be auto, 0 or 1, got {wish!r}")
    if wish == "0":
        say("building for the CPU alone (TORCH_REDUCE_CUDA=0)")
        return None
    toolkit = find_toolkit()
    if toolkit is None:
        if wish == "1":
            sys.exit(f"torch_reduce: TORCH_REDUCE_CUDA=1, but no nvcc was found; {GET_NVCC}, or set CUDA_HOME")
        say(f"no nvcc found: building for the CPU alone ({GET_NVCC} brings one)")
        return None
    version = toolkit_version(toolkit)
    if version < MIN_CUDA:
        sentence = (
            f"the CUDA toolkit at {toolkit} is {version[0]}.{version[1]}, "
            f"and torch_reduce needs {MIN_CUDA[0]}.{MIN_CUDA[1]} or later; {GET_NVCC}"
        )
        if wish == "1":
            sys.exit(f"torch_reduce: {sentence}")
        say(f"{sentence}; building for the CPU alone")
        return None
    return toolkit


def check_compiler() -> None:
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        sys.exit(f"torch_reduce: no C++ compiler: {compiler!r} is not on PATH; install one (g++ 9 or later) or set CXX")


def check_layers() -> None:
    """Only csrc/torch may know torch: everything else under csrc/ includes none of its headers."""
    for path in sorted(ROOT.glob("csrc/**/*.*")):
        relative = path.relative_to(ROOT).as_posix()
        if relative.startswith("csrc/torch/"):
            continue
        found = re.search(r"#include\s*[<\"](?:torch|ATen|c10|caffe2)/.*", path.read_text())
        if found:
            sys.exit(f"torch_reduce: {relative} has {found.group(0)}; code that knows torch belongs into csrc/torch")


def make_extension():
    check_compiler()
    check_layers()
    sources = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/**/*.cpp"))
    cuda_only = {"csrc/common/counters.cpp", "csrc/common/device.cpp"} | {s for s in sources if s.endswith("_cuda.cpp")}
    cxx = ["-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-fopenmp"]
    include_dirs, library_dirs, libraries, define_macros = [], [], [], []
    extra = {"cxx": cxx}
    toolkit = wanted_toolkit()
    if toolkit is None:
        sources = [s for s in sources if s not in cuda_only]
    else:
        # A CPU-only torch leaves CUDA_HOME None, and the build of .cu files reads it.
        cpp_extension.CUDA_HOME = str(toolkit)
        version = ".".join(map(str, toolkit_version(toolkit)))
        names = architectures()
        say(f"building for CUDA {version} ({toolkit}), chips {', '.join(names)}")
        sources += sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/**/*.cu"))
        include_dirs.append(str(toolkit / "include"))
        library_dirs += [str(d) for d in (toolkit / "lib64", toolkit / "lib") if d.is_dir()]
        libraries += ["cudart_static", "rt", "dl", "pthread"]
        define_macros += [
            ("TREDUCE_WITH_CUDA", "1"),
            ("TREDUCE_CUDA_VERSION", f'"{version}"'),
            ("TREDUCE_CUDA_ARCHITECTURES", f'"{" ".join(names)}"'),
        ]
        if torch.version.cuda is None:
            # A CPU-only torch asks nvcc for no dependency files, so a changed header must change the command instead.
            headers = b"".join(p.read_bytes() for p in sorted(ROOT.glob("csrc/**/*.*h")))
            define_macros.append(("TREDUCE_HEADERS", f"0x{zlib.crc32(headers):08x}"))
        extra["nvcc"] = ["-O3", "-Xcompiler=-fvisibility=hidden", *gencode(names)]
    return cpp_extension.CppExtension(
        "torch_reduce._C",
        sources,
        include_dirs=include_dirs,
        library_dirs=library_dirs,
        libraries=libraries,
        define_macros=define_macros,
        extra_compile_args=extra,
        extra_link_args=["-fopenmp"],  # at::parallel_for is a loop on one core without it
        depends=sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/**/*.*h")),
    )


# Two compilers at once need some 2 GB; more than the cores help nobody.
os.environ.setdefault("MAX_JOBS", str(os.cpu_count() or 1))

setup(ext_modules=[make_extension()], cmdclass={"build_ext": cpp_extension.BuildExtension})
