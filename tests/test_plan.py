"""`torch_reduce.plan`: what it says, and that it says what the call does."""

import dataclasses
import json

import pytest
import torch
from torch._subclasses import FakeTensorMode

import torch_reduce
from torch_reduce import _C, cli

ALONG_DIMS = [v.name for v in torch_reduce.variants("sum") if v.along_dims]
WHOLE = [v.name for v in torch_reduce.variants("sum") if not v.along_dims]


def plan(*arguments, device="H200", **named):
    return torch_reduce.plan(*arguments, device=device, **named)


def test_rows_of_a_matrix():
    p = plan("sum", (4096, 16384), 1, input_dtype=torch.bfloat16)
    assert (p.rung, p.order.name, p.result_shape, p.result_dtype) == ("row_block", "pairwise", (4096,), "bfloat16")
    assert (p.order.length, p.order.chunks, p.order.lanes, p.order.stripes, p.order.leaves) == (16384, 16, 128, 8, 2048)
    assert p.order.depth == 7 + 11  # eight stripes, and a tree over 2048 leaves
    assert p.bytes_read == 4096 * 16384 * 2 and p.bytes_written == 4096 * 2
    assert p.schedule.launches == 1 and p.schedule.vectors and not p.schedule.copies
    assert p.bound_us == pytest.approx((p.bytes_read + p.bytes_written) / 4.8e6)
    assert p.reduced == ((16384, 1),) and p.kept == ((4096, 16384),)


@pytest.mark.parametrize(
    ("shape", "dim", "rung"),
    [
        ((1 << 24, 4), 1, "row_lanes"),
        ((1 << 20, 3), 1, "row_tile"),
        ((1 << 20, 2), 1, "row_lanes"),
        ((65536, 512), 1, "row_lanes"),
        ((65536, 1024), 1, "row_warp"),
        ((64, 100), 1, "row_block"),
        ((64, 102), 0, "row_block"),
        ((64, 1001), 1, "row_block"),
        ((16384, 4096), 1, "row_block"),
        ((7, 1 << 20), 0, "column_thread"),
        ((1 << 28,), None, "row_block"),
        ((1 << 14,), None, "row_block"),
        ((1 << 16,), None, "row_cluster"),
        ((1 << 18,), None, "row_block"),
        ((16384, 4096), 0, "column_block"),
        ((1 << 22, 4), 0, "column_block"),
        ((1 << 22, 3), 0, "column_narrow"),
        ((64, 1 << 20), 0, "column_thread"),
    ],
)
def test_auto_says_which_rung(shape, dim, rung):
    assert plan("sum", shape, dim).rung == rung


def test_auto_takes_a_cluster_for_what_one_holds():
    assert plan("sum", (1 << 16,), input_dtype=torch.bfloat16).rung == "row_cluster"


def test_the_order_does_not_know_the_chip_the_batch_or_the_layout():
    one = plan("sum", (8, 5000), 1).order
    assert one == plan("sum", (70000, 5000), 1, device="T4").order
    assert one == plan("sum", (5000, 8), 0, block_size=64, num_blocks=3).order
    assert one == plan("sum", torch.empty(8, 5001, device="meta")[:, 1:], -1).order


def test_alignment_is_the_schedules_alone():
    x = torch.empty(64, 4096 * 4, device="meta")
    aligned, shifted = plan("sum", x[:, 4:-4], 1), plan("sum", x[:, 1:-7], 1)
    assert aligned.schedule.vectors and not aligned.schedule.shifted
    assert shifted.schedule.shifted and not shifted.schedule.vectors
    assert aligned.order == shifted.order


def test_the_chip_is_the_schedules_alone():
    x = torch.randn(3, 40000, dtype=torch.bfloat16)
    plans = [plan("sum", x, 1, device=chip) for chip in ("H200", "h100", "NVIDIA A100", "L4", "T4", "B200")]
    assert len({p.order for p in plans}) == 1 and len({p.bound_us for p in plans}) == len(plans)
    assert plans[0].rung == "row_cluster" and plans[-2].rung == "row_block"
    with pytest.raises(NotImplementedError, match=r"7\.5"):
        plan("sum", x, 1, variant="row_cluster", device="T4")


