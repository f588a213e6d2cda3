"""Building and installing: the mistakes that people make end in a sentence, and a wheel works away from its sources."""

import ast
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

import torch_reduce


def setup(root, *arguments, cwd=None, **environment):
    """Runs setup.py with a changed environment (None takes a variable away)."""
    env = {**os.environ, **environment}
    for name in ("CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "CXX"):
        if name not in environment:
            env.pop(name, None)
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd or root, env=env, capture_output=True, text=True, timeout=1200)
    return done.returncode, done.stdout, done.stderr


STUB_OF_TORCH = """
import types
__version__ = {version!r}
version, cuda = types.SimpleNamespace(cuda=None), types.SimpleNamespace(device_count=lambda: 0)
"""
STUB_OF_EXTENSIONS = """
from setuptools import Extension
from setuptools.command.build_ext import build_ext as BuildExtension
def CppExtension(name, sources, **arguments):
    return Extension(name, sources)
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    """A folder with the little that setup.py needs of torch: all of torch takes seconds to import."""
    folder = tmp_path_factory.mktemp("stub")
    (folder / "torch" / "utils").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(STUB_OF_TORCH.format(version=torch.__version__))
    (folder / "torch" / "utils" / "cpp_extension.py").write_text(STUB_OF_EXTENSIONS)
    return str(folder)


@pytest.fixture(scope="module")
def ask(root, stub):
    """Calls setup.py with the stub."""
    return functools.partial(setup, root, "setup.py", "--version", PYTHONPATH=stub)


def own_lines(text):
    return [line for line in text.splitlines() if line.startswith("torch_reduce")]


def tool(folder, name, *lines):
    """A program that prints, in a folder for PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def only_a_compiler(tmp_path):
    """A PATH with a C++ compiler and no nvcc."""
    tool(tmp_path / "bin", "c++", "exit 0")
    return str(tmp_path / "bin")


def pypi_toolkit():
    return any(Path(sysconfig.get_path("purelib")).glob("nvidia/cu1*/bin/nvcc"))


def test_cpu_only_on_request(ask, only_a_compiler):
    status, _out, err = ask(TORCH_REDUCE_CUDA="0", PATH=only_a_compiler)
    assert status == 0, err
    assert "building for the CPU alone (TORCH_REDUCE_CUDA=0)" in err


@pytest.mark.skipif(pypi_toolkit(), reason="PyPI's nvcc is installed beside torch")
def test_no_nvcc(ask, only_a_compiler):
    status, _, err = ask(TORCH_REDUCE_CUDA="1", PATH=only_a_compiler)
    (line,) = own_lines(err)
    assert status != 0 and "no nvcc was found" in line and "pip install" in line and "Traceback" not in err
    status, _, err = ask(TORCH_REDUCE_CUDA="auto", PATH=only_a_compiler)
    (line,) = own_lines(err)
    assert status == 0 and "no nvcc found: building for the CPU alone" in line and "pip install" in line


def test_a_wrong_setting(ask, only_a_compiler):
    status, _, err = ask(TORCH_REDUCE_CUDA="yes", PATH=only_a_compiler)
    assert status != 0 and own_lines(err) == ["torch_reduce: TORCH_REDUCE_CUDA must be auto, 0 or 1, got 'yes'"]


def test_a_setuptools_too_old(root, tmp_path):
    """As Python 3.11 puts it into a new venv."""
    (tmp_path / "setuptools.py").write_text('__version__ = "65.5.0"')
    (tmp_path / "torch" / "utils").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text(STUB_OF_TORCH.format(version=torch.__version__))
    (tmp_path / "torch" / "utils" / "cpp_extension.py").write_text("BuildExtension = object")
    status, _, err = setup(root, "setup.py", "--version", PYTHONPATH=str(tmp_path))
    assert status != 0 and 'pip install "setuptools>=77"' in err and "65.5.0" in err and "Traceback" not in err


def fake_toolkit(folder, release):
    tool(folder, "c++", "exit 0")
    home = folder / "cuda"
    home.mkdir()
    tool(home / "bin", "nvcc", f'echo "Cuda compilation tools, release {release}, V{release}.1"')
    return home


def test_a_toolkit_too_old(ask, tmp_path):
    home = fake_toolkit(tmp_path, "12.0")
    status, _, err = ask(TORCH_REDUCE_CUDA="1", CUDA_HOME=str(home), PATH=str(tmp_path))
    (line,) = own_lines(err)
    assert status != 0 and "12.0" in line and "12.8 or later" in line and "Traceback" not in err
    status, _, err = ask(TORCH_REDUCE_CUDA="auto", CUDA_HOME=str(home), PATH=str(tmp_path))
    (line,) = own_lines(err)
    assert status == 0 and "12.0" in line and "building for the CPU alone" in line


