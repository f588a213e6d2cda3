"""Every aten op that has a kernel of its own for the CPU or CUDA: batch_invariant computes it, leaves it to torch for a
reason, or reports it, unless it reduces nothing. An op that a new torch brings is in none of these lists, and fails."""

import re

import pytest
import torch

import torch_reduce
from torch_reduce import _C

# Ops that reduce nothing and do not carry the tag of elementwise ones, or none that the mode sees: regular expressions
# of names without the underscore of what works in place.
ELEMENTWISE = """
    __i[lr]shift__ _add_relu _amp_update_scale _efficientzerotensor _fake_quantize.*
    _foreach_(?!norm|powsum|max$|mm$).* _fused_(adam|adamw|sgd|adagrad) _fused_dropout _fused_moving_avg_obs_fq_helper
    _masked_scale _prelu_kernel(_backward)? _thnn_fused_.* _transform_bias_rescale_qkv abs addr
    batch_norm_backward_elemt batch_norm_elemt binary_cross_entropy_backward clamp.* complex copysign elu_backward eq
    fake_quantize.* floor_divide gcd ge gelu_backward glu_backward glu_backward_jvp glu_jvp gt hardshrink(_backward)?
    hardsigmoid(_backward)? hardswish(_backward)? hardtanh(_backward)? heaviside huber_loss_backward lcm le
    leaky_relu(_backward)? linalg_cross log_sigmoid_(forward|backward) lt masked_fill mish mse_loss_backward
    native_dropout ne polar rrelu_with_noise(_backward)? rsub smooth_l1_loss_backward softplus_backward
    softshrink_backward threshold(_backward)? where
"""
MOVES = """
    _(cudnn|miopen)_init_dropout_state _assert_async _chunk_cat _conj _convert_indices_.* _cudnn_rnn_flatten_weight
    _fill_mem_eff_dropout_mask _functional_assert_async _fused_sdp_choice _has_same_storage_numel
    _jagged_to_padded_dense_forward _lazy_clone _local_scalar_dense _make_dep_token _neg_view _nested_.*
    _padded_dense_to_jagged_forward _pin_memory _reshape_alias _spdiags _stack _to_copy _upsample_nearest_exact[123]d
    _use_(cudnn|miopen)_ctc_loss affine_grid_generator arange as_strided cat channel_shuffle constant_pad_nd copy
    cudnn_is_acceptable embedding empty.* equal eye fill flip from_file full gather im2col index index_copy index_fill
    index_put index_select is_set_to linspace logspace lu_unpack masked_scatter masked_select max_unpool[23]d
    narrow_copy native_channel_shuffle nonzero(_static)? pixel_shuffle pixel_unshuffle put range record_stream
    reflection_pad[123]d repeat_interleave replication_pad[123]d resize roll scatter set split_with_sizes_copy take
    tril(_indices)? triu(_indices)? unfold unique_.* upsample_nearest[123]d view view_as_complex view_as_real zero
"""
RANDOM = """
    _dirichlet_grad _philox_.* _sample_dirichlet _standard_gamma(_grad)? bernoulli binomial cauchy exponential
    geometric log_normal multinomial normal poisson random randperm uniform
"""
# Quantised and sparse tensors, other devices, and torch's own tests.
ELSEWHERE = """
    .*quantize.* _convert_weight_to_int4pack.* _cslt_.* _dyn_quant_pack.* _empty_(affine|per_channel)_.* _foobar
    _make_per_(channel|tensor)_.* _sparse_.* _test_.* _to_sparse.* _validate_compressed_sparse_indices miopen_.*
    quantized_.* sspaddmm to_mkldnn
"""
NOTHING = re.compile("|".join(f"(?:{word})" for word in (ELEMENTWISE + MOVES + RANDOM + ELSEWHERE).split()))


def aten_ops():
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::"):
            own = [torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("CPU", "CUDA")]
            base, _, overload = name.removeprefix("aten::").partition(".")
            if any(own):
                yield name, getattr(getattr(torch.ops.aten, base), overload or "default")


def test_every_op_that_reduces_is_known():
    with torch_reduce.batch_invariant():
        known = {entry["op"] for entry in _C.invariant_entries()}
    silent, seen = [], set()
    for name, op in aten_ops():
        base = name.removeprefix("aten::").partition(".")[0]
        base = base if base.startswith("__") else base.removesuffix("_")
        nothing = torch.Tag.pointwise in op.tags or torch.Tag.view_copy in op.tags or NOTHING.fullmatch(base)
        if name not in known and not nothing:
            silent.append(name)
        if name not in known and NOTHING.fullmatch(base):
            seen.add(base)
    assert not silent
    assert len(known) > 400 and len(seen) > 250


@pytest.mark.parametrize("name", [name for name, op in aten_ops() if torch.Tag.reduction in op.tags])
def test_what_torch_calls_a_reduction_is_known(name):
    assert name in {entry["op"] for entry in _C.invariant_entries()}


def test_the_document_says_who_computes_an_op(root):
    with torch_reduce.batch_invariant():
        entries = {entry["op"].removeprefix("aten::"): entry for entry in _C.invariant_entries()}
    text = (root / "docs" / "batch_invariance.md").read_text()
    left, uncovered = (
        text.partition(head)[2].partition("\n\n")[0] for head in ("| left to torch |", "| not covered |")
    )
    for table in (left, uncovered):
        rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|$", table, flags=re.MULTILINE)
        assert len(rows) >= 3
        for ops, reason in rows:
            for op in re.findall(r"`(.*?)`", ops):
                found = [e for name, e in entries.items() if name.partition(".")[0] == op]
                assert found, op
                if table is left:
                    assert {e["reason"] for e in found if e["reason"]} == {reason}, op
                else:
                    assert not any(e["covered"] for e in found), op
