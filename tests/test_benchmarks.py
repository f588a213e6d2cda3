"""benchmarks/: which products are behind torch, why, and which are counted; the products of a transformer block; tables
of suites that were not run."""

import importlib
import json
import re
import sys
import types

import pytest
import torch


@pytest.fixture(scope="module")
def script(root):
    """Imports a file of benchmarks/, some of which have the names of files here."""
    folder = root / "benchmarks"
    names = {path.stem for path in folder.glob("*.py")}
    ours = {name: sys.modules.pop(name) for name in names & sys.modules.keys()}
    sys.path.insert(0, str(folder))
    yield importlib.import_module
    sys.path.remove(str(folder))
    for name in names & sys.modules.keys():
        del sys.modules[name]
    sys.modules.update(ours)


@pytest.fixture(scope="module")
def folder(root):
    """Results of a GPU."""
    return next(path.parent for path in sorted((root / "benchmarks" / "results").glob("*/matmul_grid.json")))


def product(m, n, k, dtype, us, x=(0.9, 0.8, 0.95), layout="NT"):
    return {
        "kind": "tokens", "m": m, "n": n, "k": k, "batch": [], "layout": layout, "dtype": dtype, "rung": "",
        "us": {"auto": [us] * 3, "torch": [us * x[0]] * 3}, "x": {"torch": list(x)},
    }  # fmt: skip


def test_kernels_have_the_names_that_sources_give_them(script):
    def mangled(*names):
        return "_ZN" + "".join(f"{len(name)}{name}" for name in names) + "ILi14EEEvi"

    short_name = script("counters").short_name
    assert short_name(mangled("treduce", "matmul", "split", "finish")) == "split::finish"
    unnamed = "_GLOBAL__N__5f5d7958_9_others_cu_5e68f921"  # a namespace without a name, as nvcc calls it
    assert short_name(mangled("treduce", "matmul", unnamed, "copy_operands")) == "copy_operands"


