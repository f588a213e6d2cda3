// How our kernels replace aten ops in the mode: which calls they take, which are left to torch, and how often each happens.
#pragma once

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/core/List.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "invariant.h"

namespace treduce::invariant {

// Facts about the tensors of a call that decide who computes it.
struct Seen {
  bool elsewhere = false;  // some tensor has another device or layout, such as meta: torch's
  bool floats = false;     // some tensor has a dtype that we compute
  bool others = false;     // some tensor is complex or an 8-bit float: these round too
  bool sparse = false;     // some tensor is sparse and no integer: its sums and products have other orders
  bool cpu = false;

  void look(const at::Tensor& t) {
    if (!t.defined()) return;
    const bool here = t.is_cpu() || t.is_cuda();
    elsewhere |= !here || t.layout() != at::kStrided;
    cpu |= t.is_cpu();
    const at::ScalarType type = t.scalar_type();
    sparse |= here && (t.is_sparse() || at::sparse_csr::is_sparse_compressed(t)) && !at::isIntegralType(type, true);
    if (type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble) {
      floats = true;
    } else {
      others |= !at::isIntegralType(type, /*includeBool=*/true);
    }
  }
  void look(const std::optional<at::Tensor>& t) {
    if (t.has_value()) look(*t);
  }
  void look(at::TensorList list) {
    for (const at::Tensor& t : list) look(t);
  }
  template <class T>
  std::enable_if_t<!std::is_convertible_v<const T&, const at::Tensor&>> look(const T&) {}
};

enum class Verdict { ours, torchs, uncovered };

// Who computes a call: decided from its tensors and, where needed, its other arguments.
struct Floats {
  template <class... A>
  static Verdict judge(const Seen& seen, const A&...) {
    if (seen.sparse) return Verdict::uncovered;
    if (seen.elsewhere) return Verdict::torchs;
    if (seen.others) return Verdict::uncovered;
    return seen.floats ? Verdict::ours : Verdict::torchs;  // integers are exact
  }
};
struct FloatsOnCpu {
  template <class... A>
  static Verdict judge(const Seen& seen, const A&...) {
    return seen.cpu && !seen.others && !seen.sparse ? Floats::judge(seen) : Verdict::torchs;
  }
};
struct ComplexOnCpu {
  template <class... A>
  static Verdict judge(const Seen& seen, const at::Tensor& self, const A&...) {
    return seen.cpu && !seen.elsewhere && self.is_complex() ? Verdict::ours : Verdict::torchs;
  }
};
struct FloatsAndComplexOnCpu {
  template <class... A>
  static Verdict judge(const Seen& seen, const A&... args) {
    const Verdict verdict = ComplexOnCpu::judge(seen, args...);
    return verdict == Verdict::ours ? verdict : FloatsOnCpu::judge(seen, args...);
  }
};
// Sums take integers and complex numbers too.
struct Numbers {
  template <class... A>
  static Verdict judge(const Seen& seen, const A&...) {
    if (seen.sparse) return Verdict::uncovered;
    return seen.elsewhere ? Verdict::torchs : Verdict::ours;
  }
};

// What torch computes below autocast, our ops inside do not cast. What it takes apart above, it casts then.
template <auto kKernel, class Takes, bool kApart = false>
struct Replaced;

template <class R, class... A, R (*kKernel)(A...), class Takes, bool kApart>
struct Replaced<kKernel, Takes, kApart> {
  static inline Entry* entry = nullptr;

  static R call(c10::DispatchKeySet keys, A... args) {
    if (active()) {
      Seen seen;
      (seen.look(args), ...);
      const Verdict verdict = Takes::judge(seen, args...);
      if (verdict == Verdict::ours) {
        entry->ours.fetch_add(1, std::memory_order_relaxed);
        const c10::impl::ExcludeDispatchKeyGuard guard(kApart ? c10::DispatchKeySet() : c10::autocast_dispatch_keyset);
        return kKernel(std::forward<A>(args)...);
      }
      if (verdict == Verdict::uncovered) {
        report_uncovered(*entry);
      } else if (!seen.elsewhere) {
        entry->torchs.fetch_add(1, std::memory_order_relaxed);
      }
    }
    static const auto op = [] {
      const size_t dot = entry->name.find('.');
      const std::string overload = dot == std::string::npos ? "" : entry->name.substr(dot + 1);
      return c10::Dispatcher::singleton()
          .findSchemaOrThrow(entry->name.substr(0, dot).c_str(), overload.c_str())
          .template typed<R(A...)>();
    }();
    return op.redispatch(keys & below(kKey), std::forward<A>(args)...);
  }
};

template <auto kKernel, class Takes = Floats, bool kApart = false>
void replace(torch::Library& m, const char* op, const char* reason = "") {
  using Call = Replaced<kKernel, Takes, kApart>;
  Call::entry = &add_entry(op, Kind::ours, reason);
  m.impl(op, &Call::call);
}

// An op that torch takes apart above autograd is replaced there too, by a kernel of differentiable ops. Torch's way outside the mode, and
// for calls that the kernel does not take.
template <auto kKernel, auto kTorchs, class Takes>
struct AboveAutograd;

template <class R, class... A, R (*kKernel)(A...), auto kTorchs, class Takes>
struct AboveAutograd<kKernel, kTorchs, Takes> {
  static R call(A... args) {
    if (!active()) return kTorchs(args...);
    Seen seen;
    (seen.look(args), ...);
    if (Takes::judge(seen, args...) != Verdict::ours) return kTorchs(args...);
    Replaced<kKernel, Takes, /*kApart=*/true>::entry->ours.fetch_add(1, std::memory_order_relaxed);
    return kKernel(args...);
  }
};

template <auto kKernel, auto kTorchs, class Takes>
void replace_above(torch::Library& m, const char* op) {
  replace<kKernel, Takes, /*kApart=*/true>(m, op);
  for (const c10::DispatchKey key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    library->impl(op, &AboveAutograd<kKernel, kTorchs, Takes>::call);
  }
}

inline at::Tensor& put(const at::Tensor& result, at::Tensor& out) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

// The forms of a kernel that write into a tensor which is there already.
template <auto kKernel>
struct Into;

template <class Self, class... A, at::Tensor (*kKernel)(Self, A...)>
struct Into<kKernel> {
  static at::Tensor& out(Self self, A... args, at::Tensor& result) { return put(kKernel(self, args...), result); }
  static at::Tensor& self(at::Tensor& self, A... args) { return self.copy_(kKernel(self, args...)); }
};

// An op and its form with out=: of `lerp.Tensor` that is `lerp.Tensor_out`, of `silu` `silu.out`.
template <auto kKernel, class Takes = Floats>
void replace_and_out(torch::Library& m, const std::string& op, const char* reason = "") {
  replace<kKernel, Takes>(m, op.c_str(), reason);
  replace<&Into<kKernel>::out, Takes>(m, (op + (op.find('.') == op.npos ? ".out" : "_out")).c_str(), reason);
}

// The same, and the form in place: `lerp_.Tensor`, `silu_`.
template <auto kKernel, class Takes = Floats>
void replace_forms(torch::Library& m, const std::string& op, const char* reason = "") {
  replace_and_out<kKernel, Takes>(m, op, reason);
  std::string in_place = op;
  in_place.insert(std::min(op.find('.'), op.size()), "_");
  replace<&Into<kKernel>::self, Takes>(m, in_place.c_str(), reason);
}

}  // namespace treduce::invariant
