"""What imports what: imports go one way, stand at the top of the file, and no test module imports another."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("torch_reduce", "torch_reduce/distributed", "benchmarks", "examples", "tests")


def modules(folder):
    return {path.stem: path for path in sorted((ROOT / folder).glob("*.py"))}


@functools.cache
def imports(text):
    """What a source imports, as (dotted name, line, whether inside a function). A relative import begins with a dot."""
    found = []

    def walk(node, lazy):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, child.lineno, lazy) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = "." * child.level + (child.module or "")
                found.append((base, child.lineno, lazy))
                # `from . import x` and `from package import x` may name modules.
                joint = base if base.endswith(".") else base + "."
                found.extend((joint + alias.name, child.lineno, lazy) for alias in child.names)
            walk(child, lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    walk(ast.parse(text), False)
    return found


def graph(sources, package=None):
    """Module -> the modules beside it that it imports, at the top or in a function. `sources`: name -> text."""
    edges = {}
    for name, text in sources.items():
        edges[name] = set()
        for target, _, _ in imports(text):
            if package:
                target = target.removeprefix(".") if target.startswith(".") else target.removeprefix(f"{package}.")
            target = target.split(".")[0]
            if target in sources and target != name:
                edges[name].add(target)
    return edges


def circle(edges):
    """Modules that import each other, as a path that ends where it begins; None where there are none."""
    done = set()

    def visit(name, path):
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for target in sorted(edges[name]):
            if found := visit(target, [*path, name]):
                return found
        done.add(name)
        return None

    return next((found for name in edges if (found := visit(name, []))), None)


def test_circles_are_found():
    assert circle(graph({"a": "import b", "b": "import c", "c": "import math"})) is None
    assert circle(graph({"a": "import b", "b": "def f():\n    from a import g"})) == ["a", "b", "a"]
    assert circle(graph({"a": "from . import b", "b": "from .a import f"}, "p")) == ["a", "b", "a"]
    assert circle(graph({"a": "from p import b", "b": "import p.a"}, "p")) == ["a", "b", "a"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_go_one_way(folder):
    edges = graph({name: path.read_text() for name, path in modules(folder).items()}, folder)
    assert sum(map(len, edges.values())) > 0 or folder == "examples"
    found = circle(edges)
    assert found is None, f"{folder}: {' -> '.join(found)}; move what both need into a module of its own"


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_stand_at_the_top_or_say_why_not(folder):
    """An import in a function is for an optional or a slow package; a comment on its line has the reason."""
    for path in modules(folder).values():
        text = path.read_text()
        lines = text.splitlines()
        for name, line, lazy in imports(text):
            if lazy:
                assert "# " in lines[line - 1].replace("# noqa", ""), (
                    f"{path.name}:{line} imports {name} within a function: move it up, or say why in a comment there"
                )


def test_no_test_module_imports_another():
    """What tests share stands in conftest.py or in a helper, of which tests/README.md has the list."""
    names = modules("tests")
    edges = graph({name: path.read_text() for name, path in names.items()})
    for name, targets in edges.items():
        found = {t for t in targets if t.startswith("test_") or t == "conftest"}
        assert not found, f"tests/{name}.py imports {', '.join(sorted(found))}: move what they share into a helper"


def test_the_map_of_the_tests_is_complete():
    text = (ROOT / "tests" / "README.md").read_text()
    for name in modules("tests"):
        assert f"{name}.py" in text, f"tests/README.md has no line on {name}.py"


def test_files_that_know_torch_include_the_precompiled_header_first():
    """GCC uses one only before everything else."""
    for path in sorted((ROOT / "csrc" / "torch").glob("*.cpp")):
        first = next(line for line in path.read_text().splitlines() if line.startswith("#include"))
        assert first == "#include <precompiled.h>", (
            f"csrc/torch/{path.name} includes it first, to compile in half the time"
        )
