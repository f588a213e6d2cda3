// Elementwise ops whose result depends, on the CPU, on where an element lies, and which are not composed of others: torch's own, on
// copies that consist of whole vectors. The end of an array, and strided elements, would take another function.
#include <precompiled.h>

#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mul_ops.h>

#include <algorithm>

#include "invariant_ops.h"

namespace treduce::invariant {
namespace {

using at::Tensor;

constexpr const char* kOps[] = {
    "atanh",
    "atanh.out",
    "atanh_",
    "cosh",
    "cosh.out",
    "cosh_",
    "sinh",
    "sinh.out",
    "sinh_",
    "logit",
    "logit.out",
    "logit_",
    "softshrink",
    "softshrink.out",
    "special_i0e",
    "special_i0e.out",
    "special_i1e",
    "special_i1e.out",
    "pow.Tensor_Scalar",
    "pow.Tensor_Scalar_out",
    "pow.Tensor_Tensor",
    "pow.Tensor_Tensor_out",
    "pow.Scalar",
    "pow.Scalar_out",
    "pow_.Scalar",
    "pow_.Tensor",
    "atan2",
    "atan2.out",
    "atan2_",
    "hypot",
    "hypot.out",
    "hypot_",
    "logaddexp",
    "logaddexp.out",
    "logaddexp2",
    "logaddexp2.out",
    "igamma",
    "igamma.out",
    "igamma_",
    "igammac",
    "igammac.out",
    "igammac_",
    "div.Tensor_mode",
    "div.out_mode",
    "div_.Tensor_mode",
};

// Likewise, but of complex numbers alone.
constexpr const char* kOfComplex[] = {
    "angle", "angle.out", "sgn", "sgn.out", "sgn_",
};

constexpr char kReason[] = "on CUDA torch's is elementwise";

constexpr int64_t kVectors = 64;  // elements: two vectors of any instruction set, which torch computes at a time
constexpr int64_t kBlock =
    32768 - kVectors;  // elements that torch computes in one thread, without cutting them elsewhere

// A call of an elementwise op, its tensors as arrays of whole vectors.
class WholeVectors {
 public:
  WholeVectors(const c10::OperatorHandle& op, c10::DispatchKeySet keys, at::ArrayRef<c10::IValue> given)
      : op_(op), keys_(keys), arguments_(given.vec()), like_(without_data()) {
    const auto& schema = op.schema().arguments();
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!arguments_[i].isTensor()) continue;
      const bool written = schema[i].alias_info() != nullptr && schema[i].alias_info()->isWrite();
      if (written) to_ = static_cast<int64_t>(i);
      if (!written || !schema[i].kwarg_only()) shape_ = at::infer_size(shape_, arguments_[i].toTensor().sizes());
    }
    count_ = c10::multiply_integers(shape_);
    padded_ = (count_ + kVectors - 1) / kVectors * kVectors;
    arrays_.resize(arguments_.size());
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!arguments_[i].isTensor()) continue;
      const Tensor& t = arguments_[i].toTensor();
      // A number, which has another part in the dtype of the result, is in each vector as it is.
      if (t.dim() == 0 && !shape_.empty() && static_cast<int64_t>(i) != to_) continue;
      arrays_[i] = at::empty({padded_}, t.options());
      arrays_[i].narrow(0, count_, padded_ - count_).fill_(1);
      const bool read = static_cast<int64_t>(i) != to_ || !schema[i].kwarg_only();
      if (read) arrays_[i].narrow(0, 0, count_).view(shape_).copy_(t);
    }
  }

  Tensor result() {
    Tensor whole = to_ < 0 ? Tensor() : arrays_[to_];
    if (padded_ == 0) return finished(block(0, 0));
    const Tensor first = block(0, std::min(kBlock, padded_));
    if (!whole.defined()) {
      whole = at::empty({padded_}, first.options());
      whole.narrow(0, 0, first.numel()).copy_(first);
    }
    const int64_t blocks = (padded_ + kBlock - 1) / kBlock;
    at::parallel_for(1, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t n = std::min(kBlock, padded_ - b * kBlock);
        const Tensor part = block(b * kBlock, n);
        if (to_ < 0) whole.narrow(0, b * kBlock, n).copy_(part);
      }
    });
    return finished(whole);
  }

 private:
  // Torch's result without its data: its checks, its strides.
  Tensor without_data() const {
    c10::Stack stack;
    for (const c10::IValue& value : arguments_) {
      stack.push_back(value);
      if (!value.isTensor()) continue;
      const Tensor& t = value.toTensor();
      stack.back() = at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta));
    }
    op_.callBoxed(&stack);
    return stack.back().toTensor();
  }

  Tensor block(int64_t begin, int64_t count) const {
    c10::Stack stack;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      stack.push_back(arrays_[i].defined() ? c10::IValue(arrays_[i].narrow(0, begin, count)) : arguments_[i]);
    }
    op_.redispatchBoxed(keys_, &stack);
    return stack.back().toTensor();
  }

  Tensor finished(const Tensor& whole) const {
    const Tensor result = whole.narrow(0, 0, count_).view(shape_);
    if (to_ < 0) return at::empty_strided(like_.sizes(), like_.strides(), whole.options()).copy_(result);
    Tensor out = arguments_[to_].toTensor();
    return put(result, out);
  }

  const c10::OperatorHandle& op_;
  c10::DispatchKeySet keys_;
  std::vector<c10::IValue> arguments_;
  Tensor like_;
  std::vector<Tensor> arrays_;
  std::vector<int64_t> shape_;
  int64_t to_ = -1;  // the argument that is written
  int64_t count_ = 0, padded_ = 0;
};

