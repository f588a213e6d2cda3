"""torch's own samples of the ops (torch.testing's OpInfo): values, dtypes and errors are torch's.

What is not, by intent: products of int8 are int32, as torch._int_mm's are.
"""

import pytest
import torch

import torch_reduce

pytest.importorskip("expecttest", reason="torch's own tests import it")

from torch.testing._internal.common_methods_invocations import op_db


def addmm(added, a, b, *, beta=1, alpha=1):
    return beta * added + alpha * torch_reduce.matmul(a, b)


PRODUCTS = {
    **dict.fromkeys(("matmul", "__rmatmul__", "mm", "bmm", "mv", "dot"), torch_reduce.matmul),
    "__rmatmul__": lambda a, b: torch_reduce.matmul(b, a),
    "addmm": addmm,
    "nn.functional.linear": torch_reduce.linear,
}
REDUCTIONS = {name: getattr(torch_reduce, name) for name in ("sum", "mean", "amax", "amin")}
OURS = {**PRODUCTS, **REDUCTIONS}
INFOS = [info for info in op_db if info.name in OURS and not info.variant_test_name]
every_info = pytest.mark.parametrize("info", INFOS, ids=[info.name for info in INFOS])

# float32 of cancelling terms, by pairs of float16: as accurate as torch's, but not next to it.
TOLERANCE = {torch.float32: 1e-5, torch.complex64: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}


def test_every_op_has_samples():
    assert {info.name for info in INFOS} == set(OURS)


def is_int8_product(info, sample):
    return info.name in PRODUCTS and sample.input.dtype == torch.int8


@every_info
def test_values_and_dtypes_are_torchs(info, device):
    count = 0
    for dtype in sorted(info.supported_dtypes(device), key=str):
        for sample in info.sample_inputs(device, dtype):
            expected = info.op(sample.input, *sample.args, **sample.kwargs)
            if is_int8_product(info, sample):
                sample.args = tuple(x.int() for x in sample.args)
                sample.input, sample.kwargs = sample.input.int(), {}
                expected = info.op(sample.input, *sample.args)
            found = OURS[info.name](sample.input, *sample.args, **sample.kwargs)
            near = TOLERANCE.get(expected.dtype, 0)
            scale = expected.abs().max().item() if expected.numel() and dtype != torch.bool else 1
            tolerance = {"rtol": near, "atol": near * max(scale, 1)} if near else {}
            torch.testing.assert_close(found, expected, **tolerance, msg=lambda m, s=sample: f"{m}\n{s}")
            count += 1
    assert count > 0


@every_info
def test_what_torch_refuses_is_refused(info, device):
    for error in info.error_inputs(device) if info.error_inputs_func else ():
        sample = error.sample_input
        with pytest.raises((RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)):
            OURS[info.name](sample.input, *sample.args, **sample.kwargs)
