// Convolution as a product: every window of the input is a column (im2col), the weights are rows. The gradient of the input, and
// the transposed convolution, add columns back into the places that their windows cover, one place of the window after another.
#include <precompiled.h>

#include <ATen/ops/add.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "composed.h"
#include "invariant_ops.h"
#include "ours.h"

namespace treduce::invariant {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Ints = std::vector<int64_t>;

constexpr int64_t kColumns = int64_t(1) << 26;  // elements that are written out at a time

// What a convolution does along each spatial dim.
struct Windows {
  Ints stride, padding, dilation, output_padding;
  int64_t groups;

  Windows(c10::SymIntArrayRef stride_, c10::SymIntArrayRef padding_, c10::SymIntArrayRef dilation_,
          c10::SymIntArrayRef output_padding_, const c10::SymInt& groups_, int64_t dims)
      : stride(ints(stride_, dims)),
        padding(ints(padding_, dims)),
        dilation(ints(dilation_, dims)),
        output_padding(ints(output_padding_, dims)),
        groups(groups_.guard_int(__FILE__, __LINE__)) {
    const auto least = [dims](const char* what, const Ints& values, int64_t least) {
      const bool fit = std::all_of(values.begin(), values.end(), [least](int64_t value) { return value >= least; });
      TORCH_CHECK_VALUE(static_cast<int64_t>(values.size()) == dims && fit, "convolution takes a ", what, " of ", dims,
                        " numbers, each at least ", least, ", got ", values);
    };
    least("stride", stride, 1);
    least("padding", padding, 0);
    least("dilation", dilation, 1);
    least("output_padding", output_padding, 0);
    TORCH_CHECK_VALUE(groups > 0, "convolution takes at least one group, got ", groups);
  }

