// The checks of reductions, their geometry, and the request that the kernels get.
#include <precompiled.h>

#include "reduce.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/TensorUtils.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "../reduce/elements.h"

namespace treduce::reduce {
namespace {

constexpr char kBasic[] = "float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64, bool";

// The result's dtype where the caller names none. The 8-bit floats, in which torch does not reduce, give float32.
at::ScalarType natural_result(Op op, DType dtype, at::ScalarType type) {
  if (is_float8(dtype)) return at::kFloat;
  return op == Op::sum && is_integer(dtype) ? at::kLong : type;
}

at::ScalarType checked_result(Op op, DType dtype, at::ScalarType type, const Arguments& a) {
  const at::ScalarType natural = natural_result(op, dtype, type);
  if (!a.dtype.has_value()) {
    TORCH_CHECK_NOT_IMPLEMENTED(op != Op::mean || !is_integer(dtype),
                                "treduce::mean takes floating-point tensors, got ", type,
                                "; convert the input first, or name a floating-point dtype");
    return natural;
  }
  const at::ScalarType result = *a.dtype;
  const std::optional<DType> known = dtype_of(result);
  TORCH_CHECK_TYPE(known.has_value() && !is_float8(*known), "treduce::", name_of(op), " returns ", kBasic,
                   ", complex64 or complex128; got dtype=", result);
  TORCH_CHECK_NOT_IMPLEMENTED(op != Op::mean || !is_integer(*known),
                              "treduce::mean returns floating-point or complex numbers, got dtype=", result);
  if (is_complex_dtype(dtype) && !is_complex_dtype(*known)) {
    TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
  }
  return result;
}

// An extremum of nothing has no value. Sizes that are not known pass.
void check_not_empty(Op op, const at::Tensor& self, const Dims& dims) {
  const c10::SymIntArrayRef sizes = self.sym_sizes();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (!dims[static_cast<int64_t>(d)] || sizes[d].maybe_as_int() != 0) continue;
    TORCH_CHECK_VALUE(dims.named(), "treduce::", name_of(op), " of an empty tensor has no value; its input has shape ",
                      sizes);
    TORCH_CHECK_INDEX(false, "treduce::", name_of(op), " along dim ", d,
                      ", which is empty, has no value; its input has shape ", sizes);
  }
}

void set_extents(Extents& extents, int d, int64_t size, int64_t stride) {
  extents.size[d] = Divider(size);
  extents.stride[d] = stride;
}

// The geometry of a contiguous tensor: neighbouring dims of one kind (reduced or kept) are joined, and their strides decrease already.
// The same as make_geometry's, but faster. False where too many dims are left.
bool contiguous_geometry(c10::IntArrayRef sizes, const Dims& dims, Geometry& g) {
  struct Run {
    int64_t size, stride;
    bool reduced;
  };
  Run runs[2 * kMaxDims + 1];
  int count = 0, kept = 0, reduced = 0;
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    const bool is_reduced = dims[static_cast<int64_t>(i)];
    if (count > 0 && runs[count - 1].reduced == is_reduced) {
      runs[count - 1].size *= sizes[i];
    } else {
      if (++(is_reduced ? reduced : kept) > kMaxDims) return false;
      runs[count++] = {sizes[i], stride, is_reduced};
    }
    stride *= sizes[i];
  }
  g.reduced.count = reduced;
  g.kept.count = g.kept_out.count = kept;
  for (int i = 0; i < count; ++i) {  // innermost first
    if (runs[i].reduced) {
      set_extents(g.reduced, --reduced, runs[i].size, runs[i].stride);
      g.length *= runs[i].size;
    } else {
      set_extents(g.kept, --kept, runs[i].size, runs[i].stride);
      g.kept_out.size[kept] = g.kept.size[kept];
      g.kept_out.stride[kept] = g.outputs;
      g.outputs *= runs[i].size;
    }
  }
  return true;
}

Geometry general_geometry(const at::Tensor& self, const Dims& dims) {
  CallDim call_dims[64];  // more than 63 dims cannot have two elements or more
  int count = 0;
  const c10::IntArrayRef sizes = self.sizes(), strides = self.strides();
  int64_t out_stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    const bool reduced = dims[static_cast<int64_t>(i)];
    call_dims[count++] = {sizes[i], strides[i], reduced ? 0 : out_stride, reduced};
    if (!reduced) out_stride *= sizes[i];
  }
  std::reverse(call_dims, call_dims + count);  // outermost first: where strides tie, the order of the dims decides
  return make_geometry(call_dims, count);
}

