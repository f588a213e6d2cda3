"""A training loop whose every inexact op is ours, or elementwise and rounded in one way by IEEE 754: the same loss
curve and parameters, bit for bit, on every run and device, and however the batch is split where an op allows that.

The loop is examples/train.py.
"""

import importlib.util
import runpy
import subprocess
import sys

import cases
import pytest
import torch
from bits import assert_same_bits

import torch_reduce

STEPS = 20


@pytest.fixture(scope="module")
def example(root):
    spec = importlib.util.spec_from_file_location("train", root / "examples" / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_same_training(actual, expected):
    assert_same_bits(actual[0], expected[0], "losses")
    for name, parameter in expected[1].items():
        assert_same_bits(actual[1][name], parameter, name)


def test_the_loss_falls(example):
    losses, parameters = example.train("cpu", STEPS)
    assert losses[-1] < 0.6 * losses[0]
    assert losses.unique().numel() == STEPS  # equal bits would say little of a loop that stands still
    assert all(p.isfinite().all() for p in parameters.values())


def test_two_runs(example, device):
    first = example.train(device, STEPS)
    with torch.no_grad():
        torch.randn(1000, device=device).sum()  # other work between them
    assert_same_training(example.train(device, STEPS), first)


def test_any_number_of_cores(example, one_thread_or_two):
    one_thread_or_two(1)
    first = example.train("cpu", STEPS)
    one_thread_or_two(2)
    assert_same_training(example.train("cpu", STEPS), first)


@pytest.mark.cuda
def test_a_gpu_trains_as_the_cpu_does(example):
    assert_same_training(example.train("cuda", STEPS), example.train("cpu", STEPS))


# The batch in parts.

PARTS = (1, 2, 5, 96)


@pytest.mark.parametrize("parts", PARTS)
def test_values_of_a_sample_do_not_know_the_batch(example, device, parts):
    """Activations, outputs, losses, and the gradients of all that has a row a sample."""
    x, target, parameters = example.initial(device)

    def rows_of(x, target):
        x = x.clone().requires_grad_()
        first, hidden, outputs = example.forward(parameters, x)
        losses = example.losses_of(outputs, target)
        return first, hidden, outputs, losses, *torch.autograd.grad(losses.sum(), [x, first, hidden, outputs])

    whole = rows_of(x, target)
    of_parts = [rows_of(*part) for part in zip(x.chunk(parts), target.chunk(parts), strict=True)]
    for number, expected in enumerate(whole):
        assert_same_bits(torch.cat([rows[number] for rows in of_parts]), expected, f"value {number} in {parts} parts")


@pytest.mark.parametrize("parts", PARTS)
def test_training_in_parts(example, device, parts):
    """Each sample's share of the gradients is computed in micro-batches; what is added over the batch is added once,
    when all of them are there. (Sums of the micro-batches' sums would be another order, and other bits.)"""

    def step(parameters, x, target):
        kept = []
        for part, wanted in zip(x.chunk(parts), target.chunk(parts), strict=True):
            first, hidden, outputs = example.forward(parameters, part)
            losses = example.losses_of(outputs, wanted)
            share = torch.full_like(losses, 1 / example.BATCH)
            kept.append((losses, hidden, *torch.autograd.grad(losses, [first, outputs], share)))
        losses, hidden, first_grad, output_grad = (torch.cat(rows) for rows in zip(*kept, strict=True))
        grads = {
            "weight_1": torch_reduce.matmul(x.t(), first_grad, variant=example.PRODUCTS),
            "bias_1": torch_reduce.sum(first_grad, 0),
            "weight_2": torch_reduce.matmul(hidden.t(), output_grad, variant=example.PRODUCTS),
            "bias_2": torch_reduce.sum(output_grad, 0),
        }
        example.descend(parameters, [grads[name] for name in parameters])
        return example.loss_of(losses).detach()

    assert_same_training(example.train(device, STEPS, step), example.train(device, STEPS))


# What the loop takes from torch.


def test_torchs_elementwise_ops_round_to_nearest(device):
    """float64 has more than twice the digits of float32 and two more, so rounding its results again is harmless."""
    a, b = (cases.values(10_007, torch.float32, "wide", seed) for seed in (0, 1))
    for name, op in (
        ("add", torch.add),
        ("sub", torch.sub),
        ("mul", torch.mul),
        ("div", torch.div),
        ("abs", lambda a, b: a.abs()),
    ):
        expected = op(a.double(), b.double()).float()
        assert_same_bits(op(a.to(device), b.to(device)).cpu(), expected, name)


def test_the_gradient_of_broadcasting_is_ours(example, device):
    for shape, full, dims in (((5,), (70, 5), [0]), ((70, 1), (70, 5), [1]), ((5, 1), (70, 5, 9), [0, 2])):
        x = cases.values(shape[0], torch.float32, "wide", device=device).view(shape).requires_grad_()
        y = example.Broadcast.apply(x, full)
        assert_same_bits(y.detach().cpu(), x.detach().cpu().expand(full))
        grad = cases.values(y.numel(), torch.float32, "wide", 1, device=device).view(full)
        (ours,) = torch.autograd.grad(y, x, grad)
        assert_same_bits(ours.cpu(), torch_reduce.sum(grad.cpu(), dims).view(shape), f"{shape} to {full}")


def test_the_example_runs(root, device, monkeypatch, capsys):
    """In a process of its own, and in this one: the same digits and digests."""
    arguments = ["--device", device, "--steps", "3"]
    command = [sys.executable, "-m", "examples.train", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("loss ") == 3
    monkeypatch.syspath_prepend(root)
    monkeypatch.setattr(sys, "argv", ["train", *arguments])
    runpy.run_module("examples.train", run_name="__main__")
    assert capsys.readouterr().out == run.stdout