  // One number may stand for all dims.
  static Ints ints(c10::SymIntArrayRef symbolic, int64_t dims) {
    Ints result = C10_AS_INTARRAYREF_SLOW(symbolic).vec();
    if (result.size() == 1) result.resize(dims, result[0]);
    return result;
  }
};

int64_t product_of(at::IntArrayRef sizes) {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

// (batch, groups, channels a group * window, places) of an input (batch, channels, ...). The input may have room for more places
// than are asked for: what a transposed convolution adds as output_padding.
Tensor columns(const Tensor& input, at::IntArrayRef window, at::IntArrayRef places, const Windows& w) {
  const int64_t dims = input.dim() - 2;
  Ints pads;
  for (int64_t d = dims - 1; d >= 0; --d) pads.insert(pads.end(), 2, w.padding[d]);
  Tensor x = at::constant_pad_nd(input, pads, 0);
  for (int64_t d = 0; d < dims; ++d) {
    x = x.unfold(2 + d, (window[d] - 1) * w.dilation[d] + 1, w.stride[d])
            .narrow(2 + d, 0, places[d])
            .slice(-1, 0, std::nullopt, w.dilation[d]);
  }
  Ints order{0, 1};
  for (int64_t d = 0; d < dims; ++d) order.push_back(2 + dims + d);
  for (int64_t d = 0; d < dims; ++d) order.push_back(2 + d);
  return x.permute(order).reshape(
      {input.size(0), w.groups, input.size(1) / w.groups * product_of(window), product_of(places)});
}

// The inverse, which adds: columns of windows at places (...) into (batch, channels, ...) of the given spatial sizes.
Tensor folded(const Tensor& columns, at::IntArrayRef sizes, at::IntArrayRef places, at::IntArrayRef window,
              const Windows& w, int64_t channels) {
  const int64_t dims = static_cast<int64_t>(window.size());
  Ints shape{columns.size(0), channels}, padded = shape;
  shape.insert(shape.end(), window.begin(), window.end());
  shape.insert(shape.end(), places.begin(), places.end());
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t covered = (places[d] - 1) * w.stride[d] + (window[d] - 1) * w.dilation[d] + 1;
    padded.push_back(std::max(covered, sizes[d] + 2 * w.padding[d]));
  }
  const Tensor values = columns.reshape(shape);
  const Tensor out = at::zeros(padded, columns.options().dtype(composed::accumulator(columns.scalar_type())));
  Ints at(dims, 0);  // a place in the window
  for (bool more = true; more;) {
    Tensor to = out, from = values;
    for (int64_t d = 0; d < dims; ++d) {
      const int64_t begin = at[d] * w.dilation[d];
      to = to.slice(2 + d, begin, begin + (places[d] - 1) * w.stride[d] + 1, w.stride[d]);
      from = from.select(2, at[d]);
    }
    to.add_(from);
    more = false;
    for (int64_t d = dims - 1; d >= 0 && !more; --d) {
      more = ++at[d] < window[d];
      if (!more) at[d] = 0;
    }
  }
  Tensor result = out;
  for (int64_t d = 0; d < dims; ++d) result = result.narrow(2 + d, w.padding[d], sizes[d]);
  return result.to(columns.scalar_type());
}

// Channels lie last where those of the input or of the weight do, as torch's.
Tensor empty_result(at::IntArrayRef sizes, const Tensor& input, const Tensor& weight) {
  const at::MemoryFormat format = input.suggest_memory_format();
  const bool own = format != at::MemoryFormat::Contiguous;
  return at::empty(sizes, input.options().memory_format(own ? format : weight.suggest_memory_format()));
}

// How many batches are written out at a time, where the columns of each are `each` elements.
template <class Body>
void for_batches(int64_t batches, int64_t each, Body body) {
  const int64_t step = std::clamp<int64_t>(kColumns / std::max<int64_t>(1, each), 1, std::max<int64_t>(1, batches));
  for (int64_t b = 0; b < batches; b += step) body(b, std::min(step, batches - b));
}

// weight (out channels, in channels a group, window ...).
Tensor convolve(const Tensor& input, const Tensor& weight, at::IntArrayRef places, const Windows& w) {
  const at::IntArrayRef window = weight.sizes().slice(2);
  Ints sizes{input.size(0), weight.size(0)};
  sizes.insert(sizes.end(), places.begin(), places.end());
  const Tensor out = empty_result(sizes, input, weight);
  if (out.numel() == 0) return out;
  const Tensor rows = weight.reshape({w.groups, weight.size(0) / w.groups, -1});
  for_batches(input.size(0), w.groups * rows.size(2) * product_of(places), [&](int64_t b, int64_t n) {
    const Tensor product = ours::matmul(rows, columns(input.narrow(0, b, n), window, places, w));
    const Tensor part = out.narrow(0, b, n);
    part.copy_(product.reshape(part.sizes()));
  });
  return out;
}

// The transpose of `convolve`: `input` (batch, out channels, places ...) to (batch, in channels, sizes ...).
Tensor transposed(const Tensor& input, const Tensor& weight, at::IntArrayRef sizes, const Windows& w) {
  const at::IntArrayRef window = weight.sizes().slice(2), places = input.sizes().slice(2);
  const int64_t channels = weight.size(1) * w.groups;
  Ints shape{input.size(0), channels};
  shape.insert(shape.end(), sizes.begin(), sizes.end());
  const Tensor out = empty_result(shape, input, weight);
  if (out.numel() == 0) return out;
  if (input.numel() == 0) return out.zero_();
  const Tensor rows = weight.reshape({w.groups, weight.size(0) / w.groups, -1}).mT();
  for_batches(input.size(0), w.groups * rows.size(1) * product_of(places), [&](int64_t b, int64_t n) {
    const Tensor x = input.narrow(0, b, n).reshape({n, w.groups, weight.size(0) / w.groups, -1});
    out.narrow(0, b, n).copy_(folded(ours::matmul(rows, x), sizes, places, window, w, channels));
  });
  return out;
}

// The gradient of the weight of `convolve`, whose input and output's gradient are given.
Tensor of_weight(const Tensor& input, const Tensor& grad, const Tensor& weight, const Windows& w) {
  if (input.numel() == 0 || grad.numel() == 0) return at::zeros(weight.sizes(), weight.options());
  const int64_t out = weight.size(0) / w.groups;
  const Tensor all = columns(input, weight.sizes().slice(2), grad.sizes().slice(2), w);
  const Tensor left =
      grad.reshape({grad.size(0), w.groups, out, -1}).permute({1, 2, 0, 3}).reshape({w.groups, out, -1});
  const Tensor right = all.permute({1, 0, 3, 2}).reshape({w.groups, -1, all.size(2)});
  return ours::matmul(left, right).reshape(weight.sizes());
}

Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, c10::SymIntArrayRef stride,
                   c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool is_transposed,
                   c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  const int64_t dims = weight.dim() - 2;
  TORCH_CHECK_VALUE(input.dim() == weight.dim() && dims >= 1,
                    "convolution takes an input and a weight of as many dims, got ", input.dim(), " and ",
                    weight.dim());
  const Windows w(stride, padding, dilation, output_padding, groups, dims);
  TORCH_CHECK_VALUE(input.size(1) == (is_transposed ? weight.size(0) : weight.size(1) * w.groups),
                    "convolution: ", input.size(1), " channels of the input do not fit a weight ", weight.sizes(),
                    " of ", w.groups, " groups");
  const int64_t channels = is_transposed ? weight.size(1) * w.groups : weight.size(0);
  const bool biased = bias.has_value() && bias->defined();
  TORCH_CHECK_VALUE(weight.size(0) % w.groups == 0, "convolution: ", w.groups, " groups do not divide the ",
                    weight.size(0), " rows of the weight");
  TORCH_CHECK_VALUE(!biased || (bias->dim() == 1 && bias->size(0) == channels), "convolution takes a bias of ",
                    channels, " elements, got ", biased ? bias->sizes() : at::IntArrayRef());
  Ints sizes;
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t size = input.size(2 + d), window = (weight.size(2 + d) - 1) * w.dilation[d] + 1;
    sizes.push_back(is_transposed ? (size - 1) * w.stride[d] - 2 * w.padding[d] + window + w.output_padding[d]
                                  : (size + 2 * w.padding[d] - window) / w.stride[d] + 1);
    const bool fits = is_transposed ? sizes.back() > 0 : size + 2 * w.padding[d] >= window;
    TORCH_CHECK_VALUE(fits && weight.size(2 + d) > 0, "convolution: no window of ", weight.sizes().slice(2),
                      " fits an input of ", input.sizes().slice(2));
  }
  const Tensor out = is_transposed ? transposed(input, weight, sizes, w) : convolve(input, weight, sizes, w);
  if (!biased) return out;
  Ints shape(out.dim(), 1);
  shape[1] = -1;
  return at::add(out, bias->reshape(shape));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                                        at::OptionalSymIntArrayRef /*bias_sizes*/,
                                                        c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                                                        c10::SymIntArrayRef dilation, bool is_transposed,
                                                        c10::SymIntArrayRef output_padding, c10::SymInt groups,
                                                        std::array<bool, 3> wanted) {
  const int64_t dims = weight.dim() - 2;
  const Windows w(stride, padding, dilation, output_padding, groups, dims);
  Tensor dinput, dweight, dbias;
  if (wanted[0]) {
    const at::IntArrayRef sizes = input.sizes().slice(2);
    dinput = is_transposed ? convolve(grad, weight, sizes, w) : transposed(grad, weight, sizes, w);
  }
  if (wanted[1]) dweight = is_transposed ? of_weight(grad, input, weight, w) : of_weight(input, grad, weight, w);
  if (wanted[2]) {
    Ints others{0};
    for (int64_t d = 0; d < dims; ++d) others.push_back(2 + d);
    dbias = ours::sum(grad, others, /*keepdim=*/false);
  }
  return {dinput, dweight, dbias};
}

}  // namespace

void replace_convolution(torch::Library& m) {
  replace<&convolution>(m, "convolution");
  replace<&convolution_backward>(m, "convolution_backward");
}

}  // namespace treduce::invariant
