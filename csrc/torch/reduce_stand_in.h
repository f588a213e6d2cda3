// Reductions of dtypes that no kernel reads, as those of another: uint16, uint32, uint64, complex32 and the other 8-bit floats.
// The bits are those of the values.
#pragma once

#include <vector>

#include "reduce.h"

namespace treduce::reduce {

// What is reduced in place of a call's tensor, and with which arguments. A tensor of another dtype stands for itself.
class StandIn {
 public:
  StandIn(Op op, const at::Tensor& self, const Arguments& arguments);
  StandIn(const StandIn&) = delete;

  const at::Tensor& self() const { return self_.defined() ? self_ : given_; }
  const Arguments& arguments() const { return arguments_; }
  bool is_other() const { return self_.defined(); }
  at::Tensor finished(at::Tensor result) const;

 private:
  void take_parts();

  const at::Tensor& given_;
  Arguments arguments_;
  at::Tensor self_;
  std::vector<int64_t> dims_;
  bool parts_ = false;  // of complex numbers, as a last dim
};

}  // namespace treduce::reduce
