"""The documents name what exists: the files of the layout, the files and headings that links lead to, the next rung."""

import itertools
import re

import pytest

import torch_reduce

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/batch_invariance.md",
    "docs/details.md",
    "docs/ladder.md",
    "docs/models.md",
    "docs/numerics.md",
    "docs/performance.md",
    "docs/scaling.md",
    "docs/tables.md",
    "docs/tried.md",
    "tests/README.md",
)


def test_the_layout_names_what_exists(root):
    tree = re.search(r"## Layout\n\n```\n(.*?)```", (root / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    assert tree, "CONTRIBUTING.md has no tree under `## Layout`"
    folders: list[str] = []
    checked = 0
    for line in tree[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        if depth > 2:  # the text beside the names goes on
            continue
        for name in re.split(" {2,}", line.strip())[0].split():
            stem, braces, rest = name.partition("{")
            choices, _, end = rest.partition("}")
            for pattern in [stem + choice + end for choice in choices.split(",")] if braces else [name]:
                where = root.joinpath(*folders[:depth])
                assert list(where.glob(pattern.rstrip("/"))), f"CONTRIBUTING.md: there is no {where / pattern}"
                checked += 1
            if name.endswith("/"):
                folders[depth:] = [name.rstrip("/")]
    assert checked > 30


def test_the_walk_names_what_exists(root):
    """Each row of `A call, file by file`: files, and functions or classes in them."""
    walk = re.search(r"## A call, file by file\n(.*?)\n## ", (root / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    assert walk, "CONTRIBUTING.md has no `## A call, file by file`"
    checked = 0
    for places in re.findall(r"^\| (.*?) \|", walk[1], flags=re.MULTILINE):
        text = ""
        for path, name in re.findall(r"([\w/.]+/[\w.]+)|`(\w+)`", places):
            if path:
                assert (root / path).is_file(), f"CONTRIBUTING.md: there is no {path}"
                text = (root / path).read_text()
            else:
                assert re.search(rf"\b{name}\b", text), f"CONTRIBUTING.md: {places} has no {name}"
                checked += 1
    assert checked > 20


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document, root):
    path = root / document
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(\s*([^)\s]+)\)", text)
    for link in links:
        if link.startswith("http"):
            continue
        file, _, heading = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{document}: {link} leads to no file"
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.MULTILINE)
            assert heading in map(anchor, headings), f"{document}: {link} leads to no heading"


@pytest.mark.parametrize(
    ("family", "op"), [("reduce", "sum"), ("matmul", "matmul"), ("elementwise", "vector_add"), ("rows", "softmax")]
)
def test_every_rung_leads_to_the_next(family, op, root):
    rungs = [v.name for v in torch_reduce.variants(op) if v.has_kernel]
    for rung, following in itertools.pairwise(rungs):
        comment = (root / "csrc" / family / "kernels" / f"{rung}.cu").read_text().partition("#include")[0]
        line = re.search(r"^// Next: +(.*)", comment, flags=re.MULTILINE)
        assert line, f"{rung}.cu: its comment has no `// Next:`; the next rung is {following}"
        assert line[1].startswith(following), f"{rung}.cu: `// Next:` begins with the next rung, {following}"
