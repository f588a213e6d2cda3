// What the nodes of the autograd graph share.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <memory>
#include <type_traits>

namespace treduce {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Nodes are held by std::shared_ptr up to torch 2.12 and by c10::intrusive_ptr after.
using NodePointer = decltype(torch::autograd::Edge::function);

template <class N, class Pointer = NodePointer>
auto make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    return std::shared_ptr<N>(new N(), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<N>();
  }
}

// The pointer that a node passes to unpack its own output.
template <class N, class Pointer = NodePointer>
Pointer pointer_to(N* node) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    return node->getptr();
  } else {
    return Pointer::reclaim_copy(node);
  }
}

// Forward mode: a tensor's primal, and its tangent, which is undefined if it has none. The formulas of tangents are written in
// differentiable ops.
inline at::Tensor primal_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor._fw_primal(/*level=*/0) : tensor;
}
inline at::Tensor tangent_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor._fw_grad(/*level=*/0) : at::Tensor();
}
template <class... Tensors>
bool any_defined(const Tensors&... tensors) {
  return (tensors.defined() || ...);
}
inline void set_tangent(const at::Tensor& result, const at::Tensor& tangent) {
  if (tangent.defined()) result._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
}
// a + b, where either may be undefined.
inline at::Tensor added(const at::Tensor& a, const at::Tensor& b) {
  return !a.defined() ? b : b.defined() ? a.add(b) : a;
}

// Runs the backend's kernel. While a graph is recorded, or tangents are computed, nothing inside may be recorded too.
template <class Op, class... Args>
auto below_autograd(const Op& op, c10::DispatchKeySet keys, bool records, const Args&... args) {
  if (!records) return op.redispatch(keys & c10::after_autograd_keyset, args...);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.redispatch(keys & c10::after_autograd_keyset, args...);
}

}  // namespace treduce
