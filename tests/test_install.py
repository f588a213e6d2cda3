"""Building and installing: the mistakes that people make end in a sentence, and a wheel works away from its sources."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest


def setup(root, *arguments, cwd=None, **environment):
    """Runs setup.py with a changed environment (None takes a variable away)."""
    env = {**os.environ, **environment}
    for name in ("CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "CXX"):
        if name not in environment:
            env.pop(name, None)
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd or root, env=env, capture_output=True, text=True, timeout=1200)
    return done.returncode, done.stdout, done.stderr


VERSION = ("setup.py", "--version")


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


def test_cpu_only_on_request(root, only_a_compiler):
    status, _out, err = setup(root, *VERSION, TORCH_REDUCE_CUDA="0", PATH=only_a_compiler)
    assert status == 0, err
    assert "building for the CPU alone (TORCH_REDUCE_CUDA=0)" in err


@pytest.mark.skipif(pypi_toolkit(), reason="PyPI's nvcc is installed beside torch")
def test_no_nvcc(root, only_a_compiler):
    status, _, err = setup(root, *VERSION, TORCH_REDUCE_CUDA="1", PATH=only_a_compiler)
    (line,) = own_lines(err)
    assert status != 0 and "no nvcc was found" in line and "pip install" in line and "Traceback" not in err
    status, _, err = setup(root, *VERSION, TORCH_REDUCE_CUDA="auto", PATH=only_a_compiler)
    (line,) = own_lines(err)
    assert status == 0 and "no nvcc found: building for the CPU alone" in line and "pip install" in line


def test_a_wrong_setting(root, only_a_compiler):
    status, _, err = setup(root, *VERSION, TORCH_REDUCE_CUDA="yes", PATH=only_a_compiler)
    assert status != 0 and own_lines(err) == ["torch_reduce: TORCH_REDUCE_CUDA must be auto, 0 or 1, got 'yes'"]


def fake_toolkit(folder, release):
    tool(folder, "c++", "exit 0")
    home = folder / "cuda"
    home.mkdir()
    tool(home / "bin", "nvcc", f'echo "Cuda compilation tools, release {release}, V{release}.1"')
    return home


def test_a_toolkit_too_old(root, tmp_path):
    home = fake_toolkit(tmp_path, "12.0")
    status, _, err = setup(root, *VERSION, TORCH_REDUCE_CUDA="1", CUDA_HOME=str(home), PATH=str(tmp_path))
    (line,) = own_lines(err)
    assert status != 0 and "12.0" in line and "12.8 or later" in line and "Traceback" not in err
    status, _, err = setup(root, *VERSION, TORCH_REDUCE_CUDA="auto", CUDA_HOME=str(home), PATH=str(tmp_path))
    (line,) = own_lines(err)
    assert status == 0 and "12.0" in line and "building for the CPU alone" in line


def test_a_toolkit_that_will_do(root, tmp_path):
    home = fake_toolkit(tmp_path, "12.9")
    arguments = {"TORCH_REDUCE_CUDA": "1", "CUDA_HOME": str(home), "PATH": str(tmp_path)}
    status, _, err = setup(root, *VERSION, TORCH_CUDA_ARCH_LIST="8.0;9.0a+PTX", **arguments)
    (line,) = own_lines(err)
    assert status == 0 and "CUDA 12.9" in line and "8.0" in line and "9.0a+PTX" in line
    status, _, err = setup(root, *VERSION, TORCH_CUDA_ARCH_LIST="Hopper", **arguments)
    assert status != 0 and "'Hopper'" in own_lines(err)[-1] and "Traceback" not in err


def test_a_cuda_home_without_nvcc(root, tmp_path, only_a_compiler):
    status, _, err = setup(
        root, *VERSION, TORCH_REDUCE_CUDA="1", CUDA_HOME=str(tmp_path / "none"), PATH=only_a_compiler
    )
    line = own_lines(err)[-1]
    assert status != 0 and "none" in line and "nvcc" in line and "Traceback" not in err


def test_no_compiler(root, tmp_path):
    (tmp_path / "bin").mkdir()
    status, _, err = setup(root, *VERSION, TORCH_REDUCE_CUDA="0", PATH=str(tmp_path / "bin"))
    (line,) = own_lines(err)
    assert status != 0 and "no C++ compiler" in line and "install one" in line
    status, _, err = setup(root, *VERSION, TORCH_REDUCE_CUDA="0", CXX="no-such-compiler")
    assert status != 0 and "no-such-compiler" in own_lines(err)[-1]


def test_no_torch(root, tmp_path):
    """What an isolated build sees: setuptools, and no torch."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    status, _, err = setup(root, *VERSION, PYTHONPATH=str(tmp_path), TORCH_REDUCE_CUDA="0")
    assert status != 0 and "install torch first" in err and "--no-build-isolation" in err and "Traceback" not in err


def test_a_missing_extension_is_explained(root, tmp_path):
    """The package as it lies in a fresh clone, before anything is built."""
    shutil.copytree(
        root / "torch_reduce", tmp_path / "torch_reduce", ignore=shutil.ignore_patterns("_C*", "__pycache__")
    )
    status, _, err = setup(root, "-c", "import torch_reduce", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert status != 0 and "pip install --no-build-isolation ." in err.strip().splitlines()[-1]


CHECK = """
import sys, torch, torch_reduce, torch_reduce.cli
assert torch_reduce.__file__.startswith(sys.argv[1]), torch_reduce.__file__
assert not torch_reduce.cuda_built()
assert torch_reduce.sum(torch.ones(1000), variant="v6").item() == 1000
assert torch_reduce.matmul(torch.ones(3, 4), torch.ones(4, 5)).sum().item() == 60
sys.exit(torch_reduce.cli.main(["verify", "--op", "sum", "--n", "100", "--dtype", "float32", "--device", "cpu"]))
"""


@pytest.mark.slow
def test_a_wheel_works_away_from_its_sources(root, tmp_path):
    """pip wheel of a copy of the tree, for the CPU alone; installed into an empty folder, and imported from there."""
    pytest.importorskip("ninja")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("csrc", "torch_reduce"):
        shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.cu"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source / name)
    # Unoptimised: half the time, and the bits may not depend on it.
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-index")
    build = (*pip, "wheel", "--no-build-isolation", *offline, "--wheel-dir", str(tmp_path / "wheels"), ".")
    # Unoptimised: half the time, and no bit may depend on it.
    compiler = tool(tmp_path / "bin", "compiler", 'exec c++ "$@" -O0 -g0')
    status, out, err = setup(root, *build, cwd=source, TORCH_REDUCE_CUDA="0", CXX=str(compiler))
    assert status == 0, out + err
    (wheel,) = (tmp_path / "wheels").glob("torch_reduce-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("torch_reduce/_C") for name in names)
    assert {"torch_reduce/py.typed", "torch_reduce/cli.py"} <= set(names)
    assert not any(name.startswith(("tests", "csrc", "benchmarks")) for name in names)
    site = tmp_path / "site"
    status, out, err = setup(root, *pip, "install", *offline, "--target", str(site), str(wheel), cwd=tmp_path)
    assert status == 0, out + err
    status, out, err = setup(root, "-c", CHECK, str(site), cwd=tmp_path, PYTHONPATH=str(site))
    assert status == 0, out + err
    assert (site / "bin" / "torch-reduce").exists()
