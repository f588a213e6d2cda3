"""Builds one extension, torch_reduce._C: always for the CPU, and for CUDA where an nvcc is found.

Settings, as environment variables:
  TORCH_REDUCE_CUDA=auto|0|1   build the CUDA half where nvcc is found (auto), never, or fail without nvcc
  TORCH_CUDA_ARCH_LIST         chips to build for, as in PyTorch ("9.0a;8.0+PTX"); unset: the GPUs of this machine, or,
                               where there is none, 9.0a. A wheel that is meant for others names theirs
  CUDA_HOME                    the CUDA toolkit, where it is not the nvcc on PATH
  MAX_JOBS                     compilers to run at once
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import zlib
from fnmatch import fnmatch
from pathlib import Path

import setuptools

MIN_CUDA = (12, 8)
MIN_SETUPTOOLS = 77  # before, it knew no `license = "BSD-3-Clause"`; without build isolation pip does not look
GET_NVCC = 'pip install "cuda-toolkit[nvcc,cudart,cccl]"'
ROOT = Path(__file__).resolve().parent
CONFIG = ROOT / "build" / "config"  # what is generated for the compiler

try:
    import torch
    import torch.utils.cpp_extension as cpp_extension
except ImportError:
    sys.exit(
        "torch_reduce is built against the torch it will run with, and none is importable here: install torch first, "
        "then `pip install --no-build-isolation .`"
    )

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
COMPILER = os.environ.get("CXX", "c++").split()
STANDARD = "c++17" if TORCH < (2, 13) else "c++20"  # as which torch compiles extensions


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
    return names or ["9.0a"]


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
    need = "g++ 9" if STANDARD == "c++17" else "g++ 11"
    name = COMPILER[-1]
    if not shutil.which(name):
        sys.exit(f"torch_reduce: no C++ compiler: no {name!r} on PATH; install {need} or later, or set CXX")
    test = [*COMPILER, f"-std={STANDARD}", "-fsyntax-only", "-x", "c++", os.devnull]
    if subprocess.run(test, capture_output=True).returncode != 0:
        sys.exit(
            f"torch_reduce: {name!r} does not compile {STANDARD.upper()}, needed by torch {torch.__version__}: "
            f"install {need} or later, or set CXX"
        )


def shared_libstdcxx() -> list[str]:
    """libstdc++.so.6 by its path, where the compiler brings libstdc++.a alone.

    Torch runs on the shared one. With a second one inside this library, C++ that formats a number crashes: what the two
    merge (GNU unique symbols) they do not lay out alike.
    """

    def find(name: str) -> str:
        """The bare name where the compiler knows no such file, as where it is not GCC's."""
        return subprocess.run([*COMPILER, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()

    shared = find("libstdc++.so.6")
    return [shared] if Path(shared).is_absolute() and not Path(find("libstdc++.so")).is_absolute() else []


def check_layers() -> None:
    """Only csrc/torch knows torch, and csrc/primitives knows csrc/common alone: no other code includes their files."""
    for path in sorted(ROOT.glob("csrc/**/*.*")):
        relative = path.relative_to(ROOT).as_posix()
        if relative.startswith("csrc/torch/"):
            continue
        for line, quote, header in re.findall(r"^(#\s*include\s*([<\"])([^>\"]+).*)", path.read_text(), re.MULTILINE):
            # Where a header beside the file lies: the folder under csrc/.
            parts = Path(os.path.relpath(path.parent / header, ROOT / "csrc")).parts if quote == '"' else ()
            if re.match(r"(torch|ATen|c10|caffe2)/|precompiled\.h", header) or parts[:1] == ("torch",):
                sys.exit(f"torch_reduce: {relative} has {line}; code that knows torch belongs into csrc/torch")
            if relative.startswith("csrc/primitives/") and parts and parts[0] not in ("primitives", "common"):
                sys.exit(f"torch_reduce: {relative} has {line}; csrc/primitives knows no family, only csrc/common")


def write(path: Path, text: str) -> None:
    """Leaves a file alone that says so already: what includes it is not compiled again."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def precompile(header: Path, flags: list[str]) -> None:
    """Leaves header.gch beside the header, where GCC looks for it. GCC reads none that was made with other flags."""
    made, how = header.with_suffix(".h.gch"), header.with_suffix(".how")
    version = subprocess.run([*COMPILER, "--version"], capture_output=True, text=True).stdout
    if "Free Software Foundation" not in version:
        made.unlink(missing_ok=True)
        return
    unfinished = made.with_suffix(".new")
    command = [*COMPILER, *flags, "-x", "c++-header", str(header), "-o", str(unfinished)]
    # Of the headers within, GCC would not notice that they changed.
    torch_built = Path(torch.__file__).with_name("version.py").stat().st_mtime
    stamp = f"{version}{command}\n{torch.__version__} {torch_built}\n{header.read_text()}"
    if made.exists() and how.exists() and how.read_text() == stamp:
        return
    how.unlink(missing_ok=True)
    made.unlink(missing_ok=True)
    say("parsing torch's headers")
    if subprocess.run(command).returncode == 0:
        unfinished.replace(made)
        how.write_text(stamp)


# Files that are compiled as one, by their folder under csrc/: what all of them include takes longer than the lines of
# most of them. CUDA's headers and our own take two seconds, torch's templates more. What takes long itself stays apart.
# A group of C++ files is the same with CUDA and without, so that both builds share its object; "torch_cuda" is there in
# one alone. A file belongs to the first group that names it.
# Beside others a kernel may become other machine code, as where both call what is inlined where one alone calls it.
# None of these does (CUDA 13.0); exact and cluster would. Compare the kernels' code before and after a change.
TOGETHER = {
    "attention.cu": {"attention": "*.cu"},
    "matmul_threads.cu": {"matmul/kernels": "naive.cu tiled*.cu vectorized.cu warp_tiled.cu"},
    "matmul_warps.cu": {"matmul/kernels": "wmma.cu mma.cu wgmma.cu warp_specialized.cu"},
    "matmul_split.cu": {"matmul/kernels": "split_bf16.cu split_fp16.cu"},
    "matmul_f64.cu": {"matmul/kernels": "mma_f64.cu specialized_f64.cu"},
    "reduce_passes.cu": {
        "reduce/kernels": "serial.cu thread.cu global_memory.cu interleaved_*.cu sequential.cu first_add.cu "
        "last_warp.cu unrolled.cu two_pass*.cu warp_shuffle.cu vectorized.cu"
    },
    "reduce_grids.cu": {"reduce/kernels": "atomic.cu cluster.cu cooperative.cu", "reduce": "parts.cu"},
    "reduce_precise.cu": {"reduce/kernels": "compensated.cu exact.cu"},
    "reduce_rows.cu": {"reduce/kernels": "row_warp.cu row_cluster.cu"},
    "others.cu": {
        "elementwise/kernels": "*.cu",
        "lessons": "*.cu",
        "matmul": "pack.cu",
        "reduce/kernels": "single_pass.cu",
        "rows/kernels": "*.cu",
        "segments": "*.cu",
    },
    "decisions.cpp": {
        "*": "ladder.cpp prepare.cpp",
        "reduce": "plan.cpp geometry.cpp schedule*.cpp",
        "matmul": "choose.cpp",
        "common": "prepared.cpp launch_log.cpp",
    },
    "torch_cuda.cpp": {"torch": "*_cuda.cpp"},
    "torch_invariant.cpp": {"torch": "invariant*.cpp"},
    "torch_calls.cpp": {"torch": "functions.cpp collectives.cpp"},
    "torch_dispatch.cpp": {"torch": "*_cpu.cpp auto*.cpp meta.cpp library.cpp parallel.cpp"},
    "torch_families.cpp": {"torch": "attention*.cpp composed.cpp elementwise.cpp matmul*.cpp reduce*.cpp rows.cpp"},
}


def together(sources: list[str]) -> list[str]:
    """The sources, with files that include them in place of those of TOGETHER. These also change when the former do."""
    left, groups = list(sources), []
    for name, files in TOGETHER.items():
        patterns = [f"csrc/{folder}/{file}" for folder, names in files.items() for file in names.split()]
        own = [s for s in left if any(fnmatch(s, pattern) for pattern in patterns)]
        if own:
            lines = ["#include <precompiled.h>"] if "torch" in files else []
            lines += [f'#include "../../{s}"  // {zlib.crc32((ROOT / s).read_bytes()):08x}' for s in own]
            write(CONFIG / name, "\n".join([*lines, ""]))
            left = [s for s in left if s not in own]
            groups.append(str((CONFIG / name).relative_to(ROOT)))
    # Kernels begin first. What ends the build are the many small files of C++.
    return sorted([*groups, *left], key=lambda s: not s.endswith(".cu"))


class Build(cpp_extension.BuildExtension):
    """Writes what the C++ side (build/config/treduce_build.h) and Python (torch_reduce/_build.py) know of the build."""

    def run(self):
        """Only those few files that include the header differ between a build with CUDA and one without."""
        write(CONFIG / "treduce_build.h", "".join(f"#define {name} {value}\n" for name, value in FACTS.items()))
        write(CONFIG / "precompiled.h", (ROOT / "csrc" / "torch" / "precompiled.h").read_text())
        (CONFIG / "cuda").unlink(missing_ok=True)
        if TOOLKIT is not None:
            (CONFIG / "cuda").symlink_to(TOOLKIT / "include")
        super().run()
        folder = ROOT if self.inplace else Path(self.build_lib)
        line = f'"""Written by setup.py."""\n\nTORCH = "{torch.__version__}"\n'
        write(folder / "torch_reduce" / "_build.py", line)

    def build_extension(self, ext):
        """GCC parses torch's headers once for all files of csrc/torch; another compiler reads their text each time."""
        flags = [f"-D{name}" + ("" if value is None else f"={value}") for name, value in ext.define_macros]
        flags += [f"-I{folder}" for folder in (*ext.include_dirs, *self.compiler.include_dirs)]
        flags = [*self.compiler.compiler_so[1:], *flags, *ext.extra_compile_args["cxx"], f"-std={STANDARD}", "-w"]
        # While kernels compile, which come first. A C++ file that comes before the header is ready reads its text.
        parsing = threading.Thread(target=precompile, args=(CONFIG / "precompiled.h", flags))
        parsing.start()
        ext.depends = [*ext.depends, *ext.sources]
        ext.sources = together(ext.sources)
        if not any(source.endswith(".cu") for source in ext.sources):
            parsing.join()
        super().build_extension(ext)
        parsing.join()


def make_extension():
    sources = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/**/*.cpp"))
    cuda_only = {"csrc/common/counters.cpp", "csrc/common/device.cpp"} | {s for s in sources if s.endswith("_cuda.cpp")}
    # at::parallel_for is a loop on one core without OpenMP.
    extra = {"cxx": ["-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-fopenmp"]}
    # Torch silences this warning in its headers, but not where GCC parsed them before.
    extra["cxx"].append("-Wno-sign-compare")
    # Dependency files do not list what is precompiled, so a change of it must change the command instead.
    precompiled = torch.__version__ + (ROOT / "csrc" / "torch" / "precompiled.h").read_text()
    extra["cxx"].append(f"-DTREDUCE_PRECOMPILED=0x{zlib.crc32(precompiled.encode()):08x}")
    cuda = {}
    if TOOLKIT is None:
        sources = [s for s in sources if s not in cuda_only]
    else:
        # A CPU-only torch leaves CUDA_HOME None, and the build of .cu files reads it.
        cpp_extension.CUDA_HOME = str(TOOLKIT)
        version = ".".join(map(str, toolkit_version(TOOLKIT)))
        names = architectures()
        say(f"building for CUDA {version} ({TOOLKIT}), chips {', '.join(names)}")
        FACTS["TREDUCE_WITH_CUDA"] = 1
        FACTS["TREDUCE_CUDA_VERSION"] = f'"{version}"'
        FACTS["TREDUCE_CUDA_ARCHITECTURES"] = f'"{" ".join(names)}"'
        sources += sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/**/*.cu"))
        cuda["library_dirs"] = [str(d) for d in (TOOLKIT / "lib64", TOOLKIT / "lib") if d.is_dir()]
        cuda["libraries"] = ["cudart_static", "rt", "dl", "pthread"]
        # Compressed, kernels take a quarter of the space; the driver unpacks a file's when one of them is launched.
        extra["nvcc"] = ["-Xcompiler=-fvisibility=hidden", "-Xfatbin=-compress-all", *gencode(names)]
        # For the host code, which only launches: -O3 and C++20 take a tenth longer. Kernels are optimised all the same.
        # (-Ofast-compile=min takes a seventh less, but leaves arrays in local memory, and ptxas ignores setmaxnreg.)
        extra["nvcc"] += ["-O1", "-std=c++17"]
        if torch.version.cuda is None:
            # A CPU-only torch asks nvcc for no dependency files, so a changed header must change the command instead.
            headers = b"".join(p.read_bytes() for p in sorted(ROOT.glob("csrc/**/*.*h")))
            extra["nvcc"].append(f"-DTREDUCE_HEADERS=0x{zlib.crc32(headers):08x}")
    # The same command for a C++ file whether there is CUDA or not: the other kind of build compiles it no second time.
    return cpp_extension.CppExtension(
        "torch_reduce._C",
        sources,
        include_dirs=[str(CONFIG), str(CONFIG / "cuda")],
        define_macros=[("AT_PER_OPERATOR_HEADERS", None)],  # torch's headers without every op
        extra_compile_args=extra,
        extra_link_args=["-fopenmp", *shared_libstdcxx()],
        depends=sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/**/*.*h")),
        **cuda,
    )


# Two compilers at once need some 2 GB; more than the cores help nobody.
os.environ.setdefault("MAX_JOBS", str(os.cpu_count() or 1))

if int(setuptools.__version__.split(".")[0]) < MIN_SETUPTOOLS:
    sys.exit(
        f"torch_reduce: setuptools is {setuptools.__version__}, and {MIN_SETUPTOOLS} or later is needed: "
        f'pip install "setuptools>={MIN_SETUPTOOLS}"'
    )
check_compiler()
check_layers()
TOOLKIT = wanted_toolkit()
FACTS: dict[str, int | str] = {}

setuptools.setup(
    ext_modules=[make_extension()],
    cmdclass={"build_ext": Build},
    # The extension calls into torch's C++ side, which changes from one minor version to the next.
    install_requires=[f"torch=={TORCH[0]}.{TORCH[1]}.*", "rich>=13"],
)