// Elements that follow one another in memory.
void one_run(int64_t length, Geometry& g) {
  g.length = length;
  if (length <= 1) return;
  g.reduced.count = 1;
  set_extents(g.reduced, 0, length, 1);
}

// Needs: `g` as it was constructed.
void find_geometry(const at::Tensor& self, const Dims& dims, Geometry& g) {
  if (dims.whole() && self.is_non_overlapping_and_dense()) {
    one_run(self.numel(), g);  // memory order: any dense tensor is one run
  } else if (!self.is_contiguous() || !contiguous_geometry(self.sizes(), dims, g)) {
    g = general_geometry(self, dims);
  }
}

// A dense copy with the reduced dims innermost, from the largest stride to the smallest as they are: one run of memory for an
// output, and the same order of additions as in `self`.
at::Tensor gathered(const at::Tensor& self, const Dims& dims) {
  std::vector<int64_t> order, reduced;
  for (int64_t d = 0; d < self.dim(); ++d) (dims[d] ? reduced : order).push_back(d);
  std::stable_sort(reduced.begin(), reduced.end(), [&](int64_t a, int64_t b) {
    const auto key = [&](int64_t d) {
      return self.stride(d) == 0 ? std::numeric_limits<int64_t>::max() : self.stride(d);
    };
    return key(a) > key(b);
  });
  order.insert(order.end(), reduced.begin(), reduced.end());
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
  return self.permute(order).contiguous().permute(back);
}

// Whether a classic rung may read it as one run, in the order that its values have. Integer sums, amax and amin are the same in
// any order, so for them any dense tensor will do.
bool is_flat(Op op, const at::Tensor& self) {
  const bool any_order = is_extremum(op) || at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return self.is_contiguous() || (any_order && self.is_non_overlapping_and_dense());
}

// What a reduction of nothing gives.
void write_empty(Op op, at::Tensor& output) {
  if (output.numel() == 0) return;
  if (op == Op::sum) {
    output.zero_();
  } else {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    output.fill_(output.is_complex() ? at::Scalar(c10::complex<double>(nan, nan)) : at::Scalar(nan));
  }
}

}  // namespace

Checked check_call(Op op, const at::Tensor& self, const Arguments& a) {
  check_dense(self, name_of(op));
  const at::ScalarType type = self.scalar_type();
  const std::optional<DType> dtype = dtype_of(type);
  TORCH_CHECK_TYPE(dtype.has_value(), "treduce::", name_of(op), " takes ", kBasic,
                   ", 8-bit floats, complex64 and complex128",
                   is_extremum(op) ? "" : ", and uint16, uint32, uint64 and complex32", "; got ", type);
  Checked c;
  Request& r = c.request;
  r.op = op;
  r.dtype = *dtype;
  c.result_type = checked_result(op, r.dtype, type, a);
  r.target = *dtype_of(c.result_type);
  r.converting = needs_conversion(r.dtype, r.target);
  c.dims = Dims(a.dim, self.dim());
  c.keepdim = a.keepdim;
  if (is_extremum(op)) check_not_empty(op, self, c.dims);
  TORCH_CHECK_NOT_IMPLEMENTED(!is_extremum(op) || !is_complex_dtype(r.dtype), "treduce::", name_of(op),
                              " takes numbers that have an order, got ", type);
  const Resolved found = as_value_error([&] { return resolve(a.variant, c.dims.named(), a.block_size, a.num_blocks); });
  const Row& row = *found.row;
  if (!row.along_dims) {
    TORCH_CHECK_TYPE(is_basic(r.dtype), "variant '", row.name, "' takes ", kBasic, ", got ", type,
                     "; take variant 'auto'");
    TORCH_CHECK_VALUE(c.result_type == natural_result(op, r.dtype, type), "variant '", row.name,
                      "' converts nothing as it reads; for dtype=", c.result_type, " of ", type,
                      " take variant 'auto'");
  }
  r.take(found);
  return c;
}

Op op_named(std::string_view name, const char* caller) {
  for (const Op op : {Op::sum, Op::mean, Op::amax, Op::amin}) {
    if (name == name_of(op)) return op;
  }
  TORCH_CHECK_VALUE(false, caller, " takes op sum, mean, amax or amin, got '", name, "'");
}

Arguments arguments_to(const at::Tensor& out, Op op, std::string_view variant, at::OptionalIntArrayRef dim,
                       bool keepdim, std::optional<int64_t> block_size, std::optional<int64_t> num_blocks) {
  const auto dtype = is_extremum(op) ? std::nullopt : std::optional<at::ScalarType>(out.scalar_type());
  return {variant, dim, keepdim, dtype, block_size, num_blocks, &out};
}

