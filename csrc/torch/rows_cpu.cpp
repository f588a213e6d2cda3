// The row operations on the CPU, where all variants are one; and, for shapes alone, on meta tensors.
#include <precompiled.h>

#include "../rows/rows_cpu.h"

#include "rows_ops.h"

namespace treduce::rows {
namespace {

struct NoScope {
  explicit NoScope(c10::Device) {}
};

struct OnCpu {
  using Scope = NoScope;
  static constexpr bool kMeta = false;
  static void run(RowCall& call, const Scope&) { run_on_cpu(call.request, call.pointers); }
};

struct OnMeta {
  using Scope = NoScope;
  static constexpr bool kMeta = true;
};

DType checked_wide(const at::Tensor& self, const char* name) {
  const DType dtype = checked_float(self, name);
  TORCH_CHECK_TYPE(size_of(dtype) >= 4, "treduce::", name, " takes float32 and float64, got ", self.scalar_type());
  return dtype;
}

// An element at a time.
at::Tensor applied(const at::Tensor& self, Function function, const char* name) {
  const DType dtype = checked_wide(self, name);
  const at::Tensor from = self.contiguous();
  at::Tensor result = at::empty(from.sizes(), from.options());
  apply_on_cpu(function, dtype == DType::float64, from.const_data_ptr(), from.numel(), result.mutable_data_ptr());
  return result;
}

// Torch's is not correctly rounded here: a fifth of its float32 results are one unit in the last place off.
at::Tensor sqrt_cpu(const at::Tensor& self) { return applied(self, Function::sqrt, "sqrt"); }

at::Tensor same_shape(const at::Tensor& self) {
  return at::empty_symint(self.sym_sizes(), self.options().memory_format(std::nullopt));
}

at::Tensor sqrt_meta(const at::Tensor& self) {
  checked_wide(self, "sqrt");
  return same_shape(self);
}

Function elementary_named(std::string_view name) {
  const Function function = name == "exp" ? Function::exp : name == "log" ? Function::log : Function::rsqrt;
  TORCH_CHECK_VALUE(function != Function::rsqrt || name == "rsqrt",
                    "treduce::elementary knows exp, log and rsqrt, got '", name, "'");
  return function;
}

at::Tensor elementary_cpu(const at::Tensor& self, std::string_view function) {
  return applied(self, elementary_named(function), "elementary");
}

at::Tensor elementary_meta(const at::Tensor& self, std::string_view function) {
  elementary_named(function);
  checked_wide(self, "elementary");
  return same_shape(self);
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CPU, m) {
  Ops<OnCpu>::implement(m);
  m.impl("sqrt", sqrt_cpu);
  m.impl("elementary", elementary_cpu);
}
TORCH_LIBRARY_IMPL(treduce, Meta, m) {
  Ops<OnMeta>::implement(m);
  m.impl("sqrt", sqrt_meta);
  m.impl("elementary", elementary_meta);
}

}  // namespace treduce::rows
