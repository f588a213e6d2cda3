// Elementwise ops whose result depends, on the CPU, on where an element lies, and which are not composed of others: torch's own, on
// copies that consist of whole vectors. The end of an array, and strided elements, would take another function.
#include <precompiled.h>

#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/angle_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/sgn_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/tanh_backward_ops.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>

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
    if (to_ >= 0 && !schema[to_].kwarg_only()) {  // torch 2.11 would resize it
      const at::IntArrayRef own = arguments_[to_].toTensor().sizes();
      TORCH_CHECK(own == shape_, "output with shape ", own, " doesn't match the broadcast shape ",
                  at::IntArrayRef(shape_));
    }
    count_ = c10::multiply_integers(shape_);
    padded_ = (count_ + kVectors - 1) / kVectors * kVectors;
    arrays_.resize(arguments_.size());
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!arguments_[i].isTensor()) continue;
      const Tensor& t = arguments_[i].toTensor();
      // A number, which has another part in the dtype of the result, is in each vector as it is.
      const bool number = t.dim() == 0 && (!shape_.empty() || t.unsafeGetTensorImpl()->is_wrapped_number());
      if (number && static_cast<int64_t>(i) != to_) continue;
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
  if (seen.elsewhere || !(complex || FloatsOnCpu::judge(seen) == Verdict::ours)) {
    if (!seen.elsewhere) entry.torchs.fetch_add(1, std::memory_order_relaxed);
    return op.redispatchBoxed(keys, stack);
  }
  entry.ours.fetch_add(1, std::memory_order_relaxed);
  const Tensor result = WholeVectors(op, keys, given).result();
  torch::jit::drop(*stack, count);
  stack->emplace_back(result);
}

// Ops whose result depends on the place in some calls alone: of complex numbers, and of 16-bit floats in sums that scale one of them.
// Other calls are frequent, and torch's: they are neither counted nor boxed.
template <class Op, bool kSum, class Signature = typename Op::schema>
struct Seldom;

template <class Op, bool kSum, class R, class... A>
struct Seldom<Op, kSum, R(A...)> {
  static inline Entry* entry = nullptr;

  static R call(c10::DispatchKeySet keys, A... args) {
    keys = keys & below(kKey);
    if (!active() || !depends_on_place(args...)) return Op::redispatch(keys, args...);
    Seen seen;
    (seen.look(args), ...);
    if (seen.elsewhere) return Op::redispatch(keys, args...);
    static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    entry->ours.fetch_add(1, std::memory_order_relaxed);
    const std::vector<c10::IValue> given{c10::IValue(std::decay_t<A>(args))...};
    const Tensor result = WholeVectors(op, keys, given).result();
    if constexpr (std::is_same_v<R, Tensor>) {
      return result;
    } else {
      const auto all = std::tie(args...);
      constexpr bool kInPlace = std::is_same_v<std::tuple_element_t<0, std::tuple<A...>>, Tensor&>;
      return std::get<kInPlace ? 0 : sizeof...(A) - 1>(all);
    }
  }

 private:
  static bool depends_on_place(const A&... args) {
    bool complex = false, narrow = false, scaled = false;
    const auto look = [&](const auto& arg) {
      if constexpr (std::is_same_v<std::decay_t<decltype(arg)>, Tensor>) {
        complex |= is_complex_on_cpu(arg);
        narrow |= arg.is_cpu() && at::isReducedFloatingType(arg.scalar_type());
      } else {
        scaled |= kSum && !arg.equal(1);
      }
    };
    (look(args), ...);
    return complex || (narrow && scaled);
  }
};

template <bool kSum, class... Ops>
void replace_seldom(torch::Library& m) {
  const auto replace_one = [&](auto* of) {
    using Op = std::remove_pointer_t<decltype(of)>;
    const std::string_view name = Op::name, overload = Op::overload_name;
    std::string op_name(name.substr(std::string_view("aten::").size()));
    if (!overload.empty()) op_name.append(".").append(overload);
    Seldom<Op, kSum>::entry = &add_entry(op_name.c_str(), Kind::ours, kReason);
    m.impl(op_name.c_str(), &Seldom<Op, kSum>::call);
  };
  (replace_one(static_cast<Ops*>(nullptr)), ...);
}

}  // namespace

void replace_whole_vectors(torch::Library& m) {
  for (const char* op : kOps) {
    add_entry(op, Kind::ours, kReason);
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&whole_vectors>());
  }
  using namespace at::_ops;
  replace_seldom<true, add_Tensor, add__Tensor, add_out, sub_Tensor, sub__Tensor, sub_out>(m);
  replace_seldom<false, mul_Tensor, mul__Tensor, mul_out, div_Tensor, div__Tensor, div_out, neg, neg_, neg_out, angle,
                 angle_out, sgn, sgn_, sgn_out, addcmul, addcmul_, addcmul_out, addcdiv, addcdiv_, addcdiv_out,
                 tanh_backward, tanh_backward_grad_input, sigmoid_backward, sigmoid_backward_grad_input>(m);
}

}  // namespace treduce::invariant
