"""The recipes of CONTRIBUTING.md for a new rung: written into a copy of the tree, built and tested.

A recipe is a section "## Add ...". Each block of C++ or Markdown in it belongs to the file that the text before it
names: "a new file, `path`", or "in `path`, before (after, in place of) `line`", where `line` is a line of that file or
a part of one.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
NEW = r"a new file,\s+`([\w./]+)`"
PLACE = re.compile(NEW + r"|in\s+`([\w./]+)`,\s+(before|after|in\s+place\s+of)\s+`([^`]+)`")


class Edit(NamedTuple):
    path: str
    how: str  # "new", "before", "after" or "in place of"
    line: str
    text: str

    def apply(self, root):
        path = root / self.path
        if self.how == "new":
            assert not path.exists(), f"CONTRIBUTING.md calls {self.path} new, and it is there"
            path.write_text(self.text)
            return
        lines = path.read_text().splitlines(keepends=True)
        places = [i for i, line in enumerate(lines) if line.strip() == self.line]
        places = places or [i for i, line in enumerate(lines) if self.line in line]
        assert len(places) == 1, (
            f"CONTRIBUTING.md writes {self.how} a line with {self.line!r}, and {self.path} has {len(places)} of them"
        )
        first = last = places[0] + (self.how == "after")
        if self.how == "in place of":
            last += 1
            while lines[last].startswith("//          "):  # the rest of a field of a comment
                last += 1
        lines[first:last] = [self.text]
        path.write_text("".join(lines))


def recipes():
    """Title -> edits."""
    found = {}
    for section in re.split(r"^## ", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE):
        title = section.splitlines()[0]
        if not title.startswith("Add "):
            continue
        edits, before = [], ""
        for part in re.split(r"^(```.*?^```)$", section, flags=re.MULTILINE | re.DOTALL):
            if match := re.fullmatch(r"```(?:cpp|markdown)\n(.*?)```", part, flags=re.DOTALL):
                places = PLACE.findall(before)
                assert places, f"CONTRIBUTING.md, {title!r}: the text before a block names no file:\n{match[1]}"
                new, path, how, line = places[-1]
                edits.append(Edit(new or path, " ".join(how.split()) or "new", line, match[1]))
            if part.startswith("```"):
                before = ""
            else:
                before += part
        found[title] = edits
    return found


RECIPES = recipes()
KERNELS = {
    title: [Path(e.path) for e in edits if e.path.endswith(".cu") and e.how == "new"]
    for title, edits in RECIPES.items()
}
NAMES = [kernel.stem for kernels in KERNELS.values() for kernel in kernels]


def test_there_is_a_recipe_for_each_kind_of_rung():
    folders = [kernels[0].parts[1] for kernels in KERNELS.values()]
    assert all(len(kernels) == 1 for kernels in KERNELS.values())
    assert folders.count("reduce") == 2 and folders.count("matmul") == 1


@pytest.mark.parametrize("title", RECIPES)
def test_a_rung_costs_a_kernel_a_row_and_words(title):
    paths = {e.path for e in RECIPES[title]}
    family = KERNELS[title][0].parts[1]
    assert f"csrc/{family}/ladder.cpp" in paths and "docs/ladder.md" in paths
    others = {p for p in paths if not p.endswith(".cu")} - {f"csrc/{family}/ladder.cpp", "docs/ladder.md"}
    # The schedule of a rung along dims, the shape of a tile: what prepare decides by, beside the row.
    assert all(re.fullmatch(rf"csrc/{family}/\w+\.(h|cpp)", p) for p in others) and len(others) <= 2, others


def copy_of_the_tree(folder):
    leave = shutil.ignore_patterns(
        ".git", ".venv*", "build", "dist", "*.so", "*.egg-info", "__pycache__", ".pytest_cache", ".hypothesis"
    )
    shutil.copytree(ROOT, folder, ignore=leave, symlinks=True)
    for edits in RECIPES.values():
        for edit in edits:
            edit.apply(folder)
    return folder


def test_the_recipes_fit_the_tree(tmp_path):
    for edit in (edit for edits in RECIPES.values() for edit in edits):
        if edit.how != "new" and not (tmp_path / edit.path).exists():
            (tmp_path / edit.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / edit.path, tmp_path / edit.path)
        (tmp_path / edit.path).parent.mkdir(parents=True, exist_ok=True)
        edit.apply(tmp_path)


def run(*command, cwd, **environment):
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("PYTEST_")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, timeout=3600
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.nightly
def test_rungs_by_the_recipes(tmp_path):
    tree = copy_of_the_tree(tmp_path / "tree")
    python = sys.executable

    status, out = run(python, "setup.py", "--quiet", "build_ext", "--inplace", cwd=tree, TORCH_REDUCE_CUDA="0")
    assert status == 0, out[-4000:]
    status, out = run(python, "-m", "torch_reduce", "verify", "--device", "cpu", "--variant", NAMES[0], cwd=tree)
    assert status == 0, out[-4000:]

    # What is left to do says so, and one command does it.
    tables = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_tables.py", "tests/test_comments.py")
    status, out = run(*tables, cwd=tree)
    assert status == 1 and "`make report`" in out, out[-4000:]
    status, out = run(python, "benchmarks/report.py", cwd=tree)
    assert status == 0, out[-4000:]
    status, out = run(*tables, cwd=tree)
    assert status == 0, out[-4000:]

    # The bits of the models on the CPU, and the kernels on the emulator.
    chosen = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", " or ".join(NAMES))
    status, out = run(*chosen, "tests", "--ignore=tests/test_emulator.py", cwd=tree)
    assert status == 0, out[-4000:]
    status, out = run(*chosen, "tests/test_emulator.py", cwd=tree)
    assert status == 0 and (re.search(r"\d+ passed", out) or "cannot make a program" in out), out[-4000:]

    nvcc = shutil.which("nvcc")
    for kernel in (kernel for kernels in KERNELS.values() for kernel in kernels if nvcc):
        flags = ("-std=c++17", "-O3", "--expt-relaxed-constexpr", "-arch=sm_90a", "-DTREDUCE_WITH_CUDA=1")
        status, out = run(nvcc, *flags, "-c", kernel, "-o", tmp_path / f"{kernel.stem}.o", cwd=tree)
        assert status == 0, out[-4000:]