def test_a_toolkit_that_will_do(ask, tmp_path):
    home = fake_toolkit(tmp_path, "12.9")
    arguments = {"TORCH_REDUCE_CUDA": "1", "CUDA_HOME": str(home), "PATH": str(tmp_path)}
    status, _, err = ask(TORCH_CUDA_ARCH_LIST="8.0;9.0a+PTX", **arguments)
    (line,) = own_lines(err)
    assert status == 0 and "CUDA 12.9" in line and "8.0" in line and "9.0a+PTX" in line
    status, _, err = ask(TORCH_CUDA_ARCH_LIST="Hopper", **arguments)
    assert status != 0 and "'Hopper'" in own_lines(err)[-1] and "Traceback" not in err


def test_a_cuda_home_without_nvcc(ask, tmp_path, only_a_compiler):
    status, _, err = ask(TORCH_REDUCE_CUDA="1", CUDA_HOME=str(tmp_path / "none"), PATH=only_a_compiler)
    line = own_lines(err)[-1]
    assert status != 0 and "none" in line and "nvcc" in line and "Traceback" not in err


def test_no_compiler(ask, tmp_path):
    (tmp_path / "bin").mkdir()
    status, _, err = ask(TORCH_REDUCE_CUDA="0", PATH=str(tmp_path / "bin"))
    (line,) = own_lines(err)
    assert status != 0 and "no C++ compiler" in line and "install g++" in line
    status, _, err = ask(TORCH_REDUCE_CUDA="0", CXX="no-such-compiler")
    assert status != 0 and "no-such-compiler" in own_lines(err)[-1]


def test_a_compiler_too_old(ask, tmp_path):
    old = tool(tmp_path / "bin", "g++-7", "exit 1")
    status, _, err = ask(TORCH_REDUCE_CUDA="0", CXX=str(old))
    (line,) = own_lines(err)
    assert status != 0 and "g++-7" in line and "C++" in line and torch.__version__ in line and "install g++" in line


@pytest.mark.parametrize(
    ("file", "line", "sentence"),
    [
        ("common/a.h", "#include <ATen/core/Tensor.h>", "belongs into csrc/torch"),
        ("reduce/kernels/a.cu", '#include "../../torch/ours.h"', "belongs into csrc/torch"),
        ("primitives/ptx/a.cuh", '#include "../../reduce/plan.h"', "csrc/primitives knows no family"),
        ("primitives/a.cuh", '#include "../common/round.h"', None),
        ("torch/a.cpp", "#include <precompiled.h>", None),
    ],
)
def test_layers_are_checked(file, line, sentence, root, stub, tmp_path, only_a_compiler):
    shutil.copy(root / "setup.py", tmp_path)
    for path, text in (("torch/precompiled.h", ""), (file, f"// A file.\n{line}\n")):
        (tmp_path / "csrc" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "csrc" / path).write_text(text)
    named = {"PYTHONPATH": stub, "TORCH_REDUCE_CUDA": "0", "PATH": only_a_compiler}
    status, _, err = setup(tmp_path, "setup.py", "--version", **named)
    if sentence is None:
        assert status == 0, err
    else:
        assert status != 0 and f"csrc/{file} has {line}" in own_lines(err)[-1] and sentence in err


def test_no_torch(root, tmp_path):
    """What an isolated build sees: setuptools, and no torch."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    status, _, err = setup(root, "setup.py", "--version", PYTHONPATH=str(tmp_path), TORCH_REDUCE_CUDA="0")
    assert status != 0 and "install torch first" in err and "--no-build-isolation" in err and "Traceback" not in err


def copy_of_the_package(root, folder):
    """The package as it lies in a fresh clone, before anything is built."""
    ignored = shutil.ignore_patterns("_C*", "_build.py", "__pycache__")
    return Path(shutil.copytree(root / "torch_reduce", folder / "torch_reduce", ignore=ignored))


def test_a_missing_extension_is_explained(root, tmp_path):
    copy_of_the_package(root, tmp_path)
    status, _, err = setup(root, "-c", "import torch_reduce", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    last = err.strip().splitlines()[-1]
    assert status != 0 and "is not built" in last and "pip install --no-build-isolation ." in last


def test_a_build_for_another_torch_is_explained(root, tmp_path):
    """Before the extension is loaded, which might crash: there is none here."""
    package = copy_of_the_package(root, tmp_path)
    (package / "_build.py").write_text('TORCH = "2.1.0+cpu"\n')
    status, _, err = setup(root, "-c", "import torch_reduce", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    last = err.strip().splitlines()[-1]
    assert status != 0 and "built with torch 2.1.0+cpu" in last and f"run with torch {torch.__version__}" in last
    assert "pip install --no-build-isolation ." in last


def test_the_build_says_both_torches():
    build = torch_reduce.build_info()
    assert build.torch == torch.__version__
    assert build.built_with_torch.split(".")[:2] == torch.__version__.split(".")[:2]


@pytest.mark.skipif(sys.platform != "linux", reason="torch has libstdc++ on Linux only")
def test_the_library_has_no_libstdcxx_of_its_own():
    """A process with torch's and another one crashes in C++ that formats a number."""
    assert b"libstdc++.so.6\0" in Path(torch_reduce._C.__file__).read_bytes()


