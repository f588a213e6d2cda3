"""Every source file begins with a comment, and that of a kernel has its fields. (That Next leads to the next rung:
test_documents.py.)"""

import re

import pytest
from tables import ADD_VARIANTS, MATMUL_VARIANTS, REDUCE_VARIANTS, ROW_VARIANTS, names

FAMILIES = {"reduce": REDUCE_VARIANTS, "matmul": MATMUL_VARIANTS, "elementwise": ADD_VARIANTS, "rows": ROW_VARIANTS}
FIELDS = ("Idea", "After", "Mapping", "Bound", "Next", "Source")
OPTIONAL = ("Flaw", "Note")  # at any place behind Idea


def rungs(family):
    return names(v for v in FAMILIES[family] if v.has_kernel)


EVERY_RUNG = [(family, rung) for family in FAMILIES for rung in rungs(family)]
every_rung = pytest.mark.parametrize(("family", "rung"), EVERY_RUNG, ids=["-".join(pair) for pair in EVERY_RUNG])


def fields(text):
    """Field -> its text, in the order in which they stand in the comment that a file begins with."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        words = line.removeprefix("//").strip()
        if match := re.match(r"([A-Z][a-z]+): +(.*)", words):
            name = match[1]
            assert name not in found, f"{name} stands there twice"
            found[name] = match[2]
        elif found:
            found[name] += " " + words
    return {name: words.strip() for name, words in found.items()}


def test_fields_are_read():
    text = "// Idea: one\n// two.\n//\n// Next:   other does more.\n\n// Bound: not of this comment\n"
    assert fields(text) == {"Idea": "one two.", "Next": "other does more."}


@every_rung
def test_the_comment_on_a_rung_has_its_fields(family, rung, root):
    """In the form that CONTRIBUTING.md states, under "Rules of the code"."""
    found = fields((root / "csrc" / family / "kernels" / f"{rung}.cu").read_text())
    course = rungs(family)
    first = {course[0], next((v.name for v in FAMILIES[family] if v.along_dims and v.has_kernel), None)}
    wanted = [
        name
        for name in FIELDS
        if not (name == "After" and rung in first) and not (name == "Next" and rung == course[-1])
    ]
    for name in wanted:
        assert found.get(name), f"{rung}.cu: its comment has no {name}"
    assert not set(found) - {*FIELDS, *OPTIONAL}, f"{rung}.cu: its comment has other fields than CONTRIBUTING.md lists"
    order = [name for name in found if name in FIELDS]
    assert order == sorted(order, key=FIELDS.index), f"{rung}.cu: the fields stand in the order {', '.join(FIELDS)}"


def test_every_source_file_says_what_it_is(root):
    files = [path for path in root.glob("csrc/**/*") if path.suffix in (".cpp", ".cu", ".cuh", ".h")]
    silent = [str(path.relative_to(root)) for path in files if not path.read_text().startswith("// ")]
    assert files and not silent, f"{', '.join(silent)}: begin with one line on what the file is"
