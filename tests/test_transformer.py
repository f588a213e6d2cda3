"""examples/transformer.py: runs, small, on the CPU, and gives gradients as accurate as torch's."""

import contextlib
import importlib.util
import runpy
import sys

import pytest
import torch
from tables import MATMUL_VARIANTS, runs


@pytest.fixture(scope="module")
def example(root):
    spec = importlib.util.spec_from_file_location("transformer", root / "examples" / "transformer.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["transformer"] = module
    spec.loader.exec_module(module)
    return module


def test_the_block_is_torchs(example, device):
    """With torch's products and with ours, in float64."""
    x, grad, parameters = example.initial(example.Size(2, 9, 16, 2), device)
    wide = {name: p.double() for name, p in parameters.items()}
    theirs, ours = (
        example.step(x.double(), grad.double(), wide, 2, products) for products in (example.TORCH, example.ours())
    )
    assert set(ours) == {*parameters, "input"}
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, msg=lambda m, name=name: f"{name}: {m}")


def test_gradients_are_as_accurate_as_torchs(example, device):
    results = {r.name: r for r in example.compare(example.SIZES["small"], device, steps=1)}
    mine, theirs = results["torch_reduce auto"], results["torch float32"]
    assert 0 < mine.error < 2 * theirs.error and 0 < mine.worst < 2 * theirs.worst and mine.ms > 0
    if device == "cuda":
        assert mine.error < results["torch tf32"].error / 50


def test_every_variant_runs_it(example, device):
    for variant in MATMUL_VARIANTS:
        if runs(variant, device):
            result = example.compare(example.Size(1, 9, 16, 2), device, steps=1, variant=variant.name)[-1]
            assert result.error < (1e-5 if variant.on_cpu or device == "cpu" else 1e-2), variant.name


def test_the_command(root, monkeypatch, capsys):
    """As `python -m examples.transformer` runs it; in this process, which has torch already."""
    monkeypatch.syspath_prepend(root)
    for arguments in (["--help"], ["--device", "cpu", "--size", "small", "--steps", "1"]):
        monkeypatch.setattr(sys, "argv", ["transformer", *arguments])
        with contextlib.suppress(SystemExit) if "--help" in arguments else contextlib.nullcontext():
            runpy.run_module("examples.transformer", run_name="__main__")
        out = capsys.readouterr().out
        assert "--steps" in out or "--help" not in arguments
    assert "torch float32" in out and "torch_reduce auto" in out and "tokens 33" in out
