"""`torch_reduce.plan` of row operations: what it says, for any chip, and that it says what the call does."""

import dataclasses
import itertools
import json

import pytest
import torch
from tables import ROW_VARIANTS, names

import torch_reduce
from torch_reduce import _C, _plan_rows, cli
from torch_reduce._variants import ROW_OPS


def plan(*arguments, device="H200", **named):
    return torch_reduce.plan(*arguments, device=device, **named)


def test_what_it_says():
    p = plan("softmax", (4096, 4096), input_dtype=torch.bfloat16)
    assert (p.rung, p.row_count, p.length, p.result_shape, p.copies) == (
        "row_registers",
        4096,
        4096,
        (4096, 4096),
        False,
    )
    assert p.bytes_read == p.bytes_written == 2 * 4096**2 and len(p.launches) == 1
    assert p.bound_us == pytest.approx(4 * 4096**2 / 4.8e6)
    assert plan("softmax", (64, 100), 0).length == 64
    assert plan("logsumexp", (64, 100), -1).result_shape == (64,)
    assert plan("rms_norm", (64, 10, 20), (10, 20)).length == 200
    assert plan("layer_norm", (2, 131072)).rung in ("row_cluster", "row_shared")
    assert plan("layer_norm", (2, 131072), device="A100").rung == "three_pass"
    assert plan("softmax", torch.empty(8, 3, 5, device="meta").permute(2, 0, 1).movedim(1, 0)[::2], 1).copies in (
        True,
        False,
    )
    assert not plan("softmax", (0, 8)).launches


@pytest.mark.parametrize("op", ROW_OPS)
def test_text_and_command_line(op, capsys, tmp_path):
    text = str(plan(op, (300, 1000), variant="three_pass"))
    assert op in text and "three_pass" in text and "300 of 1,000 elements" in text
    file = tmp_path / "plan.json"
    assert cli.main(["plan", op, "300x1000", "--device", "H200", "--json", str(file)]) == 0
    assert "row_registers" in capsys.readouterr().out
    written = json.loads(file.read_text())
    assert set(written) == {f.name for f in dataclasses.fields(_plan_rows.RowPlan)} | {"bound_us"}


def test_what_is_refused(capsys):
    with pytest.raises(IndexError):
        plan("softmax", (3, 4), 2)
    with pytest.raises(TypeError, match="takes float32"):
        plan("softmax", (3, 4), input_dtype=torch.int32)
    with pytest.raises(ValueError, match="normalized_shape"):
        plan("layer_norm", (3, 4), (3,))
    with pytest.raises(ValueError, match="unknown variant"):
        plan("softmax", (3, 4), variant="fast")
    with pytest.raises(NotImplementedError):
        plan("softmax", (3, 4), variant="row_cluster", device="A100")
    for words in (
        ["rms_norm", "3x4", "--dim", "1"],
        ["softmax", "3x4", "--dim", "0", "1"],
        ["softmax", "3", "--keepdim"],
    ):
        assert cli.main(["plan", *words, "--device", "H200"]) != 0
        assert "takes no" in capsys.readouterr().err


@pytest.mark.cuda
@pytest.mark.parametrize("op", ROW_OPS)
@pytest.mark.parametrize("variant", ROW_VARIANTS, ids=names(ROW_VARIANTS))
def test_a_plan_says_what_is_launched(variant, op):
    """The same, without a GPU: test_emulator.py."""
    if not variant.runs_on(torch.cuda.get_device_capability()):
        pytest.skip(f"{variant.name} does not run on this GPU")
    planned = 0
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for n, skew in itertools.product((5, 1000, 5000, 131_072, 300_000), (0, 1)):
            x = torch.ones(7, n + skew, device="cuda", dtype=dtype)[:, skew:]
            try:
                p = torch_reduce.plan(op, x, variant=variant.name)
            except ValueError:  # rows that the rung does not hold
                continue
            planned += 1
            along = [n] if op.endswith("norm") else -1
            launched = _C.record_launches(lambda: getattr(torch_reduce, op)(x, along, variant=variant.name))  # noqa: B023
            assert launched == [dataclasses.asdict(launch) for launch in p.launches], (dtype, n, skew)
    assert planned > 0