@pytest.mark.parametrize(
    ("row", "mechanism"),
    [
        (product(1, 4096, 4096, "float32", 29), "splitting"),
        (product(8, 2048, 8192, "bfloat16", 13.7), "chain"),
        (product(128, 128, 128, "bfloat16", 4), "launch"),
        (product(64, 100_000, 256, "float16", 24.7), "launch"),
        (product(1001, 1003, 2005, "tf32", 40, layout="TN"), "copies"),
        (product(1009, 89, 372, "tf32", 6, layout="TN"), "in place"),
        (product(3000, 3000, 3000, "float16", 105, layout="NN"), "sectors"),
        (product(1, 14336, 4096, "bfloat16", 31), "memory"),
        (product(4096, 4096, 4096, "float64", 2460), "groups"),
        (product(4096, 4096, 4096, "bfloat16", 195), "tensor cores"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_bounds_a_product(script, row, mechanism):
    products_behind = script("products_behind")
    (found,) = products_behind.points({"matmul_grid": {"products": [row]}})
    assert found.mechanism == mechanism


@pytest.mark.parametrize(
    ("m", "n", "dealt", "strip", "filled"),
    [
        (64, 264 * 128, 0, (0, 0), 1.0),
        (64, 265 * 128, 0, (0, 0), 265 / 396),
        (64, 265 * 128, 133, (0, 0), 1.0),
        (64, 265 * 128, 0, (64, 128), 1.0),
        (1, 132 * 128, 0, (0, 0), 1.0),
        (100, 66 * 128, 0, (0, 0), 100 / 128),
    ],
)
def test_what_tiles_fill(script, m, n, dealt, strip, filled):
    """Whole rounds; a tile more, dealt out, a strip, or neither; fewer rows than a tile has; rows past the edge."""
    chip = types.SimpleNamespace(multiprocessors=132)
    launches = [types.SimpleNamespace(shared_bytes=0, cluster=2), types.SimpleNamespace(shared_bytes=1, cluster=1)]
    plan = types.SimpleNamespace(
        problem=(1, m, n, 512),
        tile=(64, 128),
        groups=2,
        groups_apart=False,
        tasks_dealt=dealt,
        strip=strip,
        launches=launches,
        chip=chip,
    )
    assert script("products_behind").filled(plan) == pytest.approx(filled)


def test_what_is_behind(script):
    products_behind = script("products_behind")
    x = {
        "faster": (1.1, 1.0, 1.2),
        "noise": (0.98, 0.9, 1.01),
        "two clocks": (1.01, 0.9, 0.99),
        "slow": (0.9, 0.8, 0.95),
    }
    rows = [product(512, 512, 512, "bfloat16", 10 + i, x=values) for i, values in enumerate(x.values())]
    assert [point.x for point in products_behind.points({"matmul_grid": {"products": rows}})] == [x["slow"]]
    assert products_behind.points({}) == []


def test_products_are_counted_once(script, folder):
    products_behind, counters, cases = map(script, ("products_behind", "counters", "cases"))
    points = products_behind.points({"matmul_grid": json.loads((folder / "matmul_grid.json").read_text())})
    assert {point.mechanism for point in points} <= products_behind.MECHANISMS.keys()
    asked = [
        counters.product_key({**point._asdict(), "dtype": kind}) for point, kind in counters.counted_products(folder)
    ]
    assert len(asked) == len(set(asked))
    for point in cases.COUNTED_PRODUCTS:
        assert all(counters.product_key({**point._asdict(), "dtype": kind}) in asked for kind in point.dtypes)
    furthest = {}
    for point in points:
        furthest.setdefault((point.mechanism, point.row["dtype"]), point)
    assert all(counters.product_key(point.row) in asked for point in furthest.values())
    csv_row = {"m": "1024", "n": "64", "k": "1024", "batch": "32 16", "layout": "values", "dtype": "float32"}
    assert counters.product_key(csv_row) in asked


@pytest.mark.parametrize("kind", ["initial", "outliers"])
def test_the_products_of_a_step(script, kind):
    """All of them, with the shapes of their names, and with scores as sharp as promised."""
    block = script("transformer_products")
    size = block.transformer.Size(batch=2, tokens=9, width=16, heads=4)
    operands = block.step_of(block.data(kind, size, torch.device("cpu")), size.heads)
    assert tuple(operands) == block.NAMES
    shapes = {name: (*a.shape[:-1], b.shape[-1], a.shape[-1]) for name, (a, b) in operands.items()}
    assert shapes["mlp_in forward"] == shapes["mlp_out gradient of input"] == (18, 64, 16)
    assert shapes["mlp_in gradient of input"] == shapes["mlp_out forward"] == (18, 16, 64)
    assert shapes["attention_in gradient of weight"] == (48, 16, 18)
    assert shapes["scores forward"] == shapes["values gradient of probabilities"] == (2, 4, 9, 9, 4)
    assert shapes["scores gradient of key"] == (2, 4, 4, 9, 9)
    assert {block.layout_of(*operands[f"mlp_in {what}"]) for what in ("forward", "gradient of weight")} == {"NT", "TN"}
    probabilities, _ = operands["values forward"]
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 4, 9))
    query, key = (x[:1] for x in operands["scores forward"])
    assert (query @ key).std() / 2 == pytest.approx(block.SCORES_DEVIATION, rel=0.01)


def test_every_table_stands_somewhere(script, root, tmp_path):
    report = script("report")
    documents = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    text = "\n".join(path.read_text() for path in documents)
    assert set(re.findall(r"<!-- (\w+):begin -->", text)) == report.TABLES.keys()
    nothing = report.Results(tmp_path)
    before = "".join(f"<!-- {name}:begin -->\nas it was\n<!-- {name}:end -->\n" for name in report.TABLES)
    assert report.rewrite(before, nothing, "a document") == before
