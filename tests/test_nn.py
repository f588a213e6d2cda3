"""torch_reduce.nn: torch's modules with another forward, and convert."""

import copy

import pytest
import torch
from bits import assert_same_bits

import torch_reduce
from torch_reduce import nn

MODULES = {
    "Linear": (lambda home: home.Linear(40, 24), lambda m, x: torch_reduce.linear(x, m.weight, m.bias)),
    "Linear without bias": (
        lambda home: home.Linear(40, 24, bias=False),
        lambda m, x: torch_reduce.linear(x, m.weight),
    ),
    "LayerNorm": (
        lambda home: home.LayerNorm((5, 40), eps=1e-3),
        lambda m, x: torch_reduce.layer_norm(x, (5, 40), m.weight, m.bias, 1e-3),
    ),
    "RMSNorm": (lambda home: home.RMSNorm(40), lambda m, x: torch_reduce.rms_norm(x, (40,), m.weight)),
    "RMSNorm without weight": (
        lambda home: home.RMSNorm(40, elementwise_affine=False),
        lambda m, x: torch_reduce.rms_norm(x, (40,)),
    ),
    "Softmax": (lambda home: home.Softmax(1), lambda m, x: torch_reduce.softmax(x, 1)),
    "LogSoftmax": (lambda home: home.LogSoftmax(-1), lambda m, x: torch_reduce.log_softmax(x, -1)),
}


@pytest.fixture
def x(device):
    return torch.randn(300, 5, 40, generator=torch.Generator().manual_seed(0)).to(device)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_its_function(name, x, device):
    make, function = MODULES[name]
    torch.manual_seed(1)
    ours, theirs = make(nn).to(device), make(torch.nn).to(device)
    ours.load_state_dict(theirs.state_dict())
    got = ours(x)
    assert_same_bits(got, function(ours, x))
    torch.testing.assert_close(got, theirs(x), atol=1e-4, rtol=1e-4)
    assert_same_bits(ours(x[:1]), got[:1])


class Own(torch.nn.Linear):
    """A subclass, whose forward is its own."""

    def forward(self, input):
        return input * 2


def test_convert_keeps_all_but_the_forward(x, device):
    model = torch.nn.Sequential(
        torch.nn.LayerNorm(40), torch.nn.Linear(40, 24), torch.nn.ModuleDict({"own": Own(3, 3)})["own"],
        torch.nn.RMSNorm(24), torch.nn.LogSoftmax(-1),
    ).to(device)  # fmt: skip
    before = copy.deepcopy(model)
    names, calls = list(model.state_dict()), []
    parameters = list(model.parameters())
    model[1].register_forward_hook(lambda *_: calls.append(1))
    assert nn.convert(model) is model
    assert [type(m) for m in model] == [nn.LayerNorm, nn.Linear, Own, nn.RMSNorm, nn.LogSoftmax]
    assert list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    result = model(x)
    torch.testing.assert_close(result, before(x), atol=1e-4, rtol=1e-4)
    assert_same_bits(model(x[:1]), result[:1])
    assert calls == [1, 1]
    result.square().sum().backward()
    before(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), before.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-2, rtol=1e-3)
    assert type(nn.convert(torch.nn.Linear(2, 2))) is nn.Linear
    assert type(nn.convert(copy.deepcopy(model))[1]) is nn.Linear


def test_what_cannot_be_converted():
    with pytest.raises(TypeError, match=r"convert takes a torch\.nn\.Module, got int"):
        nn.convert(3)
    with pytest.warns(UserWarning, match="Implicit dimension"):
        torch.nn.Softmax()(torch.ones(2))
    with pytest.raises(ValueError, match="Softmax needs a dim"):
        nn.Softmax()(torch.ones(2))
