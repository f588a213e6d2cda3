"""The tables, the files and the names agree."""

import dataclasses
import importlib
import itertools
import re
import typing

import cases
import numpy as np
import orders
import pytest
import tables
import torch
from bits import assert_same_bits
from tables import ADD_VARIANTS, MATMUL_VARIANTS, REDUCE_VARIANTS, ROW_VARIANTS, names

import torch_reduce
from torch_reduce import _names
from torch_reduce._variants import ROW_OPS

FAMILIES = {"reduce": REDUCE_VARIANTS, "matmul": MATMUL_VARIANTS, "elementwise": ADD_VARIANTS, "rows": ROW_VARIANTS}
OPS = {"reduce": "sum", "matmul": "matmul", "elementwise": "vector_add", "rows": "softmax"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_has_a_kernel_file_and_every_kernel_file_a_row(family, root):
    files = {path.stem for path in (root / "csrc" / family / "kernels").glob("*.cu")}
    assert files == {v.name for v in FAMILIES[family] if v.has_kernel}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_kernel_file_uses_its_rows_name(family, root):
    for path in (root / "csrc" / family / "kernels").glob("*.cu"):
        text = path.read_text()
        assert re.search(rf'Rung<\w+(<\w+>)?> \w+\("{path.stem}"\)', text), f"{path.name} registers another name"
        # `thread` and `exact` are taken, by the layer of primitives and by the arithmetic: those say a word more.
        assert re.search(rf"namespace treduce::{family}::{path.stem}(_\w+)? {{", text), f"{path.name}: its namespace"
        first = text.splitlines()[0]
        assert first.startswith("// Idea: "), f"{path.name} begins with {first!r}"


def test_reductions_share_one_table():
    for op in ("mean", "amax", "amin"):
        assert names(torch_reduce.variants(op)) == names(REDUCE_VARIANTS)


ALIASES = {
    "v0": "interleaved_modulo",
    "v1": "interleaved_bitmask",
    "v2": "sequential",
    "v3": "first_add",
    "v4": "last_warp",
    "v5": "unrolled",
    "v6": "two_pass_unrolled",
    "reduction1": "two_pass",
    "reduction2": "two_pass_last_warp",
    "reduction3": "two_pass_unrolled",
    "global": "global_memory",
    "shared": "interleaved_modulo",
    "two_loads": "interleaved_first_add",
}


def test_the_names_that_people_know():
    for alias, name in ALIASES.items():
        assert torch_reduce.resolve("sum", alias) == name
    assert torch_reduce.resolve("matmul", "naive") == "naive" and torch_reduce.resolve("matmul", "tiled") == "tiled"


@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin", "matmul", "linear", "vector_add", *ROW_OPS])
def test_names_are_unique_and_resolve_to_themselves(op):
    rows = torch_reduce.variants(op)
    everything = [name for row in rows for name in (row.name, *row.aliases)]
    assert len(everything) == len(set(everything))
    for row in rows:
        for name in (row.name, *row.aliases):
            assert torch_reduce.resolve(op, name) == row.name
            assert re.fullmatch(r"[a-z][a-z0-9_]*", name)


def test_op_names():
    assert set(typing.get_args(_names.OpName)) == {*tables.REDUCTIONS, "matmul", "linear", "vector_add", *ROW_OPS}


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_say_what_they_must(family):
    for row in FAMILIES[family]:
        for field in ("name", "summary", "origin", "order", "order_text"):
            value = getattr(row, field)
            assert value and value == value.strip() and "\n" not in value, f"{row.name}.{field}"
        assert len(row.summary) <= 100
        assert row.dtypes and set(row.dtypes) <= set(tables.DTYPE_NAMES)
        assert row.capability >= (7, 5)
        assert (row.size_max == 0) == (row.sizes == ())
        assert all(size & (size - 1) == 0 for size in row.sizes)
        assert row.size_default in (0, *row.sizes)
        with pytest.raises(dataclasses.FrozenInstanceError):
            row.name = "other"


def test_auto_is_last_and_borrows_its_kernel():
    for rows in FAMILIES.values():
        assert rows[-1].name == "auto" and not rows[-1].has_kernel
        assert all(row.has_kernel for row in rows[:-1])


def test_every_order_class_has_a_model():
    for row in (row for row in REDUCE_VARIANTS if row.deterministic):
        assert row.order in {**orders.ORDERS, **orders.ALONG_DIMS}, f"tests/orders.py lacks a model of {row.order}"
        assert row.size_default == orders.DEFAULT_BLOCK[row.order]
    texts = {}
    for row in REDUCE_VARIANTS:
        assert texts.setdefault(row.order, row.order_text) == row.order_text


def test_order_classes():
    by_name = {row.name: row.order for row in REDUCE_VARIANTS}
    assert by_name["interleaved_modulo"] == by_name["interleaved_bitmask"] == by_name["interleaved_strided"]
    assert by_name["global_memory"] == by_name["interleaved_modulo"]
    assert by_name["first_add"] == by_name["last_warp"] == by_name["unrolled"]
    assert by_name["two_pass"] == by_name["two_pass_last_warp"] == by_name["two_pass_unrolled"]
    assert by_name["vectorized"] == by_name["single_pass"] == by_name["cooperative"]
    assert {row.order for row in tables.ALONG_DIMS} == set(orders.ALONG_DIMS)
    for name in by_name:
        if name.startswith(("row_", "column_")) or name in ("thread", "auto"):
            assert by_name[name] == "pairwise", name
    assert {row.order for row in tables.IN_K_ORDER} == {"k_order"}
    assert all(row.order != "k_order" for row in MATMUL_VARIANTS if not row.on_cpu)
    assert MATMUL_VARIANTS[-1].order == "chosen" and not any(row.order == "chosen" for row in MATMUL_VARIANTS[:-1])
    texts = {}
    for row in MATMUL_VARIANTS:
        assert texts.setdefault(row.order, row.order_text) == row.order_text
    matmul = {row.name: row.order for row in MATMUL_VARIANTS}
    assert matmul["naive"] == matmul["tiled"] == "k_order"
    assert matmul["wmma"] != matmul["mma"]  # tfloat32: other multiplications, other bits (seen on an H200)
    assert matmul["wgmma"] == matmul["warp_specialized"] == "warp_group" != matmul["persistent"]


def test_only_atomic_gives_up_its_order():
    assert [row.name for row in REDUCE_VARIANTS if not row.deterministic] == ["atomic"], "a rung keeps one order"
    assert all(row.deterministic for row in (*MATMUL_VARIANTS, *ADD_VARIANTS, *ROW_VARIANTS))


def test_block_sizes_that_the_literature_sweeps():
    for row in REDUCE_VARIANTS[1:-1]:
        least = 1 if row.name.startswith("two_pass") else 32
        assert row.sizes == tuple(2**i for i in range(least.bit_length() - 1, 11)), row.name
    assert tables.row("matmul", "tiled").sizes == (8, 16, 32)
    assert tables.row("matmul", "pipelined").sizes == (32, 64, 128)


def test_only_clusters_need_a_new_chip():
    newer = {row.name: row.capability for row in REDUCE_VARIANTS if row.capability > (7, 5)}
    assert newer == {"cluster": (9, 0), "row_cluster": (9, 0)}, "another one is added here, and to README.md, Install"


def test_who_takes_which_dtypes():
    names_of_all = set(tables.DTYPE_NAMES)
    complex_names = {"complex64", "complex128"}
    for row in tables.ALONG_DIMS:
        assert set(row.dtypes) == names_of_all, row.name
        assert set(tables.row("amax", row.name).dtypes) == names_of_all - complex_names
        assert complex_names < set(tables.row("mean", row.name).dtypes)
    for row in tables.CLASSIC:
        assert set(row.dtypes) == {str(dtype).removeprefix("torch.") for dtype in cases.DTYPES}, row.name


def test_variants_print_as_a_table():
    text = str(torch_reduce.variants("sum"))
    for row in REDUCE_VARIANTS:
        assert row.name in text and row.summary[:20] in text
    assert isinstance(torch_reduce.variants("sum"), tuple)
    assert torch_reduce.variants("sum") is torch_reduce.variants("sum")


def test_unknown_names():
    with pytest.raises(ValueError, match="interleaved_modulo"):
        torch_reduce.resolve("sum", "interleaved_module")
    with pytest.raises(ValueError, match="prod"):
        torch_reduce.variants("prod")


def by_plan(passes, values):
    """Executes the passes that a plan lists."""
    trees = {
        "no": lambda held, vector: held[:, 0],
        "interleaved": lambda held, vector: orders.neighbours_first(held),
        "sequential": lambda held, vector: orders.halves_first(held),
        "warp": lambda held, vector: orders.warps(orders.halves_first(held.reshape(len(held), -1, vector))),
    }
    for p in passes:
        assert len(values) == p["n"]
        row, block, lane = np.ogrid[: max(p["rows"], 1), : p["blocks"], : p["lanes"]]
        place = block * p["block_step"] + row * p["row_step"] + lane
        values = np.append(values, values.dtype.type(0))[np.minimum(place, p["n"])]  # past the end: zero
        values = trees[p["tree"]](orders.in_turn(values), p["vector"])
    return values


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("row", tables.CLASSIC, ids=names(tables.CLASSIC))
def test_plans_are_what_runs(row, device):
    if device == "cuda":
        tables.needs_chip(row)
    for dtype in (torch.float32, torch.float64):
        for n in (0, 1, 1000, 5003, 70_001):
            for sizes in ({}, *({"block_size": 64} for _ in row.sizes[:1])):
                x = cases.values(n, dtype, "wide")
                passes = tables.plan(row.name, dtype, n, **sizes)["passes"]
                (value,) = by_plan(passes, x.numpy()) + x.numpy().dtype.type(0)
                result = torch.ops.treduce.sum(x.to(device), row.name, **sizes).cpu()
                if row.deterministic or device == "cpu":
                    assert_same_bits(result, torch.tensor(value), (row.name, dtype, n, sizes))


def test_plans():
    plan = tables.plan("v0", tables.DTYPE_NAMES["float32"], 10_000, block_size=128)
    assert plan["variant"] == "interleaved_modulo" and plan["block_size"] == 128
    assert [p["blocks"] for p in plan["passes"]] == [79, 1]
    for row in tables.CLASSIC:
        for dtype in cases.DTYPES:
            for n in (0, 1, 1000, 2**31 + 3, 2**40):
                passes = tables.plan(row.name, dtype, n)["passes"]
                assert passes[0]["n"] == n and passes[-1]["blocks"] == 1
                for before, after in itertools.pairwise(passes):
                    assert after["n"] == before["blocks"] and after["blocks"] < before["blocks"]
                for p in passes:
                    assert p["blocks"] * p["lanes"] * p["rows"] >= p["n"]


def test_scratch_is_under_one_percent_of_the_input():
    """global_memory aside, by what it teaches."""
    for row in tables.CLASSIC:
        if row.name == "global_memory":
            continue
        for dtype in cases.DTYPES:
            for n in (2**24, 2**26, 2**31 + 3):
                workspace = tables.plan(row.name, dtype, n)["workspace_bytes"]
                assert workspace < 0.01 * n * dtype.itemsize, (row.name, dtype, n)


TO_UPDATE = "`make report`, or `python benchmarks/ladders.py` alone, brings it up to date"


def test_what_follows_from_the_tables_is_up_to_date(root, monkeypatch):
    """The types of the names, the lists in csrc/*/kernels/ and the rungs of each class in docs/numerics.md."""
    monkeypatch.syspath_prepend(root / "benchmarks")
    ladders = importlib.import_module("ladders")
    stale = ladders.bring_up_to_date(root, check=True)
    assert not stale, f"{', '.join(str(path.relative_to(root)) for path in stale)}: {TO_UPDATE}"


def test_every_order_class_stands_in_the_numerics(root):
    text = (root / "docs" / "numerics.md").read_text()
    for row in (*REDUCE_VARIANTS, *MATMUL_VARIANTS, *ROW_VARIANTS):
        if row.order != "chosen":
            assert f"`{row.order}`" in text, (
                f"docs/numerics.md does not say what {row.order}, the order class of {row.name}, is: add "
                f"`| `{row.order}` | <!-- class:{row.order} --><!-- /class --> | the order | the longest path |` to "
                f"its table of classes; then {TO_UPDATE}"
            )


@pytest.mark.parametrize("family", ["reduce", "matmul", "rows"])
def test_the_readme_names_every_rung(family, root):
    text = (root / "README.md").read_text()
    for row in FAMILIES[family]:
        assert f"`{row.name}`" in text, f"the ladder in README.md lacks {row.name}: `make report` writes it"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_rung_has_a_section_in_the_course(family, root):
    """Sections of the three ladders, in the order of the tables."""
    parts = re.split(r"^## ", (root / "docs" / "ladder.md").read_text(), flags=re.MULTILINE)
    titles = {"reduce": ("Sum", "Along dims"), "matmul": ("Matrix multiplication",), "elementwise": ("Vector add",)}
    titles["rows"] = ("Row operations",)
    course = "".join(part for part in parts if part.startswith(titles[family]))
    headings = re.findall(r"^###+ (\w+)", course, flags=re.MULTILINE)
    rungs = names(row for row in FAMILIES[family] if row.has_kernel)
    for rung in rungs:
        assert rung in headings, (
            f"docs/ladder.md has no section on {rung}: write one (the idea, who adds what, what bounds it), headed "
            f"`#### {rung}`, with the line `<!-- figure:{rung} --><!-- /figure -->`"
        )
    assert [name for name in headings if name in rungs] == rungs, "docs/ladder.md: sections stand in the table's order"


def test_the_package_is_typed_and_says_its_version(root):
    assert (root / "torch_reduce" / "py.typed").exists()
    assert f'version = "{torch_reduce.__version__}"' in (root / "pyproject.toml").read_text()
    for name in torch_reduce.__all__:
        assert hasattr(torch_reduce, name)
    for name in (
        "sum",
        "mean",
        "amax",
        "amin",
        "matmul",
        "linear",
        "vector_add",
        *ROW_OPS,
        "variants",
        "resolve",
        "device_info",
        "cuda_built",
    ):
        doc = getattr(torch_reduce, name).__doc__
        assert name in torch_reduce.__all__ and doc and doc.strip()