void check_out(Op op, const at::Tensor& out, const at::Tensor& self, c10::SymIntArrayRef sizes, at::ScalarType type) {
  TORCH_CHECK_VALUE(out.sym_sizes() == sizes && out.is_contiguous() && !is_lazy(out) && out.scalar_type() == type &&
                        out.device() == self.device(),
                    "treduce::", name_of(op), " writes to a contiguous tensor of shape ", sizes, ", dtype ", type,
                    " and device ", self.device(), ", got shape ", out.sym_sizes(), ", strides ", out.sym_strides(),
                    ", dtype ", out.scalar_type(), " and device ", out.device());
}

void reduce_to(const at::Tensor& out, const at::Tensor& self, Op op, Arguments arguments, Reduce* reduce) {
  if (!self.is_meta()) at::assert_no_overlap(out, self);
  if (dtype_of(self.scalar_type()).has_value()) {
    reduce(op, self, arguments);
    return;
  }
  arguments.out = nullptr;  // of a stand-in, whose result is converted
  const at::Tensor result = reduce(op, self, arguments);
  check_out(op, out, self, result.sym_sizes(), result.scalar_type());
  out.copy_(result);
}

RanksToOne::RanksToOne(const at::Tensor& out, std::string_view name)
    : op(op_named(name, "reduce_ranks_")), arguments{"auto",       at::OptionalIntArrayRef(at::IntArrayRef(&dim, 1)),
                                                     false,        out.scalar_type(),
                                                     std::nullopt, std::nullopt,
                                                     &out} {
  if (is_extremum(op)) arguments.dtype.reset();
}

SumTo::SumTo(const at::Tensor& out, int64_t along)
    : dim(along), arguments{"auto",       at::OptionalIntArrayRef(at::IntArrayRef(&dim, 1)),
                            false,        out.scalar_type(),
                            std::nullopt, std::nullopt,
                            &out} {}

void check_joined(const at::Tensor& first, const at::Tensor& second, int64_t dim) {
  TORCH_CHECK_VALUE(
      dim == 0 && first.dim() > 0 && first.dim() == second.dim() &&
          first.sym_sizes().slice(1) == second.sym_sizes().slice(1) && first.device() == second.device(),
      "sum_to_ takes two tensors of one device that differ along dim 0 alone, and sums along it; got shapes ",
      first.sym_sizes(), " and ", second.sym_sizes(), " on ", first.device(), " and ", second.device(), ", along dim ",
      dim);
}

void check_types_of_message(const at::Tensor& message, const at::Tensor& entries) {
  const at::ScalarType type = message.scalar_type();
  TORCH_CHECK_TYPE((type == at::kFloat || type == at::kDouble) && !entries.is_complex(),
                   "pack_parts_ writes float32 or float64, of real numbers; got ", type, " of ", entries.scalar_type());
}

void check_message(const at::Tensor& message, const at::Tensor& entries, at::IntArrayRef groups) {
  check_types_of_message(message, entries);
  bool fits = groups.size() % 4 == 0 && groups.size() <= 4 * kMostGroups && message.dim() > 0 && entries.dim() > 0;
  for (size_t i = 0; fits && i < groups.size(); i += 4) {
    const int64_t from = groups[i], to = groups[i + 1], count = groups[i + 2], chunks = groups[i + 3];
    const int64_t length = chunks > 0 ? chunks * Pairwise::kChunk : 1;
    fits = from >= 0 && to >= 0 && count >= 0 && chunks >= 0 && chunks <= kMostPacked && (chunks & (chunks - 1)) == 0 &&
           from + count * length <= entries.size(0) && to + count <= message.size(0);
  }
  TORCH_CHECK_VALUE(fits && message.numel() > 0 && message.is_contiguous() &&
                        message.sizes().slice(1) == entries.sizes().slice(1) && message.device() == entries.device(),
                    "pack_parts_ takes groups of the entries of a tensor to a contiguous message; got shapes ",
                    entries.sizes(), " and ", message.sizes(), ", groups ", groups);
}