def test_progress_of_a_build(root, tmp_path):
    ninja = "torch_reduce: a message\n[1/3] c++ -c x.cpp -o a/x.o -O3\nnoise\n[3/3] c++ -c y.cpp -o a/y.o -O3\n"
    command = [sys.executable, str(root / "tools" / "progress.py"), str(tmp_path / "log.txt")]
    done = subprocess.run(command, input=ninja, capture_output=True, text=True, check=True)
    message, end = done.stdout.splitlines()  # no terminal: a line now and then, and the last one
    assert message == "torch_reduce: a message" and end.startswith("compiled 3 of 3, ")
    assert (tmp_path / "log.txt").read_text() == ninja


def test_files_that_are_compiled_together_exist(root):
    lines = (line for line in ast.parse((root / "setup.py").read_text()).body if isinstance(line, ast.Assign))
    (groups,) = [line.value for line in lines if line.targets[0].id == "TOGETHER"]
    for group, folders in ast.literal_eval(groups).items():
        for folder, names in folders.items():
            for name in names.split():
                found = list((root / "csrc").glob(f"{folder}/{name}"))
                assert found and {path.suffix for path in found} == {Path(group).suffix}, f"{group}: {folder}/{name}"


CHECK = """
import sys, torch, torch_reduce, torch_reduce.cli
assert torch_reduce.__file__.startswith(sys.argv[1]), torch_reduce.__file__
assert not torch_reduce.cuda_built()
assert torch_reduce.sum(torch.ones(1000), variant="v6").item() == 1000
assert torch_reduce.matmul(torch.ones(3, 4), torch.ones(4, 5)).sum().item() == 60
sys.exit(torch_reduce.cli.main(["verify", "--op", "sum", "--n", "100", "--dtype", "float32", "--device", "cpu"]))
"""


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}


# A compiler that takes the objects of this build, made of the same sources, and torch's headers as it parsed them; what
# depends on how it is built (treduce_build.h) it compiles. Not with -O0: GCC would read none of those headers.
TAKES_OBJECTS = """\
for a; do
  case "$last" in -o) to=$a;; -MF) list=$a;; esac
  case "$a" in {source}/csrc/*.cpp | {source}/build/config/*.cpp) file=$a;; esac
  last=$a
done
parsed={root}/build/config/precompiled.h.gch
case "$to" in *.gch) [ -e "$parsed" ] && ln -s "$parsed" "$to" && exit;; esac
relative=${{file#{source}/}}
for made in {root}/build/temp.*/${{relative%.cpp}}.o; do
  if [ -n "$file" ] && [ "$made" -nt "{root}/$relative" ] && ! grep -q treduce_build.h "$file"; then
    cp "$made" "$to" && : > "$list" && exit
  fi
done
exec c++ "$@" -O1 -g0"""


@pytest.mark.slow
def test_a_wheel_works_away_from_its_sources(root, tmp_path):
    """sdist, a wheel of it for the CPU alone, the wheel installed into an empty folder, and imported from there."""
    pytest.importorskip("ninja")
    pack = ("setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path), "sdist", "--dist-dir", str(tmp_path))
    status, out, err = setup(root, *pack, TORCH_REDUCE_CUDA="0")
    assert status == 0, out + err
    (archive,) = tmp_path.glob("torch_reduce-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "packed")
    (source,) = (tmp_path / "packed").iterdir()
    for name in ("Makefile", "tests/conftest.py", "tests/emulator/driver.cpp", "docs/ladder.md", "benchmarks/run.py"):
        assert (source / name).exists()
    assert files_of(source / "csrc") == files_of(root / "csrc")
    for path in source.glob("csrc/**/*.cu"):
        path.unlink()  # a build for the CPU needs none of them
    compiler = tool(tmp_path / "bin", "compiler", *TAKES_OBJECTS.format(root=root, source=source).splitlines())
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-index")
    build = (*pip, "wheel", "--no-build-isolation", *offline, "--wheel-dir", str(tmp_path / "wheels"), ".")
    status, out, err = setup(root, *build, cwd=source, TORCH_REDUCE_CUDA="0", CXX=str(compiler))
    assert status == 0, out + err
    (wheel,) = (tmp_path / "wheels").glob("torch_reduce-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (metadata,) = [packed.read(name).decode() for name in names if name.endswith("/METADATA")]
    assert any(name.startswith("torch_reduce/_C") for name in names)
    assert {"torch_reduce/py.typed", "torch_reduce/cli.py", "torch_reduce/_build.py"} <= set(names)
    assert not any(name.startswith(("tests", "csrc", "benchmarks")) for name in names)
    major, minor = torch.__version__.split(".")[:2]
    assert f"Requires-Dist: torch=={major}.{minor}.*" in metadata
    site = tmp_path / "site"
    status, out, err = setup(root, *pip, "install", *offline, "--target", str(site), str(wheel), cwd=tmp_path)
    assert status == 0, out + err
    status, out, err = setup(root, "-c", CHECK, str(site), cwd=tmp_path, PYTHONPATH=str(site))
    assert status == 0, out + err
    assert (site / "bin" / "torch-reduce").exists()