@pytest.mark.parametrize("variant", ALONG_DIMS)
@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin"])
def test_every_rung_along_dims(op, variant):
    shape, dim = ((4096, 8), 0) if variant == "column_narrow" else ((8, 100), 1)
    p = plan(op, shape, dim, variant=variant)
    assert p.variant == variant and p.schedule.launches == 1 and p.schedule.grid >= 1
    if variant not in ("auto", "compensated", "exact"):
        assert p.rung == variant
    assert p.rung in str(p) and p.order.name in str(p)


def test_compensated_and_exact():
    p = plan("sum", (1 << 26,), variant="compensated")
    assert (p.rung, p.order.name) == ("row_block", "compensated")
    assert p.schedule.workspace_bytes == 2 * plan("sum", (1 << 26,)).schedule.workspace_bytes > 0
    assert plan("sum", (1 << 26,), variant="exact").order.depth == 1
    assert plan("sum", (1 << 26,), variant="exact", input_dtype=torch.int32).order.name == "pairwise"


@pytest.mark.parametrize("variant", WHOLE)
def test_rungs_that_reduce_whole_tensors(variant):
    p = plan("sum", (100_000,), variant=variant)
    assert p.rung == variant and p.order.passes.splitlines()[0].strip() in str(p)
    assert p.schedule.launches >= 1 and p.schedule.splits is None and p.order.chunks is None
    with pytest.raises(ValueError, match="whole tensors"):
        plan("sum", (100, 100), 1, variant=variant)


def test_what_is_expanded_or_copied_counts():
    x = torch.empty(1000, device="meta").expand(64, 1000)
    assert plan("sum", x, 0).bytes_read == 4000
    assert plan("sum", torch.empty(64, 64, device="meta").t()).schedule.copies is False
    p = plan("sum", torch.empty(64, 64, device="meta").t(), variant="v0")
    assert p.schedule.copies and p.bytes_read == 2 * 64 * 64 * 4
    p = plan("sum", torch.empty(64, dtype=torch.complex64, device="meta").conj())
    assert p.schedule.copies


def test_a_fake_tensor():
    with FakeTensorMode():
        x = torch.empty(64, 4096)
    assert plan("sum", x, 1) == plan("sum", (64, 4096), 1)


def test_empty():
    assert plan("sum", (0, 5), 0).schedule.launches == 0
    assert plan("sum", (5, 0), 0).result_shape == (0,)
    assert plan("sum", ()).order.length == 1


def test_it_refuses_what_the_call_refuses():
    for error, arguments, named in (
        (ValueError, ("prod", (5,)), {}),
        (ValueError, ("sum", (5,)), {"device": "Voodoo"}),
        (ValueError, ("sum", (5,)), {"device": "cpu"}),
        (ValueError, ("sum", (5,)), {"variant": "v9"}),
        (ValueError, ("sum", (-5,)), {}),
        (ValueError, ("sum", (5, 600), 1), {"variant": "row_lanes"}),
        (IndexError, ("sum", (5, 5), 2), {}),
        (IndexError, ("amax", (5, 0), 1), {}),
        (RuntimeError, ("sum", (5, 5), (1, -1)), {}),
        (TypeError, ("sum", (5,)), {"dtype": torch.float8_e5m2}),
        (NotImplementedError, ("mean", (5,)), {"input_dtype": torch.int32}),
        (NotImplementedError, ("amax", (5,)), {"input_dtype": torch.complex64}),
    ):
        with pytest.raises(error):
            plan(*arguments, **named)


def test_result_shapes_are_those_of_the_call():
    x = torch.randn(3, 4, 5)
    for dim in (None, 0, -1, (0, 2), (2, 0, 1), ()):
        for keepdim in (False, True):
            for op in ("sum", "mean", "amax", "amin"):
                result = getattr(torch_reduce, op)(x, dim, keepdim)
                p = plan(op, x, dim, keepdim=keepdim)
                assert p.result_shape == tuple(result.shape) and p.result_dtype == str(result.dtype)[6:]


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan("sum", (5,)).rung = "auto"


