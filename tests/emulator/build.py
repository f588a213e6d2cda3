"""Compiles the kernels as host C++ and links them with the emulator.

The tests call it; `python tests/emulator/build.py` does it by hand.
"""

import fcntl
import hashlib
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "emulator"
COMPILER = shlex.split(os.environ.get("CXX", "g++"))
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# Whether a pointer is null or wraps around shows where it is used, and nothing here is virtual: without these checks, a
# quarter less to compile.
SANITIZE += ["-fno-sanitize=null,pointer-overflow,vptr"]
# Undefined behaviour ends in an illegal instruction, where AddressSanitizer prints the stack, not in a sentence with
# tables of its own: another quarter.
SANITIZE += ["-fsanitize-undefined-trap-on-error"]
COMPILE = [*SANITIZE, "-std=c++17", "-g1", "-ffp-contract=off", "-DTREDUCE_EMULATOR", f"-I{HERE}"]
COMPILE += ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-parentheses"]
# For kernels of one chip: nvcc warns of none of these, and a negative number that is shifted to the left is what C++20
# and every machine make of it.
LENIENT = [f"-Wno-{what}" for what in ("sign-compare", "unused-function", "missing-field-initializers")]
LENIENT += ["-fno-sanitize=shift-base"]
ONE_CHIP = ("split_", "persistent", "small_f64")


def has_twin(source: Path) -> bool:
    return "<mma.h>" not in source.read_text()  # whose fragments nobody may look into


def included(source: Path) -> set[Path]:
    """The project's files that this one includes, and that these include."""
    found, left = set(), [source]
    while left:
        path = left.pop()
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            header = (path.parent / name).resolve()
            if header.exists() and header not in found:
                found.add(header)
                left.append(header)
    return found


def declared_in(source: Path) -> Path:
    """A kernel file's header: it has the name of it, or that and more. Without one it is part of a rung's own file."""
    headers = (header for header in source.parent.glob("*.h") if f"{source.stem}_".startswith(f"{header.stem}_"))
    names = sorted(headers, key=lambda header: len(header.stem))
    return names[-1] if names else source.parent / "kernels" / f"{source.stem.split('_')[0]}.cu"


def kernels_called_by(rung: Path) -> set[Path]:
    """The kernel files of products that this one calls, another rung's among them."""
    all_of_them = list(ROOT.glob("csrc/matmul/**/*.cu"))
    found, left = {rung}, [rung]
    while left:
        source = left.pop()
        names, text = {source, *included(source)}, source.read_text()
        for other in set(all_of_them) - found:
            of_a_rung = other.parent.name == "kernels"
            if f"{other.stem}::run(" in text if of_a_rung else declared_in(other) in names:
                found.add(other)
                left.append(other)
    return found


MACHINE = [HERE / "emulator.cpp", HERE / "fiber.cpp"]
SOURCES = {
    "driver": [
        *filter(has_twin, sorted(ROOT.glob("csrc/**/*.cu"))),
        # What the kernels' ladders are made of: host code without torch.
        *sorted(ROOT.glob("csrc/*/ladder.cpp")),
        *sorted(ROOT.glob("csrc/*/prepare*.cpp")),
        ROOT / "csrc/matmul/choose.cpp",
        ROOT / "csrc/reduce/plan.cpp",
        ROOT / "csrc/reduce/geometry.cpp",
        *sorted(ROOT.glob("csrc/reduce/schedule*.cpp")),
        ROOT / "csrc/common/variants.cpp",
        ROOT / "csrc/common/prepared.cpp",
        ROOT / "csrc/common/launch_log.cpp",
        HERE / "driver.cpp",
        *MACHINE,
    ],
    "broken": [
        *sorted(HERE.glob("broken/*.cu")),
        ROOT / "csrc/common/launch_log.cpp",
        HERE / "broken" / "main.cpp",
        *MACHINE,
    ],
}


def optimisation(source: Path) -> list[str]:
    # Most of a run is the switch from thread to thread, or, of few kernels, the products of a warp's matrices.
    if source in MACHINE or source.name == "mma.cu" or "attention" in source.parts:
        return ["-O1"]
    # A thousand kernel instances, compiled once and run for a moment: -O1 takes three times as long to compile them.
    flags = ["-O0"]
    if "matmul" not in source.parts and "clang" not in COMPILER[0]:
        # AddressSanitizer's checks as calls: a sixth less to compile. Products run for longer than that saves.
        flags.append("--param=asan-instrumentation-with-call-threshold=0")
    return flags