bool is_complex_on_cpu(const Tensor& t) { return t.is_cpu() && t.layout() == at::kStrided && t.is_complex(); }

template <bool kComplexOnly>
void whole_vectors(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
  keys = keys & below(kKey);
  if (!active()) return op.redispatchBoxed(keys, stack);
  const size_t count = op.schema().arguments().size();
  const at::ArrayRef<c10::IValue> given = at::ArrayRef<c10::IValue>(*stack).slice(stack->size() - count);
  Seen seen;
  bool complex = false;
  for (const c10::IValue& value : given) {
    if (!value.isTensor()) continue;
    seen.look(value.toTensor());
    complex |= is_complex_on_cpu(value.toTensor());
  }
  Entry& entry = entry_of(op);
  const bool floats = !kComplexOnly && FloatsOnCpu::judge(seen) == Verdict::ours;
  if (seen.elsewhere || !(complex || floats)) {
    if (!seen.elsewhere) entry.torchs.fetch_add(1, std::memory_order_relaxed);
    return op.redispatchBoxed(keys, stack);
  }
  entry.ours.fetch_add(1, std::memory_order_relaxed);
  const Tensor result = WholeVectors(op, keys, given).result();
  torch::jit::drop(*stack, count);
  stack->emplace_back(result);
}

// Products and quotients of complex numbers, likewise. Of others they are frequent, and torch's: these calls are not counted, nor boxed.
template <class Op, class Signature = typename Op::schema>
struct Complex;

template <class Op, class R, class... A>
struct Complex<Op, R(A...)> {
  static R call(c10::DispatchKeySet keys, A... args) {
    keys = keys & below(kKey);
    if (!active() || !(is_complex_on_cpu(args) || ...)) return Op::redispatch(keys, args...);
    Seen seen;
    (seen.look(args), ...);
    if (seen.elsewhere) return Op::redispatch(keys, args...);
    static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static Entry& entry = entry_of(op);
    entry.ours.fetch_add(1, std::memory_order_relaxed);
    const std::vector<c10::IValue> given{c10::IValue(Tensor(args))...};
    const Tensor result = WholeVectors(op, keys, given).result();
    if constexpr (std::is_same_v<R, Tensor>) {
      return result;
    } else {
      return written(args...);
    }
  }

 private:
  static Tensor& written(Tensor& self, const Tensor&) { return self; }
  static Tensor& written(const Tensor&, const Tensor&, Tensor& out) { return out; }
};

template <class Op>
void replace_complex(torch::Library& m, const char* op) {
  add_entry(op, Kind::ours, kReason);
  m.impl(op, &Complex<Op>::call);
}

}  // namespace

void replace_whole_vectors(torch::Library& m) {
  for (const char* op : kOps) {
    add_entry(op, Kind::ours, kReason);
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&whole_vectors<false>>());
  }
  for (const char* op : kOfComplex) {
    add_entry(op, Kind::ours, kReason);
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&whole_vectors<true>>());
  }
  replace_complex<at::_ops::mul_Tensor>(m, "mul.Tensor");
  replace_complex<at::_ops::mul__Tensor>(m, "mul_.Tensor");
  replace_complex<at::_ops::mul_out>(m, "mul.out");
  replace_complex<at::_ops::div_Tensor>(m, "div.Tensor");
  replace_complex<at::_ops::div__Tensor>(m, "div_.Tensor");
  replace_complex<at::_ops::div_out>(m, "div.out");
}

}  // namespace treduce::invariant