def test_the_workspace_is_named():
    def regions(variant):
        return [region.name for region in plan("sum", (1 << 24,), variant=variant).schedule.regions]

    assert regions("global_memory") == ["partials", "copy"] and regions("atomic") == ["total"]
    assert regions("serial") == regions("thread") == [] and regions("exact") == ["cells"]
    assert regions("two_pass") == regions("row_block") == ["partials"]
    p = plan("sum", (1 << 24,), variant="global_memory").schedule
    assert p.regions[1].offset % 256 == 0 and p.regions[1].offset >= p.regions[0].bytes
    assert p.workspace_bytes == p.regions[1].offset + p.regions[1].bytes == p.regions[1].offset + (4 << 24)


@pytest.mark.parametrize("variant", [*WHOLE, *ALONG_DIMS])
@pytest.mark.cuda
def test_a_plan_says_what_is_launched(variant):
    """The same, without a GPU: test_emulator.py."""
    row = next(v for v in torch_reduce.variants("sum") if v.name == variant)
    if not row.runs_on(torch.cuda.get_device_capability()):
        pytest.skip(f"{variant} needs a newer GPU")
    shapes = [((1,), None), ((100_000,), None), ((1 << 22,), None)]
    if row.along_dims:
        shapes += [((4096, 1000), 1), ((30_000, 3), 1), ((5000, 64), 0), ((1 << 16, 3), 0), ((8, 300, 64), (0, 2))]
    seen = 0
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        for shape, dim in shapes:
            for op in ("sum", "amax"):
                x = torch.ones(shape, device="cuda", dtype=dtype)
                named = {} if dim is None else {"dim": dim}
                try:
                    p = torch_reduce.plan(op, x, dim, variant=variant)
                except ValueError:
                    continue
                launched = _C.record_launches(lambda: getattr(torch.ops.treduce, op)(x, variant, **named))  # noqa: B023
                planned = [dataclasses.asdict(launch) for launch in p.schedule.shapes]
                for launch, prepared in zip(launched, planned, strict=True):
                    if launch["cooperative"]:  # as many blocks as the GPU holds
                        assert launch["grid"] <= prepared["grid"]
                        launch["grid"] = prepared["grid"]
                    assert launch == prepared
                seen += 1
    assert seen > 3


def test_nothing_is_recorded_where_nothing_is_launched():
    assert _C.record_launches(lambda: torch_reduce.sum(torch.ones(5))) == []
    with pytest.raises(ZeroDivisionError):
        _C.record_launches(lambda: 1 / 0)


@pytest.fixture
def deterministic():
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_deterministic_algorithms(device, deterministic):
    """As torch's own ops: what is not deterministic raises or warns. On the CPU, and where nothing rounds, all is."""
    x, integers = torch.randn(5000, device=device), torch.arange(5000, device=device)
    torch_reduce.sum(x, variant="single_pass")
    torch_reduce.amax(x, variant="atomic")
    torch_reduce.sum(integers, variant="atomic")
    torch_reduce.sum(x)
    if device == "cpu":
        torch_reduce.sum(x, variant="atomic")
        return
    with pytest.raises(RuntimeError, match="treduce::sum with variant 'atomic' does not have a deterministic"):
        torch_reduce.sum(x, variant="atomic")
    with pytest.raises(RuntimeError, match="treduce::mean with variant 'atomic'"):
        torch_reduce.mean(x, variant="reduction5")
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="treduce::sum with variant 'atomic'"):
        torch_reduce.sum(x, variant="atomic")


@pytest.mark.cuda
def test_a_gpu_of_this_machine():
    x = torch.randn(100, 1000, device="cuda")
    p = torch_reduce.plan("sum", x, 1)
    assert p.chip.name == torch.cuda.get_device_name() and p.bound_us > 0


def test_command_line(capsys, tmp_path):
    path = tmp_path / "plan.json"
    arguments = ["plan", "sum", "4096x16384", "--dim", "-1", "--dtype", "bfloat16", "--device", "H200", "--json"]
    assert cli.main([*arguments, str(path)]) == 0
    assert "row_block" in capsys.readouterr().out
    assert json.loads(path.read_text())["order"]["chunks"] == 16
    assert cli.main(["plan", "sum", "5x5", "--dim", "7", "--device", "H200"]) == 2
    assert "7" in capsys.readouterr().err
