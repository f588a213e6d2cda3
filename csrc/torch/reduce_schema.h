// The schemas of the reductions (library.cpp) as C++ types, for those who call the ops through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>

namespace treduce::reduce {

using SumSchema = at::Tensor(const at::Tensor& self, std::string_view variant, at::OptionalIntArrayRef dim,
                             bool keepdim, std::optional<at::ScalarType> dtype, std::optional<int64_t> block_size,
                             std::optional<int64_t> num_blocks);
using ExtremumSchema = at::Tensor(const at::Tensor& self, std::string_view variant, at::OptionalIntArrayRef dim,
                                  bool keepdim, std::optional<int64_t> block_size, std::optional<int64_t> num_blocks);

template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace treduce::reduce
