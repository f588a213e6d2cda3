"""The command line: every command, its JSON, its exit status and its errors."""

import json
import os
import subprocess
import sys

import pytest
import tables
import torch

import torch_reduce
from torch_reduce import _row_calls, _variants, bench, cli, ops

COMMANDS = ("info", "variants", "threads", "bench", "verify", "model", "demo")


@pytest.fixture
def run(capsys, tmp_path):
    """Runs a command with --json; returns its exit status, output, errors and the JSON."""

    def command(*arguments, json_too=True):
        target = tmp_path / "out.json"
        target.unlink(missing_ok=True)
        given = [*arguments, "--json", str(target)] if json_too else list(arguments)
        status = cli.main(given)
        captured = capsys.readouterr()
        data = json.loads(target.read_text()) if target.exists() else None
        return status, captured.out, captured.err, data

    return command


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    out = capsys.readouterr().out
    assert stop.value.code == 0 and f"python -m torch_reduce {command}" in out


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert stop.value.code == 0 and all(command in out for command in COMMANDS)


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0 and torch_reduce.__version__ in capsys.readouterr().out


def test_as_a_module(root):
    done = subprocess.run(
        [sys.executable, "-m", "torch_reduce", "variants", "matmul"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "tiled" in done.stdout and not done.stderr


def test_info(run, device):
    status, out, _, data = run("info", "--device", device)
    assert status == 0
    assert data["device"]["device"].startswith(device) and data["device"]["name"] in out
    assert data["build"]["torch"] == torch.__version__ and torch.__version__ in out
    assert data["build"]["cuda"] == torch_reduce.build_info().cuda
    facts = data["device"]["facts"]
    assert facts and all(isinstance(value, (int, str)) for value in facts.values())
    if device == "cuda":
        have = torch.cuda.get_device_properties(0)
        assert facts["multiprocessors"] == have.multi_processor_count
        assert facts["memory_bytes"] == have.total_memory


@pytest.mark.cuda
def test_info_measures_bandwidth(run):
    status, _, _, data = run("info", "--bandwidth")
    assert status == 0
    for key in ("read", "copy"):
        assert 1e9 < data["device"]["bandwidth"][key] < 1e14


def test_device_info_is_what_info_shows():
    info = torch_reduce.device_info("cpu")
    assert info.device == "cpu" and info.bandwidth is None and info.facts
    with pytest.raises(ValueError, match="device"):
        torch_reduce.device_info("tpu")


def test_variants(run):
    status, out, _, data = run("variants")
    assert status == 0 and list(data) == ["sum", "matmul", "vector_add"]
    for op, rows in data.items():
        assert [row["name"] for row in rows] == tables.names(torch_reduce.variants(op))
        assert all(row["name"] in out and row["order"] in out for row in rows)
    for op in ("amax", "linear", "softmax"):
        status, _, _, data = run("variants", op)
        assert status == 0 and list(data) == [op]
        assert [row["name"] for row in data[op]] == tables.names(torch_reduce.variants(op))


def test_threads_of_a_line(run, device):
    status, out, _, data = run("threads", "--grid", "2", "--block", "3", "--device", device)
    assert status == 0 and len(data["rows"]) == 6
    columns = data["columns"]
    for i, row in enumerate(data["rows"]):
        named = dict(zip(columns, row, strict=True))
        assert named["index"] == i == named["block.x"] * 3 + named["thread.x"]
    assert "blockDim.x" in out


def test_threads_of_a_rectangle(run, device):
    status, _out, _, data = run("threads", "--grid", "2,2", "--block", "4,2", "--device", device)
    assert status == 0 and len(data["rows"]) == 32
    for i, row in enumerate(data["rows"]):
        named = dict(zip(data["columns"], row, strict=True))
        assert named["index"] == i == named["global y"] * 8 + named["global x"]
        assert named["global y"] == named["block.y"] * 2 + named["thread.y"]
        assert named["global x"] == named["block.x"] * 4 + named["thread.x"]


def test_long_tables_of_threads_are_cut(run):
    status, out, _, _ = run("threads", "--grid", "100", "--block", "100", "--device", "cpu")
    assert status == 0 and "more" in out and len(out.splitlines()) < 100
    status, out, _, _ = run("threads", "--grid", "10", "--block", "20", "--all", "--device", "cpu")
    assert status == 0 and len(out.splitlines()) > 200


def test_verify(run, device):
    arguments = ["--n", "0", "33", "2^10", "--dtype", "float32", "int8", "--shape", "5x7x3", "--device", device]
    status, out, _, data = run("verify", *arguments)
    assert status == 0 and "FAIL" not in out
    seen = {(o["op"], o["variant"]) for o in data["outcomes"]}
    for op in _variants.OPS:
        assert {(op, v.name) for v in torch_reduce.variants(op)} <= seen
    assert all(o["cases"] or o["skipped"] for o in data["outcomes"])


def test_verify_fails_with_status_one(run, monkeypatch):
    right = ops.sum
    monkeypatch.setattr(ops, "sum", lambda x, **kwargs: right(x[:-1], **kwargs))
    arguments = ["--op", "sum", "--n", "100", "--dtype", "float32", "--variant", "v0", "v6", "--device", "cpu"]
    status, out, _, data = run("verify", *arguments)
    assert status == 1 and out.count("FAIL") == 2
    assert all(o["failures"] for o in data["outcomes"])


def test_bench(run, tmp_path, device):
    plot = tmp_path / "sum.svg"
    arguments = [
        "sum",
        "--n",
        "2^10",
        "2^12",
        "--variant",
        "v0",
        "auto",
        "--quick",
        "--device",
        device,
        "--plot",
        str(plot),
    ]
    status, out, _, data = run("bench", *arguments)
    assert status == 0
    timed = {row["variant"] for row in data["rows"]}
    assert {"interleaved_modulo", "auto", "torch"} <= timed
    assert all(row["us"] > 0 for row in data["rows"] if not row.get("note"))
    assert plot.read_text().lstrip().startswith("<?xml") and "<svg" in plot.read_text()
    if device == "cpu":
        assert "do not teach" in out
    assert data["environment"]["torch"] == torch.__version__


def test_bench_of_a_product(run):
    arguments = ["matmul", "--shape", "16x16x16", "--variant", "tiled", "--tile-size", "8", "16", "--quick"]
    status, _, _, data = run("bench", *arguments, "--device", "cpu")
    assert status == 0 and {row["variant"] for row in data["rows"]} == {"tiled", "torch"}
    status, _, _, data = run("bench", "linear", "--shape", "8x9x10", "--variant", "auto", "--quick", "--device", "cpu")
    assert status == 0 and {row["variant"] for row in data["rows"]} == {"auto", "torch"}


@pytest.mark.parametrize("op", _variants.ROW_OPS)
def test_row_operations(op, run, device):
    """As every op: all rungs are listed, planned, checked and timed."""
    rungs = set(tables.names(torch_reduce.variants(op)))
    assert {"three_pass", "online", "auto"} <= rungs
    status, out, _, data = run("verify", "--op", op, "--shape", "5x300", "--device", device)
    assert status == 0 and "FAIL" not in out and {o["variant"] for o in data["outcomes"]} == rungs
    status, _, _, data = run("bench", op, "--shape", "8x300", "--quick", "--device", device)
    assert status == 0 and {row["variant"] for row in data["rows"]} == rungs | {"torch"}
    assert all(row["shape"] == [8, 300] and (row.get("us") or row.get("note")) for row in data["rows"])
    for rung in rungs - {"auto"}:
        status, _, _, data = run("plan", op, "64x4096", "--variant", rung, "--device", "H200")
        assert status == 0 and data["rung"] == rung


def test_verify_finds_a_wrong_row_operation(run, monkeypatch):
    right = _row_calls.ROW_CALLS["softmax"]
    wrong = right._replace(ours=lambda x, variant: right.ours(x, variant) * (1 + 1e-4 * (variant == "online")))
    monkeypatch.setitem(_row_calls.ROW_CALLS, "softmax", wrong)
    arguments = ["--op", "softmax", "--shape", "5x300", "--dtype", "float32", "--variant", "online", "auto"]
    status, out, _, _ = run("verify", *arguments, "--device", "cpu")
    assert status == 1 and out.count("FAIL") == 1


def test_json_to_standard_output(run):
    status, out, err, _ = run("variants", "sum", "--json", "-", json_too=False)
    assert status == 0 and list(json.loads(out)) == ["sum"] and "two_pass" in err


def test_invariance(run, device):
    status, out, _, data = run("verify", "--invariance", "--device", device)
    found = data["invariance"]
    assert (
        status == 0 and all(row["ours"] for row in found) and {row["dtype"] for row in found} == {"float32", "bfloat16"}
    )
    assert out.count("the same") >= len(found) and "scaled_dot_product_attention" in out


def test_bench_checks_before_it_times(run, monkeypatch):
    right = bench.function_of

    def wrong(candidate):
        function = right(candidate)
        return (lambda x: function(x) + 1000) if candidate.variant != "torch" else function

    monkeypatch.setattr(bench, "function_of", wrong)
    status, _, _, data = run("bench", "sum", "--n", "1000", "--variant", "v0", "--quick", "--device", "cpu")
    assert status == 1
    assert any(row.get("wrong") for row in data["rows"])


def test_model(run):
    pytest.importorskip("transformers")
    status, out, _, data = run("model", "--model", "gpt2", "--length", "20", "--device", "cpu")
    assert status == 0 and out.count("yes") >= 6
    assert all(data["batch_invariant"].values()) and len(data["torch"]) == 6 and data["uncovered"] == []
    assert run("model", "--length", "3", "--device", "cpu", json_too=False)[0] == 2


def test_demo(run):
    status, out, _, _data = run("demo", "--n", "2^14", "--device", "cpu")
    assert status == 0
    for variant in tables.REDUCE_VARIANTS:
        assert variant.name in out


MISTAKES = [
    (["variants", "prod"], "prod"),
    (["bench", "prod"], "prod"),
    (["bench", "--variant", "v9", "--device", "cpu"], "v9"),
    (["bench", "--dtype", "float17", "--device", "cpu"], "float17"),
    (["bench", "--n", "1000", "--block-size", "100", "--variant", "v0", "--device", "cpu"], "100"),
    (["bench", "--plot", "x.txt", "--device", "cpu"], "x.txt"),
    (["verify", "--op", "prod", "--device", "cpu"], "prod"),
    (["verify", "--variant", "v9", "--device", "cpu"], "v9"),
    (["info", "--device", "tpu"], "tpu"),
    (["info", "--device", "cuda:99"], "cuda:99"),
    (["threads", "--grid", "2", "--block", "3,4", "--device", "cpu"], "block"),
    (["threads", "--grid", "2", "--block", "1025", "--device", "cpu"], "1024"),
    (["threads", "--grid", "2^12", "--block", "2^13", "--device", "cpu"], "threads"),
    (["info", "--device", "cpu", "--json", "/no/such/folder/x.json"], "/no/such/folder"),
    (["bench", "sum", "--shape", "3x3x3", "--device", "cpu"], "sum takes no --shape"),
    (["bench", "matmul", "--n", "4", "--device", "cpu"], "matmul takes no --n"),
    (["verify", "--op", "sum", "mean", "--shape", "3x3x3", "--device", "cpu"], "sum takes no --shape"),
    (["bench", "softmax", "--n", "4", "--device", "cpu"], "softmax takes no --n: its sizes are --shape ROWSxLENGTH"),
    (["bench", "softmax", "--shape", "3x3x3", "--device", "cpu"], "softmax takes --shape ROWSxLENGTH, got 3x3x3"),
    (["bench", "matmul", "--shape", "4x4", "--device", "cpu"], "matmul takes --shape MxNxK, got 4x4"),
    (["bench", "layer_norm", "--num-blocks", "4", "--device", "cpu"], "layer_norm takes no num_blocks"),
    (["verify", "--invariance", "--n", "5", "--device", "cpu"], "takes no --n"),
]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=[" ".join(arguments) for arguments, _ in MISTAKES])
def test_mistakes_end_in_one_sentence_and_status_two(arguments, says, capsys):
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err.strip()
    assert says in err and len(err.splitlines()) == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["bench", "--n", "many"],
        ["bench", "--n", "-5"],
        ["bench", "--shape", "4"],
        ["bench", "--shape", "4x4x4x4"],
        ["threads", "--grid", "2"],
        ["threads", "--grid", "2,2,2", "--block", "1"],
        ["verify", "--seed", "x"],
    ],
    ids=" ".join,
)
def test_usage_errors(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    err = capsys.readouterr().err.strip()
    assert stop.value.code == 2 and "error" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1000", 1000),
        ("2^20", 2**20),
        ("25.6M", 25_600_000),
        ("1_000", 1000),
        ("1e6", 10**6),
        ("64Ki", 65536),
        ("0", 0),
    ],
)
def test_counts(text, count, run):
    status, _, _, _data = run(
        "verify", "--op", "sum", "--variant", "v0", "--dtype", "bool", "--n", "1", "--device", "cpu"
    )
    assert status == 0 and cli._count(text) == count
