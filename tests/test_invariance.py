"""What a result along dims must not depend on, bit for bit: the batch, where the memory lies and in which layout, when
the dtype is converted, the sizes of a launch, the run."""

import cases
import orders
import pytest
import tables
import torch
from bits import assert_same_bits
from cases import COMPLEX, DTYPES, FLOAT8, FLOATS
from tables import attempt, call, every_dtype, every_reduction, every_variant_along_dims

AUTO = tables.row("sum", "auto")


def chip(variant, device):
    if device == "cuda":
        tables.needs_chip(variant)


# The batch.


@every_variant_along_dims
def test_a_row_of_a_batch_is_the_row_alone(variant, device):
    chip(variant, device)
    for n in (1, 3, 17, 64, 129, 1000, 1025, 5000):
        x = cases.values(37 * n, torch.float32, "wide", device=device).view(37, n)
        columns = x.t().contiguous()
        for op in ("sum", "mean"):
            alone = torch.cat([call(op, x[i : i + 1], dim=1) for i in range(37)])
            for batch, dim in ((x, 1), (columns, 0)):
                for outputs in (1, 2, 37):
                    part = batch[:outputs] if dim else batch[:, :outputs]
                    result = attempt(op, part, variant, dim=dim)
                    if result is None:
                        continue
                    expected = alone if variant.order == "pairwise" else attempt(op, x, variant, dim=1)
                    if expected is not None:
                        assert_same_bits(result, expected[:outputs], f"{op} of {outputs} by {n} along {dim}")


@every_dtype((torch.float32, torch.bfloat16, torch.float64))
def test_batches_from_one_to_65536(dtype, device):
    for n in (1, 5, 24, 33):
        x = cases.values(65_536 * n, dtype, "normal", device=device).view(65_536, n)
        columns = x.t().contiguous()
        everything = call("sum", x, dim=1)
        assert_same_bits(call("sum", columns, dim=0), everything, f"columns of {n}")
        for batch in (1, 2, 3, 7, 31, 32, 33, 100, 1023, 4096, 30_000):
            for start in (0, 1, 65_536 - batch):
                part = slice(start, start + batch)
                assert_same_bits(call("sum", x[part], dim=1), everything[part], f"{batch} rows of {n} from {start}")
                assert_same_bits(call("sum", columns[:, part], dim=0), everything[part], f"{batch} columns of {n}")


@every_dtype(FLOATS)
def test_a_row_is_a_tensor_of_its_own(dtype, device):
    """sum(x, dim)[i] is sum(x[i]): whole tensors have the same order."""
    for n in (1, 40, 129, 3000, 70_000):
        x = cases.values(4 * n, dtype, "normal", device=device).view(4, n)
        for op in cases.REDUCTIONS:
            rows, columns = call(op, x, dim=1), call(op, x.t().contiguous(), dim=0)
            for i in range(4):
                assert_same_bits(rows[i], call(op, x[i]), f"{op} of {n}")
            assert_same_bits(columns, rows, f"{op} of {n}")


def test_splitting_the_batch_changes_nothing(device):
    """Losses and bias gradients of a batch computed in parts."""
    x = cases.values(48 * 10 * 24, torch.float32, "wide", device=device).view(48, 10, 24)
    for dim in (1, 2, (1, 2)):
        whole = call("sum", x, dim=dim)
        for parts in (2, 3, 48):
            assert_same_bits(torch.cat([call("sum", part, dim=dim) for part in x.chunk(parts)]), whole, f"{parts}")


# The memory.


@every_variant_along_dims
def test_alignment_changes_nothing(variant, device):
    chip(variant, device)
    for dtype in (torch.float32, torch.float16, torch.int8, torch.float64):
        for n in (5, 48, 1040):
            values = cases.values(9 * n, dtype, "normal", device=device)
            memory = torch.zeros(9 * n + 32, dtype=dtype, device=device)
            expected = (
                attempt("sum", values.view(9, n), variant, dim=1),
                attempt("sum", values.view(n, 9), variant, dim=0),
            )
            for offset in range(17):
                x = memory[offset : offset + 9 * n].copy_(values)
                for view, dim, aligned in ((x.view(9, n), 1, expected[0]), (x.view(n, 9), 0, expected[1])):
                    result = attempt("sum", view, variant, dim=dim)
                    if result is not None and aligned is not None:
                        assert_same_bits(result, aligned, f"{n} {dtype} at {offset} along {dim}")


@every_dtype((torch.float32, torch.float16, torch.complex64))
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_one_reduced_dim_reads_any_layout_alike(op, dtype, device):
    """A permuted, sliced or expanded view has the bits of its contiguous copy."""
    base = cases.values(40 * 30 * 20, dtype, "normal", device=device).view(40, 30, 20)
    views = {
        "permuted": base.permute(2, 0, 1),
        "transposed": base.transpose(0, 2),
        "sliced": base[3:33, 1:, ::3],
        "stepped": base[::2, ::3, 1::4],
        "expanded": base[:, :1].expand(40, 9, 20),
        "unfolded": base.unfold(0, 7, 2),
        "channels_last": base.view(4, 10, 30, 20).contiguous(memory_format=torch.channels_last),
    }
    for name, x in views.items():
        for dim in range(x.dim()):
            expected = call(op, x.contiguous(), dim=dim)
            assert_same_bits(call(op, x, dim=dim), expected, f"{name} along {dim}")


