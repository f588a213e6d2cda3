"""Writes what follows from the tables of rungs (csrc/*/ladder.cpp) alone, with no measurement.

- torch_reduce/_names.py: the names as types, for editors;
- csrc/*/kernels/README.md: the course in order, one line a rung;
- in docs/numerics.md, the rungs of each order class: what is between `<!-- class:NAME -->` and `<!-- /class -->`.

`make report` calls it with everything else; after a new row of a table, `python benchmarks/ladders.py` alone will do.
`--check` changes nothing; status 1 where something is out of date.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from checkout import ROOT

import torch_reduce
from torch_reduce import Variant
from torch_reduce._variants import OPS

# A folder of csrc, an op whose table it has, what it is about, and the name of its type.
FAMILIES = (
    ("reduce", "sum", "sum, mean, amax and amin", "ReductionName"),
    ("matmul", "matmul", "matmul and linear", "MatmulName"),
    ("elementwise", "vector_add", "vector_add", "VectorAddName"),
    ("rows", "softmax", "softmax, log_softmax, logsumexp, layer_norm and rms_norm", "RowName"),
)


def names_py() -> str:
    """The text of torch_reduce/_names.py."""
    parts = [
        '"""The names of the variants as types, for editors and type checkers.\n\n'
        'Written by benchmarks/ladders.py from the tables of the extension: `make report` brings it up to date.\n"""',
        "from typing import Literal",
        "\n".join(["OpName = Literal[", *(f'    "{op}",' for op in OPS), "]"]),
    ]
    for _, op, _, literal in FAMILIES:
        rows = torch_reduce.variants(op)
        lines = [f'    "{name}",' for name in ("auto", *(v.name for v in rows if v.name != "auto"))]
        aliases = sorted({alias for v in rows for alias in v.aliases})
        if aliases:
            lines += ["    # names that the literature knows", *(f'    "{alias}",' for alias in aliases)]
        parts.append("\n".join([f"{literal} = Literal[", *lines, "]"]))
    return "\n\n".join(parts) + "\n"


def kernels_readme(op: str, about: str) -> str:
    """The text of a README.md in a folder of kernels."""
    rungs = [v for v in torch_reduce.variants(op) if v.has_kernel]
    courses = {"": rungs}
    if any(v.along_dims for v in rungs):
        courses = {
            "Whole tensors": [v for v in rungs if not v.along_dims],
            "Along dims": [v for v in rungs if v.along_dims],
        }
    lines = [f"# The kernels of {about}, in the order of the course", ""]
    lines += ["Written from [ladder.cpp](../ladder.cpp) by `make report`; each file's comment names the next rung."]
    count = 0
    for title, course in courses.items():
        lines += ["", *([f"## {title}", ""] if title else [])]
        for v in course:
            count += 1
            known = f" ({', '.join(v.aliases)})" if v.aliases else ""
            lines.append(f"{count}. [{v.name}]({v.name}.cu){known}: {v.summary.replace('<', '&lt;')}")
    auto = next(v for v in torch_reduce.variants(op) if v.name == "auto")
    return "\n".join([*lines, "", f"`auto` has no kernel of its own: it {auto.summary}."]) + "\n"


def rungs_of_class(order: str) -> list[Variant]:
    """The rungs of an order class, in teaching order.

    Raises:
        ValueError: there is none.
    """
    found = [v for _, op, *_ in FAMILIES for v in torch_reduce.variants(op) if v.order == order]
    if not found:
        raise ValueError(f"<!-- class:{order} -->: no rung has this order class")
    return found


def with_classes(text: str) -> str:
    """A document with the rungs of the order classes that it names."""

    def cell(found: re.Match[str]) -> str:
        names = ", ".join(f"`{v.name}`" for v in rungs_of_class(found[1]))
        return f"<!-- class:{found[1]} -->{names}<!-- /class -->"

    return re.sub(r"<!-- class:(\w+) -->.*?<!-- /class -->", cell, text)


def files(root: Path) -> Iterator[tuple[Path, str]]:
    """Every file that is written here, with the text that it should have."""
    yield root / "torch_reduce" / "_names.py", names_py()
    for family, op, about, _ in FAMILIES:
        yield root / "csrc" / family / "kernels" / "README.md", kernels_readme(op, about)
    numerics = root / "docs" / "numerics.md"
    yield numerics, with_classes(numerics.read_text())


def bring_up_to_date(root: Path, check: bool) -> list[Path]:
    """Writes what is out of date, unless `check`; returns which files those are."""
    stale = [(path, text) for path, text in files(root) if not path.exists() or path.read_text() != text]
    for path, text in stale:
        if not check:
            path.write_text(text)
    return [path for path, _ in stale]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 where something is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args()
    stale = bring_up_to_date(args.root, args.check)
    for path in stale:
        print(f"{'out of date' if args.check else 'written'}: {path.relative_to(args.root)}")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