at::Tensor readable_entries(const at::Tensor& entries, const at::Tensor& message) {
  const at::Tensor values =
      dtype_of(entries.scalar_type()).has_value() ? resolved(entries) : entries.to(message.scalar_type());
  if (values.dim() <= 3) return values;
  at::DimVector sizes;
  for (int64_t split = 2; split < values.dim(); ++split) {
    sizes = {values.size(0), 1, 1};
    for (int64_t d = 1; d < values.dim(); ++d) sizes[d < split ? 1 : 2] *= values.size(d);
    const auto strides = at::detail::computeStride(values.sizes(), values.strides(), sizes);
    if (strides.has_value()) return values.as_strided(sizes, *strides);
  }
  return values.reshape(sizes);
}

void check_types_of_parts(const at::Tensor& out, const at::Tensor& values) {
  const at::ScalarType type = values.scalar_type(), result = out.scalar_type();
  TORCH_CHECK_TYPE((type == at::kFloat && (result == at::kFloat || result == at::kHalf || result == at::kBFloat16)) ||
                       (type == at::kDouble && result == at::kDouble),
                   "fold_parts_ takes float32 and gives it or a 16-bit float, or float64; got ", type, " and ", result);
}

void check_parts(const at::Tensor& out, const at::Tensor& values, const at::Tensor& parts) {
  check_types_of_parts(out, values);
  constexpr int64_t kFields = sizeof(Part) / sizeof(int32_t);
  TORCH_CHECK_VALUE(
      values.dim() >= 2 && values.numel() > 0 && values.is_contiguous() && out.is_contiguous() &&
          out.sizes() == values.sizes().slice(2) && parts.scalar_type() == at::kInt && parts.is_contiguous() &&
          values.size(0) <= kMostParts && parts.sizes() == at::IntArrayRef({values.size(0), kFields}) &&
          values.device() == parts.device() && values.device() == out.device(),
      "fold_parts_ takes contiguous values of up to ", kMostParts, " ranks and an int32 row of 5 for each, got shapes ",
      values.sizes(), ", ", parts.sizes(), " to ", out.sizes());
}

Result result_of_parts(const at::Tensor& out, std::optional<int64_t> count) {
  return {out.mutable_data_ptr(), *dtype_of(out.scalar_type()), count.has_value(), count.value_or(1)};
}

// Entries behind the last of the first tensor lie in the second: to kernels a dim more, whose stride leads from one to the other.
bool Reduction::join(const at::Tensor& second) {
  Geometry& g = call.request.geometry;
  const at::Tensor& first = *input;
  const int64_t size = first.element_size();
  const auto address = reinterpret_cast<int64_t>(first.const_data_ptr());
  const int64_t apart = reinterpret_cast<int64_t>(second.const_data_ptr()) - address;
  if (finished || call.request.copied_from > 0 || second.numel() == 0 || first.scalar_type() != second.scalar_type() ||
      second.size(0) > first.size(0) || first.strides() != second.strides() || is_lazy(second) || apart % size != 0 ||
      g.length != first.size(0) || g.length < 2 || g.reduced.count != 1) {
    return false;
  }
  g.reduced.count = 2;
  g.reduced.size[1] = g.reduced.size[0];
  g.reduced.stride[1] = g.reduced.stride[0];
  set_extents(g.reduced, 0, 2, apart / size);
  g.length += second.size(0);
  return true;
}

Reduction::Reduction(Op op, const at::Tensor& self, const Arguments& arguments)
    : call(check_call(op, self, arguments)), input(c10::MaybeOwned<at::Tensor>::borrowed(self)) {
  const auto copy = [&](at::Tensor made) { input = c10::MaybeOwned<at::Tensor>::owned(std::move(made)); };
  Request& r = call.request;
  const auto sizes = call.result_sizes(self.sizes());
  if (arguments.out != nullptr) {
    output = *arguments.out;
    check_out(op, output, self, c10::fromIntArrayRefSlow(sizes), call.result_type);
  } else {
    output = at::empty(sizes, self.options().dtype(call.result_type).memory_format(std::nullopt));
  }
  if (is_lazy(self)) copy(resolved(self));
  if (!r.row->along_dims) {
    if (!is_flat(op, *input)) copy(input->contiguous());
    one_run(self.numel(), r.geometry);
  } else {
    find_geometry(*input, call.dims, r.geometry);
    if (!r.geometry.fits) {
      copy(gathered(*input, call.dims));
      r.geometry = Geometry();
      find_geometry(*input, call.dims, r.geometry);
    }
    if (self.numel() == 0) {
      write_empty(op, output);
      finished = true;
    }
  }
  if (!input->is_same(self)) r.copied_from = stored_elements(self);
  r.address = reinterpret_cast<uint64_t>(input->const_data_ptr());
}

}  // namespace treduce::reduce