def test_several_dims_in_memory_order_read_any_layout_alike(device):
    base = cases.values(12 * 10 * 8 * 6, torch.float32, "wide", device=device).view(12, 10, 8, 6)
    for order in ((0, 2, 1, 3), (1, 0, 2, 3), (3, 0, 1, 2), (1, 3, 0, 2)):
        x = base.permute(order)
        for dims in ((0, 1), (0, 2), (1, 3), (0, 1, 2), (1, 2, 3)):
            places = [order[d] for d in dims]
            if places == sorted(places):
                assert_same_bits(call("sum", x, dim=dims), call("sum", x.contiguous(), dim=dims), f"{order} {dims}")


def test_whole_tensors_are_read_as_they_lie(device):
    """A transposed tensor has the sum of the tensor; the classic rungs, and they alone, follow the values instead."""
    x = cases.values(300 * 70, torch.float32, "wide", device=device).view(300, 70)
    cube = cases.values(20 * 30 * 40, torch.float32, "wide", device=device).view(20, 30, 40)
    for variant in tables.PAIRWISE:
        if device == "cuda" and not tables.can_run(variant.capability):
            continue
        results = [attempt("sum", y, variant) for y in (x.t(), x, cube.permute(1, 2, 0), cube)]
        if None not in results:
            assert_same_bits(results[0], results[1], variant.name)
            assert_same_bits(results[2], results[3], variant.name)
    assert_same_bits(call("sum", x, dim=(0, 1)), call("sum", x.t(), dim=(1, 0)))
    for variant in tables.CLASSIC:
        if variant.deterministic and (device == "cpu" or tables.can_run(variant.capability)):
            logical = call("sum", x.t(), variant.name)
            assert_same_bits(logical, call("sum", x.t().contiguous(), variant.name), variant.name)
            assert_same_bits(logical.cpu(), orders.reduce("sum", x.t(), variant.order), variant.name)


@every_reduction
def test_expanding_is_reading_again(op, device):
    x = cases.values(50, torch.float32, "wide", device=device)
    for view, dim in ((x[:, None].expand(50, 33), 1), (x.expand(70, 50), 1), (x.expand(70, 50), 0)):
        assert_same_bits(call(op, view, dim=dim), call(op, view.contiguous(), dim=dim), f"along {dim}")


# The dtype.


def test_conversion_while_reading_is_conversion_before(device):
    for source in (*DTYPES, *FLOAT8, *COMPLEX):
        for target in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.complex64):
            if (source.is_complex and not target.is_complex) or (target == torch.int32 and source.is_floating_point):
                continue
            x = cases.values(9 * 1500, source, "normal", device=device).view(9, 1500)
            for view, dim in ((x, 1), (x.t().contiguous(), 0), (x[:, 1:1400:3], 1)):
                result = call("sum", view, dim=dim, dtype=target)
                assert_same_bits(result, call("sum", view.to(target), dim=dim, dtype=target), f"{source} as {target}")


def test_half_precision_is_the_float32_sum_rounded(device):
    for dtype in (torch.float16, torch.bfloat16):
        x = cases.values(20 * 700, dtype, "normal", device=device).view(20, 700)
        for dim in (0, 1, None):
            wide = call("sum", x.float(), dim=dim)
            assert_same_bits(call("sum", x, dim=dim, dtype=torch.float32), wide, f"{dtype}")
            assert_same_bits(call("sum", x, dim=dim), wide.to(dtype), f"{dtype}")


# The launch and the run.


@every_variant_along_dims
def test_sizes_of_a_launch_change_nothing(variant, device):
    chip(variant, device)
    for shape, dim in (((70, 40), 1), ((40, 70), 0), ((3, 9000), 1), ((9000, 3), 0), ((40, 33, 6), 1), ((20_000,), 0)):
        x = cases.values(torch.Size(shape).numel(), torch.float32, "wide", device=device).view(shape)
        default = attempt("sum", x, variant, dim=dim)
        for block in (None, *variant.sizes):
            for blocks in (None, 1, 2, 7, 66, 132, 1000):
                result = attempt("sum", x, variant, dim=dim, block_size=block, num_blocks=blocks)
                if result is not None and default is not None:
                    assert_same_bits(result, default, f"{shape} along {dim}: {block} {blocks}")


def test_rungs_of_one_order_have_the_same_bits(device):
    for n in (3, 33, 1025):
        for name, (shape, view, dim) in cases.geometries(n).items():
            x = cases.along(shape, view, torch.float32, device, "wide")
            expected = call("sum", x, dim=dim)
            for variant in tables.PAIRWISE:
                if device == "cuda" and not tables.can_run(variant.capability):
                    continue
                result = attempt("sum", x, variant, dim=dim)
                if result is not None:
                    assert_same_bits(result, expected, f"{variant.name}, {name} of {n}")


def test_the_number_of_threads_changes_nothing_along_dims(one_thread_or_two):
    for n, outputs in ((100_003, 3), (1000, 700), (3, 100_000)):
        x = cases.values(n * outputs, torch.float32, "wide").view(outputs, n)
        for view, dim in ((x, 1), (x.t().contiguous(), 0), (x, None)):
            for variant in ("auto", "compensated", "exact"):
                results = []
                for threads in (1, 2, 3):
                    one_thread_or_two(threads)
                    results.append(call("sum", view, variant, dim=dim))
                for result in results[1:]:
                    assert_same_bits(result, results[0], f"{variant}, {outputs} by {n}")


@every_variant_along_dims
def test_runs_do_not_differ_along_dims(variant, device):
    chip(variant, device)
    x = cases.values(60 * 4100, torch.float32, "wide", device=device).view(60, 4100)
    for view, dim in ((x, 1), (x, 0), (x[:3], 1), (x.view(-1, 6), 0), (x, None)):
        first = attempt("sum", view, variant, dim=dim)
        for _ in range(5 if device == "cpu" else 20):
            if first is not None:
                assert_same_bits(call("sum", view, variant.name, dim=dim), first, f"along {dim}")