def compiler_for(source: Path) -> list[str]:
    lenient = LENIENT if source.stem.startswith(ONE_CHIP) else []
    return [*COMPILER, *COMPILE, *lenient, *optimisation(source)]


class BuildError(Exception):
    pass


def run(command: list) -> None:
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if result.returncode != 0:
        raise BuildError(f"{shlex.join(map(str, command))}\n{result.stderr}")


def why_not() -> str | None:
    """Why nothing can be built or run here: the sanitizers are libraries of their own on some systems."""
    BUILD.mkdir(parents=True, exist_ok=True)
    probe = BUILD / f"probe_{os.getpid()}.cpp"  # one for each worker
    probe.write_text("int main() {}\n")
    try:
        run([*COMPILER, *SANITIZE, probe, "-o", probe.with_suffix("")])
        run([probe.with_suffix("")])
    except (BuildError, OSError) as error:
        return f"{shlex.join(COMPILER)} cannot make a program with {SANITIZE[0]}: {error}"
    finally:
        probe.unlink()
        probe.with_suffix("").unlink(missing_ok=True)
    return None


def object_of(source: Path) -> Path:
    return BUILD / (str(source.relative_to(ROOT)).replace("/", "_") + ".o")


def is_stale(source: Path) -> bool:
    """Whether its object is older than one of the files that the compiler listed beside it, or was made otherwise."""
    made = object_of(source)
    listed, flags = made.with_suffix(".d"), made.with_suffix(".flags")
    if not (made.exists() and listed.exists() and flags.exists() and flags.read_text() == repr(compiler_for(source))):
        return True
    inputs = shlex.split(listed.read_text().replace("\\\n", " ").split(": ", 1)[1])
    return any(not Path(i).exists() or Path(i).stat().st_mtime > made.stat().st_mtime for i in inputs)


def compile_one(source: Path) -> None:
    made = object_of(source)
    listed = ["-MD", "-MF", made.with_suffix(".d")]
    run([*compiler_for(source), *listed, "-x", "c++", "-c", source, "-o", made])
    made.with_suffix(".flags").write_text(repr(compiler_for(source)))


def build(program: str, rungs: set[tuple[str, str]] | None = None) -> Path:
    """Builds "driver" or "broken" where a source is newer, and returns its path.

    `rungs`: pairs of a folder of csrc and a rung; the driver then has their kernels and no others."""
    BUILD.mkdir(parents=True, exist_ok=True)
    made = BUILD / program
    sources = list(dict.fromkeys(SOURCES[program]))  # a file may match two patterns
    if rungs is not None:
        wanted = {ROOT / "csrc" / family / "kernels" / f"{rung}.cu" for family, rung in rungs}
        if any(family == "rows" for family, _ in rungs):
            wanted |= set(ROOT.glob("csrc/rows/ops/*.cu"))  # which compile the kernels of its rungs, op by op
        wanted |= set().union(*(kernels_called_by(rung) for rung in wanted if "matmul" in rung.parts))
        some = {*ROOT.glob("csrc/*/kernels/*.cu"), *ROOT.glob("csrc/rows/ops/*.cu"), *ROOT.glob("csrc/matmul/**/*.cu")}
        sources = [source for source in sources if source not in some or source in wanted]
        if len(sources) < len(set(SOURCES[program])):
            digest = hashlib.sha256("\n".join(map(str, sources)).encode()).hexdigest()
            made = BUILD / f"{program}-{digest[:12]}"
    with open(BUILD / "lock", "w") as lock:  # two test processes must not write the same files
        fcntl.flock(lock, fcntl.LOCK_EX)
        objects = [object_of(source) for source in sources]
        stale = [source for source in sources if is_stale(source)]
        # The long ones first, so that no core waits at the end: those of ops compile all kernels of their family.
        stale.sort(key=lambda source: (source.parent.name != "ops", -source.stat().st_size))
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
            list(pool.map(compile_one, stale))
        if not made.exists() or any(o.stat().st_mtime > made.stat().st_mtime for o in objects):
            # -rdynamic: a message can name the kernel.
            run([*COMPILER, *SANITIZE, "-rdynamic", *objects, "-ldl", "-o", made])
    return made


if __name__ == "__main__":
    for name in sys.argv[1:] or SOURCES:
        print(build(name))
