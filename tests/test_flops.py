"""What torch.utils.flop_counter counts for our products is what it counts for torch's."""

import pytest
import torch
from torch.nn.functional import linear as torchs_linear
from torch.utils.flop_counter import FlopCounterMode

import torch_reduce

PRODUCTS = [
    ((3, 4), (4, 5)),
    ((7, 3, 4), (7, 4, 5)),
    ((7, 3, 4), (4, 5)),
    ((3, 4), (7, 4, 5)),
    ((1, 3, 4), (7, 4, 5)),
    ((2, 1, 3, 4), (7, 4, 5)),
    ((2, 7, 3, 4), (2, 1, 4, 5)),
    ((64, 128), (128, 32)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
]
LAYERS = [((3, 4), (5, 4)), ((7, 3, 4), (5, 4)), ((2, 7, 3, 4), (5, 4)), ((64, 128), (32, 128))]


def counted(function, operands, backward):
    """Forward, and what backward adds."""
    leaves = [torch.randn(shape, requires_grad=backward) for shape in operands]
    with FlopCounterMode(display=False) as counter:
        result = function(*leaves)
        forward = counter.get_total_flops()
        if backward:
            result.sum().backward()
    return forward, counter.get_total_flops() - forward


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
def test_matmul(shapes, backward):
    ours, theirs = counted(torch_reduce.matmul, shapes, backward), counted(torch.matmul, shapes, backward)
    assert ours == theirs
    assert ours[0] > 0 or 0 in shapes[0]
    assert ours[1] == 2 * ours[0] * backward


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("shapes", LAYERS, ids=str)
def test_linear(shapes, backward):
    shapes = (*shapes, shapes[1][:1])
    ours = counted(torch_reduce.linear, shapes, backward)
    assert ours == counted(torchs_linear, shapes, backward)
    assert ours[0] == 2 * shapes[1][0] * torch.Size(shapes[0]).numel()


@pytest.mark.parametrize("backward", [False, True])
def test_attention(backward):
    shapes = ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3))
    forward, gradients = counted(torch_reduce.scaled_dot_product_attention, shapes, backward)
    scores = 2 * 4 * 5 * 7
    assert forward == 2 * scores * (8 + 3) and gradients == backward * 2 * scores * (3 * 8 + 2 * 3)


def test_every_variant_counts_alike():
    for variant in torch_reduce.variants("matmul"):
        if "float32" not in variant.dtypes:  # what these are counted with
            continue
        function = lambda a, b, name=variant.name: torch_reduce.matmul(a, b, variant=name)  # noqa: E731
        assert counted(function, ((3, 4), (4, 5)), False)[0] == 120


def test_vectors():
    """torch counts neither of these; each is two operations for each product all the same."""
    assert counted(torch_reduce.matmul, ((4,), (4,)), False)[0] == 8
    assert counted(torch_reduce.matmul, ((3, 4), (4,)), False)[0] == 24
    assert counted(torch_reduce.linear, ((3, 4), (4,)), False)[0] == 24


def test_modules_are_told_apart():
    class Layer(torch.nn.Linear):
        def forward(self, x):
            return torch_reduce.linear(x, self.weight, self.bias)

    model = torch.nn.Sequential(Layer(4, 5), torch.nn.ReLU(), Layer(5, 6))
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(3, 4))
    counts = {name: sum(of.values()) for name, of in counter.get_flop_counts().items()}
    assert counts["Sequential.0"] == 120 and counts["Sequential.2"] == 180 and counts["Global"] == 300
